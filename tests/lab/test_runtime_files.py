"""Files after real ones (tests/cases/runtime-files), merged into and judged by dockerd and containerd themselves.

Needs no cluster: each batch of cases has a root, a network and processes of its own (judged.sh), several side by side.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import tomlkit
import yaml

from tests import cases

from . import builds, machine
from .progress import CannotRun

pytestmark = pytest.mark.lab

HERE = Path(__file__).parent
PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
BATCH = 8
BINARY = "/usr/bin/nvidia-container-runtime"
SHIM = "io.containerd.runc.v2"


def _cases(kind: str) -> list[dict[str, Any]]:
    modes = ["default"] if kind in ("docker", "drop-ins") else ["default", "class"]
    text = (cases.FOLDER / "runtime-files" / f"{kind}.yaml").read_text(encoding="utf-8")
    program = "docker" if kind == "docker" else "containerd"
    return [{**case, "kind": program, "modes": modes} for case in yaml.safe_load(text)]


DOCKER = _cases("docker")
CONTAINERD = [(by, case) for case in _cases("containerd") for by in case.get("by", ("1", "2"))]
DROP_INS = [(case["by"], case) for case in _cases("drop-ins")]


@pytest.fixture(scope="module")
def judge() -> Iterator[Mapping[tuple[str, str], Future[dict[str, Any]]]]:
    """What the programs make of all cases, by program and name: started at once, each answer waited for when asked for."""
    try:
        machine.check()
    except CannotRun as reason:
        pytest.skip(str(reason))
    paths = {"dockerd": PATH, "1": PATH}
    missing = [
        name
        for name in ("dockerd", "docker", "containerd", "runc", "unshare")
        if not shutil.which(name, path=PATH)
    ]
    if missing:
        pytest.skip(f"{', '.join(missing)} not found on this machine")
    paths["2"] = f"{builds.go(builds.CONTAINERD)}:{PATH}"
    every = [*CONTAINERD, *DROP_INS]
    jobs = {"dockerd": DOCKER} | {by: [case for b, case in every if b == by] for by in ("1", "2")}
    answers: dict[tuple[str, str], Future[dict[str, Any]]] = {}
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for by, wanted in jobs.items():
            for start in range(0, len(wanted), BATCH):
                batch = wanted[start : start + BATCH]
                answer = pool.submit(_judged, paths[by], batch)
                for number, case in enumerate(batch):
                    answers[by, case["name"]] = pool.submit(lambda a=answer, n=number: a.result()[n])
        yield answers


def _judged(path: str, batch: list[dict[str, Any]]) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as root:
        apart = ["unshare", "--mount", "--net", "--pid", "--fork", "--propagation", "private"]
        program = [
            "env",
            f"PATH={path}",
            f"PYTHONPATH={HERE.parents[1]}",
            sys.executable,
            "-m",
            "tests.lab.judge",
        ]
        done = subprocess.run(
            [*apart, "sh", HERE / "judged.sh", root, *program],
            input=json.dumps(batch),
            capture_output=True,
            text=True,
            check=False,
        )
    assert not done.returncode, done.stderr[-4000:]
    return list(json.loads(done.stdout))


def _id(value: object) -> str:
    return cases.ids(value) if isinstance(value, dict) else str(value)


@pytest.mark.parametrize("case", DOCKER, ids=_id)
def test_docker_has_what_was_wanted_and_all_else_as_before(judge: Any, case: dict[str, Any]):
    """It starts with the merged file where it started with the one before; a second plan writes nothing."""
    answer = judge["dockerd", case["name"]].result()
    before, after = answer["before"]["info"], answer["default"]
    if "refused" in case:
        assert case["refused"] in after["refused"]
        return
    assert "refused" not in after, after
    assert "rejected" not in after, after
    assert after["second"] == []
    old, new = (json.loads((text or "{}").strip() or "{}") for text in (case["text"], after["text"]))
    runtimes = new.pop("runtimes")
    assert runtimes.pop("nvidia")["path"] in (BINARY, "nvidia-container-runtime")
    assert runtimes == {
        name: value for name, value in (old.pop("runtimes", None) or {}).items() if name != "nvidia"
    }
    assert new.pop("default-runtime") == "nvidia"
    old.pop("default-runtime", None)
    assert new == old
    assert (before is None) == ("down" in case), answer["before"]["log"]
    if before is None and after["info"] is None:
        return
    assert after["info"] is not None, after["log"]
    assert after["info"]["DefaultRuntime"] == "nvidia"
    assert after["info"]["Runtimes"].pop("nvidia")["path"] in (BINARY, "nvidia-container-runtime")
    if before:
        before["Runtimes"].pop("nvidia", None)
        assert {**after["info"], "DefaultRuntime": ""} == {**before, "DefaultRuntime": ""}


@pytest.mark.parametrize("mode", ["default", "class"])
@pytest.mark.parametrize(("by", "case"), CONTAINERD, ids=_id)
def test_containerd_has_what_was_wanted_and_all_else_as_before(
    judge: Any, by: str, case: dict[str, Any], mode: str
):
    """Its CRI plugin answers where it did, with every runtime of before; a second plan writes nothing."""
    answer = judge[by, case["name"]].result()
    before, after = answer["before"], answer[mode]
    refused = case.get("refused")
    refused = refused.get(mode) if isinstance(refused, dict) else refused
    if refused is not None:
        assert refused in after["refused"]
        return
    assert "refused" not in after, after
    assert "rejected" not in after, after
    assert after["second"] == []
    for line in after["lost"]:  # these are replaced, everything else stays
        assert line.split("=")[0].strip().lower() in (
            "default_runtime_name",
            "runtime_type",
            "runtime_engine",
            "runtime_root",
            "binaryname",
            "runtimes",
        )
    old, new = (_Dump(value["dump"]) for value in (before, after))
    mine, theirs = new.runtimes.pop("nvidia"), old.runtimes.pop("nvidia", {})
    assert mine["runtime_type"] == SHIM
    assert mine["options"]["binaryname"] == BINARY
    assert {**theirs.get("options", {}), "binaryname": BINARY}.items() <= mine["options"].items()
    assert new.default == (
        "nvidia" if mode == "default" else {"nvidia": "runc"}.get(old.default, old.default)
    )
    if "runc" not in old.runtimes:
        new.runtimes.pop("runc", None)
    assert new.runtimes == old.runtimes
    assert new.rest == old.rest
    down = case.get("down", {})
    assert (before["cri"] is None) == (by in down), before["log"]
    if before["cri"] is None and after["cri"] is None:
        return
    assert after["cri"] is not None, (after.get("error"), after["log"])
    handlers = after["cri"]["runtimes"]
    assert {*(before["cri"]["runtimes"] if before["cri"] else ()), "nvidia", new.default} <= {
        *handlers,
        "default",
    }
    assert after["cri"]["defaultRuntimeName"] == new.default


@pytest.mark.parametrize(("by", "case"), DROP_INS, ids=_id)
def test_containerd_has_the_main_file_again_that_a_drop_in_of_another_version_cut_off(
    judge: Any, by: str, case: dict[str, Any]
):
    """It starts, with the main file's settings and the nvidia runtime; a second plan writes nothing."""
    answer = judge[by, case["name"]].result()
    before, after = answer["before"], answer["default"]
    assert before["dump"] is None or any(words not in before["dump"] for words in case["has"]), before["dump"]
    assert "refused" not in after, after
    assert "rejected" not in after, after
    assert after["second"] == []
    assert after["cri"]["defaultRuntimeName"] == "nvidia", after["log"]
    for words in case["has"]:
        assert words in after["dump"].replace('"', "'")


class _Dump:
    """What is set in a dump: runtimes, the one by default, and the rest."""

    def __init__(self, dump: str) -> None:
        data = tomlkit.parse(dump).unwrap()
        data.pop("imports", None)
        section = next(
            plugin["containerd"]
            for name, plugin in data["plugins"].items()
            if "runtimes" in plugin.get("containerd", ())
        )
        table = section.get("default_runtime", {})
        self.default = "default" if table.get("runtime_type") else section.pop("default_runtime_name")
        section["default_runtime_name"] = table["runtime_type"] = ""
        self.runtimes = {name: _set(runtime) for name, runtime in section.pop("runtimes").items()}
        for runtime in self.runtimes.values():
            runtime["options"] = {name.lower(): value for name, value in runtime.get("options", {}).items()}
        self.rest = _set(data)


def _set(value: Any) -> Any:
    """Without what is empty, zero or false."""
    if not isinstance(value, dict):
        return value
    return {key: each for key, each in ((key, _set(each)) for key, each in value.items()) if each}
