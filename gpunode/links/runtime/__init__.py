"""Container runtimes, a folder each: what a probe reads, the plan, and the merge of its files."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Protocol

from gpunode.links.runtime import containerd, crio, docker, k0s, microk8s, rancher
from gpunode.model import Change, Desired, Facts, Host, Runtime, Watch


class ContainerRuntime(Protocol):
    """What the module of a runtime has for those who name none."""

    @property
    def WATCH(self) -> Watch:  # noqa: N802 - a constant of most
        """What a probe reads."""

    def unit(self, facts: Facts) -> str:
        """The systemd unit that it runs in."""

    def serves(self, endpoint: str | None) -> bool:
        """Whether a kubelet with this endpoint starts its pods with it; None: it drives docker itself (dockershim)."""

    def in_use(self, facts: Facts) -> bool:
        """Whether it appears to be the kubelet's, where there is no decision."""

    def check(self, host: Host, facts: Facts) -> None:
        """Raises CannotPlan where pods cannot get GPUs from it as the inventory asks."""

    def plan(self, facts: Facts, desired: Desired) -> tuple[Change, ...]:
        """Its changes; () where it is not the desired runtime."""

    def labels(self, facts: Facts) -> bool:
        """Whether it gives containers SELinux labels of their own."""

    def by_systemd(self, facts: Facts) -> bool:
        """Whether systemd keeps the cgroups of its containers, and with them what devices these may use."""

    def runc(self, facts: Facts) -> str:
        """The runc that starts its containers, by the name that facts have its version under; "" for another program."""

    def headline(self, facts: Facts) -> str:
        """Its name and version; "" where it is not installed."""

    def state(self, facts: Facts) -> str:
        """The same, and what else of the running one matters to GPUs; its name where it does not answer."""


RUNTIMES: Mapping[Runtime, ContainerRuntime] = MappingProxyType(
    {
        "k3s": rancher.K3S,
        "rke2": rancher.RKE2,
        "k0s": k0s,
        "microk8s": microk8s,
        "docker": docker,
        "crio": crio,
        "containerd": containerd,
    }
)


def serving(endpoint: str | None) -> Runtime | None:
    """The runtime at a kubelet's endpoint; None for any other."""
    return next((name for name, one in RUNTIMES.items() if one.serves(endpoint)), None)


def in_use(facts: Facts) -> Runtime:
    """The kubelet's runtime where there is no decision."""
    return next((name for name, one in RUNTIMES.items() if one.in_use(facts)), "containerd")
