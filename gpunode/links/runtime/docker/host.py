"""docker on a host: whether it is the kubelet's, and whether it can be used."""

from __future__ import annotations

import json

from gpunode import compat
from gpunode.errors import CannotPlan
from gpunode.links.runtime.docker.step import FILE, SNAP, UNIT
from gpunode.model import Facts, Host
from gpunode.planning import files, services


def unit(facts: Facts) -> str:  # noqa: ARG001 - the same everywhere
    """Its service."""
    return UNIT


def serves(endpoint: str | None) -> bool:
    """A kubelet that has dockershim drives it, any other through cri-dockerd."""
    return endpoint is None or "cri-dockerd" in endpoint or "dockershim.sock" in endpoint


def in_use(facts: Facts) -> bool:
    """docker, even a stopped one, where the kubelet drives it."""
    minor = compat.minor(facts.kubelet.version) if facts.kubelet else None
    shim = minor is not None and compat.has_dockershim(minor)
    return facts.docker is not None or (shim and services.is_loaded(facts, UNIT))


def check(host: Host, facts: Facts) -> None:
    """It must be there, and the default runtime is the only way to nvidia."""
    if not services.is_loaded(facts, UNIT):
        if services.is_loaded(facts, SNAP):
            raise CannotPlan(
                "docker runs from a snap, where it finds neither NVIDIA's runtime nor its libraries",
                hint="gpunode configures docker of packages, containerd and CRI-O so far; use one of them.",
            )
        raise CannotPlan(
            "this kubelet runs its pods with docker, and there is no docker.service",
            hint="Install docker, or give the kubelet --container-runtime=remote with containerd's endpoint.",
        )
    if host.runtime == "class":
        raise CannotPlan(
            "`runtime: class` cannot work here: a kubelet with docker knows no handlers of RuntimeClass",
            hint="Set `runtime: default` for this host, which makes nvidia docker's default runtime.",
        )


def labels(facts: Facts) -> bool:
    """By its daemon.json; off where that does not parse, which its plan reports."""
    try:
        return bool(json.loads(files.text(facts, FILE) or "{}").get("selinux-enabled"))
    except (ValueError, AttributeError, RecursionError):
        return False


def by_systemd(facts: Facts) -> bool:
    """As it reports."""
    return facts.docker is not None and facts.docker.cgroup_driver == "systemd"


def runc(facts: Facts) -> str:  # noqa: ARG001 - the same everywhere
    """Of PATH."""
    return "runc"


def headline(facts: Facts) -> str:
    """Its version, or that it does not answer."""
    return f"docker {facts.docker.version}" if facts.docker else "docker, which does not answer"


def state(facts: Facts) -> str:
    """With the default runtime of the running one."""
    one = facts.docker
    return f"docker {one.version}, default runtime {one.default_runtime}" if one else "docker"
