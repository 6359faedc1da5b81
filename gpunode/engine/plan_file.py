"""A plan as a file: written by `plan --out`, reviewed by people, applied by `provision FILE` as it was reviewed.

It says what is to change by the identities of the changes, each with its text. A run plans again, and compares: the file orders nothing.
It has no secret, and no content of a file but its redacted diff.
"""

import getpass
import hashlib
import json
import shlex
import socket
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Literal, TypeAlias

from gpunode import __version__
from gpunode.agent.redaction import redact
from gpunode.cluster.objects.difference import DO, Difference
from gpunode.contract.times import utc
from gpunode.engine import impact
from gpunode.engine.member import Member
from gpunode.engine.record import RunOptions
from gpunode.engine.shown import ShownChange, ShownHost, digest, show_change, show_host
from gpunode.errors import UnexpectedAnswer, UsageError
from gpunode.host import answers
from gpunode.local import files
from gpunode.model import Change, Inventory, Reboot
from gpunode.wording import Advice, Command, advise, few

KEY = "gpunode_plan"  # the first key, with the format's version
FORMAT = 3
LARGEST = 64 << 20  # bytes
BEGINS = f'{{"{KEY}":'  # without spaces
AGAIN = advise("`gpunode plan --out FILE` writes a new one.")
NAMED = 5

Code: TypeAlias = Literal["version", "inventory", "host", "machine", "plan", "disturbs", "cluster"]


@dataclass(frozen=True, slots=True)
class PlanFile:
    """A written plan. `inventory`: its path as it was named; `sha256`: of its bytes; `made`: RFC 3339. `context`: the cluster's; "": it
    is none. `costs`: of a run, in a line. `options`: those that `provision FILE` takes from it."""

    inventory: str
    sha256: str
    version: str
    made: str
    by: str
    hosts: tuple[ShownHost, ...]
    cluster: tuple[Difference, ...]
    context: str = ""
    costs: str = ""
    options: RunOptions = field(default_factory=RunOptions)

    @property
    def names(self) -> list[str]:
        return [host.name for host in self.hosts]


@dataclass(frozen=True, slots=True)
class Deviation:
    """Something that was not reviewed as it is now; `host` None: it concerns all. `lines`: of its diffs, those that differ."""

    code: Code
    host: str | None
    what: str
    lines: tuple[str, ...] = ()


def make(
    inventory: Path,
    members: Sequence[Member],
    cluster: Sequence[Difference],
    context: str = "",
    costs: str = "",
    options: RunOptions | None = None,
) -> PlanFile:
    return PlanFile(
        inventory=str(inventory),
        sha256=_sha256(inventory),
        version=__version__,
        made=utc(),
        by=f"{getpass.getuser()}@{socket.gethostname()}",
        hosts=tuple(map(_host, members)),
        cluster=tuple(map(_object, cluster)),
        context=context,
        costs=costs,
        options=options or RunOptions(),
    )


def check_place(path: Path) -> None:
    """Raise UsageError where no plan can be written, or would replace a file that is none."""
    files.check_replaceable("--out", path, _is_plan, "there is a file that is no plan")


def write(path: Path, plan: PlanFile) -> None:
    """Write the file, whole or not at all. Raises UsageError."""
    content = {KEY: FORMAT, **asdict(plan)}
    try:
        files.replace(path, json.dumps({**content, "digest": digest(content)}, indent=1) + "\n")
    except OSError as error:
        raise UsageError(f"--out {path}: cannot be written: {error.strerror}") from error


def read(path: Path) -> PlanFile | None:
    """The plan; None for a file of another kind, such as an inventory, or none. Raises UsageError for a damaged or a newer one."""
    try:
        if not path.is_file() or not _is_plan(files.begin(path)):
            return None
        if path.stat().st_size > LARGEST:
            raise ValueError("it is too large")
        content = json.loads(path.read_text("utf-8"))
        if content[KEY] != FORMAT:
            raise UsageError(
                f"{path}: a plan of format {content[KEY]}; this gpunode reads format {FORMAT}",
                hint="Apply it with the gpunode that wrote it, or plan again.",
            )
        if content.pop("digest", "") != digest(content):
            raise ValueError("it was changed after it was written")
        plan: PlanFile = answers.read(PlanFile, content, "plan")
    except (OSError, ValueError, KeyError, TypeError, RecursionError, UnexpectedAnswer) as error:
        raise UsageError(f"{path}: this plan is damaged: {error}", hint=AGAIN) from None
    return plan


def written_options(options: RunOptions) -> dict[str, str]:
    """The options of a plan as users write them, by name."""
    return {
        "run": "--no-run" if options.run is False else "--run",
        "batch": f"--batch {options.batch}" if options.batch else "",
        "canary": f"--canary {options.canary or 0}",
        "taint": "--taint-until-verified" if options.taint else "",
    }


def write_options(options: RunOptions) -> str:
    """Those that are not the usual ones; "": all are."""
    usual = written_options(RunOptions()).values()
    return " ".join(text for text in written_options(options).values() if text not in usual)


def plan_again(reviewed: PlanFile, file: Path, inventory: Inventory) -> Advice:
    """How to review the same hosts again, in the same file."""
    name, hosts = shlex.quote(str(file)), ",".join(reviewed.names)
    limit = f"--limit {hosts} " if {*reviewed.names} < {host.name for host in inventory.hosts} else ""
    options = f"{words} " if (words := write_options(reviewed.options)) else ""
    then = f"`, review it with `gpunode show {name}`, then `gpunode provision {name}`."
    return Advice("Plan again: `", Command("plan", f"{limit}{options}--out {name}"), then)


def compare(reviewed: PlanFile, now: PlanFile) -> list[Deviation]:
    """What a run would do now that was not reviewed, or not so. Work that is done meanwhile is no deviation."""
    hosts = {host.name: host for host in reviewed.hosts}
    deviations = list(_compare_objects(reviewed.cluster, now.cluster))
    for host in now.hosts:
        deviations += _compare_host(hosts.get(host.name), host)
    if reviewed.sha256 != now.sha256:
        deviations.insert(0, Deviation("inventory", None, f"{now.inventory} was edited since the review"))
    if reviewed.version != now.version:
        text = f"the plan is of gpunode {reviewed.version}, this is {now.version}"
        deviations.insert(0, Deviation("version", None, text))
    return deviations


def as_accepted(reviewed: PlanFile, shown: PlanFile) -> PlanFile:
    """What a user accepted who saw what deviates: every host as it was reviewed, or as it was shown where that is something else."""
    deviating = {deviation.host for deviation in compare(reviewed, shown)}
    hosts = {host.name: host for host in reviewed.hosts}
    kept = [host if host.name in deviating else hosts[host.name] for host in shown.hosts]
    return replace(shown, hosts=tuple(kept))


def describe_unaccepted(accepted: PlanFile, member: Member) -> str:
    """What the member's plan has that was not accepted; "" for nothing. A plan made after the end of work, whose disturbance nobody
    asked for, may do less, and reload or restart in the place of a reboot."""
    now = _host(member)
    before = next((host for host in accepted.hosts if host.name == now.name), None)
    after_work = member.outcome is not None and member.outcome.disturbs is None
    return "; ".join(
        text
        for deviation in _compare_host(before, now)
        for text in deviation.what.splitlines()
        if not (after_work and before and deviation.code == "plan" and _does_less(before, member.changes))
    )


def _does_less(reviewed: ShownHost, changes: Iterable[Change]) -> bool:
    known = set(_ids(reviewed.changes))
    milder_than = [impact.REBOOT] if _identities(Reboot("")) & known else []
    return not any(
        impact.describe_unaccepted([change], milder_than)
        for change in changes
        if not _identities(change) & known
    )


def _identities(change: Change) -> set[str]:
    return {show_change("", change, reload=reload).id for reload in (False, True)}


def _compare_host(reviewed: ShownHost | None, now: ShownHost) -> Iterator[Deviation]:
    if reviewed is None:
        yield Deviation("host", now.name, "it is not in the reviewed plan")
    elif reviewed.machine and now.machine and reviewed.machine != now.machine:
        yield Deviation("machine", now.name, "it is another machine")
    elif now.problem:
        if not reviewed.problem:
            yield Deviation("plan", now.name, now.problem)
    elif now.changes:
        if _ids(now.changes) != _ids(reviewed.changes):
            yield _compare_changes(reviewed, now)
        elif reviewed.disturbed is not None and now.disturbed != reviewed.disturbed:
            if now.disturbed is None:
                yield Deviation(
                    "disturbs", now.name, "its running pods were known at the review, and are unknown now"
                )
            elif now.disturbed > reviewed.disturbed:
                text = f"disturbs {now.disturbed} pods and processes, {reviewed.disturbed} when reviewed"
                yield Deviation("disturbs", now.name, text)


def _compare_changes(reviewed: ShownHost, now: ShownHost) -> Deviation:
    lines = {change.what: change.diff for change in reviewed.changes}
    new, gone = _new(reviewed.changes, now.changes), _new(now.changes, reviewed.changes)
    other = [what for what in new if what in gone]
    new, gone = ([what for what in some if what not in other] for some in (new, gone))
    texts = [f"new: {few(new, NAMED)}"] if new else []
    texts += [f"different: {few(other, NAMED)}"] if other else []
    less = [f"no longer planned: {few(gone, NAMED)}"] if gone else []
    differ = [
        text
        for change in now.changes
        if change.what in other
        for text in _differing(lines[change.what], change.diff)
    ]
    if not texts:  # it does less, or the same in another order
        return Deviation("plan", now.name, "".join(less) or "in another order", tuple(differ))
    return Deviation("plan", now.name, "\n".join(texts), (*differ, *less))


def _ids(changes: Iterable[ShownChange]) -> list[str]:
    return [change.id for change in changes]


def _new(before: Iterable[ShownChange], after: Iterable[ShownChange]) -> list[str]:
    """The changes that are not among the earlier ones, as text."""
    known = set(_ids(before))
    return [change.what for change in after if change.id not in known]


def _host(member: Member) -> ShownHost:
    disturbs, outcome = member.disturbs, member.outcome
    machine = member.facts.machine_id if member.facts else ""
    shown = show_host(outcome) if outcome else ShownHost(member.host.name, "refused")
    if member.reason and not shown.problem:
        shown = replace(shown, status="refused", problem=redact(member.reason.what), fix=member.reason.fix)
    disturbed = None if disturbs.pods is None else len(disturbs.pods) + len(disturbs.processes)
    if not disturbs.ends_work:  # they keep running
        disturbed = 0
    return replace(shown, machine=digest({KEY: machine}) if machine else "", disturbed=disturbed)


def _object(difference: Difference) -> Difference:
    """Without its manifests, and without secrets."""
    lines = tuple(map(redact, difference.lines))
    return replace(difference, lines=lines, before=None, manifest=None)


def _differing(before: Sequence[str], after: Sequence[str]) -> Iterator[str]:
    """The lines of one diff that the other one has not."""
    for word, mine, other in (("reviewed", before, after), ("now", after, before)):
        only = [line for line in mine if line not in other and not line.startswith(("@@", " "))]
        more = [f"and {len(only) - NAMED} more lines"] if len(only) > NAMED else []
        yield from (f"  {word:<8}  {line}" for line in (*only[:NAMED], *more))


def _lines_by_object(differences: Iterable[Difference]) -> dict[tuple[str, str], list[tuple[str, ...]]]:
    """Action and object → its diffs: of a node one for each label."""
    diffs: dict[tuple[str, str], list[tuple[str, ...]]] = {}
    for each in differences:
        diffs.setdefault((each.action, each.node or each.what), []).append(each.lines)
    return diffs


def _compare_objects(reviewed: Sequence[Difference], now: Sequence[Difference]) -> Iterator[Deviation]:
    """Objects that change as it was not reviewed; those that differ alike are one. A pod of the plugin that was made again is replaced
    all the same."""
    before, after = _lines_by_object(reviewed), _lines_by_object(now)
    groups: dict[tuple[str, str, tuple[str, ...]], list[str]] = {}
    for each in now:
        key = (each.action, each.node or each.what)
        known = before.get(key, [])
        if each.lines not in known:
            gone = [lines for lines in known if lines not in after[key]]
            lines = tuple(_differing(gone[0], each.lines)) if len(gone) == 1 else ()
            if each.action == "labelled" and not gone:
                lines = tuple(f"  {line}" for line in each.lines)
            what = "replace the plugin's pod on" if each.node else f"{DO[each.action]} {each.title.kind}"
            name = each.node or each.what.removeprefix(f"{each.title.kind} ")
            groups.setdefault(("different" if gone else "new", what, lines), []).append(name)
    for (kind, what, lines), names in groups.items():
        yield Deviation("cluster", None, redact(f"{kind}: {what} {few(names, NAMED)}"), lines)


def _sha256(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:  # read before; a plan that is bound to nothing deviates
        return ""


def _is_plan(begin: bytes) -> bool:
    return "".join(begin.decode("utf-8", "replace").split()).startswith(BEGINS)
