"""A host's plan as users see it, on a terminal, on a page and in a file: text, without secrets. Pure."""

import hashlib
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from typing import Any, Literal

from gpunode.agent.redaction import redact, redact_values
from gpunode.engine.chain import find_manual_fix, unfixed_note
from gpunode.host import diff
from gpunode.links.machine import pci
from gpunode.links.runtime import RUNTIMES, detect
from gpunode.model import Change, Desired, Disturbed, Facts, Outcome, RemoveFile, Status, WriteFile
from gpunode.planning import writers
from gpunode.wording import moment

# What no reviewer decides on: reasons, and who uses the GPUs at the moment.
NOT_IDENTITY = ("why", "note", "ends", "fault")
FEW = 3  # packages named in a brief line


@dataclass(frozen=True, slots=True)
class ShownChange:
    """A change by its identity `id`. `what`: in a line of its own; `brief`: beside others. `sign`: one of `+ ~ - !`.
    `note`: of its plan; `writer`: who wrote its file last. `path`: of a file."""

    id: str
    step: str
    what: str
    brief: str
    sign: str
    why: str = ""
    diff: tuple[str, ...] = ()
    note: str = ""
    writer: str = ""
    path: str = ""


@dataclass(frozen=True, slots=True)
class ShownHost:
    """A host's plan. `facts`: what it is, in a line; `problem`: why it has no plan, with its `fix`; `undo`: how
    an undo without changes ends. Of a plan in a file `machine`: a hash of the confidential machine id; `disturbed`: pods and processes that
    end; None: not known."""

    name: str
    status: Status
    facts: str = ""
    changes: tuple[ShownChange, ...] = ()
    disturbs: Disturbed | None = None
    notes: tuple[str, ...] = ()
    problem: str = ""
    fix: str = ""
    undo: Literal["", "kept", "right"] = ""
    machine: str = ""
    disturbed: int | None = None


class ShownPlan(list[dict[str, object]]):
    """The changes of `host` for programs, which users see as its whole plan. `diff`: as of `Reporter.plans`."""

    def __init__(self, host: ShownHost, *, diff: bool | None) -> None:
        for change in host.changes:
            notes = [text for text in (change.note, change.writer) if text]
            more = {} if diff is False else {"diff": change.diff}
            self.append({"step": change.step, "what": change.what, "why": change.why, "notes": notes, **more})
        self.host, self.diff = host, diff


def show_host(outcome: Outcome) -> ShownHost:
    """The outcome's plan, or why there is none."""
    reload = bool(outcome.disturbs and outcome.disturbs.reload)
    steps = outcome.plan.steps if outcome.plan else ()
    return ShownHost(
        outcome.host,
        status_of(outcome),
        headline(outcome.facts, outcome.desired) if outcome.facts else "",
        tuple(
            replace(shown, writer=redact(who)) if (who := writers.sentence(outcome.facts, change)) else shown
            for step in steps
            for change in step.changes
            for shown in [show_change(step.step, change, reload=reload)]
        ),
        outcome.disturbs,
        notes(outcome),
        redact(outcome.why),
        outcome.problem.fix if outcome.problem else "",
        undo="" if outcome.left is None else "kept" if outcome.kept else "right",
    )


@lru_cache(maxsize=1000)  # hosts that are alike have equal changes
def show_change(step: str, change: Change, *, reload: bool) -> ShownChange:
    """The change without what its host has on its file."""
    values = {name: value for name, value in asdict(change).items() if name not in NOT_IDENTITY}
    note = redact(getattr(change, "note", ""))
    return ShownChange(
        digest({"kind": type(change).__name__, "reload": reload, **redact_values(values)}),
        step,
        redact(diff.headline(change, reload=reload)),
        redact(diff.headline(change, reload=reload, names=FEW)) + (f" ({note})" if note else ""),
        diff.sign(change),
        redact(change.why),
        tuple(diff.lines(change)),
        note,
        path=change.path if isinstance(change, (WriteFile, RemoveFile)) else "",
    )


def digest(content: Mapping[str, Any]) -> str:
    """What tells contents apart."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def headline(facts: Facts, desired: Desired | None = None) -> str:
    """`2x Tesla P100-PCIE-16GB · Debian 12 · kernel 6.1.0 · docker 20.10.24 · kubelet 1.23.17`."""
    names = Counter(pci.gpu(device.device).name for device in pci.gpus(facts.pci))
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
    return (
        *texts,
        f"{run.by} is changing this host since {moment(run.since)}: this plan may be outdated soon",
    )
