"""NVIDIA's sources beside the lists that hosts have, judged by the machine's own apt where it has one."""

import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpunode.errors import GpunodeError
from gpunode.model import File, RemoveFile, WriteFile
from gpunode.packages import repositories
from gpunode.packages.apt import lists as apt
from gpunode.packages.apt import plan as sources
from tests import cases, tables
from tests.cases import lists

ALL = [pytest.param(case, id=cases.ids(case)) for case in cases.cases("apt-lists")]
PLANNED = [param for param in ALL if "refused" not in param.values[0]]
REFUSED = [param for param in ALL if "refused" in param.values[0]]


@pytest.mark.parametrize("case", PLANNED)
def test_only_entries_of_the_same_place_change(case: dict[str, Any]):
    """Commented out, disabled, or removed with a file that held nothing else."""
    changes = lists.plan(case, case["lists"])
    assert lists.lines(changes) == case.get("lines", {})
    assert lists.removed(changes) == case.get("removed", [])
    assert case["after"]
    after = lists.written(
        case["lists"], changes
    )  # a second plan: what is commented out, disabled or gone is no entry
    assert not [c for c in lists.plan(case, after) if isinstance(c, WriteFile | RemoveFile)]


@pytest.mark.parametrize("case", REFUSED)
def test_a_list_that_cannot_go_is_refused(case: dict[str, Any]):
    """And no password is shown."""
    with pytest.raises(GpunodeError) as refused:
        lists.plan(case, case["lists"])
    assert case["refused"] in refused.value.message
    assert case["hint"] in refused.value.hint
    assert "secret" not in refused.value.message


@tables.rows("apt-places")
def test_a_place_is_where_apt_keeps_its_index(uri: str, suite: str, place: str):
    """Scheme and login do not count, and the last folder may be the suite."""
    assert apt.place(uri, "amd64", suite) == place


def test_a_place_in_another_spelling():
    """apt takes these for several."""
    for place in ("A.example:443/x/./amd64/", "a.example//x/amd64//", "a.example/x/amd64/"):
        assert apt.plain(place) == "a.example/x/amd64/"


def ask_apt(root: Path, texts: Mapping[str, str]) -> tuple[set[str], list[str]]:
    """The addresses of the indexes that apt knows of these lists, and its errors and warnings. Nothing is fetched."""
    for path in ("/etc/apt/sources.list.d", "/lists/partial"):
        (root / path[1:]).mkdir(parents=True)
    for path, text in {"/etc/apt/sources.list": "", **texts}.items():
        if path.startswith("/etc/apt/sources.list"):
            (root / path[1:]).write_text(text, newline="")
    options = {
        "APT::Architecture": "amd64",
        "APT::Architectures": "amd64",
        "Dir::Etc::sourcelist": f"{root}/etc/apt/sources.list",
        "Dir::Etc::sourceparts": f"{root}/etc/apt/sources.list.d",
        "Dir::State::lists": f"{root}/lists",
        "Dir::Cache": f"{root}",
    }
    words = [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
    command = ["apt-get", *words, "indextargets", "--no-release-info", "--format", "$(URI)"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return set(done.stdout.splitlines()), [line for line in done.stderr.splitlines() if line[:1] in "EW"]


@pytest.mark.skipif(shutil.which("apt-get") is None, reason="this machine has no apt to ask")
@pytest.mark.parametrize("case", PLANNED)
def test_apt_reads_the_lists_and_loses_nothing_but_another_way_to_the_same_place(
    tmp_path, case: dict[str, Any]
):
    """No error, no source twice; what is gone was at one of gpunode's own places, or at a dead one."""
    before, complaints = ask_apt(tmp_path / "before", case["lists"])
    assert complaints == []
    changed = lists.written(case["lists"], lists.plan(case, case["lists"]))
    after, complaints = ask_apt(tmp_path / "after", changed)
    assert complaints == []
    own = [uri.replace("$(ARCH)", "amd64") for uri in lists.uris(case)]
    places = {apt.plain(apt.place(uri, "amd64")) for uri in own}
    assert {f"{uri}/Packages" for uri in own} <= after
    assert after - before <= {f"{uri}/Packages" for uri in own}
    for folder in {index.rpartition("/")[0] for index in before - after}:
        assert apt.plain(apt.place(folder, "amd64")) in places or repositories.is_dead("apt", folder)


@tables.rows("crypto-policies")
def test_a_crypto_policy_allows_sha1_by_its_value(policy: str, allowed: bool):
    text = f"[hash_algorithms]\n{policy}\n"
    list_ = "deb https://developer.download.nvidia.com/compute/cuda/repos/debian12/x86_64/ /\n"
    paths = {sources.POLICY: text, "/etc/apt/sources.list.d/cuda.list": list_}
    seen = cases.facts("modern")
    seen = replace(
        seen,
        time=1795132800.0,  # 2026-11-20
        os=replace(seen.os, id="debian", version="13"),
        files={path: File(path, exists=True, content=content) for path, content in paths.items()},
    )
    assert sources.offers(seen, "driver") is allowed
