"""A host that differs from the majority of its group is named, and the GPU that it misses where a run knew it."""

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gpunode.commands.differences import find_differences, report_differences
from gpunode.engine import history
from gpunode.engine.member import Member
from gpunode.engine.record import Record, RunOptions
from gpunode.engine.reporter import Reporter
from gpunode.model import ExpectedGpus, Host, Module, Outcome, PciDevice, Ssh
from tests import cases

H100, V100 = "2330", "1db4"


def make_host(
    name: str,
    *,
    gpus: int = 8,
    device: str = H100,
    driver: str = "580.1",
    widths: Sequence[int] = (16,),
    group: str = "ai",
    expected: ExpectedGpus | None = None,
) -> Member:
    pci = tuple(
        PciDevice(f"0000:{n:02x}:00.0", "10de", device, "030200", "nvidia", width=widths[n % len(widths)])
        for n in range(gpus)
    )
    seen = replace(cases.facts("modern"), pci=pci, modules={"nvidia": Module(driver, 0)} if driver else {})
    host = Host(name, Ssh("192.0.2.1"), groups=(group,) if group else (), gpus=expected)
    return Member(host, Outcome(name, "right", seen))


THREE = [make_host(name) for name in "abc"]


@pytest.mark.parametrize(
    ("odd", "rows"),
    [
        (make_host("d"), []),
        (make_host("d", gpus=7), [("d", "ai", "GPUs", "7", "8", 3)]),
        (make_host("d", driver="570.1"), [("d", "ai", "driver", "570.1", "580.1", 3)]),
        (make_host("d", widths=(16, 8)), [("d", "ai", "link width", "x8", "x16", 3)]),
        (make_host("d", widths=(0,)), []),  # a virtual machine does not say
        (make_host("d", driver=""), []),  # its chain says that it has none
        (make_host("d", gpus=7, expected=ExpectedGpus(7)), []),  # the inventory says so
        (make_host("d", gpus=7, group="other"), []),
        (Member(Host("d", Ssh("192.0.2.1"), groups=("ai",))), []),  # it was not reached
    ],
)
def test_a_host_is_compared_with_its_group(odd: Member, rows: Sequence[object]):
    assert list(find_differences((*THREE, odd))) == rows


def test_models_are_compared_by_name():
    (row,) = find_differences((*THREE, make_host("d", device=V100)))
    assert row[:4] == ("d", "ai", "model", "Tesla V100-PCIE-16GB")
    assert "H100" in row[4]


def test_less_than_three_alike_or_half_of_the_group_are_no_majority():
    """Of 3 with 8 and 3 with 4 GPUs nobody knows which are right."""
    fours = [make_host(name, gpus=4) for name in "def"]
    assert list(find_differences((*THREE, *fours))) == []
    assert list(find_differences((*THREE[:2], fours[0]))) == []
    assert [row[0] for row in find_differences((*THREE, *fours[:2]))] == ["d", "e"]


def test_hosts_without_a_group_are_compared_with_each_other():
    hosts = [make_host(name, group="") for name in "abc"]
    assert list(find_differences((*hosts, make_host("d", gpus=7, group="")))) == [
        ("d", "", "GPUs", "7", "8", 3)
    ]


@pytest.mark.parametrize("expected", [None, ExpectedGpus(8)])
def test_a_missing_gpu_is_named_by_its_address_where_a_run_knew_it(
    tmp_path, monkeypatch, expected: ExpectedGpus | None
):
    """By the last run that finished the host; with `gpus:` in the inventory, too."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    inventory = tmp_path / "inventory.yaml"
    run = Record.begin(inventory, ["d", "e"], RunOptions())
    run.host("d", "proven", gpus=make_host("d").addresses)
    later = Record.begin(inventory, ["d"], RunOptions())
    later.host("d", "failed", "a GPU is gone")
    assert history.known_gpus(inventory, ["d", "e"]) == {"d": (run.id, make_host("d").addresses)}
    notes, rows = list[str](), list[Any]()
    reporter = SimpleNamespace(note=notes.append, rows=lambda _kind, _columns, every: rows.extend(every))
    odd = make_host("d", gpus=7, expected=expected)
    report_differences((*THREE, odd), str(inventory), cast(Reporter, reporter))
    assert notes == [f"d: missing are the GPUs at 0000:07:00.0, which run {run.id} verified."]
    assert bool(rows) is (expected is None)
