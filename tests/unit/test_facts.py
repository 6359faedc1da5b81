"""Raw facts become Facts; what is missing or failed is empty, never an exception."""

import contextlib
import copy
import functools
from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from gpunode.engine import converge
from gpunode.engine.chain import judge_host
from gpunode.errors import UnexpectedAnswer
from gpunode.host import answers
from gpunode.model import (
    Containerd,
    Docker,
    File,
    Gpu,
    GpuUser,
    Host,
    InstalledRun,
    Kubelet,
    Module,
    Os,
    Package,
    PciDevice,
    Run,
    Ssh,
    Unit,
)
from tests import tables

BARE: dict[str, Any] = {
    "time": 1000.5,
    "hostname": "gpu-07",
    "kernel": "6.1.0",
    "boot_id": "b",
    "uptime": 7,
}
RAW: dict[str, Any] = {**BARE, **tables.read("facts")}


def test_everything_that_was_seen_is_in_the_facts():
    """Field by field."""
    seen = answers.parse_facts(RAW)
    assert seen.os == Os("ubuntu", "24.04", "U", "amd64")
    assert seen.pci == (PciDevice("0000:3b:00.0", "10de", "2330", "030200", None),)
    assert seen.modules == {"nvidia": Module("580.95.05", 3)}
    assert seen.gpus == (Gpu(0, "GPU-1", "NVIDIA H100", "0000:3b:00.0", 81559),)
    assert seen.packages == {"nvidia-open": Package("nvidia-open", "595.1", held=True)}
    assert seen.units == {
        "docker.service": Unit("docker.service", "loaded", "active", "running", "enabled", 5.5, 1)
    }
    assert seen.docker == Docker("20.10", ("nvidia", "runc"), "runc", "cgroupfs", 2)
    assert seen.containerd == Containerd("2.2.0", "version = 3")
    assert seen.kubelet == Kubelet("1.23.17", ("/usr/bin/kubelet",), "[Unit]")
    assert seen.gpu_users == (GpuUser(4, "python3"),)
    assert seen.containers == 2
    assert seen.installed_run == InstalledRun("580.95.05", built=True)
    assert seen.files == {"/etc/a": File("/etc/a", True, "x", 420, 1.5, "a"), "/b": File("/b", False)}
    assert seen.running == Run("r1", 3.0, "anna")
    assert (seen.cgroup, seen.secure_boot, seen.library_version) == ("v2", True, "580.95.05")


@pytest.mark.parametrize(
    "raw", [BARE, {key: RAW.get(key) if key in BARE else None for key in RAW}], ids=["missing", "failed"]
)
def test_what_could_not_be_read_is_empty(raw: dict[str, Any]):
    """Whether the section is missing or null."""
    seen = answers.parse_facts(raw)
    assert (seen.hostname, seen.os.id, seen.pci, seen.gpus, seen.units, seen.files) == (
        "gpu-07",
        "",
        (),
        (),
        {},
        {},
    )
    assert (
        seen.docker
        is seen.containerd
        is seen.kubelet
        is seen.running
        is seen.containers
        is seen.secure_boot
        is None
    )


def test_why_a_section_is_empty_is_kept():
    """So that nobody takes `could not look` for `nothing there`."""
    assert answers.parse_facts({**BARE, "errors": {"units": "no bus"}}).errors == {"units": "no bus"}


def test_images_are_kept_for_each_runtime():
    """A node may have both; which one counts is decided with the rest of what is wished of it."""
    assert answers.parse_facts(RAW).images == RAW["images"]


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The keys and indexes that lead to each value."""
    items: Iterable[tuple[Any, Any]] = value.items() if isinstance(value, dict) else ()
    for key, each in enumerate(value) if isinstance(value, list) else items:
        yield (*path, key)
        yield from places(each, (*path, key))


ODD = (None, True, -1, 1e18, 10**400, "", "\ud800", "9" * 5000, [], [[None]], {}, {"": {}})


@pytest.mark.parametrize("odd", ODD, ids=lambda odd: type(odd).__name__)
def test_whatever_stands_anywhere_is_planned_on_or_refused(odd: object):
    """A host may answer anything."""
    host = Host("gpu-07", Ssh("gpu-07"))
    for path in places(RAW):
        raw = copy.deepcopy(RAW)
        functools.reduce(lambda value, key: value[key], path[:-1], raw)[path[-1]] = odd
        with contextlib.suppress(UnexpectedAnswer):
            judge_host(converge.plan_host(host, answers.parse_facts(raw), None))
