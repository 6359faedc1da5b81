"""The kubelet's arguments as systemd would start it, and as they are written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from gpunode.engine import chain as pipeline
from gpunode.engine import decision as desired
from gpunode.links.kubelet import microk8s, places, systemd
from gpunode.links.kubelet.start import flag_gates
from tests import cases


def test_the_next_start_of_a_kubeadm_host() -> None:
    """Environment lines, two environment files, a reset ExecStart."""
    seen = cases.facts("legacy")
    start = places.read(seen)
    assert seen.kubelet is not None
    assert start.words[1:] == seen.kubelet.arguments[1:]
    assert start.environment_files == ("/var/lib/kubelet/kubeadm-flags.env", "/etc/default/kubelet")


@pytest.mark.parametrize(
    ("unit", "arguments"),
    [
        ("ExecStart=/k --a ${B} $C\nEnvironment=B=1 'C=2 3'\n", ("--a", "1", "2", "3")),
        ("Environment=A=1\nEnvironment=\nExecStart=/k --a=${A}\n", ("--a=",)),
        ("ExecStart=/old --x\nExecStart=\nExecStart=-/k --y\n", ("--y",)),
        ("ExecStart=/k \\\n  --a \\\n  --b\n", ("--a", "--b")),
        ("EnvironmentFile=-/nowhere\nEnvironmentFile=\nExecStart=/k $X --a\n", ("--a",)),
        ('ExecStart=/k "--a=b c" --d=\'e\n', ()),
        ("# ExecStart=/no\n[Service]\nExecStart=/k --z\n", ("--z",)),
        ("ExecStart=/k $ $A-B $$C ${D}x\nEnvironment=D=d\n", ("$C", "dx")),
        ("ExecStart=/k --a ; /l --b\n", ()),
        ("ExecStart=/k $A $B\nEnvironment=A=%e B=100%%\n", ("100%",)),
        ("ExecStart=/k $A $B\nEnvironment=A=1 B=\\p C=2\n", ("1",)),
        ("ExecStart=/k --%e\n", ()),
        ("Environment=A=b\\\\\nExecStart=/k --a\n", ("--a",)),  # a backslash, which continues no line
        ("[Unit]\n", ()),
    ],
)
def test_units_are_read_as_systemd_reads_them(unit: str, arguments: tuple[str, ...]) -> None:
    """Resets, continued lines, quotes, the two ways to name a variable."""
    seen = cases.facts("legacy", {"kubelet": {"unit_text": f"[Service]\n{unit}"}})
    assert places.read(seen).words[1:] == arguments


def test_a_host_without_a_kubelet() -> None:
    """Nothing is started."""
    seen = cases.facts("legacy", {"kubelet": None})
    start = places.read(seen)
    assert start.words == start.environment_files == ()


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ('A="--v=9\nB=1\n', 1),
        ('# a\nB=1\n  A=\'--v=9 "x"', 3),
        ('A="--v=9 \\\n --v=8\n', 1),
        ('A="--v=9\\"\n', 1),
        ('A="\n', 1),
        ('A="--v=9\nB="1"\n', 1),
        ('A="--v=9\n   --v=8\n"\n', 0),
        ('A="--v=9 \\\n --v=8"\nB=\'it"s\' # x\nC=a"b\n# D="\nE=\n', 0),
    ],
)
def test_a_quote_that_is_not_closed_is_found(text: str, line: int) -> None:
    """With its file and line (0: none); quotes within a value, in comments and on continued lines are no mistake."""
    seen = cases.facts("legacy", {"files": {"/etc/default/kubelet": text}})
    problem = places.read(seen).problem
    assert (problem or "").startswith(f"/etc/default/kubelet:{line}: the quote" if line else "")
    assert bool(problem) == bool(line)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            "X=1\nA=--feature-gates=A=true,\\\nB=true\n",
            "2: in A the value of --feature-gates continues in the next line",
        ),
        ('A="--feature-gates=A=true \\\n --v=2"\n', ""),
        ("# --v=9 \\\nA=1\n", "1: this comment ends in a backslash"),
        ("# --v=9 \\\n# --v=8\nA=1\n", ""),
    ],
)
def test_what_systemds_read_differently_or_no_gate_can_be_set_in_is_refused(text: str, problem: str) -> None:
    """Rather than to change a line that means another thing than it seems to."""
    seen = cases.facts("legacy", {"files": {"/etc/default/kubelet": text}})
    found = places.read(seen).problem
    assert (found or "").startswith(f"/etc/default/kubelet:{problem}" if problem else "")
    assert bool(found) == bool(problem)


def test_gates_of_arguments() -> None:
    """Both ways to write a flag; later ones win, gate by gate."""
    arguments = (
        "--feature-gates=A=true,B=false",
        "--v=2",
        "--feature-gates",
        "B=True,C=0",
        "--feature-gates",
    )
    assert flag_gates(arguments) == {"A": True, "B": True, "C": False}


def test_a_configuration_that_is_none() -> None:
    """Broken or no mapping: nothing is read from it."""
    for text in ("a: [", "- a", ""):
        seen = cases.facts("legacy", {"files": {places.KUBEADM.config: text}})
        assert places.read(seen).config == {}


@pytest.mark.parametrize("base", ["legacy", "modern"])
def test_a_plan_reads_each_file_of_the_kubelet_once(base: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What decides and what plans share one reading; only files that a merge changed are read once more."""
    host, seen = cases.host(base), cases.facts(base)
    reads: list[str] = []

    def counted(read: Callable[[str], Any]) -> Callable[[str], Any]:
        return lambda text: (reads.append(text), read(text))[1]

    for name in ("read_unit", "read_environment"):
        monkeypatch.setattr(systemd, name, counted(getattr(systemd, name)))
    for _ in range(3):  # bare, then made right
        reads.clear()
        wish = desired.decide(host, seen, None)
        plan = pipeline.plan(host, seen, wish)
        in_this_plan = len(reads)
        seen = cases.applied(seen, plan.changes)
    assert not plan
    assert wish.kubelet is not None
    assert in_this_plan == len(wish.kubelet.units) + len(wish.kubelet.environment_files) > 2


@pytest.mark.parametrize(
    ("kubelite", "server"),
    [
        ("--start-control-plane=true\n", True),
        ("", True),
        ({"error": "Permission denied"}, True),
        ("# of ours\n--start-control-plane=false\n", False),
    ],
)
def test_a_node_of_microk8s_is_of_the_control_plane_unless_its_kubelite_starts_none(
    kubelite: str | dict[str, str], server: bool
) -> None:
    """A worker's is told so by the snap; the flag's default is to start it."""
    seen = cases.facts("microk8s", {"files": {microk8s.KUBELITE: kubelite}})
    assert microk8s.is_server(seen) == server
    assert not microk8s.is_server(cases.facts("modern"))
