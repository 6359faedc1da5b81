"""`gpunode demo` from its options to its end: which hosts, which fault, the show, and whether it runs on.

A user's inventory is rehearsed on invented hosts: groups and settings are the user's, addresses and keys are not.
"""

import dataclasses
import os
import tempfile
from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gpunode import inventory
from gpunode.errors import UsageError
from gpunode.inventory import source
from gpunode.local.files import STATE
from gpunode.model import Fault, Host, Inventory, PluginConfig
from gpunode.sim import faults, registry
from gpunode.sim.folder import ARCHIVE
from gpunode.sim.forkserver import ForkServer
from gpunode.sim.host import kinds
from gpunode.sim.host.machine import Machine
from gpunode.sim.narration import LOAD, REPORT, Show, ending, farewell
from gpunode.sim.process import Demo, demos_folder

DEFAULT = "h100"
MOST_SECONDS = 1e5  # more digits than a duration has
Group = dict[str, Any]


def play(
    *, fast: bool, verbose: bool, fault: Fault | None, hosts: int | None, inventory: Path | None, keep: bool
) -> int:
    """The exit code. Raises UsageError before anything starts, for options that exclude each other and for a fault that none
    of the hosts can have."""
    machines, described = _choose_machines(hosts, inventory)
    whole = not described or described[1]["plugin"] is not None
    possible = [name for name in faults.possible(machines) if whole or name != "image"]  # the plugin's image
    if fault is not None and fault.name not in possible:
        raise UsageError(
            f"--break {fault.name}: not possible on these hosts; "
            f"choose one of {', '.join(possible) or 'others: nothing here can be broken'}"
        )
    with (
        closing(ForkServer(LOAD, flags=(), environment=os.environ)) as forks,
        Demo(machines, *described) as demo,
    ):
        (demo.folder / STATE).mkdir(mode=0o700)
        code = Show(demo, forks, fast=fast, verbose=verbose).play(fault)
        report = None if keep else _keep_report(demo)
        if keep:
            _keep(demo, "verify")
    if not keep:
        print(ending(code, report, whole=whole))
    return code


def start(*, hosts: int | None, inventory: Path | None) -> None:
    """Start a demo that runs on, without a show. Raises UsageError for options that exclude each other."""
    machines, described = _choose_machines(hosts, inventory)
    with Demo(machines, *described) as demo:
        (demo.folder / STATE).mkdir(mode=0o700)
        _keep(demo, "provision")


def _keep(demo: Demo, first: str) -> None:
    """Let it run on, and print commands to try, `first` before others."""
    name = registry.free_name()
    demo.keep(name)
    print(farewell(demo, name, first))


def _choose_machines(
    hosts: int | None, inventory: Path | None
) -> tuple[tuple[Machine, ...], tuple[Any, ...]]:
    """The machines; of a rehearsal also its groups, cluster settings and files. What it leaves out is printed."""
    if hosts is not None and inventory is not None:
        raise UsageError("--hosts and --inventory exclude each other: the inventory names the hosts")
    if inventory is None:
        return kinds.fleet(hosts) if hosts else kinds.usual(), ()
    read = rehearse(inventory)
    for sentence in read.left_out:
        print(f"{inventory}: {sentence}")
    return read.machines, (read.groups, read.cluster, read.files)


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
    left_out = list_left_out(read, inventory.places(source.read(path).data))
    for host in read.hosts:
        first, *others = host.groups or ("hosts",)
        groups.setdefault(first, {"hosts": []})["hosts"].append(host_entry(host))
        for name in others:
            groups.setdefault(name, {"hosts": []})["hosts"].append({"name": host.name})
    plugin, config, publish = read.cluster.plugin, read.cluster.plugin_config, read.cluster.plugin_publish
    named, files, without = plugin_settings(config) if config else ({}, {}, ())
    chosen = {name: getattr(publish, name) for name in ("events", "annotation", "condition", "metrics")}
    cluster: dict[str, Any] = {
        "namespace": read.cluster.namespace,
        "max_tainted": f"{read.cluster.max_tainted}%",
        "plugin": None,
    }
    if plugin is not None:
        image = {"archive": ARCHIVE} if plugin.archive else {"image": plugin.reference}
        cluster["plugin"] = {**image, **named, **chosen}
    return Rehearsal(machines, groups, cluster, files, (*left_out, *without))


def plugin_settings(config: PluginConfig) -> tuple[dict[str, Any], dict[str, str], tuple[str, ...]]:
    """The plugin's configuration in the cluster settings, its files, and sentences on what is not simulated."""
    missing = [name for name, place in (("MPS", config.mps_root), ("CDI", config.cdi_directory)) if place]
    if missing:
        key = "configs" if config.files else "config"
        sentence = f"{' and '.join(missing)} cannot be simulated: the demo ignores cluster.plugin.{key}."
        return {}, {}, (sentence,)
    if config.files:
        names = {name: f"plugin-{name}.yaml" for name in config.files}
        return {"configs": names}, {names[name]: text for name, text in config.files.items()}, ()
    return {"config": "plugin.yaml"}, {"plugin.yaml": config.text}, ()


def invent_machine(host: Host) -> Machine:
    """A plausible machine for the host: its GPUs by its names, its runtime by its settings; with the driver and the
    toolkit installed that `driver: none` and `toolkit: none` presuppose."""
    wanted = (host.gpus.model if host.gpus else "", *(rule.model for rule in host.mig))
    names = " ".join((*wanted, host.name, *host.groups, *host.labels.values())).lower()
    model = next((name for name in sorted(kinds.MODELS, key=len, reverse=True) if name in names), None)
    recent = host.runtime == "class" or set(host.feature_gates) - {"DevicePlugins"}
    count = (host.gpus.count,) if host.gpus else ()
    if (model in ("p100", "k80") or "docker" in names or host.feature_gates) and not recent:
        made, model = kinds.old_host(host.name, model or "p100", *count), model or "p100"
    else:
        made, model = kinds.new_host(host.name, model or DEFAULT, *count), model or DEFAULT
    # `driver: none` and `toolkit: none`: the user has installed these.
    driver = (kinds.driver(model), f"linux-headers-{made.kernel}") if host.driver == "none" else ()
    toolkit = ("nvidia-container-toolkit",) if host.toolkit == "none" else ()
    return replace(made, has=(*driver, *toolkit))


# Keys of a host's mapping that are the fields of `Host` as they are.
SAME = ("driver", "toolkit", "runtime", "work", "taint_until_verified", "feature_labels", "control_plane")  # fmt: skip
CARRIED = {*SAME, "name", "groups", "gpus", "mig", "feature_gates", "labels", "taints", "work_timeout", "accept_valid", "accept_required"}  # fmt: skip
# The demo has its own of these, or they follow from the plugin's configuration.
REPLACED = {"ssh", "connection", "sudo", "driver_run", "driver_from", "driver_repository", "toolkit_repository", "system_repository", "cdi", "device_specs"}  # fmt: skip


def host_entry(host: Host) -> dict[str, Any]:
    """The host as its group lists it, with its settings that are carried. Its address is added later; its node has its name."""
    plain = Host(host.name, host.ssh)
    entry: dict[str, Any] = {"name": host.name}
    entry |= {key: getattr(host, key) for key in SAME if getattr(host, key) != getattr(plain, key)}
    accept: dict[str, Any] = {"required": True} if host.accept_required else {}
    if host.accept_valid != plain.accept_valid:
        accept["valid"] = f"{host.accept_valid / 3600:.0f}h"
    layouts = {rule.model: list(rule.layout) if rule.layout else "off" for rule in host.mig}
    layouts |= {model: layout[0] for model, layout in layouts.items() if layout[0].startswith("all-")}
    timeout = (
        f"{host.work_timeout:.0f}s"
        if host.work_timeout < MOST_SECONDS
        else f"{host.work_timeout / 3600:.0f}h"
    )
    settings = {
        "gpus": {"count": host.gpus.count, **({"model": host.gpus.model} if host.gpus.model else {})}
        if host.gpus
        else None,
        "mig": layouts.get("", layouts),
        "accept": accept,
        "work_timeout": timeout if host.work_timeout != plain.work_timeout else None,
        "kubelet": {"feature_gates": dict(host.feature_gates)} if host.feature_gates else None,
        "labels": dict(host.labels),
        "taints": list(host.taints),
    }
    return entry | {key: value for key, value in settings.items() if value}


def list_left_out(read: Inventory, places: Iterable[Mapping[str, Any]]) -> tuple[str, ...]:
    """A sentence with the keys of the inventory that a rehearsal does without; () if there are none. `places`: as written."""
    fields = [field.name for field in dataclasses.fields(Host) if field.name not in CARRIED | REPLACED]
    names = [
        name.removesuffix("_build")
        for name in fields
        if any(getattr(host, name) != getattr(Host(host.name, host.ssh), name) for host in read.hosts)
    ]
    others = {
        "driver.from": any(isinstance(place.get("driver"), dict) for place in places),
        "cluster.share": read.cluster.share,
        "gate": read.gates,
    }
    names += [name for name, value in others.items() if value]
    listed = ", ".join(dict.fromkeys(names))
    return (f"the demo leaves out {listed}: not simulated.",) if names else ()
