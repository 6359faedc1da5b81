"""CRI-O on a host: whether it is the kubelet's, and what it runs pods with."""

from __future__ import annotations

from gpunode.errors import CannotPlan
from gpunode.links.runtime.crio.settings import read
from gpunode.links.runtime.crio.step import UNIT, low_level
from gpunode.model import Facts, Host
from gpunode.planning import services


def unit(facts: Facts) -> str:  # noqa: ARG001 - the same everywhere
    """Its service."""
    return UNIT


def serves(endpoint: str | None) -> bool:
    """Its socket."""
    return "crio" in (endpoint or "")


def in_use(facts: Facts) -> bool:
    """Where it runs."""
    return services.is_active(facts, UNIT)


def check(host: Host, facts: Facts) -> None:  # noqa: ARG001 - each way that a host may wish works
    """It must be there."""
    if not services.is_loaded(facts, UNIT):
        raise CannotPlan(
            "this kubelet runs its pods with CRI-O, and there is no crio.service",
            hint="Install CRI-O and let the kubelet start a pod with it, then run again.",
        )


def labels(facts: Facts) -> bool:
    """By `selinux` of its files; its own default is off."""
    return read(facts).labels


def by_systemd(facts: Facts) -> bool:
    """By `cgroup_manager` of its files; its own default is systemd."""
    return read(facts).cgroups == "systemd"


def runc(facts: Facts) -> str:
    """Of PATH, or the one that its packages bring; it may start containers with crun."""
    below = low_level(facts)
    return below if below.rpartition("/")[2] == "runc" else ""


def headline(facts: Facts) -> str:
    """Its name."""
    return "CRI-O" if services.is_loaded(facts, UNIT) else ""


def state(facts: Facts) -> str:
    """With the default runtime of its files."""
    return f"CRI-O, default runtime {read(facts).default or 'its own'}"
