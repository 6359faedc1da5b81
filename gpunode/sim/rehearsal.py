"""A user's inventory on invented hosts: its groups and wishes as they are, its addresses and keys not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from gpunode import inventory
from gpunode.model import Host
from gpunode.sim import kinds
from gpunode.sim.machine import Machine

DEFAULT = "h100"
Group = dict[str, Any]


def rehearsal(path: Path) -> tuple[tuple[Machine, ...], dict[str, Group], dict[str, Any]]:
    """Machines for its hosts, its groups with them, and its cluster settings. Raises InventoryError.

    The files that open the real hosts and cluster need not be there, nor an image's archive.
    """
    read = inventory.load(path, keys=False)
    machines = tuple(replace(invented(host), pace=kinds.PACE) for host in read.hosts)
    groups: dict[str, Group] = {}
    for host in read.hosts:
        first, *others = host.groups or ("hosts",)
        groups.setdefault(first, {"hosts": []})["hosts"].append(wishes(host))
        for name in others:
            groups.setdefault(name, {"hosts": []})["hosts"].append({"name": host.name})
    cluster: dict[str, Any] = {"namespace": read.cluster.namespace}
    plugin = read.cluster.plugin
    if plugin is not None and plugin.archive is None:
        cluster["plugin"] = {"image": plugin.reference}
    return machines, groups, cluster


def invented(host: Host) -> Machine:
    """A machine that the host may well be: its GPUs by what its names say, its runtime by what is wished of it."""
    words = " ".join((host.name, *host.groups, *host.labels.values())).lower()
    model = next((name for name in sorted(kinds.MODELS, key=len, reverse=True) if name in words), None)
    recent = host.runtime == "class" or set(host.feature_gates) - {"DevicePlugins"}
    if (model in ("p100", "k80") or "docker" in words or host.feature_gates) and not recent:
        return kinds.old(host.name, model or "p100")
    return kinds.new(host.name, model or DEFAULT)


def wishes(host: Host) -> dict[str, Any]:
    """The host as its group lists it, with what is wished of it. Where it is comes later; its node has its name."""
    entry: dict[str, Any] = {"name": host.name}
    for name, value in (
        ("driver", host.driver),
        ("toolkit", host.toolkit),
        ("runtime", host.runtime),
    ):
        if value not in ("auto", "default"):
            entry[name] = value
    if host.feature_gates:
        entry["kubelet"] = {"feature_gates": dict(host.feature_gates)}
    if host.labels:
        entry["labels"] = dict(host.labels)
    return entry
