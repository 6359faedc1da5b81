"""The runtime that a host's kubelet starts containers with."""

from __future__ import annotations

from gpunode.errors import CannotPlan
from gpunode.links import runtime as runtimes
from gpunode.links.kubelet import minors
from gpunode.links.kubelet.start import flag
from gpunode.model import Facts, Host, KubeletStart, Runtime

OTHERS = {"k3s": "k3s' containerd", "k0s": "k0s' containerd"}


def endpoint(facts: Facts, minor: int, start: KubeletStart) -> str | None:
    """The runtime's socket in the kubelet's arguments or configuration; "" without one; None: docker, by dockershim."""
    words = (facts.kubelet.arguments if facts.kubelet else ()) or start.words[1:]
    if minors.has_dockershim(minor) and flag(words, "container-runtime") != "remote":
        return None
    named = flag(words, "container-runtime-endpoint") or start.config.get("containerRuntimeEndpoint")
    return str(named or "")


def runtime(host: Host, facts: Facts, minor: int, start: KubeletStart) -> Runtime:
    """The runtime that the kubelet starts containers with, from its arguments and configuration. Raises CannotPlan."""
    served = start.place.brings
    if served is None:
        named = endpoint(facts, minor, start)
        other = next((name for part, name in OTHERS.items() if part in (named or "")), None)
        served = runtimes.serving(named)
        if other or served is None:
            uses = f"the kubelet uses {other} ({named})"
            raise CannotPlan(
                uses if other else f"the kubelet's runtime endpoint {named} is none that gpunode knows",
                hint="gpunode configures docker (by dockershim or cri-dockerd), containerd and CRI-O so far; use one of them.",
            )
    runtimes.RUNTIMES[served].check(host, facts)
    return served
