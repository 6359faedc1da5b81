"""What the user sees."""

import json
import re
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from unittest import mock

import pytest
from rich.console import Console

from gpunode import cli
from gpunode.cluster.objects.difference import Difference, creation
from gpunode.cluster.pods import GPU, MEMORY
from gpunode.engine.overview import RunLine
from gpunode.engine.reporter import Headline, Reporter
from gpunode.errors import Claim, ClusterError, Declined, InventoryError, Problem
from gpunode.model import (
    Disturbance,
    Disturbed,
    Event,
    GpuUser,
    Host,
    Outcome,
    Plan,
    Reboot,
    Service,
    Ssh,
    StepPlan,
    Title,
    Verdict,
    WriteFile,
)
from gpunode.report import Named, human, make
from gpunode.report import terminal as live_view
from gpunode.report.human import Human
from gpunode.report.page import Card
from gpunode.report.plain import one_line
from gpunode.report.terminal import Live, short_names
from gpunode.wording import Advice, Command
from tests import cases


def test_a_here_document_is_pasted_as_it_is_shown(capsys):
    """A shell ends it at an END in column 0 alone, wherever a plan or verify shows it."""
    script = "kubectl get namespace x\nkubectl apply -f - <<'END'\nrules:\n- {verbs: [get]}\nEND"
    problem = Problem("no-rights", "refused", fix=f"Grant this:\n{script}\nMore: page")
    failed = Outcome("gpu-1", "failed", problem=problem)
    shown = Human(quiet=False)
    shown.problem(problem)
    shown.plans([failed])
    shown.links("gpu-1", [Verdict.broken("node", "not judged", "refused", problem.fix, "no-rights")])
    shown.rows(
        "cause", ("cause", "layer", "hosts", "names", "fix"), [("x", "node", 2, "a, b", f"{problem.fix}\n.")]
    )
    output = "".join(capsys.readouterr())
    assert output.count(f"\n{script}\n") == 4
    assert f"\n{script}\n   More: page\n" in output


def test_lines_on_one_have_a_semicolon_only_where_no_sentence_ends():
    assert (
        one_line("restart docker\nThe log has it.\nThen `reboot`.")
        == "restart docker; The log has it. Then `reboot`."
    )


@pytest.fixture
def _still(monkeypatch) -> None:
    """The live view's clock stands: a loaded machine needs no second for what is shown as 00:00."""
    monkeypatch.setattr(live_view, "time", mock.Mock(monotonic=lambda: 7.0, time=lambda: 7.0))


Terminal = Callable[[int], Callable[[], list[str]]]


@pytest.fixture
def terminal(monkeypatch, capsys) -> Terminal:
    """Standard output is a terminal of this width; the lines that were written to it since, without its styles."""

    def lines() -> list[str]:
        text = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out)
        return [line.rstrip() for line in text.splitlines()]

    def of(width: int) -> Callable[[], list[str]]:
        for name, value in (
            ("FORCE_COLOR", "1"),
            ("NO_COLOR", "1"),
            ("COLUMNS", str(width)),
            ("TERM", "xterm"),
        ):
            monkeypatch.setenv(name, value)
        return lines

    return of


def drawn(console: Console, live: Live) -> list[str]:
    """The lines of the live view."""
    return ["".join(part.text for part in line).rstrip() for line in console.render_lines(live._render())]


@pytest.mark.usefixtures("_still")
def test_a_narrow_terminal_cuts_words_and_never_host_or_time():
    console = Console(force_terminal=True, width=60, soft_wrap=True, color_system=None)
    live = Live(console, ["gpu-01", "gpu-with-a-longer-name"])
    live.event(
        Event("stage", "gpu-with-a-longer-name", "install " + "cuda-drivers-580 " * 8, {"n": 6, "of": 13})
    )
    live.event(Event("progress", "gpu-with-a-longer-name", "Installing linux-headers-6.1.0-28-amd64"))

    lines = drawn(console, live)
    assert len(lines) == 2
    assert all(len(line) <= 60 for line in lines)
    assert lines[0].startswith(" gpu-with-a-longer-name  00:00  7/13 install")
    assert "Installing" in lines[0]


@pytest.mark.usefixtures("_still")
@pytest.mark.parametrize("height", [8, 24])
@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.parametrize("count", [3, 200])
def test_the_live_view_fits_every_terminal_with_failed_hosts_first_and_the_rest_summed_up(
    count: int, width: int, height: int
):
    console = Console(force_terminal=True, width=width, height=height, soft_wrap=True, color_system=None)
    names = [f"gpu-{number:03d}" for number in range(count)]
    live = Live(console, names)
    for number, name in enumerate(names[:64]):
        kind = ["Packages", "Reboot"][number % 2]
        live.event(Event("change", name, "install cuda-drivers-580 " * 4, {"n": 2, "of": 9, "kind": kind}))
        live.event(Event("progress", name, "Unpacking libnvidia-compute-580-server:amd64"))
    bad = names[1:64:4]
    for name in bad:
        live.outcome(Outcome(name, "unreachable", problem=Problem("", "no route to host\nmore")))

    lines = drawn(console, live)
    assert len(lines) < height
    assert all(len(line) <= width for line in lines)
    at = next(number for number, line in enumerate(lines) if line.startswith(" 00:00 · "))
    failed = [line for line in lines[:at] if "✗" in line]
    working = lines[len(failed) : at]
    assert failed == [f" {name}  ✗ unreachable  no route to host" for name in bad[: len(failed)]]
    assert all("  00:00  3/9 install" in line for line in working)
    assert working
    if count == 3:
        assert (len(failed), len(working)) == (1, 2)
        summed = "00:00 · 2 at work (packages 2) · 3 hosts: 1 unreachable"
    else:
        summed = "00:00 · 48 at work (packages 32, reboots 16) · 136 to come · 200 hosts: 16 unreachable"
        assert len(failed) + len(working) >= height - 4  # the room that there is
    assert " ".join(line.strip() for line in lines[at:]) == summed


@pytest.mark.usefixtures("_still")
def test_the_live_view_of_a_batch_knows_all_hosts_of_the_run():
    """A batch is a host or two; which hosts failed before it stays in sight."""
    console = Console(force_terminal=True, width=80, height=24, soft_wrap=True, color_system=None)
    known: dict[str, Outcome] = {}
    first = Live(console, ["a", "b", "c"], known)
    for name, status in (("a", "planned"), ("b", "refused"), ("c", "right")):
        first.outcome(
            Outcome(name, status, problem=Problem("", "Secure Boot is on") if name == "b" else None)
        )
    run = RunLine("4f1c", "running", 3, 1, {"failed": 0, "refused": 1}, 7.0, 2, 3, 240.0)
    batch = Live(console, ["a"], known, run)
    batch.event(Event("stage", "a", "waiting for ml/train"))

    assert drawn(console, batch) == [
        " batch 2 of 3 ███░░░░░░░ 1 of 3 hosts · 1 refused · about 4 min left · run 4f1c",
        " b  ✗ refused  Secure Boot is on",
        " a  00:00  waiting for ml/train",
        " 00:00 · 1 at work (waits 1) · 3 hosts: 1 to change, 1 refused, 1 up to date",
    ]


@pytest.mark.usefixtures("_still")
def test_a_wide_live_view_has_a_bar_of_the_changes_that_are_made():
    console = Console(force_terminal=True, width=120, soft_wrap=True, color_system=None)
    live = Live(console, ["a", "b"])
    live.event(Event("change", "a", "restart docker", {"n": 3, "of": 6, "kind": "Service"}))
    live.event(Event("stage", "b", "probe"))
    first, second, _ = drawn(console, live)
    assert first.endswith("█████░░░░░")
    assert second == " b  00:00  probe"


def test_the_time_of_a_wait_counts_from_its_beginning(monkeypatch):
    """Also where the Kubernetes API was away meanwhile; of another wait and of a change from their own."""
    now = [0.0]
    monkeypatch.setattr(live_view, "time", mock.Mock(monotonic=lambda: now[0], time=lambda: now[0]))
    console = Console(force_terminal=True, width=60, soft_wrap=True, color_system=None)
    live, shown = Live(console, ["a"]), []
    for seconds, text, data in (
        (0, "waiting for ml/x: at most 30 min", {"wait": "work"}),
        (60, "the Kubernetes API at https://a did not answer in time", {"wait": "work"}),
        (90, "waiting for ml/x: 90 s, at most 30 min", {"wait": "work"}),
        (95, "waiting for the device plugin to leave the node", {"wait": "plugin"}),
        (100, "restart docker", {"n": 3, "of": 6, "kind": "Service"}),
        (105, "waiting for the device plugin to leave the node", {"wait": "plugin"}),
        (110, "wait until it answers: an earlier run was changing it", {}),
        (120, "follow the apply that a started", {}),
    ):
        now[0] = seconds
        live.event(Event("stage", "a", text, data))
        now[0] += 2
        shown.append(drawn(console, live)[0].split()[1])
    assert shown == ["00:02", "01:02", "01:32", *["00:02"] * 5]


def test_the_live_view_is_drawn_while_hosts_finish():
    """In another thread, at any moment of a drawing: here whenever it reads how a host ended."""
    names = iter(f"gpu-{number}" for number in range(1000))

    class Ending(Outcome):
        @property
        def status(self) -> str:
            live.outcome(Outcome(next(names), "right"))
            return "failed"

        @status.setter
        def status(self, _: str) -> None: ...

    console = Console(force_terminal=True, width=80, height=24, soft_wrap=True, color_system=None)
    live = Live(console, ["a", "b"])
    for name in ("a", "b"):
        live.outcome(Ending(name, "failed", problem=Problem("", "lost")))

    lines = drawn(console, live)
    assert lines[:2] == [" a  ✗ failed  lost", " b  ✗ failed  lost"]
    assert lines[-1].endswith(" · 2 hosts: 2 failed")


def test_a_terminal_too_narrow_for_a_table_gets_a_line_for_every_cell(terminal: Terminal):
    written = terminal(40)
    uuid = "GPU-cfcfed54-8a26-5c73-bee6-9c3345a488a2"
    columns = ("node", "uuid", "gpu", "result", "seconds")
    Human(quiet=False).rows("verify", columns, [("p100-01", uuid, "Tesla P100-PCIE-16GB", "passed", None)])
    assert written() == [
        " p100-01",
        f"   uuid    {uuid}",
        "   gpu     Tesla P100-PCIE-16GB",
        "   result  passed",
    ]


def test_a_table_too_wide_for_any_reader_of_a_pipe_is_a_line_for_every_cell_too(capsys):
    """What is wrong with a node can be long; nothing of it is cut."""
    trouble = "the kubelet does not count its GPUs yet; " * 6
    Human(quiet=False).rows("plugin", ("node", "phase", "trouble"), [("gpu-01", "Running", trouble)])

    assert capsys.readouterr().out.splitlines() == [
        " gpu-01",
        "   phase    Running",
        f"   trouble  {trouble}",
    ]


def test_a_run_repeats_neither_planned_objects_nor_gpus_that_passed(capsys):
    human = Human(quiet=False)
    human.cluster("prod", ())
    capsys.readouterr()
    human.rows("object", ("action", "object"), [("created", "Namespace gpunode")])
    human.rows(
        "vectoradd", ("node", "uuid", "gpu", "result"), [("a", "1", "P", "passed"), ("a", "2", "P", "failed")]
    )
    assert [line.split() for line in capsys.readouterr().out.splitlines()] == [
        ["NODE", "UUID", "GPU", "RESULT"],
        ["a", "2", "P", "failed"],
    ]


@pytest.mark.parametrize("quiet", [False, True])
def test_costs_of_a_plan_are_printed_where_the_plan_is(capsys, quiet: bool):
    human = Human(quiet=quiet, accepted=True)
    human.note(Headline("1 host: 1 reboot"))
    assert capsys.readouterr() == ("" if quiet else " 1 host: 1 reboot\n", "")


def test_a_narrow_terminal_has_many_gpus_in_a_line_each(terminal: Terminal):
    """With their UUIDs short; or, where not even that fits, each behind its host in a line or two."""
    uuid = "GPU-cfcfed54-8a26-5c73-bee6-9c3345a488a2"
    columns = ("node", "uuid", "gpu", "result", "seconds")
    rows = [("h100-001", uuid, "NVIDIA H100 80GB HBM3", "passed", 2.0)] * 40

    def shown(width: int) -> list[str]:
        written = terminal(width)
        Human(quiet=False).rows("vectoradd", columns, rows)
        return written()

    assert shown(70)[:2] == [
        "NODE      UUID           GPU                    RESULT  SECONDS",
        "h100-001  GPU-cfcfed54…  NVIDIA H100 80GB HBM3  passed  2",
    ]
    assert len(shown(70)) == 41
    assert shown(40)[:3] == [
        " h100-001  uuid GPU-cfcfed54… · gpu",
        "           NVIDIA H100 80GB HBM3 ·",
        "           result passed · seconds 2",
    ]


def test_a_column_that_nothing_is_in_takes_no_room(capsys):
    Human(quiet=False).rows(
        "plugin", ("node", "restarts", "trouble"), [("gpu-01", 0, ""), ("gpu-02", 1, None)]
    )

    assert [line.rstrip() for line in capsys.readouterr().out.splitlines()] == [
        "NODE    RESTARTS",
        "gpu-01  0",
        "gpu-02  1",
    ]


def test_an_interrupt_at_a_question_is_no_answer(capsys):
    """It ends the program; the end of the input is a no, on a line of its own."""
    with mock.patch("sys.stdin") as stdin:
        stdin.isatty.return_value = True
        stdin.readline.side_effect = KeyboardInterrupt
        with pytest.raises(Declined, match="interrupted; nothing changed"):
            Human(quiet=False).ask("Apply to 2 hosts?")
        stdin.readline.side_effect = [""]  # Ctrl-D
        assert not Human(quiet=False).ask("Apply to 2 hosts?")

    assert capsys.readouterr().err == "Apply to 2 hosts? [y/N] \n" * 2


def test_a_table_that_would_cut_words_is_a_line_for_every_cell(terminal: Terminal):
    """Words of a sentence wrap; a label's value is one word."""
    columns = ("node", "accelerator", "result")
    for width, lines in (
        (32, [" p100-01", "   accelerator  nvidia-tesla-p100", "   result       would change"]),
        (
            38,
            ["NODE     ACCELERATOR        RESULT", "p100-01  nvidia-tesla-p100  would", " " * 28 + "change"],
        ),
    ):
        written = terminal(width)
        Human(quiet=False).rows("label", columns, [("p100-01", "nvidia-tesla-p100", "would change")])
        assert written() == lines


def test_whole_seconds_that_are_none_are_less_than_one(capsys):
    Human(quiet=False).rows("vectoradd", ("node", "seconds"), [("gpu-01", 0.0), ("gpu-02", 12.0)])

    assert [line.split() for line in capsys.readouterr().out.splitlines()[1:]] == [
        ["gpu-01", "<1"],
        ["gpu-02", "12"],
    ]


def test_quiet_json_lines_are_results_alone(capsys):
    for quiet, count in ((True, 1), (False, 2)):
        report = make(json=True, quiet=quiet)
        report.event(Event("stage", "gpu-01", "probe"))
        report.outcome(Outcome("gpu-01", "right"))

        assert len(capsys.readouterr().out.splitlines()) == count


@pytest.mark.parametrize("lines", [False, True])
def test_a_command_that_is_printed_has_the_inventory_that_was_given(lines: bool, capsys):
    """In fixes, hints, notes and tables; a pod's log is left as it is."""
    report = Named(make(json=lines, quiet=False), Path("my fleets/a.yaml"))
    report.links(
        "a",
        [Verdict.broken("module", "nvidia is not loaded", "", Advice(Command("provision", "--limit a")))],
    )
    lost = Problem("", "lost", fix=Advice("`", Command("provision"), "` follows it."))
    report.failures([Outcome("a", "failed", problem=lost)])
    report.outcome(Outcome("a", "failed", problem=lost))
    report.problem(Problem("", "b: nothing", fix=Advice("`", Command("verify"), "` says why.")))
    both = Command("provision"), Command("plugin deploy")
    report.note(Advice("`", both[0], "` or `", both[1], "` puts it there."))
    see = Advice("see ", Command("run vectoradd"))
    report.rows("finding", ("host", "code", "cause", "fix"), [("a", "gate", "", see)])
    report.rows("log", ("node", "pod", "log"), [("a", "p", "gpunode verify")])

    told = "".join(capsys.readouterr())
    for command in (
        "gpunode provision 'my fleets/a.yaml' --limit a",
        "`gpunode provision 'my fleets/a.yaml'` follows it.",
        "`gpunode verify 'my fleets/a.yaml'` says why.",
        "`gpunode provision 'my fleets/a.yaml'` or `gpunode plugin deploy 'my fleets/a.yaml'` puts",
        "see gpunode run vectoradd 'my fleets/a.yaml'",
    ):
        assert command in told
    assert told.count("gpunode verify 'my") == 1


DIFFERENCES = (
    Difference(Title("Namespace", "gpunode"), "created", ("+kind: Namespace",), untried="why"),
    Difference(
        Title("DaemonSet", "d", "gpunode"),
        "changed",
        ("@@ -1 +1 @@", "-image: a", "+image: b"),
        (Claim(".spec.a", "kubectl-edit"), Claim(".spec.b", "kubectl-edit"), Claim(".spec.c", "argo")),
    ),
    Difference(Title("Role", "r", "default"), "removed", ("-kind: Role",)),
    Difference(Title("Node", "a"), "labelled", ("-pool=x", "+pool=y")),
    Difference(Title("Node", "b"), "labelled", ("+pool=y",)),
    Difference(Title("Node", "c"), "labelled", ("-pool=x", "+pool=y")),
    Difference(Title("Pod", "p-1", "gpunode"), "replaced", node="a"),
    Difference(Title("Pod", "p-2", "gpunode"), "replaced", node="b"),
)
SHOWN = """\
 cluster  prod
   objects     + create Namespace gpunode
   whole         for the device plugin and test pods
   whole         +kind: Namespace
               ~ change DaemonSet gpunode/d
                 kubectl-edit has set .spec.a, .spec.b; gpunode sets them back
                 argo has set .spec.c; gpunode sets it back
   diff          @@ -1 +1 @@
   diff          -image: a
   diff          +image: b
               - remove Role default/r
   whole         -kind: Role
   nodes       ~ label Node a, c
                 -pool=x
                 +pool=y
               ~ label Node b
                 +pool=y
   pods        ~ replace gpunode/p-1 on a, gpunode/p-2 on b
                 Only a new pod of the plugin uses the new driver and runtime
"""


@pytest.mark.parametrize(("diff", "parts"), [(None, {"diff"}), (True, {"diff", "whole"}), (False, set())])
def test_the_clusters_part_of_a_plan_reads_as_that_of_hosts(diff: bool | None, parts: set[str], capsys):
    """What changes has a diff; what is new is named, and whole on request. Labels are their own diff."""
    Human(quiet=False).cluster("prod", DIFFERENCES, diff=diff)

    lines = []
    for line in SHOWN.splitlines():
        part = line[3:8].strip()
        if part in parts:
            lines.append(line.replace(part, " " * len(part), 1))
        elif part not in {"diff", "whole"}:
            lines.append(line)
    assert capsys.readouterr().out.splitlines() == lines


def test_equal_changes_are_shown_once_and_settings_whole(capsys):
    """Also where they are at other lines. A new ConfigMap is what the user wrote."""
    differences = [
        Difference(Title("ConfigMap", "c", "gpunode"), "created", ("+data:", "+  replicas: 4")),
        Difference(Title("DaemonSet", "d", "gpunode"), "changed", ("@@ -15,6 +15,7 @@", "+image: b")),
        Difference(Title("DaemonSet", "d-class", "gpunode"), "changed", ("@@ -16,6 +16,7 @@", "+image: b")),
        Difference(Title("DaemonSet", "other", "gpunode"), "changed", ("@@ -15,6 +15,7 @@", "+image: c")),
    ]
    Human(quiet=False).cluster("prod", differences)
    assert [line.strip() for line in capsys.readouterr().out.splitlines()[1:]] == [
        "objects     + create ConfigMap gpunode/c",
        "+data:",
        "+  replicas: 4",
        "~ change DaemonSet gpunode/d and DaemonSet gpunode/d-class",
        "@@ -15,6 +15,7 @@",
        "+image: b",
        "~ change DaemonSet gpunode/other",
        "@@ -15,6 +15,7 @@",
        "+image: c",
    ]


def test_a_cluster_that_is_right_is_a_line(capsys):
    Human(quiet=False).cluster("prod", ())

    assert capsys.readouterr().out == " cluster  prod  = up to date\n"


def test_the_clusters_part_of_a_plan_is_a_json_line_an_object(capsys):
    """With its whole diff; claims and why it was not tried only where there are any."""
    make(json=True, quiet=False).cluster("prod", DIFFERENCES[:2])
    make(json=True, quiet=False).cluster("prod", [DIFFERENCES[5], DIFFERENCES[-1]], diff=False)

    new, changed, node, pod = map(json.loads, capsys.readouterr().out.splitlines())
    assert new == {
        "type": "cluster",
        "change": "create",
        "object": "Namespace gpunode",
        "diff": ["+kind: Namespace"],
        "untried": "why",
    }
    assert changed["claims"][2] == {"field": ".spec.c", "manager": "argo"}
    assert "untried" not in changed
    assert node == {"type": "cluster", "change": "label", "object": "Node c"}
    assert pod == {"type": "cluster", "change": "replace", "object": "Pod gpunode/p-2", "node": "b"}


# Each does something to a terminal, to a reader, or to who reads with rich.
HOSTILE = {
    "clipboard": ("\x1b]52;c;cm0gLXJmIC8=\x07", r"\x1b]52;c;cm0gLXJmIC8=\x07"),
    "cursor up": ("\x1b[3A\x1b[2K", r"\x1b[3A\x1b[2K"),
    "C1": ("\x9b2J\x9d0;t\x9c\x85", r"\x9b2J\x9d0;t\x9c\x85"),
    "back space": ("bad\b\b\bgood\x7f", r"bad\x08\x08\x08good\x7f"),
    "start of the line": ("bad\rgood", r"bad\rgood"),
    "direction of writing": ("\u202egnp.exe\u2066\u200f", r"\u202egnp.exe\u2066\u200f"),
    "invisible": ("a\u200bb\ufeff\U000e0041", r"a\u200bb\ufeff\U000e0041"),
    "no character": ("\udc9b", r"\udc9b"),
    "bell": ("\a\v\f\0", r"\x07\x0b\x0c\x00"),
    "markup": ("[red]a[/] [link=file:///x]b[/link] [/nothing]", "[red]a[/] [link=file:///x]b[/link] [/nothing]"),
    "emoji": ("a:bomb:b", "a:bomb:b"),
    "markup after a backslash": ("a\\[bold]b\\", "a\\[bold]b\\"),
    "line end": ("a\n p100-001  = nothing to do", r"a\n p100-001  = nothing to do"),
    "separators": ("a\u2028b\x1db", r"a\u2028b\x1db"),
}  # fmt: skip


def tell_all(report: Reporter, text: str) -> None:
    """By every way that words of hosts and of the cluster go."""
    report.event(Event("stage", "gpu-01", text))
    with report.live([Host("gpu-01", Ssh("a"))]):
        report.event(Event("change", "gpu-01", text, {"n": 0, "of": 2, "kind": "WriteFile"}))
        report.event(Event("progress", "gpu-01", text))
        report.outcome(Outcome("gpu-01", "failed", problem=Problem("", text, fix=text)))
    change = WriteFile("/etc/a", f"{text}\n", text)
    plan = Plan("gpu-01", (StepPlan("docker", (change, Service(text, text, note=text))),))
    report.plans([Outcome("gpu-01", "planned", plan=plan, problem=Problem("", text, fix=text))])
    report.failures([Outcome("gpu-01", "failed", problem=Problem("", text, fix=text))])
    report.cluster(
        text, [Difference(Title("DaemonSet", text), "changed", (f"+{text}",), (Claim(text, text),))]
    )
    report.cluster("prod", [Difference(Title("Node", text), "labelled", (f"+{text}",))])
    report.links("gpu-01", [Verdict.broken("node", text, text, text)])
    report.rows("log", ("node", "pod", "log"), [(text, text, text)])
    report.rows("log", ("node", "pod", "log"), [(text, "", text + "x" * 300)])
    report.problem(Problem("", text, fix=text))
    report.note(text)


# An error, its hint, a link's cause and fix, and a file are told line by line, each indented.
ITS_OWN_LINES = {"line end", "separators"}


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("width", [500, 0], ids=["terminal", "no terminal"])
def test_what_comes_from_hosts_is_shown_and_does_nothing(name: str, width: int, terminal: Terminal, capsys):
    """No escape sequence, no mark that turns the line round, no markup: what is there is what is read."""
    if width:
        terminal(width)
    text, shown = HOSTILE[name]
    tell_all(Human(quiet=False), text)

    out = "".join(capsys.readouterr())
    for own in (r"\x1b\[[0-9;?]*[mhlAKG]", "\r"):  # of rich, for its styles and what it draws anew
        out = re.sub(own, "", out)
    assert {sign for sign in out if not sign.isprintable()} <= {"\n"}
    assert not [line for line in out.splitlines() if line.startswith(" p100-001")]
    if name not in ITS_OWN_LINES:
        assert out.count(shown) >= 18


@pytest.mark.parametrize("name", HOSTILE)
def test_json_lines_say_what_hosts_said(name: str, capsys):
    """As it was: JSON has its own way to write such characters."""
    text, _ = HOSTILE[name]
    report = make(json=True, quiet=False)
    tell_all(report, text)

    out = capsys.readouterr().out
    assert out.isascii()
    told = [json.loads(line) for line in out.splitlines()]
    assert {"type": "note", "message": text} in told


KEY = "-----BEGIN PRIVATE KEY-----\nhunter2\n-----END PRIVATE KEY-----"


@pytest.mark.parametrize("lines", [False, True])
@pytest.mark.parametrize("secret", ["https://me:hunter2@mirror.example/a", "token=hunter2", KEY])
def test_no_secret_gets_out(lines: bool, secret: str, capsys):
    """Whoever said it: a program in its error, a host in its file, a pod in its log."""
    tell_all(make(json=lines, quiet=False), f"E: {secret} is wrong")

    told = "".join(capsys.readouterr())
    assert "hunter2" not in told
    assert told.count(" characters>") >= 15


def test_an_error_that_ends_the_command_is_plain_too(monkeypatch, capsys):
    """It is no report that prints it."""
    for error in (
        ClusterError("a\x1b[2Jb https://me:hunter2@a", hint="c\x9bd"),
        InventoryError(["x\x1b[2J: y"]),
    ):
        fails = mock.Mock(side_effect=error, registered_commands=[], registered_groups=[])
        monkeypatch.setattr(cli, "app", fails)
        with pytest.raises(SystemExit):
            cli.main()

    told = capsys.readouterr().err
    assert {sign for sign in told if not sign.isprintable()} == {"\n"}
    assert "hunter2" not in told
    assert r"a\x1b[2Jb" in told


def test_a_host_without_changes_says_which_link_is_broken(capsys):
    """A plan cannot fix a lost GPU, and "up to date" alone reads as if all were well."""
    lost = "Unable to determine the device handle for GPU3: GPU is lost."
    _, seen = cases.right()
    outcomes = [
        Outcome("a", "right", cases.overlaid(seen, {"smi_error": lost})),
        Outcome("b", "right", seen),
    ]
    words = f"NVML is broken, see `gpunode verify`: {lost}"
    human, told = make(json=False, quiet=True), make(json=True, quiet=True)
    human.plans(outcomes)
    assert (
        capsys.readouterr().out
        == f" a  ✗ broken; gpunode cannot repair this\n    {words}\n b  = up to date\n"
    )
    human.summary(outcomes)
    assert capsys.readouterr().err.endswith(": 1 broken, 1 up to date\n")
    told.plans(outcomes)
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(line["status"], line["notes"]) for line in lines] == [("broken", [words]), ("right", [])]
    told.summary(outcomes)
    (line,) = map(json.loads, capsys.readouterr().out.splitlines())
    assert (line["broken"], line["right"]) == (1, 1)
    cards = [Card(end.host, end) for end in outcomes]
    assert [card.status for card in cards] == ["broken", "up to date"]
    assert lost in cards[0].cause

    for step in ("docker", "driver"):  # beside changes that fix something else, or bring another driver
        file = StepPlan(step, (WriteFile("/etc/x", "1\n", "why"),))
        human.plans([replace(outcomes[0], status="planned", plan=Plan("a", (file,)))])
        assert words in capsys.readouterr().out
    bare = replace(seen, modules={}, library_version=None, gpus=())  # of which the plan installs the driver
    human.plans([Outcome("a", "planned", bare, plan=Plan("a", (file,)))])
    assert "broken" not in capsys.readouterr().out


def test_equal_plans_of_several_hosts_are_one_block_with_their_names(capsys):
    """What differs in anything stays apart."""

    def planned(host: str, content: str) -> Outcome:
        file = WriteFile("/etc/x", content, "why")
        return Outcome(host, "planned", plan=Plan(host, (StepPlan("docker", (file,)),)))

    outcomes = [
        planned("a", "1\n"),
        planned("b", "2\n"),
        planned("c", "1\n"),
        Outcome("d", "right"),
    ]
    outcomes += [
        Outcome("e", "right"),
        Outcome("f", "refused", problem=Problem("", "no")),
        Outcome("g", "refused", problem=Problem("", "no")),
    ]
    make(json=False, quiet=True).plans(outcomes)
    lines = capsys.readouterr().out.splitlines()
    heads = [line.strip() for line in lines if line[:1] == " " and line[1:2] not in ("", " ")]
    assert heads == ["a, c", "b", "d, e  = up to date", "f, g  ✗ refused  no"]
    assert sum("/etc/x" in line for line in lines) == 2


def test_hosts_that_count_on_have_their_range_as_a_name(capsys):
    make(json=False, quiet=True).plans([Outcome(f"gpu-{n:02}", "right") for n in (1, 8, 9, 10, 11)])
    assert capsys.readouterr().out == " gpu-01, gpu-[08:11]  = up to date\n"


def long_plan(steps: int, *more: StepPlan) -> Outcome:
    """Two files and a restart a step."""

    def step(name: str) -> StepPlan:
        files = [WriteFile(f"/etc/{name}/{part}", f"{name}\n", "a reason") for part in "ab"]
        return StepPlan(name, (*files, Service(f"{name}.service", "a reason", restart=True, note="slow")))

    every = (*(step(f"s{number}") for number in range(steps)), *more)
    return Outcome("a", "planned", plan=Plan("a", every))


@pytest.mark.parametrize(("steps", "reasons"), [(1, 3), (5, 5), (10, 0)])
def test_a_plan_is_at_most_twelve_lines_of_a_host(steps: int, reasons: int, capsys):
    """Diffs and reasons where there is room for them; else a step is a line, and a last line says how to see the rest."""
    human = make(json=False, quiet=True)
    human.plans([long_plan(steps)])
    text = capsys.readouterr().out
    assert len(text.splitlines()) <= 12
    human.summary([])
    last = capsys.readouterr().err
    assert ("; plan --diff shows all reasons and diffs" in last) == ("+s0" not in text) == (steps > 1)
    assert text.count("a reason") == reasons
    assert ("write /etc/s0/a and 1 more; restart s0 (slow)" in text) == (steps > 1)


def test_a_long_step_has_the_same_lines_in_a_plan_of_any_length(capsys):
    names = [f"{'x' * 40}{number}" for number in range(3)]
    long = StepPlan("long", tuple(Service(f"{name}.service", "a reason", restart=True) for name in names))
    for steps in (4, 10):
        make(json=False, quiet=True).plans([long_plan(steps, long)])
    lines = [line for line in capsys.readouterr().out.splitlines() if "xxx" in line]
    assert [line.split()[-1] for line in lines] == 2 * names


def test_d_at_the_question_shows_reasons_and_diffs_and_asks_again(capsys):
    human = Human(quiet=False)
    human.plans([long_plan(5)])
    assert "+s4" not in capsys.readouterr().out
    with mock.patch("sys.stdin") as stdin:
        stdin.isatty.return_value = True
        stdin.readline.side_effect = ["D\n", "?\n", "y\n"]
        assert human.ask("Apply?")
    asked = capsys.readouterr()
    assert asked.err.count("Apply? [y/N/diffs]") == 3
    assert "y applies it, d shows diffs, n or Enter cancels." in asked.err
    assert (asked.out.count("a reason"), asked.out.count("+s4")) == (15, 2)


def test_an_interrupt_while_diffs_are_shown_changes_nothing():
    human = Human(quiet=False)
    human.plans([long_plan(5)])
    human._folded.append(mock.Mock(side_effect=KeyboardInterrupt))
    with mock.patch("sys.stdin") as stdin:
        stdin.isatty.return_value = True
        stdin.readline.side_effect = ["d\n"]
        with pytest.raises(Declined, match="nothing changed") as ended:
            human.ask("Apply?")
    assert ended.value.exit_code == 130


def test_costs_are_shown_where_no_terminal_can_be_asked(capsys):
    human = Human(quiet=False)
    human.plans([long_plan(5)])
    with mock.patch("sys.stdin") as stdin:
        stdin.isatty.return_value = False
        assert not human.ask("1 host: 1 reboot. Forget them?")
    asked = capsys.readouterr()
    assert asked.err == " 1 host: 1 reboot. Forget them? no, as there is no terminal to ask\n"


@pytest.mark.parametrize(("end", "accepted"), [("y\n", True), ("n\n", False), ("\n", False), ("", False)])
def test_another_answer_is_told_what_the_answers_mean(capsys, end: str, accepted: bool):
    with mock.patch("sys.stdin") as stdin:
        stdin.isatty.return_value = True
        stdin.readline.side_effect = ["?\n", "d\n", end]  # no plan is folded that d could show
        assert Human(quiet=False).ask("Apply?") is accepted
    assert capsys.readouterr().err.count("y applies it, n or Enter cancels.") == 2


def test_figures_have_their_units_for_people(capsys):
    make(json=False, quiet=True).rows("acceptance", ("node", "memory", "temp"), [("a", 2973.1, 45)])
    assert capsys.readouterr().out.split()[:4] == ["MEMORY", "NODE", "GB/s", "TEMP"]


REBOOT = Disturbance(reboot=True, restarts=("docker.service", "kubelet.service"))
XORG = GpuUser(900, "Xorg")


@pytest.mark.parametrize(
    ("disturbed", "words", "names"),
    [
        (Disturbed(Disturbance(), pods={}), "", ""),
        (Disturbed(REBOOT, pods={}), "", ""),
        (
            Disturbed(REBOOT, "wait", 1800, {"ml/train": {GPU: 2}, "web/1": {}}),
            "reboot, restart of docker and kubelet; gpunode cordons the node and waits up to 30 min for work on its GPUs",
            "ml/train (2 GPUs), web/1",
        ),
        (
            Disturbed(
                REBOOT,
                "wait",
                1800,
                {"ml/train": {GPU: 1}, "web/1": {}},
                standstill={"ml/train": "CrashLoopBackOff", "web/1": "ErrImagePull"},
            ),
            "reboot, restart of docker and kubelet; gpunode cordons the node and waits up to 30 min for work on its GPUs",
            "ml/train (1 GPU, does not run: CrashLoopBackOff), web/1 (does not run: ErrImagePull)",
        ),
        (
            Disturbed(Disturbance(reboot=True), "drain", 90, {"ml/train": {GPU: 1}}, reload=True),
            "driver reload (reboot if that fails); drained first, 90 s at most",
            "ml/train (1 GPU)",
        ),
        (
            Disturbed(
                Disturbance(modules=True, packages=("nvidia-open",)), "drain", 90, {"ml/train": {GPU: 1}}
            ),
            "driver reload, driver packages; drained first, 90 s at most",
            "ml/train (1 GPU)",
        ),
        (
            Disturbed(
                Disturbance(modules=True),
                "kill",
                1800,
                {"ml/m1": {MEMORY: 2}, "ml/both": {GPU: 1, MEMORY: 4}},
            ),
            "driver reload; gpunode cordons the node first; work ends with it",
            "ml/m1 (2 of aliyun.com/gpu-mem), ml/both (1 GPU, 4 of aliyun.com/gpu-mem)",
        ),
        (
            Disturbed(Disturbance(modules=True), "kill", 1800, {}, (XORG,)),
            "driver reload; gpunode cordons the node first; work ends with it",
            "Xorg (pid 900)",
        ),
        (
            Disturbed(Disturbance(restarts=("containerd.service",)), pods={"ml/train": {GPU: 1}}),
            "restart of containerd; pods keep running",
            "",
        ),
        (
            Disturbed(Disturbance(restarts=("containerd.service",)), pods={}, users=(XORG,)),
            "",
            "",
        ),
        (
            Disturbed(REBOOT, "wait", 1800),
            "reboot, restart of docker and kubelet; running pods unknown",
            "",
        ),
        (
            Disturbed(REBOOT, "drain", 1800, users=(XORG,)),
            "reboot, restart of docker and kubelet; processes outside Kubernetes waited for, 30 min at most; "
            "running pods unknown",
            "Xorg (pid 900)",
        ),
    ],
)
def test_a_plan_says_what_it_disturbs(disturbed: Disturbed, words: str, names: str, capsys):
    """Its kinds with the host, whose work it is once for all; nothing where no work notices. One host has no order."""
    step = StepPlan("docker", (Service("docker.service", "why", restart=True),))
    outcome = Outcome("gpu-1", "planned", plan=Plan("gpu-1", (step,)), disturbs=disturbed)
    make(json=False, quiet=True).plans([outcome])
    shown = capsys.readouterr().out
    assert (f"   disturbs      {words}\n" in shown) if words else ("disturbs" not in shown)
    assert (f"gpu-1: {names}\n" in shown) if names else ("\n disturbs" not in shown)
    assert "--batch" not in shown
    assert ("pods unknown" in shown) == (disturbed.pods is None)
    assert disturbed.pods is not None or "0 GPU pods" not in shown
    make(json=False, quiet=True).plans([outcome, replace(outcome, host="gpu-2")])
    assert ("one host at a time per group" in capsys.readouterr().out) == bool(names)
    make(json=True, quiet=True).plans([outcome])
    line = json.loads(capsys.readouterr().out)["disturbs"]
    assert line["restarts"] == list(disturbed.what.restarts)
    assert (line["anybody"], line["work"]) == (disturbed.anybody, disturbed.work)
    assert line["pods"] == (
        None
        if disturbed.pods is None
        else [
            {
                "name": name,
                "gpus": asks.get(GPU, 0),
                "asks": asks,
                "standstill": disturbed.standstill.get(name, ""),
                "on": [],
            }
            for name, asks in disturbed.pods.items()
        ]
    )


@pytest.mark.parametrize(
    ("reload", "name", "words"),
    [
        (False, "reboot", "reboot"),
        (True, "modules", "reload the driver; reboot if that fails"),
    ],
)
def test_a_plan_names_the_reload_that_is_tried_first(reload: bool, name: str, words: str, capsys):
    """A reboot only for users of the GPUs that make way is none, as long as nothing else holds one."""
    disturbed = Disturbed(Disturbance(reboot=True), "wait", 1800, {}, reload=reload)
    plan = Plan("gpu-1", (StepPlan("reboot", (Reboot("why"),)),))
    outcome = Outcome("gpu-1", "planned", plan=plan, disturbs=disturbed)
    make(json=False, quiet=True).plans([outcome])
    assert f"   {name:<11} ! {words}\n" in capsys.readouterr().out
    make(json=True, quiet=True).plans([outcome])
    (change,) = json.loads(capsys.readouterr().out)["changes"]
    assert (change["kind"], change["what"]) == ("Reboot", words)


def test_a_terminal_breaks_lines_between_words_below_where_their_text_begins(terminal: Terminal, capsys):
    """A command stays on one line where it fits; what is piped is not broken at all."""
    fix = "Load the module with `modprobe nvidia`, then run `gpunode verify inventory.yaml --limit a` once more."
    links = [Verdict.broken("module", "nvidia is not loaded", "dmesg reports an unknown symbol in it", fix)]
    make(json=False, quiet=False).links("h100-1", links)
    assert fix in capsys.readouterr().out
    written = terminal(60)
    make(json=False, quiet=False).links("h100-1", links)
    assert written() == [
        " h100-1",
        "   ✗ module    nvidia is not loaded",
        "       cause     dmesg reports an unknown symbol in it",
        "       fix       Load the module with `modprobe nvidia`,",
        "                 then run",
        "                 `gpunode verify inventory.yaml --limit a`",
        "                 once more.",
    ]


@pytest.mark.parametrize(
    ("quiet", "accepted", "shown"), [(True, True, False), (True, False, True), (False, True, True)]
)
def test_a_quiet_report_has_no_plan_that_nobody_is_asked_about(
    quiet: bool, accepted: bool, shown: bool, capsys
):
    """What is wrong and what came of it are shown in every case."""
    report = make(json=False, quiet=quiet, accepted=accepted)
    change = WriteFile("/etc/x", "1\n", "why")
    plan = Plan("a", (StepPlan("docker", (change,)),))
    report.plans(
        [Outcome("a", "planned", plan=plan), Outcome("b", "refused", problem=Problem("", "no", fix="Do so."))]
    )
    report.cluster("prod", DIFFERENCES)
    report.rows("batch", ("batch", "hosts", "changes", "disturbed", "words"), [(1, ["a"], ["a"], [], [])])
    report.rows("gate", ("gate",), [("./check",)])
    report.rows("verified", ("host", "result"), [("a", "verified")])
    told = capsys.readouterr().out
    printed = [word in told for word in ("/etc/x", "cluster  prod", "batches", "./check")]
    assert printed == [shown] * 4
    assert "✗ refused  no\n" in told
    assert "Do so." in told
    assert "verified" in told


def test_a_quiet_chain_that_holds_is_a_line(capsys):
    make(json=False, quiet=True).links("gpu-1", [Verdict.ok("PCI", "2 GPUs"), Verdict.ok("module", "580")])
    assert capsys.readouterr().out == " gpu-1  ✓ 2 links OK, PCI to module\n"


def test_of_many_hosts_those_that_are_right_have_a_line_each(capsys):
    """And a broken one is shown whole."""
    report = make(json=False, quiet=True)
    with report.live([Host(f"gpu-{number}", Ssh("x")) for number in range(9)]):
        pass
    report.links("gpu-1", [Verdict.ok("PCI", "2 GPUs"), Verdict.ok("module", "580")])
    report.links("gpu-2", [Verdict.ok("PCI", "2 GPUs"), Verdict.broken("module", "none", cause="not loaded")])
    assert capsys.readouterr().out.splitlines() == [
        " gpu-1  ✓ 2 links OK, PCI to module",
        " gpu-2",
        "   ✓ PCI       2 GPUs",
        "   ✗ module    none",
        "       cause     not loaded",
    ]


@pytest.mark.parametrize(
    ("hosts", "most", "names"),
    [
        (["gpu-1.dc.example", "gpu-2.dc.example"], 20, ["gpu-1.dc.example", "gpu-2.dc.example"]),
        (["gpu-1.dc.example", "gpu-2.dc.example"], 10, ["gpu-1", "gpu-2"]),
        (["gpu-1.a.example", "gpu-1.b.example"], 10, ["…a.example", "…b.example"]),
        (["gpu-rack-12-1"], 6, ["…-12-1"]),
        ([], 6, []),
    ],
)
def test_long_names_leave_room_for_what_a_host_does(hosts: list[str], most: int, names: list[str]):
    assert short_names(hosts, most) == dict(zip(hosts, names, strict=True))


def test_what_stays_is_a_row_for_each_reason(capsys):
    rows = [(host, "kept", f"lib{n}", "no repository has 1.0") for host in ("a1", "a2") for n in range(5)]
    make(json=False, quiet=True).rows(
        "left", ("host", "code", "what", "why"), [*rows, ("b", "kept", "x", "y")]
    )
    assert capsys.readouterr().out.splitlines() == [
        " stays     a1, a2: lib0, lib1, lib2, lib3, lib4: no repository has 1.0",
        "           b: x: y",
    ]


def test_hosts_with_the_same_choices_share_their_rows(capsys):
    choices = [("branch", "595", "newest"), ("modules", "open", "best")]
    rows = [(host, *choice) for host in ("a1", "a2") for choice in choices]
    make(json=False, quiet=True).rows(
        "why", ("host", "code", "chosen", "why"), [*rows, ("b", "branch", "580", "last")]
    )
    words = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert words == [
        ["a1,", "a2"],
        ["branch", "595", "·", "newest"],
        ["modules", "open", "·", "best"],
        ["b"],
        ["branch", "580", "·", "last"],
    ]


def test_reasons_with_the_same_fix_have_it_once(capsys):
    rows = [("x", what, [], "gpunode provision") for what in ("first", "second")]
    make(json=False, quiet=True).rows("reason", ("code", "what", "evidence", "fix"), rows)
    assert capsys.readouterr().out.splitlines() == ["   Fix: gpunode provision", " Also: second"]


def test_causes_of_one_host_each_are_in_their_chains(capsys):
    for hosts in (1, 2):
        make(json=False, quiet=True).rows("cause", ("cause", "layer", "hosts"), [("no GPU", "PCI", hosts)])
        assert ("no GPU" in capsys.readouterr().out) is (hosts == 2)


def test_a_cause_of_several_hosts_is_told_once(capsys):
    """In the chain of the first; a command for all of them is in the table below, with none of a host alone."""
    shown = make(json=False, quiet=True)
    for host in ("a", "b"):
        shown.links(host, [Verdict.broken("node", "not judged", f"{host} may not", "Grant this.")])
    shown.links("c", [Verdict.broken("PCI", "no GPU", "nothing there", "Seat it.")])
    for host, gpu in (("d", "3b:00.0"), ("e", "5e:00.0")):
        shown.links(host, [Verdict.broken("NVML", "a reset is due", "Xid 48", f"Reset {gpu}.")])
    columns = ("cause", "layer", "hosts", "names", "fix")
    rows = [("not judged", "node", 2, "a, b", "Grant this."), ("no GPU", "PCI", 1, "c", "Seat it.")]
    shown.rows("cause", columns, rows)
    text = capsys.readouterr().out
    assert [text.count(words) for words in ("Grant this.", "Seat it.", "nothing there")] == [1, 1, 1]
    assert "Reset 5e:00.0." in text  # its own GPU
    assert "cause     as of a\n" in text
    assert "fix    as above\n" in text


def test_a_remark_on_a_link_that_holds_is_no_cause(capsys):
    Human(quiet=False).links("a", [Verdict.ok("NVML", "1 GPU answers", "MIG is pending", "Reboot.")])
    assert capsys.readouterr().out.splitlines() == [
        " a",
        "   ! NVML      1 GPU answers",
        "       note      MIG is pending",
        "       advice    Reboot.",
    ]


def test_equal_hosts_share_a_plan_whatever_processes_use_their_gpus(capsys):
    """The program is named, without the pids and pods of each host; one host alone has them."""
    why = "the driver's packages change; in use by python3 (pid {}, pod gpunode/plugin-{})"
    planned = [
        Outcome(
            f"gpu-{n}", "planned", plan=Plan(f"gpu-{n}", (StepPlan("reboot", (Reboot(why.format(n, n)),)),))
        )
        for n in (1, 2, 3)
    ]
    make(json=False, quiet=True).plans(planned)
    shown = capsys.readouterr().out
    assert shown.count("in use by python3\n") == shown.count("gpu-[1:3]") == 1
    make(json=False, quiet=True).plans(planned[:1])
    assert "(pid 1, pod gpunode/plugin-1)" in capsys.readouterr().out


@pytest.mark.parametrize("batches", [1, 2])
def test_the_only_batch_of_a_run_has_no_line(batches: int, capsys):
    """The question before it had all that it says."""
    line = RunLine("r1", "running", 1, 0, {}, 0.0, 1, batches)
    make(json=False, quiet=False).event(Event("stage", None, f"batch 1 of {batches}", asdict(line)))
    assert capsys.readouterr().err == ("" if batches == 1 else " batch 1 of 2\n")


def test_without_a_terminal_a_wait_is_a_line_a_minute(capsys, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(human, "time", mock.Mock(monotonic=lambda: now[0]))
    report = make(json=False, quiet=False)
    for seconds, host, text in (
        (0, "a", "waiting for ml/x and ml/y to leave the GPUs"),
        (1, "b", "waiting for ml/z to leave the GPUs"),
        (2, "a", "waiting for ml/y to leave the GPUs"),
        (3, "a", "probe"),
        (4, "a", "waiting for the device plugin to leave the node"),
        (5, None, "0 of 4 test pods finished; t-1: starting or running"),
        (64, None, "1 of 4 test pods finished; t-2: starting or running"),
        (66, None, "2 of 4 test pods finished; t-3: starting or running"),
        (67, None, "the Kubernetes API did not answer"),
        (68, None, "the Kubernetes API did not answer"),
    ):
        now[0] = seconds
        with report.live(()):  # also while hosts are at work
            report.event(Event("stage", host, text))
    report.event(Event("stage", "b", "waiting for the device plugin", {"wait": "plugin"}))
    assert [line.split()[0:4] for line in capsys.readouterr().err.splitlines()] == [
        ["a", "waiting", "for", "ml/x"],
        ["b", "waiting", "for", "ml/z"],
        ["a", "waiting", "for", "the"],
        ["0", "of", "4", "test"],
        ["2", "of", "4", "test"],
        ["the", "Kubernetes", "API", "did"],
        ["b", "waiting", "for", "the"],
    ]


def test_a_log_has_a_line_for_each_changed_host_and_a_minute_of_its_changes(capsys, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(human, "time", mock.Mock(monotonic=lambda: now[0]))
    report = make(json=False, quiet=False)
    for seconds, kind, text, data in (
        (0, "change", "write a file", {"n": 0, "of": 3}),
        (1, "change", "install the driver", {"n": 1, "of": 3}),
        (59, "progress", "unpacking", {"percent": 40}),
        (61, "progress", "setting up", {"percent": 80}),
        (62, "progress", "setting up", {"percent": 90}),
        (63, "stage", "reboot", {}),
        (64, "stage", "probe", {}),
        *((65, "stage", "waiting for ml/x", {"wait": "work"}), (66, "progress", "unpacking", {})) * 2,
    ):
        now[0] = seconds
        report.event(Event(kind, "a", text, data))
    report.outcome(Outcome("a", "changed", seconds=70, applied=(Reboot("why"),)))
    report.outcome(Outcome("b", "right", seconds=1))
    assert capsys.readouterr().err.splitlines() == [
        " a  2/3 install the driver",
        " a  reboot",
        " a  waiting for ml/x",
        " a  ✓ 1 change in 70 s",
    ]


def test_hosts_that_fail_alike_are_one_entry_where_there_are_many(capsys):
    """Their names as ranges, without what differs between them; the host that fails otherwise has its own."""
    failures = [
        Outcome(
            f"gpu-{n:02}",
            "unreachable",
            problem=Problem("", f"ops@10.0.0.{n}:22: no answer", fix=f"Try `ssh ops@gpu-{n:02}`."),
        )
        for n in range(1, 13)
    ]
    failures.append(Outcome("other", "refused", problem=Problem("", "no GPU", fix="Add one.")))
    Human(quiet=False).failures(failures)
    assert capsys.readouterr().out.splitlines() == [
        " gpu-[01:12]  ✗ unreachable  ops@…:22: no answer",
        "     Try `ssh ops@HOST`.",
        " other  ✗ refused  no GPU",
        "     Add one.",
    ]
    Human(quiet=False).failures(failures[:10])
    assert len(capsys.readouterr().out.splitlines()) == 20


@pytest.mark.parametrize("screen", [True, False])
def test_a_host_whose_problem_was_shown_has_it_once(capsys, terminal: Terminal, screen: bool):
    """On one screen: a file of the results alone has every reason."""
    if screen:
        terminal(100)
    report = Human(quiet=False)
    report.problem(Problem("", "not changed: it is in use", subject="a"))
    rows = [
        ("a", "a", "not verified", "not changed: it is in use", "", ""),
        ("b", "b", "not verified", "it is lost", "", ""),
    ]
    report.rows("verified", ("host", "node", "result", "proof", "layer", "code"), rows)
    shown = [" ".join(line.split()[3:]) for line in capsys.readouterr().out.splitlines()[1:]]
    assert shown == ["see above" if screen else "not changed: it is in use", "it is lost"]


def test_proofs_of_many_hosts_and_gpus_are_a_row_for_all_that_ended_alike(capsys):
    report = Human(quiet=False)
    hosts = [
        (f"gpu-{n:03}", f"gpu-{n:03}", "verified", "8 GPUs, vectoradd passed on each", "", "")
        for n in range(1, 121)
    ]
    hosts[4] = ("gpu-005", "gpu-005", "not verified", "gpu-005 is NotReady", "node", "node-not-ready")
    report.rows("verified", ("host", "node", "result", "proof", "layer", "code"), hosts)
    gpus = [
        (f"gpu-{n:03}", f"GPU-{n}-{at}", "H100", "passed", 1, float(at), "")
        for n in range(1, 121)
        for at in range(8)
    ]
    report.rows("vectoradd", ("node", "uuid", "gpu", "result", "pods", "seconds", "why"), gpus)
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert lines[1] == "gpu-[001:004], gpu-[006:120] verified 8 GPUs, vectoradd passed on each"
    assert lines[2] == "gpu-005 not verified gpu-005 is NotReady node node-not-ready"
    assert lines[4] == "gpu-[001:120] 960 GPUs H100 passed 960 7"


def test_users_read_last_what_to_do_next_and_programs_the_summary(capsys):
    after = Advice("`", Command("resume"), "` continues.")
    Named(make(json=False, quiet=False), Path("i.yaml")).summary([], after=after)
    assert capsys.readouterr().err.splitlines()[-1] == " `gpunode resume i.yaml` continues."
    Named(make(json=True, quiet=False), Path("i.yaml")).summary([], after=after)
    note, last = map(json.loads, capsys.readouterr().out.splitlines())
    assert (note["message"], last["type"]) == ("`gpunode resume i.yaml` continues.", "summary")


def test_a_new_object_that_is_nearly_another_one_is_shown_by_what_differs(capsys):
    """As the plugin's two DaemonSets; one that shares little is shown whole."""
    spec = {f"key{number}": number for number in range(10)}
    new = [
        creation({"kind": "DaemonSet", "metadata": {"name": name}, "spec": more})
        for name, more in (("a", spec), ("b", spec), ("c", {}))
    ]
    make(json=False, quiet=False).cluster("here", new, diff=True)
    _, second, third = capsys.readouterr().out.split("create DaemonSet ")[1:]
    assert second.split("\n")[1].strip() == "the same as DaemonSet a but for:"
    assert "-  name: a\n" in second
    assert "key5" not in second
    assert "+  name: c\n" in third
    assert "the same" not in third
