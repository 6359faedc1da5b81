"""The kubelet: it runs, with the feature gates that it should have."""

from __future__ import annotations

import re

from gpunode.links.kubelet import places, step
from gpunode.links.link import Link, Step, fix_by_plan, judge_by_plan, state_of
from gpunode.model import Facts, Outcome, Verdict

KLOG = re.compile(r"^[A-Z]\d{4} (?:[\d:.]+ +\d+ )?[\w.]+:\d+\] ")  # level, date, time, thread, place


def judge_kubelet(outcome: Outcome, seen: Facts) -> Verdict:
    name = places.of(seen).unit
    unit = seen.units.get(name)
    version = f"kubelet {seen.kubelet.version}" if seen.kubelet else "kubelet"
    if unit is None or unit.active != "active" or unit.sub != "running":
        logged = dict.fromkeys(KLOG.sub("", line) for line in seen.kubelet.journal) if seen.kubelet else {}
        reason = "\n".join([*logged][-3:])  # each once: every start logs the same
        journal = f"journalctl -u {name.removesuffix('.service')}"
        by_hand = f"See `{journal}` on the host; a kubelet that never ran must join the cluster first."
        fix = fix_by_plan(outcome, "kubelet", by_hand, "kubelet")
        return Verdict("kubelet", "broken", f"{version} {state_of(unit)}", reason, fix)
    return judge_by_plan(outcome, "kubelet", version, "kubelet")


LINK = Link("kubelet", steps=(Step("kubelet", "kubelet", step),), judges=(judge_kubelet,))
