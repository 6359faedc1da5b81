"""Merges into files after real ones, as text: what there was stays, and a second merge changes nothing.

What dockerd and containerd make of them is in tests/lab/test_runtime_files.py.
"""

from __future__ import annotations

import difflib
from typing import Any

import pytest
import yaml

from gpunode.links.runtime.config_toml import containerd_toml
from gpunode.links.runtime.daemon_json import daemon_json
from tests import cases

FOLDER = cases.FOLDER / "runtime-files"
REPLACED = ("default_runtime_name", "runtime_type", "runtime_engine", "binaryname", "runtimes")


def _cases(kind: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = yaml.safe_load((FOLDER / f"{kind}.yaml").read_text(encoding="utf-8"))
    return [case for case in found if case["text"] is not None and "refused" not in case]


def _gone(before: str, after: str) -> list[str]:
    pairs = difflib.ndiff(before.splitlines(), after.splitlines())
    return [line[2:].strip() for line in pairs if line.startswith("- ")]


@pytest.mark.parametrize("second", [False, True], ids=["containerd-1", "containerd-2"])
@pytest.mark.parametrize("default", [True, False], ids=["default", "class"])
@pytest.mark.parametrize("case", _cases("containerd"), ids=cases.ids)
def test_a_config_toml_keeps_what_is_not_replaced(case: dict[str, Any], default: bool, second: bool) -> None:
    """Only settings that are the change itself give way."""
    merged = containerd_toml(case["text"], default=default, second=second)
    assert containerd_toml(merged, default=default, second=second) == merged
    for line in _gone(case["text"], merged):
        assert line.split("=")[0].strip().lower() in REPLACED
    assert ("\r\n" in merged) == ("\r\n" in case["text"])
    assert merged.startswith("\ufeff") == case["text"].startswith("\ufeff")


@pytest.mark.parametrize("case", _cases("docker"), ids=cases.ids)
def test_a_daemon_json_keeps_every_line_but_what_is_set(case: dict[str, Any]) -> None:
    """A line before a new one gets its comma."""
    merged = daemon_json(case["text"], default=True)
    assert daemon_json(merged, default=True) == merged
    for line in _gone(case["text"], merged):
        assert f"{line}," in merged or line.rstrip("}") in merged or "runtime" in line or '"path"' in line


def test_every_file_has_its_origin() -> None:
    """At least sixty, each with a name of its own."""
    found = [
        (k, c) for k in ("containerd", "docker") for c in yaml.safe_load((FOLDER / f"{k}.yaml").read_bytes())
    ]
    assert len({(kind, case["name"]) for kind, case in found}) == len(found) >= 60
    assert all(case["origin"] for _, case in found)


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
def test_containerd_2_gets_the_runtime_where_it_reads_it(text: str, table: str) -> None:
    """Of version 1 nothing, of version 2 what the new section does not say; and naming a runtime sets nothing else."""
    merged = containerd_toml(text, default=True, second=True)
    quote = "'" if "'" in text and "[plugins.'" in text else '"'
    assert f"[plugins.{quote}{table}{quote}.containerd.runtimes.nvidia]" in merged
