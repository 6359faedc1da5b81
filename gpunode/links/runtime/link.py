"""The container runtime: it runs, and gives containers their GPUs."""

from __future__ import annotations

from dataclasses import replace

from gpunode.errors import CannotPlan
from gpunode.links import runtime as runtimes
from gpunode.links.kubelet import places
from gpunode.links.link import Link, Step, cause_by_plan, fix_by_plan, judge_by_plan, state_of
from gpunode.links.runtime import dev_char, selinux
from gpunode.model import Facts, Outcome, Verdict
from gpunode.wording import lines


def judge_runtime(outcome: Outcome, seen: Facts) -> Verdict:
    name = outcome.desired.runtime if outcome.desired else runtimes.in_use(seen)
    service = runtimes.unit(name, seen)
    unit = seen.units.get(service)
    if unit is None or unit.active != "active":
        shown = service.removesuffix(".service")
        by_hand = f"See `systemctl status {shown}` and `journalctl -u {shown}` on the host."
        # k3s and RKE2 restart both by one unit, after the files of both.
        steps = (name, "kubelet") if places.of(seen).unit == service else (name,)
        fix = fix_by_plan(outcome, "runtime", by_hand, *steps)
        if fix != by_hand and outcome.status != "refused":
            fix = lines((fix, f"else see `systemctl status {shown}` there"), "; ")
        return Verdict(
            "runtime", "broken", f"{shown} {state_of(unit)}", cause_by_plan(outcome, "runtime", *steps), fix
        )
    try:
        state = runtimes.RUNTIMES[name].state(seen)
    except CannotPlan as error:
        what, _, why = error.message.partition("\n")
        return Verdict("runtime", "broken", what, why, error.hint)
    link = judge_by_plan(outcome, "runtime", state, *runtimes.RUNTIMES, "dev-char")
    if link.status == "ok" and outcome.desired and outcome.desired.device_loss:
        cause, fix = outcome.desired.device_loss
        return replace(link, cause=cause, fix=fix)
    return link


LINK = Link(
    "runtime",
    steps=(
        Step("dev-char", "runtime", dev_char),
        Step("selinux", "runtime", selinux),
        *(Step(name, "runtime", planner) for name, planner in runtimes.RUNTIMES.items()),
    ),
    judges=(judge_runtime,),
)
