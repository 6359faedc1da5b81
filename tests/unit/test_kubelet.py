"""How a kubelet is started: units and environment files as systemd reads them (tests/lab/test_environment_files.py asks a real
one the same), and gates in force that are not those that gpunode wished."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from gpunode.engine import chain as pipeline
from gpunode.engine.chain import decide
from gpunode.links.kubelet import link as kubelet
from gpunode.links.kubelet import microk8s, places, systemd
from gpunode.links.kubelet.start import flag_gates
from gpunode.links.kubelet.systemd import read_environment
from gpunode.model import Outcome, Verdict
from tests import cases, tables


def test_the_next_start_of_a_kubeadm_host():
    """Environment lines, two environment files, a reset ExecStart."""
    seen = cases.facts("legacy")
    start = places.read(seen)
    assert start.argv[1:] == seen.kubelet.arguments[1:]
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
def test_units_are_read_as_systemd_reads_them(unit: str, arguments: tuple[str, ...]):
    """Resets, continued lines, quotes, the two ways to name a variable."""
    seen = cases.facts("legacy", {"kubelet": {"unit_text": f"[Service]\n{unit}"}})
    assert places.read(seen).argv[1:] == arguments


def test_a_host_without_a_kubelet():
    """Nothing is started."""
    seen = cases.facts("legacy", {"kubelet": None})
    start = places.read(seen)
    assert start.argv == start.environment_files == ()


@tables.rows("kubelet-environment-files")
def test_a_line_that_systemds_read_differently_or_no_gate_can_be_set_in_is_refused(text: str, problem: str):
    """With its file and line, rather than to change a line that means another thing than it seems to. Quotes within a value, in comments and
    on continued lines are no mistake."""
    seen = cases.facts("legacy", {"files": {"/etc/default/kubelet": text}})
    refusal = places.read(seen).problem
    assert (refusal or "").startswith(f"/etc/default/kubelet:{problem}" if problem else "")
    assert bool(refusal) == bool(problem)


def test_gates_of_arguments():
    """Both ways to write a flag; later ones win, gate by gate."""
    arguments = (
        "--feature-gates=A=true,B=false",
        "--v=2",
        "--feature-gates",
        "B=True,C=0",
        "--feature-gates",
    )
    assert flag_gates(arguments) == {"A": True, "B": True, "C": False}


def test_a_configuration_that_is_none():
    """Broken or no mapping: nothing is read from it."""
    for text in ("a: [", "- a", ""):
        seen = cases.facts("legacy", {"files": {places.KUBEADM.config: text}})
        assert places.read(seen).config == {}


@pytest.mark.parametrize("base", ["legacy", "modern"])
def test_a_plan_reads_each_file_of_the_kubelet_once(base: str, monkeypatch):
    """What decides and what plans share one reading; only files that a merge changed are read once more."""
    host, seen = cases.host(base), cases.facts(base)
    reads: list[str] = []

    def counted(read: Callable[[str], Any]) -> Callable[[str], Any]:
        return lambda text: (reads.append(text), read(text))[1]

    for name in ("read_unit", "read_environment"):
        monkeypatch.setattr(systemd, name, counted(getattr(systemd, name)))
    for _ in range(3):  # bare, then made right
        reads.clear()
        wish = decide(host, seen, None)
        plan = pipeline.plan(host, seen, wish)
        in_this_plan = len(reads)
        seen = cases.applied(seen, plan.changes)
    assert not plan
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
):
    """A worker's is told so by the snap; the flag's default is to start it."""
    seen = cases.facts("microk8s", {"files": {microk8s.KUBELITE: kubelite}})
    assert microk8s.is_server(seen) == server
    assert not microk8s.is_server(cases.facts("modern"))


# A file, and what it sets.
FILES = {
    "plain": ("# A=0\n; A=0\nA=1\n  B = x y  \n\nno assignment\nA=2\n9=x\nD-D=x\n", {"A": "2", "B": "x y"}),
    "quotes": ('B="x y"\nC=\'z\'\nE=""\nF=it\'s "so"\n', {"B": "x y", "C": "z", "E": "", "F": 'it\'s "so"'}),
    "continued": (
        "A=a \\\n  b\nB=a\\\nb\nC=\\\n--v=2\nD=a \\\n\nE=1\n",
        {"A": "a   b", "B": "ab", "C": "--v=2", "D": "a ", "E": "1"},
    ),
    "lines": ("A=\"--a=1\n  --b=2\n\"\nB='x\n y'\n", {"A": "--a=1\n  --b=2\n", "B": "x\n y"}),
    "lines continued": ("A=\"--a=1 \\\n  --b=2\"\nB='x \\\ny'\n", {"A": "--a=1   --b=2", "B": "x \\\ny"}),
    "backslashes": (
        'A=a\\ b\\"\nB="a\\"b\\\\c\\$d\\`e\\nf"\nC=\'a\\b\'\n',
        {"A": 'a b"', "B": 'a"b\\c$d`e\\nf', "C": "a\\b"},
    ),
    "one after the other": (
        'A="a" "b"\'c\' d e\nB="x"y" z\nC="" \\\n\n',
        {"A": "abcd e", "B": 'xy" z', "C": ""},
    ),
    "other line ends": ("A=1\r\nB='2'\r\n", {"A": "1", "B": "2"}),
    "no line end": ("A=1\nB=2 \\", {"A": "1", "B": "2 "}),
    "an open quote": ('A="x\nB=2\n', {"A": "x\nB=2\n"}),
}


@pytest.mark.parametrize("name", FILES)
def test_a_file_sets_what_systemd_takes_it_to_set(name: str):
    """Quotes that are glued together, lines that go on, escapes: none is the shell's way."""
    text, sets = FILES[name]
    assert {entry.name: entry.value for entry in read_environment(text)} == sets


@pytest.mark.parametrize("name", [name for name in FILES if name != "an open quote"])
def test_what_is_put_into_a_value_is_in_it_and_changes_nothing_else(name: str):
    """At the place that is said for it, whatever quotes and continued lines there are."""
    text, _ = FILES[name]
    before = read_environment(text)
    for number, entry in enumerate(before):
        after = read_environment(f"{text[: entry.end]} --x{text[entry.end :]}")
        assert [other.value for other in after if other.name != entry.name] == [
            other.value for other in before if other.name != entry.name
        ]
        assert after[number].value.split() == [*entry.value.split(), "--x"]


def test_a_quote_that_is_never_closed_is_reported():
    """It takes in all that follows."""
    (setting,) = read_environment(FILES["an open quote"][0])
    assert not setting.closed
    assert all(
        part.closed
        for text, _ in FILES.values()
        for part in read_environment(text)
        if part.value != "x\nB=2\n"
    )


OK = Verdict.ok("node", "gpu-1 is Ready")


def outcome(over: Mapping[str, object] | None = None, arguments: str = "") -> Outcome:
    """Of a host that was made right, with a wish; then its process has these arguments."""
    host = cases.host("legacy", {"feature_gates": {"KubeletPodResources": False}})
    seen = cases.facts("legacy", over)
    seen = cases.applied(seen, pipeline.plan(host, seen, decide(host, seen, None)).changes)
    wish = decide(host, seen, None)
    if arguments and seen.kubelet:
        seen = replace(seen, kubelet=replace(seen.kubelet, arguments=tuple(arguments.split())))
    return Outcome(host.name, "right", seen, wish, pipeline.plan(host, cases.facts("legacy"), wish))


def test_a_gate_in_force_changes_nothing():
    assert kubelet.desired_gates(outcome()) == {"KubeletPodResources": False}
    assert kubelet.compare_gates(OK, outcome(), {"KubeletPodResources": False, "Other": True}) == OK


@tables.rows("gates-not-in-force")
def test_a_gate_that_is_not_in_force_is_named_with_where_its_value_comes_from(
    arguments: str, told: Mapping[str, bool], shown: str, where: str
):
    link = kubelet.compare_gates(OK, outcome(arguments=arguments), told)
    assert (link.layer, link.status) == ("node", "broken")
    assert link.text == f"the running kubelet uses {shown}"
    assert link.cause == f"KubeletPodResources=false is required: {where}"
    assert "systemctl restart kubelet.service" in link.fix


def test_a_file_that_the_kubelet_has_not_read_is_named():
    """Its time may be older than the process: copied, or written while the clock was behind."""
    unit = "[Service]\nExecStart=/usr/bin/kubelet --config=/var/lib/kubelet/config.yaml\n"
    text = "kind: KubeletConfiguration\nfeatureGates: {KubeletPodResources: false}\n"
    seen = {"files": {"/var/lib/kubelet/config.yaml": text}, "kubelet": {"unit_text": unit}}
    link = kubelet.compare_gates(OK, outcome(seen), {"KubeletPodResources": True})
    assert (
        "/var/lib/kubelet/config.yaml has it, and the kubelet has not read that since its start" in link.cause
    )


def test_a_kubelet_that_cannot_be_asked_is_reported_and_breaks_nothing():
    link = kubelet.compare_gates(OK, outcome(), "ann may not get nodes/proxy")
    assert (link.status, link.text) == ("ok", OK.text)
    assert link.cause == (
        "whether KubeletPodResources is in force is known from files and arguments alone: ann may not get nodes/proxy"
    )
