"""`gpunode demo` from its options to its end: which hosts, which fault, the show, and whether it runs on.

A user's inventory is rehearsed on invented hosts: groups and settings are the user's, addresses and keys are not.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gpunode import inventory
from gpunode.errors import UsageError
from gpunode.model import Fault, Host, PluginConfig
from gpunode.sim import faults, registry
from gpunode.sim.folder import ARCHIVE
from gpunode.sim.forkserver import ForkServer
from gpunode.sim.host import kinds
from gpunode.sim.host.machine import Machine
from gpunode.sim.narration import LOAD, REPORT, Show, ending, farewell
from gpunode.sim.process import Demo, demos_folder

DEFAULT = "h100"
Group = dict[str, Any]


def play(
    *, fast: bool, verbose: bool, fault: Fault | None, hosts: int | None, inventory: Path | None, keep: bool
) -> int:
    """The exit code. Raises UsageError before anything starts, for options that exclude each other and for a fault that none
    of the hosts can have."""
    if hosts is not None and inventory is not None:
        raise UsageError(
            "--hosts and --inventory exclude each other: an inventory says which hosts there are"
        )
    machines = kinds.fleet(hosts) if hosts else kinds.usual()
    described: tuple[Any, ...] = ()
    whole = True
    if inventory is not None:
        read = rehearse(inventory)
        for sentence in read.left_out:
            print(f"{inventory}: {sentence}")
        machines, described = read.machines, (read.groups, read.cluster, read.files)
        whole = read.cluster["plugin"] is not None
    possible = [name for name in faults.possible(machines) if whole or name != "image"]  # the plugin's image
    if fault is not None and fault.name not in possible:
        raise UsageError(
            f"--break {fault.name}: it can happen to none of these hosts; "
            f"choose one of {', '.join(possible) or 'others: nothing here can be broken'}"
        )
    with (
        closing(ForkServer(LOAD, flags=(), environment=os.environ)) as forks,
        Demo(machines, *described) as demo,
    ):
        code = Show(demo, forks, fast=fast, verbose=verbose).play(fault)
        report = None if keep else _keep_report(demo)
        if keep:
            name = registry.free_name()
            demo.keep(name)
            print(farewell(demo, name))
    if not keep:
        print(ending(code, report, whole=whole))
    return code


def _keep_report(demo: Demo) -> Path | None:
    """The run's page, moved out of the folder that goes; None if there is none."""
    page = demo.folder / REPORT
    if not page.exists():
        return None
    descriptor, name = tempfile.mkstemp(prefix="gpunode-report-", suffix=".html", dir=demos_folder())
    with os.fdopen(descriptor, "wb") as copy:
        copy.write(page.read_bytes())
    return Path(name)


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """Machines for an inventory's hosts, its groups with them, its cluster settings, and the files that those name.

    `left_out`: sentences about what is not simulated.
    """

    machines: tuple[Machine, ...]
    groups: Mapping[str, Group]
    cluster: Mapping[str, Any]
    files: Mapping[str, str]
    left_out: tuple[str, ...]


def rehearse(path: Path) -> Rehearsal:
    """The rehearsal of an inventory. Raises InventoryError.

    Keys, kubeconfig and image archive of the real hosts and cluster need not exist.
    """
    read = inventory.load(path, keys=False)
    machines = tuple(replace(invent_machine(host), pace=kinds.PACE) for host in read.hosts)
    groups: dict[str, Group] = {}
    for host in read.hosts:
        first, *others = host.groups or ("hosts",)
        groups.setdefault(first, {"hosts": []})["hosts"].append(host_entry(host))
        for name in others:
            groups.setdefault(name, {"hosts": []})["hosts"].append({"name": host.name})
    plugin, config, publish = read.cluster.plugin, read.cluster.plugin_config, read.cluster.plugin_publish
    named, files, left_out = plugin_settings(config) if config else ({}, {}, ())
    chosen = {name: getattr(publish, name) for name in ("events", "annotation", "metrics")}
    cluster: dict[str, Any] = {"namespace": read.cluster.namespace, "plugin": None}
    if plugin is not None:
        image = {"archive": ARCHIVE} if plugin.archive else {"image": plugin.reference}
        cluster["plugin"] = {**image, **named, **chosen}
    return Rehearsal(machines, groups, cluster, files, left_out)


def plugin_settings(config: PluginConfig) -> tuple[dict[str, Any], dict[str, str], tuple[str, ...]]:
    """The plugin's configuration in the cluster settings, its files, and sentences on what is not simulated."""
    missing = [name for name, place in (("MPS", config.mps_root), ("CDI", config.cdi_directory)) if place]
    if missing:
        key = "configs" if config.files else "config"
        sentence = (
            f"{' and '.join(missing)} cannot be simulated: this rehearsal goes without cluster.plugin.{key}."
        )
        return {}, {}, (sentence,)
    if config.files:
        names = {name: f"plugin-{name}.yaml" for name in config.files}
        return {"configs": names}, {names[name]: text for name, text in config.files.items()}, ()
    return {"config": "plugin.yaml"}, {"plugin.yaml": config.text}, ()


def invent_machine(host: Host) -> Machine:
    """A plausible machine for the host: its GPUs by its names, its runtime by its settings; with the driver and the
    toolkit installed that `driver: none` and `toolkit: none` presuppose."""
    names = " ".join((host.name, *host.groups, *host.labels.values())).lower()
    model = next((name for name in sorted(kinds.MODELS, key=len, reverse=True) if name in names), None)
    recent = host.runtime == "class" or set(host.feature_gates) - {"DevicePlugins"}
    if (model in ("p100", "k80") or "docker" in names or host.feature_gates) and not recent:
        made, model = kinds.old_host(host.name, model or "p100"), model or "p100"
    else:
        made, model = kinds.new_host(host.name, model or DEFAULT), model or DEFAULT
    # `driver: none` and `toolkit: none`: the user has installed these.
    driver = (kinds.driver(model), f"linux-headers-{made.kernel}") if host.driver == "none" else ()
    toolkit = ("nvidia-container-toolkit",) if host.toolkit == "none" else ()
    return replace(made, has=(*driver, *toolkit))


def host_entry(host: Host) -> dict[str, Any]:
    """The host as its group lists it, with its settings. Its address is added later; its node has its name."""
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
