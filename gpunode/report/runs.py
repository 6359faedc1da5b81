"""Runs: the line of one under way, tables of what they did, recorded ones and reviewed plans, as lines of styled text. Pure."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from gpunode.cluster.objects.difference import DO
from gpunode.engine.estimate import Estimate
from gpunode.engine.overview import RunLine
from gpunode.inventory.starter import ranges
from gpunode.report.plain import CHANGE, INDENT, Part, line_style, lines, plain
from gpunode.report.plans import step_name
from gpunode.wording import common, moment, several

BAR = 10  # columns
NARROW, ROOMY = 70, 100  # columns: of less a terminal has short words, of as many more words and longer bars
# Of recorded hosts and changes: a state, and whether a change was made (None: not known).
RECORDED: Mapping[str, tuple[str, str]] = {
    "proven": ("✓", "green"),
    "finished": ("✓", "green"),
    "in use": ("✓", "green"),
    "undone": ("✓", "green"),
    "forgotten": ("✓", "green"),
    **dict.fromkeys(("skipped", "waiting", "kept"), ("·", "dim")),
    **dict.fromkeys(("cordoned", "drained", "changing", "changed"), ("?", "yellow")),  # under way, or cut off
}
MADE: Mapping[bool | None, tuple[str, str]] = {
    True: ("✓", "green"),
    False: ("·", "dim"),
    None: ("?", "yellow"),
}
MANY = {"verified": 8, "vectoradd": 100}  # rows of a table; more are a row for all that ended alike
LABELS = ("label", "features", "resource")  # tables of what a node has before and after


def run_line(run: RunLine, width: int, command: str = "run") -> list[Part]:
    """` batch 3 of 8 ████░░░░░░ 11 of 32 hosts · 1 failed · about 12 min left`, or how the run ended."""
    of = "/" if width < NARROW else " of "
    bad = [f"{number} {state}" for state, number in run.ends.items() if number]
    done = f"{run.finished}{of}{several(run.hosts, 'host')}"
    if not run.is_running:
        when = moment(run.since)
        again = "the same command" if command == "forget" else "`gpunode resume`"
        rest = [] if run.finished == run.hosts else [f"{again} continues"]
        return [f" {command} {run.state} {when}: ", " · ".join([f"{done} done", *bad, *rest])]
    bar = BAR if width < ROOMY else 2 * BAR
    filled = bar * run.finished // max(run.hosts, 1)
    batch = f" batch {run.batch}{of}{run.batches} " if run.batches else " run "
    left = [] if run.left is None else ["longer than estimated"]
    if run.left and run.left > 0:
        left = [f"{Estimate(run.left, typical=False)}{'' if width < NARROW else ' left'}"]
    last = run.batch == run.batches > 0  # after which there is nothing to pause
    state = ["pausing after this batch"] if run.state == "pausing" and not last else left
    named = [] if width < NARROW else [f"run {run.id}"]
    text = " · ".join([done, *bad, *state, *named])
    return [(batch, "bold"), ("█" * filled + "░" * (bar - filled), "cyan"), f" {text}"]


def deviations(rows: Sequence[Sequence[Any]]) -> Iterator[Part]:
    """How the plan differs from the reviewed one; hosts that differ alike share an entry."""
    yield " Different from the reviewed plan:\n"
    groups: dict[tuple[str, str], list[str]] = {}
    for host, code, what in rows:
        groups.setdefault((code, common(what, host) if host else what), []).append(host or code)
    before = ""
    for (_, what), names in groups.items():
        if (whose := ", ".join(ranges(list(dict.fromkeys(names))))) != before:
            yield from ("   ", (whose, "bold"), "\n")
        before = whose
        yield from (f"     {line}\n" for line in lines(what))


def recorded(rows: Sequence[Sequence[Any]]) -> Iterator[Part]:
    """How hosts ended, and their changes, each with whether it was made; hosts that ended alike share an entry."""
    groups: dict[str, list[Sequence[Any]]] = {}
    for row in rows:
        host, state, why, _, changes = row
        groups.setdefault(repr((state, common(why, host or ""), changes)), []).append(row)
    for same in groups.values():
        host, state, why, _, changes = same[0]
        if host is None:
            yield from (" ", ("cluster", "bold"), "\n")
        else:
            names, sign = ", ".join(ranges([row[0] for row in same])), RECORDED.get(state, ("✗", "red"))
            end = "verified" if state == "proven" else state
            yield from (" ", (names, "bold"), "  ", sign, f" {end}\n")
        for line in lines(why if len(same) == 1 else common(why, host)):
            yield f"     {line}\n"
        shown = []
        for change in changes:
            what, sign = change["what"], MADE[change["made"]]
            if host is None and change["made"] is None:
                sign = CHANGE
            elif host is None:
                what = f"{DO[change['kind']]}{what.removeprefix(change['kind'])} (not made)"
            shown.append({**change, "what": what, "sign": sign})
        yield from _changes(shown)


def _changes(changes: Iterable[Mapping[str, Any]]) -> Iterator[Part]:
    """Changes as values, each with its sign."""
    step = ""
    for change in changes:
        name = "" if change["step"] == step else step_name(change["step"])
        step = change["step"]
        yield from ("   ", (f"{name:<11}", "dim"), " ", change["sign"], f" {plain(change['what'])}\n")
        if change["why"]:
            yield from (INDENT, (f"{plain(change['why'])}\n", "dim"))
        for line in change.get("diff", ()):
            yield from (INDENT, (f"{plain(line)}\n", line_style(line)))


def group_rows(kind: str, rows: Sequence[Sequence[Any]]) -> Sequence[Sequence[Any]]:
    """The proofs of many hosts, or of many GPUs: a row for all that ended alike. No
    phases of less than a second. Other tables as they are."""
    if kind == "phase":
        return [row for row in rows if row[1] >= 1]
    if len(rows) <= MANY.get(kind, len(rows)):
        return rows
    groups: dict[tuple[str, ...], list[Sequence[Any]]] = {}
    for row in rows:
        name, *rest = row
        alike = (
            (rest[1], common(rest[2], name))
            if kind == "verified"
            else (rest[1], rest[2], common(rest[5], name))
        )
        groups.setdefault(alike, []).append(row)
    return [_row_of_all(kind, same) for same in groups.values()]


def choices(rows: Sequence[Sequence[Any]]) -> Iterator[Part]:
    """What `plan --why` explains: a line for each choice, and hosts that have the same ones once."""
    made: dict[str, list[Sequence[Any]]] = {}
    for host, *choice in rows:
        made.setdefault(host, []).append(choice)
    alike: dict[str, list[str]] = {}
    for host, some in made.items():
        alike.setdefault(repr(some), []).append(host)
    for hosts in alike.values():
        yield from (" ", (", ".join(ranges(hosts)), "bold"), "\n")
        for code, chosen, why in made[hosts[0]]:
            yield from ("   ", (f"{code:<11}", "dim"), f" {plain(chosen)} · ", (f"{plain(why)}\n", "dim"))


def left(rows: Sequence[Sequence[Any]]) -> Iterator[str]:
    """What an undo leaves: of rows of host ("": the cluster), code, what and why, a line for all that stays for the same reason, and for
    all hosts alike."""
    things: dict[tuple[str, str], list[str]] = {}
    for host, _, what, why in rows:
        things.setdefault((host or "cluster", why), []).append(what)
    hosts: dict[tuple[str, str], list[str]] = {}
    for (host, why), names in things.items():
        hosts.setdefault((", ".join(names), why), []).append(host)
    for (what, why), names in hosts.items():
        yield f"{', '.join(ranges(names))}: {what}: {why}"


def _row_of_all(kind: str, same: Sequence[Sequence[Any]]) -> Sequence[Any]:
    first = same[0]
    if len(same) == 1:
        return first
    names = ", ".join(ranges(list(dict.fromkeys(row[0] for row in same))))
    if kind == "verified":
        return (names, "", first[2], common(first[3], first[0]), *first[4:])
    _, _, gpu, end, _, _, why = first
    seconds = [row[5] for row in same if row[5] is not None]
    pods = sum(row[4] for row in same)
    return (names, f"{len(same)} GPUs", gpu, end, pods, max(seconds, default=None), common(why, first[0]))


def name_absent(kind: str, rows: Sequence[Sequence[Any]]) -> Sequence[Sequence[Any]]:
    """The rows, in which a label or a count that is not there before or after a change is `none`."""
    if kind not in LABELS:
        return rows
    return [
        row if row[-1] == "same" else ["none" if cell in ("", None) else cell for cell in row] for row in rows
    ]


def without_same_node(
    kind: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]
) -> tuple[Sequence[str], Sequence[Sequence[Any]]]:
    """A table of hosts without the column of nodes, where each node has its host's name."""
    if kind not in ("verified", "accepted") or any(row[1] not in (row[0], "") for row in rows):
        return columns, rows
    return [columns[0], *columns[2:]], [(row[0], *row[2:]) for row in rows]


def cell_text(value: object) -> str:
    """The text of a cell. Floats are seconds; below one they are <1, since the kubelet reports whole seconds."""
    if type(value) is float:
        return f"{value:.0f}" if value >= 10 else f"{value:.2g}" if value >= 1 else "<1"
    return "" if value is None else str(value)
