"""The program on a host without Kubernetes: its modules travel with a job, and nothing of them stays."""

import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from gpunode.acceptance.judge import compare_fleet, judge
from gpunode.contract import measurements
from gpunode.links.pod.on_host import measure

from .stand_in import StandIn, build


@pytest.fixture
def host(tmp_path, monkeypatch) -> Iterator[Path]:
    """A host's root, whose driver's libraries are the lab's stand-ins."""
    (tmp_path / "run").mkdir()
    monkeypatch.setattr(measure, "below", lambda path: f"{tmp_path}{path}")
    yield tmp_path
    assert [*(tmp_path / "run").iterdir()] == []


def pack(archive: zipfile.ZipFile, path: Path, name: Path) -> None:
    text = path.read_bytes().replace(b"LONGEST = 1.5", b"LONGEST = 0.02")
    archive.writestr(str(name), text.replace(b"Budget(0.5, 3, 1, 4)", b"Budget(0.01, 0.03, 1, 0.03)"))


def ask() -> list[dict[str, Any]]:
    """With stages of a moment: the stand-in computes all the time that it is given."""
    from gpunode.engine import acceptance  # it takes as long to import as all of this folder
    from gpunode.host import wire

    with mock.patch.object(zipfile.ZipFile, "write", pack):
        job = wire.measure_job(acceptance._bundle(), "quick", 120)
    return [wire.read(message) for message in measure.measure(job["program"], job["level"], job["seconds"])]


def test_the_program_measures_where_nothing_of_gpunode_is_installed(
    host: Path, tmp_path_factory, monkeypatch
):
    driver: StandIn = build(tmp_path_factory.mktemp("driver"))
    driver.gpus({"model": "H100-SXM5-80GB"})
    monkeypatch.setattr(
        measure, "ENV", {**driver.environment(), "PATH": "/usr/bin:/bin", "PYTHONPATH": "/nowhere"}
    )
    *_, answered = ask()
    assert answered["error"] == ""
    document = measurements.loads(answered["output"].splitlines()[-1])
    (judged,) = judge(document, compare_fleet([document]))
    assert judged.gpu.measured.memory_errors == judged.gpu.measured.compute_errors == 0
    assert {problem.code for problem in judged.problems} <= {"memory-slow", "compute-slow", "transfer-slow"}


def test_a_host_without_a_driver_says_so(host: Path, monkeypatch):
    monkeypatch.setattr(measure, "ENV", {"PATH": "/usr/bin:/bin", "LD_LIBRARY_PATH": "/nowhere"})
    *_, answered = ask()
    assert "libcuda.so.1" in answered["error"]


def test_a_host_with_an_older_python_alone_is_told_what_it_needs(host: Path, monkeypatch):
    monkeypatch.setattr(measure.sys, "version_info", (3, 6, 8))
    monkeypatch.setattr(measure, "glob_of", lambda pattern: ["/usr/bin/python3.6", "/usr/bin/python3.9"])
    (answered,) = ask()
    assert "Python 3.10" in answered["error"]
    monkeypatch.setattr(measure, "glob_of", lambda pattern: ["/usr/bin/python3.9", "/usr/bin/python3.12"])
    assert measure.find_python() == f"{host}/usr/bin/python3.12"
