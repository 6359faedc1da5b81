"""Merges keep what is not theirs, are stable, and refuse what they do not understand; templates name their mistakes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tomlkit

from gpunode.errors import CannotPlan, TemplateError
from gpunode.links.runtime.config_toml import containerd_toml
from gpunode.links.runtime.daemon_json import daemon_json
from gpunode.planning import templates
from gpunode.planning.templates import template

NVIDIA = {"path": "nvidia-container-runtime", "args": []}


@pytest.mark.parametrize(
    "text",
    [
        "{}",
        "{ }\n",
        "\n{\n}\n",
        '{"debug": true}',
        '{\n\t"debug": true\n}\n',
        '{"runtimes": {}, "debug": true}\n',
        '{\n  "runtimes": {\n    "kata": {"path": "/k"}\n  },\n  "hosts": ["fd://"]\n}',
        '{"a": {"b": [1, {"c": "}"}], "d": "\\" {"}}\n',
        '{"größe": "ü", "default-runtime": "runc"}\n',
    ],
)
def test_daemon_json_gains_the_runtime_and_loses_nothing(text: str) -> None:
    """The result says what was said before and the runtime; a second merge changes nothing."""
    merged = daemon_json(text, default=True)
    before = json.loads(text)
    expected = {
        **before,
        "default-runtime": "nvidia",
        "runtimes": {**before.get("runtimes", {}), "nvidia": NVIDIA},
    }
    assert json.loads(merged) == expected
    assert list(json.loads(merged))[: len(before)] == list(before)
    assert daemon_json(merged, default=True) == merged


def test_daemon_json_without_a_default() -> None:
    """Only the runtime."""
    assert "default-runtime" not in daemon_json("{}", default=False)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "version = 2\n",
        "version = 3\n\n[debug]\n  level = 'info'\n# the end",
        "version = 2\n[plugins]\n[plugins.'io.containerd.grpc.v1.cri']\nsandbox_image = 'x'\n",
        'version = 2\n[[tables]]\na = 1\n[plugins."io.containerd.grpc.v1.cri".containerd]\n',
        'version = 2\n[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]\n# only a comment\n',
        'version = 2\n[plugins."io.containerd.grpc.v1.cri".containerd]\n[plugins."io.containerd.grpc.v1.cri".cni]\na = 1\n',
        "version = 3\ntext = '''\n[plugins.x]\n'''\n",
    ],
)
@pytest.mark.parametrize("default", [True, False])
def test_config_toml_gains_the_runtime_and_loses_nothing(text: str, default: bool) -> None:
    """Every line of before is there, in order; a second merge changes nothing."""
    merged = containerd_toml(text, default=default)
    assert containerd_toml(merged, default=default) == merged
    rest = iter(merged.splitlines())
    assert all(line in rest for line in text.splitlines())
    assert "BinaryName = " in merged
    assert ("default_runtime_name" in merged) is default
    tomlkit.parse(merged)


def test_config_toml_copies_the_default_runtimes_settings() -> None:
    """What was decided for runc holds for containers on GPUs too."""
    text = (
        'version = 2\n[plugins."io.containerd.grpc.v1.cri".containerd]\ndefault_runtime_name = "own"\n'
        '[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.own]\nruntime_type = "io.containerd.runc.v2"\n'
        'pod_annotations = ["a.*"]\n'
        '[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.own.options]\nBinaryName = "/usr/bin/crun"\n'
        "SystemdCgroup = true\n"
    )
    data = tomlkit.parse(containerd_toml(text, default=True)).unwrap()
    runtimes = data["plugins"]["io.containerd.grpc.v1.cri"]["containerd"]["runtimes"]
    assert runtimes["own"]["options"]["BinaryName"] == "/usr/bin/crun"
    assert runtimes["nvidia"] == {
        "runtime_type": "io.containerd.runc.v2",
        "pod_annotations": ["a.*"],
        "options": {"BinaryName": "/usr/bin/nvidia-container-runtime", "SystemdCgroup": True},
    }


def test_a_runtime_that_lacks_its_options_gets_them() -> None:
    """A half-written entry is completed in place."""
    text = 'version = 2\n[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia]\nprivileged_without_host_devices = true\n'
    data = tomlkit.parse(containerd_toml(text, default=False)).unwrap()
    runtime = data["plugins"]["io.containerd.grpc.v1.cri"]["containerd"]["runtimes"]["nvidia"]
    assert runtime["runtime_type"] == "io.containerd.runc.v2"
    assert runtime["privileged_without_host_devices"] is True
    assert runtime["options"] == {"BinaryName": "/usr/bin/nvidia-container-runtime"}


def test_a_template_that_is_missing_is_named() -> None:
    """With the place where it was looked for."""
    with pytest.raises(TemplateError, match=r"host/etc/none\.j2 is missing"):
        template("etc/none")


def test_a_value_that_a_template_does_not_get_is_named() -> None:
    """A hole is never rendered as nothing."""
    with pytest.raises(TemplateError, match=r"gpunode\.sources\.j2.*'uri' is undefined"):
        template("etc/apt/sources.list.d/gpunode.sources", keyring="/k")


def test_templates_mirror_the_places_where_they_land() -> None:
    """Their names are absolute paths of hosts."""
    names = [str(p.relative_to(templates.folder() / "host")) for p in templates.folder().glob("host/**/*.j2")]
    assert names
    assert {Path(name).parts[0] for name in names} <= {"etc", "usr"}


@pytest.mark.parametrize("depth", [3000, 100_000])
@pytest.mark.parametrize(
    ("merge", "before", "opening", "middle", "closing", "after"),
    [
        (daemon_json, '{"a": ', "[", "", "]", "}"),
        (daemon_json, "", '{"a": ', "1", "}", ""),
        (containerd_toml, "version = 2\na = ", "[", "", "]", "\n"),
    ],
)
def test_what_is_nested_too_deeply_is_refused(
    depth: int, merge: Any, before: str, opening: str, middle: str, closing: str, after: str
) -> None:
    """With the file's name instead of a traceback."""
    with pytest.raises(CannotPlan, match="nested too deeply"):
        merge(before + opening * depth + middle + closing * depth + after, default=True)


def test_a_position_counts_as_editors_do() -> None:
    """Lines and columns from one."""
    with pytest.raises(CannotPlan, match=r"(?m)^f:2:3: "):
        daemon_json("{\n  !\n}", default=True, path="f")
