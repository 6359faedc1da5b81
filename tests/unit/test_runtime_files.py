"""Merges of the nvidia runtime into files, many after real ones: what there was stays, and a second merge changes nothing.

What dockerd and containerd make of them is in tests/lab/test_runtime_files.py.
"""

import difflib
import itertools
import json
from typing import Any

import pytest
import tomlkit

from gpunode.errors import CannotPlan
from gpunode.links.runtime.config_toml import containerd_toml
from gpunode.links.runtime.docker import daemon_json
from gpunode.model import Facts, Os
from gpunode.planning import files
from tests import cases

NVIDIA = {"path": "nvidia-container-runtime", "args": []}
SMALL = {
    "docker": [
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
    "containerd": [
        "",
        "version = 2\n",
        "version = 3\n\n[debug]\n  level = 'info'\n# the end",
        "version = 2\n[plugins]\n[plugins.'io.containerd.grpc.v1.cri']\nsandbox_image = 'x'\n",
        'version = 2\n[[tables]]\na = 1\n[plugins."io.containerd.grpc.v1.cri".containerd]\n',
        'version = 2\n[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]\n# only a comment\n',
        'version = 2\n[plugins."io.containerd.grpc.v1.cri".containerd]\n[plugins."io.containerd.grpc.v1.cri".cni]\na = 1\n',
        "version = 3\ntext = '''\n[plugins.x]\n'''\n",
    ],
}
REPLACED = ("default_runtime_name", "runtime_type", "runtime_engine", "binaryname", "runtimes")


def _texts(kind: str) -> list[Any]:
    """Of real files, by the names of their cases, then small ones."""
    files: list[dict[str, Any]] = cases.read(f"runtime-files/{kind}.yaml")
    real = [case for case in files if case["text"] is not None and "refused" not in case]
    return [*(pytest.param(case["text"], id=cases.ids(case)) for case in real), *SMALL[kind]]


def _gone(before: str, after: str) -> list[str]:
    pairs = difflib.ndiff(before.splitlines(), after.splitlines())
    return [line[2:].strip() for line in pairs if line.startswith("- ")]


@pytest.mark.parametrize("text", _texts("containerd"))
def test_a_config_toml_gains_the_runtime_and_keeps_what_is_not_replaced(text: str):
    """Only settings that are the change itself give way. As default runtime or not, by containerd 1 and 2."""
    for default, second in itertools.product((True, False), repeat=2):
        merged = containerd_toml(text, default=default, second=second)
        assert containerd_toml(merged, default=default, second=second) == merged
        for line in _gone(text, merged):
            assert line.split("=")[0].strip().lower() in REPLACED
        assert "nvidia-container-runtime" in merged
        assert "default_runtime_name" in text or ("default_runtime_name" in merged) is default
        assert ("\r\n" in merged) == ("\r\n" in text)
        assert merged.startswith("\ufeff") == text.startswith("\ufeff")


@pytest.mark.parametrize("text", _texts("docker"))
def test_a_daemon_json_gains_the_runtime_and_keeps_all_else(text: str):
    """Every key in its order, every line but for the comma before a new one."""
    merged = daemon_json(text, default=True)
    assert daemon_json(merged, default=True) == merged
    for line in _gone(text, merged):
        assert f"{line}," in merged or line.rstrip("} ") in merged or "runtime" in line or '"path"' in line
    before, after = (json.loads(each.lstrip("\ufeff") or "{}") for each in (text, merged))
    had, has = before.get("runtimes") or {}, after["runtimes"]
    assert after == {**before, "default-runtime": "nvidia", "runtimes": {**had, "nvidia": has["nvidia"]}}
    assert "nvidia" in had or has["nvidia"] == NVIDIA
    assert [key for key in after if key in before] == list(before)


def test_every_file_has_its_origin():
    """At least sixty, each with a name of its own."""
    files = [(k, c) for k in ("containerd", "docker") for c in cases.read(f"runtime-files/{k}.yaml")]
    assert len({(kind, case["name"]) for kind, case in files}) == len(files) >= 60
    assert all(case["origin"] for _, case in files)


@pytest.mark.parametrize(
    ("text", "table"),
    [
        ("", "io.containerd.cri.v1.runtime"),
        ("[plugins.cri]\nsandbox_image = 'x'\n", "io.containerd.cri.v1.runtime"),
        ("version = 2\n", "io.containerd.grpc.v1.cri"),
        (
            "version = 2\n[plugins.'io.containerd.grpc.v1.cri'.containerd]\ndiscard_unpacked_layers = true\n",
            "io.containerd.cri.v1.runtime",
        ),
        (
            "version = 2\n[plugins.'io.containerd.grpc.v1.cri'.containerd]\ndiscard_unpacked_layers = true\n"
            "[plugins.'io.containerd.grpc.v1.cri'.containerd.runtimes.runc]\nruntime_type = 'io.containerd.runc.v2'\n",
            "io.containerd.grpc.v1.cri",
        ),
        (
            "version = 2\n[plugins.'io.containerd.cri.v1.runtime'.containerd]\ndefault_runtime_name = 'own'\n",
            "io.containerd.cri.v1.runtime",
        ),
        (
            "version = 3\n[plugins.'io.containerd.grpc.v1.cri'.containerd.runtimes.x]\n",
            "io.containerd.cri.v1.runtime",
        ),
    ],
)
def test_containerd_2_gets_the_runtime_where_it_reads_it(text: str, table: str):
    """Of version 1 nothing, of version 2 what the new section does not say; and naming a runtime sets nothing else."""
    merged = containerd_toml(text, default=True, second=True)
    quote = "'" if "'" in text and "[plugins.'" in text else '"'
    assert f"[plugins.{quote}{table}{quote}.containerd.runtimes.nvidia]" in merged


def test_daemon_json_without_a_default():
    """Only the runtime."""
    assert "default-runtime" not in daemon_json("{}", default=False)


def test_config_toml_copies_the_default_runtimes_settings():
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


def test_a_runtime_that_lacks_its_options_gets_them():
    """A half-written entry is completed in place."""
    text = 'version = 2\n[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia]\nprivileged_without_host_devices = true\n'
    data = tomlkit.parse(containerd_toml(text, default=False)).unwrap()
    runtime = data["plugins"]["io.containerd.grpc.v1.cri"]["containerd"]["runtimes"]["nvidia"]
    assert runtime["runtime_type"] == "io.containerd.runc.v2"
    assert runtime["privileged_without_host_devices"] is True
    assert runtime["options"] == {"BinaryName": "/usr/bin/nvidia-container-runtime"}


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
):
    """With the file's name instead of a traceback."""
    with pytest.raises(CannotPlan, match="nested too deeply"):
        merge(before + opening * depth + middle + closing * depth + after, default=True)


def test_a_position_counts_as_editors_do():
    """Lines and columns from one."""
    with pytest.raises(CannotPlan, match=r"(?m)^f:2:3: "):
        daemon_json("{\n  !\n}", default=True, path="f")


@pytest.mark.parametrize(
    ("before", "after", "fault"),
    [
        ("uri: a\nkey: k\n", "uri: b\nkey: k\n", "/f has `uri: a`, lacks `uri: b`: the source"),
        ("a\n", "a\n  b\n", "/f lacks `b`: the source"),
        ("a\na\n\nb", "a\nb\n", "/f differs in blank or repeated lines, or in line ends: the source"),
        ("a\nb\n", "b\na\n", "/f has its lines in another order: the source"),
        ("a\n", "b\nc\nd\n", "/f differs from the planned file (3 lines): the source"),
        ("a\n", "b" * 81, "/f differs from the planned file (1 line): the source"),
    ],
)
def test_a_fault_names_few_and_short_lines_that_differ(before: str, after: str, fault: str):
    seen = files.overlay(Facts(1.0, "h", Os("debian", "12", "", "amd64"), "6.1", "b"), {"/f": before})
    (change,) = files.write(seen, "/f", after, "the source")
    assert change.fault == fault
