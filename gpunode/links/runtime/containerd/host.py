"""containerd on a host: whether it is the kubelet's, and its version."""

from __future__ import annotations

import re

from gpunode.errors import CannotPlan
from gpunode.links.runtime.containerd.config_toml import RUNC, default_name, lookup, section
from gpunode.links.runtime.containerd.source import read
from gpunode.links.runtime.containerd.step import UNIT
from gpunode.model import Facts, Host
from gpunode.planning import files, services
from gpunode.planning.versions import numbers

SINCE = (1, 3)  # its module: cmd/containerd-shim-runc-v2 and `config dump`; 1.2.10 has neither


def unit(facts: Facts) -> str:  # noqa: ARG001 - the same everywhere
    """Its service."""
    return UNIT


def serves(endpoint: str | None) -> bool:
    """Its socket, or no endpoint at all: kubelets without dockershim try containerd's."""
    return endpoint == "" or "containerd" in (endpoint or "")


def in_use(facts: Facts) -> bool:
    """Where it answers."""
    return facts.containerd is not None


def check(host: Host, facts: Facts) -> None:  # noqa: ARG001 - each way that a host may wish works
    """It must be there."""
    if facts.containerd is None and not services.is_loaded(facts, UNIT):
        raise CannotPlan(
            "this kubelet runs its pods with containerd, and there is no containerd on this host",
            hint="Install containerd and let the kubelet start a pod with it, then run again.",
        )
    version = facts.containerd.version if facts.containerd else ""
    if (0,) < numbers(version) < SINCE:
        raise CannotPlan(
            f"containerd {version} has no shim {RUNC}, which starts NVIDIA's runtime",
            hint=f"Upgrade it to {'.'.join(map(str, SINCE))} or newer; or set `runtime: none` and configure it by hand.",
        )


def labels(facts: Facts) -> bool:
    """By its dump."""
    return labelled(facts.containerd.dump if facts.containerd else "")


def labelled(text: str) -> bool:
    """Whether a configuration switches labels on, in whichever section its version has them."""
    return re.search(r"^\s*enable_selinux\s*=\s*true", text, re.MULTILINE) is not None


def by_systemd(facts: Facts) -> bool:
    """By its dump."""
    return keeps_cgroups(facts.containerd.dump if facts.containerd else "")


def keeps_cgroups(text: str) -> bool:
    """Whether a configuration leaves the cgroups of any runtime to systemd, in whichever spelling."""
    return re.search(r"^\s*(SystemdCgroup|systemd_cgroup)\s*=\s*true", text, re.MULTILINE | re.I) is not None


def runc(facts: Facts) -> str:  # noqa: ARG001 - the same everywhere
    """Of PATH."""
    return "runc"


def headline(facts: Facts) -> str:
    """Its version."""
    return f"containerd {facts.containerd.version}" if facts.containerd else ""


def state(facts: Facts) -> str:
    """Its version."""
    return headline(facts) or "containerd"


def brought(facts: Facts, product: str, path: str) -> str:
    """The state of the containerd that a product brings, with the default runtime of the configuration that it was started with."""
    data = read(files.text(facts, path) or "", path)
    name = default_name(lookup(data, section(data))) if data else ""
    return f"containerd of {product}" + (f", default runtime {name}" if name else "")
