"""A link of the chain as a value: the steps that make it right, its judges, and what judges share."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from gpunode.errors import Problem
from gpunode.host import diff
from gpunode.model import Change, Desired, Facts, Fault, Host, Layer, Outcome, StepPlan, Unit, Verdict, Watch
from gpunode.planning import writers
from gpunode.wording import Advice, Command, lines

NOTHING = Watch()


class Step(NamedTuple):
    """A part of a host's plan. `layer`: the verdict that its refusal belongs to. `plan`: its changes, () when the host is right.
    `watch`: what a probe reads for it."""

    name: str
    layer: Layer
    plan: Callable[[Facts, Desired], tuple[Change, ...]]
    watch: Watch = NOTHING


# Judges one layer of a host that was probed, by its facts and by what its plan would change.
Judge: TypeAlias = Callable[[Outcome, Facts], Verdict]
# What Kubernetes 1.N would break on a host; () where nothing is known to.
Lint: TypeAlias = Callable[[Host, Facts, int], tuple[Problem, ...]]


@dataclass(frozen=True, slots=True)
class Link:
    """A link of a host: its steps and its judges, each in order. `linted`: what a probe reads beside for its lint. `faults`:
    those of the demo."""

    name: str
    steps: tuple[Step, ...] = ()
    judges: tuple[Judge, ...] = ()
    lint: Lint | None = None
    linted: Watch = NOTHING
    faults: tuple[Fault, ...] = ()


def waiting_step(outcome: Outcome, *names: str) -> StepPlan | None:
    """The first of these steps, in the order given, that has changes."""
    steps = {step.step: step for step in outcome.plan.steps} if outcome.plan else {}
    return next((steps[name] for name in names if name in steps and steps[name].changes), None)


def judge_by_plan(outcome: Outcome, layer: Layer, text: str, *steps: str) -> Verdict:
    """Ok, unless one of these steps has changes."""
    step = waiting_step(outcome, *steps)
    if step is None:
        return Verdict.ok(layer, text)
    will = "; ".join(diff.headline(change) for change in step.changes)
    fix = fix_by_plan(outcome, layer, "", *steps, does=will)
    wrote = (writers.of_change(outcome.facts, change) for change in step.changes)
    codes = tuple(dict.fromkeys(writer.code for writer in wrote if writer))
    cause = faults(step, outcome.facts)
    what = cause.partition("\n")[0] or text
    path = next((getattr(change, "path", "") for change in step.changes if change.fault != ""), "")
    text += f": {path} is not as desired" if path else ""
    return Verdict(layer, "broken", text, Problem("", what, layer, cause=cause, fix=fix, writers=codes))


def fix_by_plan(outcome: Outcome, layer: Layer, by_hand: str, *steps: str, does: str = "") -> str:
    """`provision` where one of these steps has changes; else the fix by hand.

    A host that is refused for another layer needs that fixed first.
    """
    if outcome.status == "refused" and (problem := outcome.problem):
        return problem.fix if problem.layer == layer else lines((problem.what, problem.fix))
    if waiting_step(outcome, *steps, "reboot"):
        return Advice(Command("provision", f"--limit {outcome.host}", does))
    return by_hand


def cause_by_plan(outcome: Outcome, layer: Layer, *steps: str) -> str:
    """The faults that these steps would fix, or the refusal of this layer; "" where there is neither."""
    step = waiting_step(outcome, *steps)
    if step is not None:
        return faults(step, outcome.facts)
    return outcome.why if outcome.problem and outcome.problem.layer == layer else ""


def faults(step: StepPlan, facts: Facts | None) -> str:
    """The step's faults, one a line, each with who wrote the file last."""
    texts: list[str] = []
    for change in step.changes:
        fault = change.why if change.fault is None else change.fault
        texts += [fault, writers.cause(facts, change)] if fault else []
    return "\n".join(filter(None, texts))


def state_of(unit: Unit | None) -> str:
    """A service's state, as the predicate of a sentence."""
    if unit is None:
        return "is not installed"
    if unit.active == "failed":
        return "has failed" if unit.sub == "failed" else f"has failed ({unit.sub})"
    return f"is {unit.active} ({unit.sub})"
