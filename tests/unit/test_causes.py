"""verify of a fleet ends with its causes: each once, with its hosts and a fix for all of them."""

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from gpunode import report
from gpunode.commands.causes import report_causes
from gpunode.engine.reporter import Reporter
from gpunode.errors import NO_RIGHTS, Problem
from gpunode.model import Verdict
from gpunode.wording import Advice, Command

Rows = list[Sequence[Any]]


def causes(chains: dict[str, Sequence[Verdict]]) -> Rows:
    rows: Rows = []
    report_causes(chains, cast(Reporter, SimpleNamespace(rows=lambda _kind, _columns, all: rows.extend(all))))
    return rows


def lacking(host: str) -> Verdict:
    return Verdict.broken(
        "runtime",
        "containerd lacks nvidia",
        f"{host}'s file has none",
        Advice(Command("provision", f"--limit {host}")),
    )


def lost(host: str, gpu: str) -> Verdict:
    return Verdict.broken("NVML", f"7 of 8 GPUs answer; missing: {gpu}", "", f"See dmesg on {host}.")


def test_hosts_that_are_broken_alike_are_one_row_with_one_fix():
    """The most of them first; the fix names them all, quoted for a shell."""
    hosts = [f"gpu-{n:02}" for n in range(1, 13)]
    chains = {host: [Verdict.ok("PCI", "8x H100"), lacking(host), Verdict.unknown("node")] for host in hosts}
    rows = causes({"x": [lost("x", "0000:3b:00.0")], **chains, "good": [Verdict.ok("PCI", "8x H100")]})
    assert rows == [
        (
            "containerd lacks nvidia: HOST's file has none", "runtime", 12, tuple(hosts),
            "gpunode provision --limit 'gpu-[01:12]'",
        ),
        ("7 of 8 GPUs answer; missing: 0000:3b:00.0", "NVML", 1, ("x",), "See dmesg on x."),
    ]  # fmt: skip
    assert str(rows[0][3]) == "gpu-[01:12]"
    assert isinstance(rows[0][4], Advice)
    assert report.expand(rows[0][4], Path("inv.yaml")) == "gpunode provision inv.yaml --limit 'gpu-[01:12]'"


def test_addresses_and_names_do_not_part_hosts_that_are_broken_alike():
    """A name within another word stays; a different count is another cause."""
    rows = causes({"a": [lost("a", "0000:3b:00.0")], "b": [lost("b", "0000:5e:00.0")]})
    assert rows == [("7 of 8 GPUs answer; missing: …", "NVML", 2, ("a", "b"), "See dmesg on HOST.")]
    other = Verdict.broken("NVML", "6 of 8 GPUs answer; missing: 0000:3b:00.0")
    assert [row[2] for row in causes({"a": [lost("a", "0000:3b:00.0")], "b": [other]})] == [1, 1]


def test_a_right_that_several_hosts_lack_is_a_cause():
    link = Verdict.unknown("ssh", "not judged: sudo", Problem(NO_RIGHTS, "sudo", fix="Use -K."))
    assert causes({"a": [link], "b": [link]}) == [("not judged: sudo", "ssh", 2, ("a", "b"), "Use -K.")]


def test_a_host_may_have_two_causes():
    work = Verdict.broken("work", "1 container lost GPUs: ml/train")
    rows = causes({"a": [lacking("a"), work], "b": [lacking("b")]})
    assert [(row[1], row[3]) for row in rows] == [("runtime", ("a", "b")), ("work", ("a",))]


def test_one_broken_host_has_none():
    """Its chain is all there is to read."""
    assert causes({"a": [lacking("a")], "b": [Verdict.ok("PCI", "8x H100")]}) == []


def test_people_read_a_cause_with_its_hosts_below_it(capsys):
    report_causes(
        {host: [lacking(host)] for host in ("a1", "a2", "a3")}, report.make(json=False, quiet=False)
    )
    assert capsys.readouterr().out == (
        " containerd lacks nvidia: HOST's file has none\n   layer  runtime\n   hosts  3\n   names  a[1:3]\n"
        "   fix    gpunode provision --limit 'a[1:3]'\n"
    )
