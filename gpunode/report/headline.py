"""A host's headline in plans, and its notes."""

from __future__ import annotations

import time
from collections import Counter

from gpunode.engine.chain import by_hand, unmended_note
from gpunode.links.machine import pci
from gpunode.links.machine.pci import gpus
from gpunode.links.runtime import RUNTIMES, in_use
from gpunode.model import Desired, Facts, Outcome, Status


def headline(facts: Facts, wish: Desired | None = None) -> str:
    """`2x Tesla P100-PCIE-16GB · Debian 12 · kernel 6.1.0 · docker 20.10.24 · kubelet 1.23.17`."""
    names = Counter(pci.gpu(device.device).name for device in gpus(facts.pci))
    cards = ", ".join(f"{count}x {name}" for name, count in names.items()) or "no NVIDIA GPU"
    parts = [cards, f"{facts.os.id.capitalize()} {facts.os.version}", f"kernel {facts.kernel}"]
    runtime = RUNTIMES[wish.runtime if wish else in_use(facts)].headline(facts)
    parts += [runtime] if runtime else []
    if facts.kubelet is not None:
        parts.append(f"kubelet {facts.kubelet.version}")
    return " · ".join(parts)


def standing(outcome: Outcome) -> Status:
    """Its status, but `broken` for a host that is right and still cannot work."""
    return "broken" if by_hand(outcome) else outcome.status


def notes(outcome: Outcome) -> tuple[str, ...]:
    """Notes on a host beside its changes: the planner's, the broken link that these do not mend, what was kept unconfirmed, and
    another apply that is running."""
    found = outcome.desired.notes if outcome.desired else ()
    if outcome.facts is None:
        return found
    if broken := unmended_note(outcome):
        found += (broken,)
    found += tuple(map(str, outcome.facts.unconfirmed))
    run = outcome.facts.running
    if run is None:
        return found
    since = time.strftime("%H:%M:%S", time.localtime(run.since))
    return (*found, f"{run.by} is changing this host since {since}: this plan may be outdated soon")
