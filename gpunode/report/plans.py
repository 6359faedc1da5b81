"""Plans, chains and failures of hosts, and changes of the cluster, as lines of styled text for a terminal or a page. Pure."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from gpunode.engine.chain import find_manual_fix, unfixed_note
from gpunode.engine.reporter import Duration
from gpunode.host import diff as diffs
from gpunode.inventory.starter import ranges
from gpunode.links.machine import pci
from gpunode.links.machine.pci import gpus
from gpunode.links.runtime import RUNTIMES, detect
from gpunode.model import (
    Change,
    Desired,
    Disturbed,
    Facts,
    Outcome,
    Packages,
    RemoveFile,
    Status,
    StepPlan,
    Verdict,
    WriteFile,
)
from gpunode.planning import writers
from gpunode.report.plain import Indent, Part, lines, plain
from gpunode.wording import common, few, several

if TYPE_CHECKING:
    from gpunode.cluster.objects.difference import Difference


STATUS_SIGNS = {"ok": ("✓", "green"), "broken": ("✗", "red"), "unknown": ("·", "dim")}
WORDS = {
    "right": "up to date",
    "broken": "broken",
    "planned": "to change",
    "differs": "different",
    "changed": "changed",
    "failed": "failed",
    "refused": "refused",
    "unreachable": "unreachable",
    "declined": "declined",
}
REASONS, LINES = 3, 15  # of an answer
NAMED, HOSTS, BATCHES = 5, 10, 5  # how many are shown: pods and processes of a host, hosts, batches
# The action of a Difference → the verb in the plan, and its sign.
DO: Mapping[str, str] = {
    "created": "create",
    "changed": "change",
    "removed": "remove",
    "labelled": "label",
    "replaced": "replace",
}
SIGNS: Mapping[str, tuple[str, str]] = {"created": ("+", "green"), "removed": ("-", "red")}
CHANGE = ("~", "yellow")
REMARK = ("!", "yellow")  # a link that holds, with a remark
LEGEND = "+ new  ~ changed  - removed  ! action: restart, load, refresh"
# Of recorded hosts and changes: a state, and whether a change was made (None: not known).
RECORDED: Mapping[str, tuple[str, str]] = {
    "proven": ("✓", "green"),
    "finished": ("✓", "green"),
    "in use": ("✓", "green"),
    "undone": ("✓", "green"),
    "forgotten": ("✓", "green"),
    **dict.fromkeys(("skipped", "waiting"), ("·", "dim")),
    **dict.fromkeys(("cordoned", "drained", "changing", "changed"), ("?", "yellow")),  # under way, or cut off
}
REVIEWED = ("·", "dim")  # a change of a plan in a file
MADE: Mapping[bool | None, tuple[str, str]] = {
    True: ("✓", "green"),
    False: ("·", "dim"),
    None: ("?", "yellow"),
}
UUID = re.compile(r"\b((?:GPU|MIG)-[0-9a-f]{8})-[0-9a-f]{4}-[0-9a-f-]{22,}")
FEW = 3  # fields shown per manager
LONG = 100  # characters of a step in one line
LINES = 12  # of a host's plan; a longer one is shown by step
PODS = 10
MANY = 100  # rows
OUTDATED = "a container keeps the driver and the runtime that it was started with"
INDENT = Indent(" " * 17)


def headline(facts: Facts, desired: Desired | None = None) -> str:
    """`2x Tesla P100-PCIE-16GB · Debian 12 · kernel 6.1.0 · docker 20.10.24 · kubelet 1.23.17`."""
    names = Counter(pci.gpu(device.device).name for device in gpus(facts.pci))
    cards = ", ".join(f"{count}x {name}" for name, count in names.items()) or "no NVIDIA GPU"
    parts = [cards, f"{facts.os.id.capitalize()} {facts.os.version}", f"kernel {facts.kernel}"]
    runtime = RUNTIMES[desired.runtime if desired else detect(facts)].headline(facts)
    parts += [runtime] if runtime else []
    if facts.kubelet is not None:
        parts.append(f"kubelet {facts.kubelet.version}")
    return " · ".join(parts)


def status_of(outcome: Outcome) -> Status:
    """Its status, but `broken` for a host that is right and still cannot work."""
    return "broken" if find_manual_fix(outcome) else outcome.status


def notes(outcome: Outcome) -> tuple[str, ...]:
    """Notes on a host beside its changes: the planner's, the broken link that they do not fix, unconfirmed restarts, and another
    running apply."""
    texts = outcome.desired.notes if outcome.desired else ()
    if outcome.facts is None:
        return texts
    if broken := unfixed_note(outcome):
        texts += (broken,)
    texts += tuple(map(str, outcome.facts.unconfirmed))
    run = outcome.facts.running
    if run is None:
        return texts
    since = time.strftime("%H:%M:%S", time.localtime(run.since))
    return (*texts, f"{run.by} is changing this host since {since}: this plan may be outdated soon")


def sentence(disturbed: Disturbed) -> str:
    """`reboot, driver packages; no GPU pods or processes affected`; without names, so that equal plans read alike."""
    if not disturbed.what:
        return "nobody"
    reboot = "reload of the modules, or a reboot where the GPUs stay in use" if disturbed.reload else "reboot"
    return f"{disturbed.what.describe(reboot)}; {_treatment(disturbed)}"


def interrupted_work(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """A headline, and a line per host with interrupted work; nothing if there is none."""
    busy = [
        (outcome.host, outcome.disturbs)
        for outcome in outcomes
        if outcome.disturbs and _victims(outcome.disturbs)
    ]
    if not busy:
        return
    gpus = [asks for _, disturbed in busy for asks in (disturbed.pods or {}).values() if asks]
    parts = [_count(len(busy), "host"), _count(len(gpus), "GPU pod")]
    others = sum(len(disturbed.pods or {}) for _, disturbed in busy) - len(gpus)
    processes = sum(len(disturbed.processes) for _, disturbed in busy)
    parts += [_count(others, "other pod")] if others else []
    parts += [f"{processes} process{'' if processes == 1 else 'es'}"] if processes else []
    order = ", unless --batch says otherwise one host at a time per group" if len(busy) > 1 else ""
    yield f"{', '.join(parts)}{order}"
    for host, disturbed in busy[:HOSTS]:
        yield f"{host}: {few(_victims(disturbed), NAMED)}"
    if len(busy) > HOSTS:
        yield f"and {len(busy) - HOSTS} more hosts"


def batches(rows: Sequence[Sequence[Any]]) -> Iterator[str]:
    """A line for each of the first batches with changes: its hosts, and what is interrupted there; one for all without changes."""
    busy = [(number, changes, causes) for number, _, changes, _, causes in rows if changes]
    for number, changes, causes in busy[:BATCHES]:
        yield f"{number}.  {few(changes, NAMED)}{': ' if causes else ''}{'; '.join(causes)}"
    if rest := [len(changes) for _, changes, _ in busy[BATCHES:]]:
        more = "1 more batch" if len(rest) == 1 else f"{len(rest)} more batches"
        yield f"and {more}, {_count(max(rest), 'host')}{'' if len(rest) == 1 else ' each at most'}"
    if idle := [str(number) for number, _, changes, _, _ in rows if not changes]:
        yield f"without changes: {few(idle, NAMED)}"


def answer(rows: Sequence[Sequence[Any]]) -> Iterator[Part]:
    """The answer of `why`, on top of its reasons."""
    for _, _, text in rows:
        yield f" {plain(text)}\n", "bold"


def reasons(rows: Sequence[Sequence[Any]]) -> Iterator[Part]:
    """The reasons below an answer, which names the first; at most LINES lines."""
    shown = rows[:REASONS]
    most = max(1, (LINES - 3 * len(shown)) // len(shown))
    for number, (_, what, evidence, fix) in enumerate(shown):
        if number:
            yield f" Also: {plain(what)}\n", "bold"
        kept = evidence if len(evidence) <= most else evidence[: most - 1]
        yield from (f"   {plain(line)}\n" for line in kept)
        if len(kept) < len(evidence):
            yield f"   and {len(evidence) - len(kept)} more\n", "dim"
        if fix:
            yield "   Fix: ", "green"
            yield f"{'; '.join(lines(fix)).removeprefix('Fix ')}\n"
    if len(rows) > len(shown):
        yield f" Also, with --json: {plain(few([row[1] for row in rows[REASONS:]], REASONS))}\n", "dim"


def _treatment(disturbed: Disturbed) -> str:
    minutes = f"{disturbed.timeout / 60:g} min at most"
    if disturbed.pods is None:
        waits = disturbed.processes and disturbed.work in ("wait", "drain")
        first = f"processes outside Kubernetes waited for, {minutes}; " if waits else ""
        return f"{first}running pods unknown"
    if not disturbed.anybody:
        return "no GPU pods or processes affected"
    return {
        "stays": "work there continues",
        "wait": f"cordoned first, work on GPUs waited for, {minutes}",
        "drain": f"drained first, {minutes}",
        "kill": "cordoned first, work ends with it",
    }[disturbed.work]


def _victims(disturbed: Disturbed) -> list[str]:
    if not disturbed.anybody:
        return []
    pods = [_pod(name, asks, disturbed.standstill.get(name)) for name, asks in (disturbed.pods or {}).items()]
    return [*pods, *(str(process) for process in disturbed.processes)]


def _pod(name: str, asks: Mapping[str, int], standstill: str | None) -> str:
    more = [_amounts(asks)] if asks else []
    more += [f"does not run: {standstill}"] if standstill else []
    return f"{name} ({', '.join(more)})" if more else name


def _amounts(asks: Mapping[str, int]) -> str:
    """A unit of another resource is a share, some memory or a part of a GPU: it is named as the pod names it."""
    return ", ".join(
        _count(amount, "GPU") if name == "nvidia.com/gpu" else f"{amount} of {name}"
        for name, amount in asks.items()
    )


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def cluster_lines(context: str, differences: Sequence[Difference], *, diff: bool | None) -> Iterator[Part]:
    """The lines of all changes. Nodes with the same change share one entry."""
    yield from (" ", ("cluster", "bold"), f"  {context}\n" if differences else f"  {context}  ")
    if not differences:
        yield "= up to date\n", "dim"
    name = "objects"
    for same in _group_alike(differences):
        sample = same[0]
        what = " and ".join(other.what for other in same)
        yield from _change(name, sample, what, whole=diff or (diff is None and not is_folded(sample)))
        name = ""
    alike: dict[tuple[str, ...], list[Difference]] = {}
    for difference in differences:
        if difference.action == "labelled":
            alike.setdefault(difference.lines, []).append(difference)
    name = "nodes"
    for first, *more in alike.values():
        what = ", ".join([first.what, *(other.what.removeprefix("Node ") for other in more)])
        yield from _change(name, first, what, whole=True)
        name = ""
    pods = [difference for difference in differences if difference.action == "replaced"]
    if pods:
        names = few([f"{pod.what.removeprefix('Pod ')} on {pod.node}" for pod in pods], PODS)
        yield from _change("pods", pods[0], names, whole=False)
        yield from (INDENT, (f"{OUTDATED}\n", "dim"))


def is_folded(difference: Difference) -> bool:
    """True if only its name is shown without --diff: it is new, removed or long, and no setting of the user's."""
    if difference.action in ("created", "changed") and difference.what.startswith("ConfigMap "):
        return False
    return difference.action in SIGNS or (difference.action == "changed" and len(difference.lines) > LINES)


def _group_alike(differences: Sequence[Difference]) -> list[list[Difference]]:
    """Objects grouped by equal changes: the plugin's two DaemonSets have one diff, at other line numbers."""
    groups: dict[tuple[object, ...], list[Difference]] = {}
    for difference in differences:
        if difference.action not in ("labelled", "replaced"):
            lines = tuple("@@" if line.startswith("@@") else line for line in difference.lines)
            alike = (lines, difference.claims) if difference.action == "changed" else difference.what
            groups.setdefault((alike,), []).append(difference)
    return list(groups.values())


def _change(name: str, difference: Difference, what: str, *, whole: bool) -> Iterator[Part]:
    yield from (
        "   ",
        (f"{name:<11}", "dim"),
        " ",
        SIGNS.get(difference.action, CHANGE),
        f" {DO[difference.action]} {what}\n",
    )
    yield from _claims(difference)
    for line in difference.lines if whole else ():
        yield from (INDENT, (f"{line}\n", line_style(line)))


def line_style(line: str) -> str:
    """The style of a diff line."""
    return {"+": "green", "-": "red", "@": "cyan"}.get(line[:1], "dim")


def _claims(difference: Difference) -> Iterator[Part]:
    """Fields that other managers have set since, and that gpunode sets back."""
    fields: dict[str, list[str]] = {}
    for claim in difference.claims:
        fields.setdefault(claim.manager or "another client", []).append(claim.field)
    for manager, these in fields.items():
        pronoun = "them" if len(these) > 1 else "it"
        who = writers.name_manager(manager)
        text = f"{who} has set {few(these, FEW)}; gpunode sets {pronoun} back\n"
        yield from (INDENT, (text, "yellow"))


def summary_text(outcomes: Sequence[Outcome], seconds: float, cluster: int | None) -> str:
    """The last line: hosts by status, and what waits in the cluster (None: not checked)."""
    counts = Counter(WORDS[status_of(outcome)] for outcome in outcomes)
    parts = ", ".join(f"{count} {word}" for word, count in counts.items())
    hosts = f"{len(outcomes)} host{'' if len(outcomes) == 1 else 's'}"
    waits = f"{cluster} change{' waits' if cluster == 1 else 's wait'}"
    rest = "; cluster not checked" if cluster is None else f"; in the cluster {waits}" if cluster else ""
    return f"{hosts} in {seconds:.1f} s: {parts}{rest}"


def group_alike(outcomes: Sequence[Outcome], *, diff: bool) -> list[Outcome]:
    """One outcome for each distinct plan, with the names of all its hosts."""
    groups: dict[tuple[Part, ...], list[Outcome]] = {}
    for outcome in outcomes:
        nameless = outcome if outcome.problem else _without_processes(replace(outcome, host=""))
        groups.setdefault(tuple(plan_lines(nameless, 0, diff=diff)), []).append(outcome)
    return [
        same[0] if len(same) == 1 else replace(_without_processes(same[0]), host=_names(same))
        for same in groups.values()
    ]


PROCESS = re.compile(r" \(pid \d+[^)]*\)")


def _without_processes(outcome: Outcome) -> Outcome:
    """The outcome with reasons that name the programs that use the GPUs, not their processes: these differ between equal hosts."""
    if outcome.plan is None or not any(PROCESS.search(change.why) for change in outcome.plan.changes):
        return outcome
    steps = (
        replace(
            step,
            changes=tuple(replace(change, why=PROCESS.sub("", change.why)) for change in step.changes),
        )
        for step in outcome.plan.steps
    )
    return replace(outcome, plan=replace(outcome.plan, steps=tuple(steps)))


def _names(several: Sequence[Outcome]) -> str:
    """The hosts' names, with ranges."""
    return ", ".join(ranges([outcome.host for outcome in several]))


def group_failures(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """The outcomes; one for all that failed for the same reason. Where many failed, that is without their names and addresses."""
    many = sum(outcome.problem is not None for outcome in outcomes) > HOSTS
    groups: dict[object, list[tuple[Outcome, Outcome]]] = {}
    for outcome in outcomes:
        shared, problem = outcome, outcome.problem
        if many and problem:
            what, fix = (common(text, outcome.host) for text in (problem.what, problem.fix))
            shared = replace(outcome, problem=replace(problem, what=what, fix=fix))
        key = (shared.status, shared.why, shared.problem and shared.problem.fix) if problem else outcome.host
        groups.setdefault(key, []).append((outcome, shared))
    return [
        replace(same[0][1], host=_names([outcome for outcome, _ in same])) if same[1:] else same[0][0]
        for same in groups.values()
    ]


def plan_lines(outcome: Outcome, width: int, *, diff: bool | None) -> Iterator[Part]:
    """A host's plan or `up to date`, its notes, and its error. `diff` True: with every reason and diff; else in few lines, with
    those for which there is room (False: no diffs)."""
    if outcome.plan:
        facts = headline(outcome.facts, outcome.desired) if outcome.facts else ""
        yield from (" ", (f"{outcome.host:<{width}}", "bold"), f"  {facts}\n")
        yield from _plan(outcome, diff=diff)
        if outcome.disturbs:
            yield from ("   ", ("disturbs   ", "dim"), f"   {sentence(outcome.disturbs)}\n")
        yield from _notes(outcome, 0)
    elif outcome.problem is None:
        broken = ("✗ broken, with nothing to change\n", "red")
        state = broken if status_of(outcome) == "broken" else ("= up to date\n", "dim")
        yield from (f" {outcome.host:<{width}}  ", state)
        yield from _notes(outcome, width)
    yield from failure(outcome, width)


def chain(host: str, links: Sequence[Verdict]) -> Iterator[Part]:
    """The chain, link by link; links after a broken one by name only."""
    yield from (" ", (host, "bold"), "\n")
    for link in links:
        if link.status == "unknown" and not link.text:
            continue
        remark = link.status == "ok" and link.problem is not None and not link.is_pending
        sign = REMARK if remark else CHANGE if link.is_pending else STATUS_SIGNS[link.status]
        text = UUID.sub(r"\1…", link.text) if len(link.text) > LONG else link.text
        yield from ("   ", sign, f" {link.layer:<9} {text}\n")
        for word, text in zip(
            ("note", "advice") if remark else ("cause", "fix"), (link.cause, link.fix), strict=True
        ):
            for number, line in enumerate(lines(text)):
                yield from ("       ", (f"{word if number == 0 else '':<9}", "dim"), f" {line}\n")
    unknown = [link.layer for link in links if link.status == "unknown" and not link.text]
    if unknown:
        yield f"   · {', '.join(unknown)}: not checked, they follow from the above\n", "dim"


def whole_chain(host: str, links: Sequence[Verdict]) -> Iterator[Part]:
    """A chain that holds, in one line."""
    kept = f" {len(links)} links OK, {links[0].layer} to {links[-1].layer}" if links else ""
    yield from (" ", (host, "bold"), "  ", STATUS_SIGNS["ok"], f"{kept}\n")
    for link in links:
        if link.problem:
            yield from (
                "   ",
                CHANGE if link.is_pending else REMARK,
                f" {link.layer}: {'. '.join(lines(link.cause)[:1] + lines(link.fix))}\n",
            )


def slowest(times: Sequence[Sequence[Any]]) -> str:
    """`time of gpu-7, the slowest of 50: 4 min 12 s: packages 121 s, reboots 70 s …`, from rows of host, seconds and phases."""
    host, seconds, phases = max(times, key=lambda row: float(row[1]))
    among = f", the slowest of {len(times)}" if len(times) > 1 else ""
    return f"time of {host}{among}: {Duration(seconds)}: {phases}"


def deviations(rows: Sequence[Sequence[Any]]) -> Iterator[Part]:
    """How the plan differs from the reviewed one; hosts that differ alike share an entry."""
    yield " Different from the reviewed plan:\n"
    groups: dict[tuple[str, str], list[str]] = {}
    for host, code, what in rows:
        groups.setdefault((code, common(what, host) if host else what), []).append(host or code)
    for (_, what), names in groups.items():
        yield from ("   ", (", ".join(ranges(list(dict.fromkeys(names)))), "bold"), "\n")
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
                what = f"{_to_do(what)} (not made)"
            shown.append({**change, "what": what, "sign": sign})
        yield from _changes(shown)


def _to_do(what: str) -> str:
    """A change of the cluster that is not made: `label Node a` of `labelled Node a`."""
    action, _, rest = what.partition(" ")
    return f"{DO.get(action, action)} {rest}"


def _changes(changes: Iterable[Mapping[str, Any]]) -> Iterator[Part]:
    """Changes as values, each with its sign."""
    step = ""
    for change in changes:
        name = "" if change["step"] == step else _step_name(change["step"])
        step = change["step"]
        yield from ("   ", (f"{name:<11}", "dim"), " ", change["sign"], f" {plain(change['what'])}\n")
        if change["why"]:
            yield from (INDENT, (f"{plain(change['why'])}\n", "dim"))
        for line in change.get("diff", ()):
            yield from (INDENT, (f"{plain(line)}\n", line_style(line)))


def reviewed(rows: Sequence[Sequence[Any]]) -> Iterator[Part]:
    """The plans in a file, by host; hosts that are alike share an entry."""
    groups: dict[str, list[Sequence[Any]]] = {}
    for row in rows:
        host, why, disturbed, changes = row
        groups.setdefault(repr((host is None, common(why, host or ""), disturbed, changes)), []).append(row)
    for same in groups.values():
        host, why, disturbed, changes = same[0]
        names = ", ".join(ranges([row[0] for row in same])) if host is not None else "cluster"
        yield from (" ", (names, "bold"))
        if why:
            yield from (
                "  ",
                ("✗", "red"),
                f" {'; '.join(lines(why if len(same) == 1 else common(why, host)))}",
            )
        elif not changes:
            yield "  = up to date", "dim"
        yield "\n"
        shown = []
        for change in changes:
            what = change["what"] if host is not None else _to_do(change["what"])
            shown.append({**change, "what": what, "sign": REVIEWED})
        yield from _changes(shown)
        if disturbed:
            yield from ("   ", ("disturbs   ", "dim"), f"   {several(disturbed, 'pod')} or processes\n")


def group_rows(kind: str, rows: Sequence[Sequence[Any]]) -> Sequence[Sequence[Any]]:
    """The proofs of many hosts, or of many GPUs: a row for all that ended alike. What an undo leaves: a row for each reason. No phases
    of less than a second. Other tables as they are."""
    if kind == "left":
        return _group_left(rows)
    if kind == "phase":
        return [row for row in rows if row[1] >= 1]
    if len(rows) <= MANY or kind not in ("verified", "vectoradd"):
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


def _group_left(rows: Sequence[Sequence[Any]]) -> Sequence[Sequence[Any]]:
    """Rows of host, code, what and why: one for all that stays for the same reason, and for all hosts alike."""
    things: dict[tuple[Any, ...], list[str]] = {}
    for host, code, what, why in rows:
        things.setdefault((host, code, why), []).append(what)
    hosts: dict[tuple[Any, ...], list[str]] = {}
    for (host, code, why), names in things.items():
        hosts.setdefault((code, ", ".join(names), why), []).append(host)
    return [(", ".join(ranges(names)), *alike) for alike, names in hosts.items()]


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


def cell_text(value: object) -> str:
    """The text of a cell. Floats are seconds; below one they are <1, since the kubelet reports whole seconds."""
    if type(value) is float:
        return f"{value:g}" if value >= 1 else "<1"
    return "" if value is None else str(value)


def _notes(outcome: Outcome, width: int) -> Iterator[Part]:
    for note in notes(outcome):
        yield f"{' ' * (width + 3)}{note}\n", "yellow"


def failure(outcome: Outcome, width: int) -> Iterator[Part]:
    if outcome.problem is None:
        return
    first, *rest = lines(outcome.why) or [""]
    yield from (f" {outcome.host:<{width}}  ", (f"✗ {WORDS[outcome.status]}", "red"), f"  {first}\n")
    for line in [*rest, *lines(outcome.problem.fix)]:
        yield f"{' ' * (width + 5)}{line}\n"


def is_shortened(outcome: Outcome) -> bool:
    """True if its plan has reasons and diffs for which there is no room."""
    return outcome.plan is not None and _plan(outcome, diff=None) != _plan(outcome, diff=True)


def _plan(outcome: Outcome, *, diff: bool | None) -> list[Part]:
    """The lines of its steps: of the ways to show them the first that is short enough."""
    steps = outcome.plan.steps if outcome.plan else ()
    reload = bool(outcome.disturbs and outcome.disturbs.reload)
    parts: list[Part] = []
    for show in (
        *([partial(_step, outcome.facts, diff=True)] if diff is not False else []),
        partial(_step, outcome.facts, diff=False),
        partial(_brief_step, outcome.facts, listed=True, why=True),
        partial(_brief_step, outcome.facts, listed=True),
        partial(_brief_step, outcome.facts),
    ):
        parts = [part for step in steps for part in show(step, reload=reload)]
        if diff or _height(parts) <= LINES - 2:  # its name, and what it disturbs
            break
    return parts


def _step_name(step: str, *, reload: bool = False) -> str:
    """For people; `before` puts back what was there before gpunode."""
    return "modules" if reload and step == "reboot" else "restore" if step == "before" else step


def _step(facts: Facts | None, step: StepPlan, *, diff: bool, reload: bool) -> Iterator[Part]:
    name = _step_name(step.step, reload=reload)
    for change in step.changes:
        title = diffs.headline(change, reload=reload)
        yield from ("   ", (f"{name:<11}", "dim"), " ", _sign(change), f" {title}\n")
        name = ""
        notes = getattr(change, "note", ""), writers.sentence(facts, change)
        for text, style in ((change.why, "dim"), *((note, "yellow") for note in notes)):
            if text:
                yield from (INDENT, (f"{text}\n", style))
        for line in diffs.lines(change) if diff else ():
            yield from (INDENT, (f"{line}\n", line_style(line)))


def _brief_step(
    facts: Facts | None, step: StepPlan, *, reload: bool, why: bool = False, listed: bool = False
) -> Iterator[Part]:
    """What a step does, in one line; `listed`: in several where it is long. With `why`, the first reason below."""
    titles = list(dict.fromkeys(_brief_titles(step.changes, reload=reload)))
    if titles:
        name = _step_name(step.step, reload=reload)
        whole = "; ".join(titles)
        first, *more = titles if listed and len(whole) > LONG else [whole]
        yield from ("   ", (f"{name:<11}", "dim"), " ", _sign(step.changes[-1]), f" {first}\n")
        for title in more:
            yield from (INDENT, f"{title}\n")
        if why and step.changes[0].why:
            yield from (INDENT, (f"{step.changes[0].why}\n", "dim"))
        for text in dict.fromkeys(writers.sentence(facts, change) for change in step.changes):
            if text:
                yield from (INDENT, (f"{text}\n", "yellow"))


def _brief_titles(changes: Sequence[Change], *, reload: bool) -> Iterator[str]:
    """The headlines of changes; several files are counted."""
    for kind, verb in ((WriteFile, "write"), (RemoveFile, "remove")):
        files = [change for change in changes if isinstance(change, kind)]
        if len(files) > 1:
            yield f"{verb} {few([file.path for file in files], 1)}"
            changes = [change for change in changes if change not in files]
    for change in changes:
        note = getattr(change, "note", "")
        yield diffs.headline(change, reload=reload, names=FEW) + (f" ({note})" if note else "")


def _height(parts: Sequence[Part]) -> int:
    """The number of lines."""
    return sum((part if isinstance(part, str) else part[0]).endswith("\n") for part in parts)


def _sign(change: object) -> tuple[str, str]:
    if isinstance(change, WriteFile):
        return ("~", "yellow") if change.before is not None else ("+", "green")
    if isinstance(change, RemoveFile) or (isinstance(change, Packages) and change.remove):
        return "-", "red"
    if isinstance(change, Packages) and change.install:
        return "+", "green"
    return "!", "magenta"
