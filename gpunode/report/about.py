"""A host in one line."""

from __future__ import annotations

import time
from collections import Counter

from gpunode import compat
from gpunode.compat import gpus
from gpunode.model import Desired, Facts, Outcome


def about(facts: Facts, wish: Desired | None = None) -> str:
    """`2x Tesla P100-PCIE-16GB · Debian 12 · kernel 6.1.0 · docker 20.10.24 · kubelet 1.23.17`."""
    names = Counter(compat.gpu(device.device).name for device in gpus(facts.pci))
    cards = ", ".join(f"{count}x {name}" for name, count in names.items()) or "no NVIDIA GPU"
    parts = [cards, f"{facts.os.id.capitalize()} {facts.os.version}", f"kernel {facts.kernel}"]
    runtime = wish.runtime if wish else "docker" if facts.docker else "containerd"
    if runtime == "docker" and facts.docker is None:
        parts.append("docker, which does not answer")
    elif runtime == "docker" and facts.docker is not None:
        parts.append(f"docker {facts.docker.version}")
    elif facts.containerd is not None:
        parts.append(f"containerd {facts.containerd.version}")
    if facts.kubelet is not None:
        parts.append(f"kubelet {facts.kubelet.version}")
    return " · ".join(parts)


def notes(outcome: Outcome) -> tuple[str, ...]:
    """What a person should know of a host beside its changes."""
    wish = outcome.desired.notes if outcome.desired else ()
    run = outcome.facts.running if outcome.facts else None
    if run is None:
        return wish
    since = time.strftime("%H:%M:%S", time.localtime(run.since))
    return (*wish, f"{run.by} has been changing this host since {since}: the plan may be out of date soon")
