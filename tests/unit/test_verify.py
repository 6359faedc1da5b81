"""The links of a host, judged from one probe: which is broken, and a fix that helps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from gpunode import desired, pipeline
from gpunode.cluster.nodes import parse
from gpunode.cluster.plugin import Row
from gpunode.model import Facts, Host, Link, Outcome
from gpunode.verify import cluster, host_links
from tests import cases

PROVISION = "gpunode provision --limit modern"


def right() -> tuple[Host, Facts]:
    """A host that gpunode has finished with."""
    host, seen = cases.host("modern"), cases.facts("modern")
    for _ in range(3):
        plan = pipeline.plan(host, seen, desired.decide(host, seen, None))
        seen = cases.applied(seen, plan.changes)
    gpus = [
        {"index": 0, "uuid": "GPU-0", "name": "H100", "pci": seen.pci[0].address, "memory_mib": 81559},
    ]
    return host, cases.overlaid(seen, {"gpus": gpus, "pci": [{"address": "0000:19:00.0", "device": "2330"}]})


def broken(then: Mapping[str, Any]) -> Link:
    """The first broken link of a right host to which something happened."""
    host, seen = right()
    seen = cases.overlaid(seen, then)
    wish = desired.decide(host, seen, None)
    plan = pipeline.plan(host, seen, wish)
    outcome = Outcome(host.name, "planned" if plan else "right", seen, wish, plan)
    return next(link for link in host_links(outcome) if link.status == "broken")


def test_every_link_of_a_right_host_holds() -> None:
    host, seen = right()
    wish = desired.decide(host, seen, None)
    outcome = Outcome(host.name, "right", seen, wish, pipeline.plan(host, seen, wish))
    assert {link.status for link in host_links(outcome)} == {"ok"}


@pytest.mark.parametrize(
    ("then", "layer", "fix"),
    [
        ({"packages": {"nvidia-container-toolkit": "gone"}}, "toolkit", PROVISION),
        ({"library_version": "595.99.99"}, "library", PROVISION),
        ({"modules": {"nvidia": "gone"}}, "module", PROVISION),
        ({"smi_error": "Unable to determine the device handle: GPU is lost.", "gpus": []}, "NVML", "reset"),
        ({"gpus": []}, "NVML", "Xid"),
        (
            {
                "pci": [
                    {"address": "0000:19:00.0", "device": "2330", "driver": "nvidia"},
                    {"address": "0000:3b:00.0", "device": "2330", "driver": "vfio-pci"},
                ]
            },
            "module",
            "vfio-pci",
        ),
        ({"library_version": None}, "library", "ldconfig"),
        (
            {"units": {"containerd.service": {"active": "failed", "sub": "failed"}}},
            "runtime",
            PROVISION,
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_fix_is_provision_only_where_it_would_change_something(
    then: dict[str, Any], layer: str, fix: str
) -> None:
    """What no plan mends has a fix that a person can do."""
    link = broken(then)
    assert link.layer == layer
    assert fix in link.fix
    assert ("provision" in link.fix) == (fix == PROVISION)


def test_a_missing_toolkit_is_explained_by_the_toolkit_not_by_what_apt_must_read_for_it() -> None:
    link = broken({"packages": {"nvidia-container-toolkit": "gone"}})
    assert link.cause.startswith("install nvidia-container-toolkit")


def test_an_unhealthy_gpu_breaks_the_capacity_not_the_plugin() -> None:
    """The plugin runs and says so; it is the GPU that wants mending, which provision cannot."""
    counts = {"capacity": {"nvidia.com/gpu": "2"}, "allocatable": {"nvidia.com/gpu": "1"}}
    node = parse({"metadata": {"name": "a", "uid": "u"}, "status": counts})
    row = Row("a", "plugin-x", "Running", 0, 2, 1, "", "", "1 of 2 GPUs are unhealthy")
    assert cluster.plugin_link(row, "gpunode provision").status == "ok"
    link = cluster.capacity_link(node, 2, row.lacks)
    assert (link.status, link.cause) == ("broken", "1 of 2 GPUs are unhealthy")
    assert "reset" in link.fix
    assert "provision" not in link.fix


def test_a_kubelet_that_says_the_same_at_every_start_is_quoted_once() -> None:
    """Without klog's prefix, whose time differs."""
    words = '"command failed" err="unrecognized feature gate: DevicePlugins"'
    journal = [f"E1121 03:00:0{second}.689499     423 run.go:72] {words}" for second in range(3)]
    unit = {"active": "activating", "sub": "auto-restart"}
    kubelet = {"version": "1.36.3", "unit_text": "", "journal": journal}
    link = broken({"units": {"kubelet.service": unit}, "kubelet": kubelet})
    assert (link.layer, link.cause) == ("kubelet", words)
