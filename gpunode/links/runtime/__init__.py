"""Container runtimes, a module each: what a probe reads, the plan, and the merge of its files."""

from collections.abc import Mapping
from typing import Protocol

from gpunode.links.kubelet import minors, places
from gpunode.links.kubelet.start import minor_of
from gpunode.links.runtime import containerd, crio, docker, k0s, microk8s, rancher
from gpunode.links.runtime.nvidia import Containers
from gpunode.model import Change, Desired, Facts, Runtime, Watch
from gpunode.planning import services


class ContainerRuntime(Protocol):
    """What the module of a runtime has for those who name none."""

    WATCH: Watch  # what a probe reads
    UNITS: tuple[str, ...]  # the systemd units that it can run in

    def check(self, facts: Facts) -> None:
        """Raises CannotPlan where pods cannot get GPUs from it as the inventory asks."""

    def plan(self, facts: Facts, desired: Desired, /, *, default: bool) -> tuple[Change, ...]:
        """Its changes as the desired runtime; `default`: nvidia is to be its default one."""

    def containers(self, facts: Facts) -> Containers:
        """How it starts containers. Raises CannotPlan where its files cannot be read."""

    def headline(self, facts: Facts) -> str:
        """Its name and version; "" where it is not installed."""

    def state(self, facts: Facts) -> str:
        """The same, and its default runtime where that is known; its name where it does not answer. Raises CannotPlan."""


RUNTIMES: Mapping[Runtime, ContainerRuntime] = {
    "k3s": rancher.K3S,
    "rke2": rancher.RKE2,
    "k0s": k0s,
    "microk8s": microk8s,
    "docker": docker,
    "crio": crio,
    "containerd": containerd,
}


def at_endpoint(endpoint: str | None) -> Runtime | None:
    """The runtime at a kubelet's endpoint; None for any other. An endpoint of None is dockershim, of "" the kubelet's default."""
    if endpoint is None or "cri-dockerd" in endpoint or "dockershim.sock" in endpoint:
        return "docker"
    if "crio" in endpoint:
        return "crio"
    return "containerd" if not endpoint or "containerd" in endpoint else None


def detect(facts: Facts) -> Runtime:
    """The kubelet's runtime where there is no decision: docker, even a stopped one, where the kubelet drives it."""
    if brought := places.find(facts).brings:
        return brought
    minor = minor_of(facts)
    shim = minor is not None and minors.has_dockershim(minor)
    if facts.docker is not None or (shim and services.is_loaded(facts, docker.UNITS[0])):
        return "docker"
    return "crio" if services.is_active(facts, crio.UNITS[0]) else "containerd"


def unit(name: Runtime, facts: Facts) -> str:
    units = RUNTIMES[name].UNITS
    return services.pick(facts, units) or units[0]
