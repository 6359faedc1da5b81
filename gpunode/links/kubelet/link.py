"""The kubelet: it runs, with the feature gates that it should have."""

import re
from collections.abc import Iterator, Mapping

from gpunode.links.kubelet import places, plan, upgrade
from gpunode.links.kubelet.start import assigned_config, flag, flag_gates, minor_of
from gpunode.links.link import Link, Step, fix_by_plan, judge_by_plan, state_of
from gpunode.model import Desired, Facts, Fault, KubeletStart, Outcome, Verdict, Watch
from gpunode.wording import lines

KLOG = re.compile(r"^[A-Z]\d{4} (?:[\d:.]+ +\d+ )?[\w.]+:\d+\] ")  # level, date, time, thread, place


def judge_kubelet(outcome: Outcome, seen: Facts) -> Verdict:
    name = places.find(seen).unit
    unit = seen.units.get(name)
    version = f"kubelet {seen.kubelet.version}" if seen.kubelet else "kubelet"
    if unit is None or unit.active != "active" or unit.sub != "running":
        logged = dict.fromkeys(KLOG.sub("", line) for line in seen.kubelet.journal) if seen.kubelet else {}
        reason = "\n".join([*logged][-3:])  # each once: every start logs the same
        journal = f"journalctl -u {name.removesuffix('.service')}"
        by_hand = f"See `{journal}` on the host; a kubelet that never ran must join the cluster first."
        fix = fix_by_plan(outcome, "kubelet", by_hand, "kubelet")
        return Verdict.broken("kubelet", f"{version} {state_of(unit)}", reason, fix)
    return judge_by_plan(outcome, "kubelet", version, "kubelet")


def desired_gates(outcome: Outcome | None) -> Mapping[str, bool]:
    gates = outcome.desired.gates if outcome and outcome.desired else {}
    return {name: state for name, state in gates.items() if state is not None}


def compare_gates(link: Verdict, outcome: Outcome, reported: Mapping[str, bool] | str) -> Verdict:
    """The link, broken where the kubelet reports another value of a gate, with the place that it comes from. `reported`: the
    gates, or why the kubelet could not be asked."""
    if isinstance(reported, str):
        cause = f"whether {', '.join(desired_gates(outcome))} is in force is known from files and arguments alone: {reported}"
        return link.with_cause(lines((link.cause, cause)))
    wrong = [name for name, state in desired_gates(outcome).items() if reported.get(name) != state]
    seen, desired = outcome.facts, outcome.desired
    if not wrong or seen is None or desired is None or desired.kubelet is None:
        return link
    text = f"the running kubelet uses {', '.join(_format(name, reported.get(name)) for name in wrong)}"
    causes = [_where(seen, desired, desired.kubelet, name) for name in wrong]
    fix = f"Restart it (`systemctl restart {desired.kubelet.place.unit}`). If that changes nothing, remove the value at its source, then run gpunode again."
    return Verdict.broken(link.layer, text, "\n".join(causes), fix)


def _format(name: str, state: bool | None) -> str:
    return f"no {name}" if state is None else f"{name}={str(state).lower()}"


def _where(seen: Facts, desired: Desired, start: KubeletStart, name: str) -> str:
    """The place that a gate's value comes from, or should have come from."""
    shown = _format(name, desired.gates[name])
    running = seen.kubelet.arguments if seen.kubelet else ()
    return f"{shown} is required: {next(_places(seen, start, running, name))}"


def _places(seen: Facts, start: KubeletStart, running: tuple[str, ...], name: str) -> Iterator[str]:
    if name in flag_gates(running):
        yield f"its process was started with --feature-gates={_format(name, flag_gates(running)[name])}"
    minor = minor_of(seen)
    if minor is not None and (path := assigned_config(seen, running or start.argv, minor)):
        yield f"it takes its configuration from the API, as {path} says"
    path = flag(running, "config") or ""
    if path and path != start.config_path:
        yield f"its process reads {path}, and its unit would start it with {start.config_path}"
    if name in start.config_gates:
        yield f"{', '.join(start.config_files)} has it, and the kubelet has not read that since its start"
    yield f"no argument of its process has it; {start.place.unit} would start it with that"


LINK = Link(
    "kubelet",
    steps=(Step("kubelet", "kubelet", plan.plan, places.watch()),),
    judges=(judge_kubelet,),
    lint=upgrade.lint,
    linted=Watch(upgrade.FILES),
    faults=(Fault("gate", "kubelet", "a configuration tool restored an old feature gate"),),
)
