"""A host in one line."""

from __future__ import annotations

from collections import Counter

from gpunode import compat
from gpunode.compat import gpus
from gpunode.model import Facts


def about(facts: Facts) -> str:
    """`2x Tesla P100-PCIE-16GB · Debian 12 · kernel 6.1.0 · docker 20.10.24 · kubelet 1.23.17`."""
    names = Counter(compat.gpu(device.device).name for device in gpus(facts.pci))
    cards = ", ".join(f"{count}x {name}" for name, count in names.items()) or "no NVIDIA GPU"
    parts = [cards, f"{facts.os.id.capitalize()} {facts.os.version}", f"kernel {facts.kernel}"]
    if facts.docker is not None:
        parts.append(f"docker {facts.docker.version}")
    elif facts.containerd is not None:
        parts.append(f"containerd {facts.containerd.version}")
    if facts.kubelet is not None:
        parts.append(f"kubelet {facts.kubelet.version}")
    return " · ".join(parts)
