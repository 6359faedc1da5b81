"""What the plugin makes of a host's GPUs by its configuration: worked out as the plugin itself does. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from gpunode.cluster.results import Target
from gpunode.deviceplugin.gpus.devices import MIB, Device
from gpunode.deviceplugin.offer.memory import counts
from gpunode.deviceplugin.offer.resources import Unfit, Unit, offers
from gpunode.deviceplugin.settings import configfile
from gpunode.deviceplugin.settings.config import CDI, GPU, GPU_COUNT, GPU_MEM, LABEL, Config, choice
from gpunode.model import Gpu, PluginConfig


def units(
    config: PluginConfig | None, gpus: Sequence[Gpu], labels: Mapping[str, str]
) -> Mapping[str, int] | None:
    """Units of each resource where MIG devices of GPUs are offered, or GPUs shared by time-slicing or MPS, or by memory
    under a name of its own, on a node with these labels; None where they are not, and where it cannot be told from here
    (a label that names no configuration, so that the one of before is in force; MIG devices that are not known)."""
    settings = in_force(config, labels)
    if settings is None:
        return None
    cut = settings.mig_strategy != "none" and any(gpu.mig_on for gpu in gpus)
    if not (cut or any(share.resource == GPU for share in settings.shares) or _named(settings)):
        return None
    offered = _offered(settings, gpus)
    return {resource: len(several) for resource, several in offered.items()} if offered else None


def uuids(config: PluginConfig | None, gpus: Sequence[Gpu], labels: Mapping[str, str]) -> tuple[str, ...]:
    """The GPUs and MIG devices that pods on a node with these labels can have; all GPUs where it cannot be told, and ()
    where MIG devices are not known."""
    settings = in_force(config, labels)
    if unlisted(config, gpus, labels):
        return ()
    offered = _offered(settings, gpus) if settings else None
    if not offered:
        return tuple(gpu.uuid for gpu in gpus)
    return tuple(dict.fromkeys(unit.device.uuid for several in offered.values() for unit in several))


def target(config: PluginConfig | None, node: str, gpus: Sequence[Gpu], labels: Mapping[str, str]) -> Target:
    """What pods on this node are to see, which has these labels and whose host has these GPUs."""
    return Target(node, uuids(config, gpus, labels), pieces(config, gpus, labels))


def pieces(config: PluginConfig | None, gpus: Sequence[Gpu], labels: Mapping[str, str]) -> tuple[int, ...]:
    """How many units of memory each GPU makes that a node with these labels shares by it; () for none, and where it
    cannot be told."""
    settings = in_force(config, labels)
    offered = _offered(settings, gpus) if settings else None
    if not offered or not settings or not settings.memory:
        return ()
    return tuple(Counter(unit.device.uuid for unit in offered.get(settings.memory.resource, ())).values())


def each(config: PluginConfig | None, labels: Mapping[str, str], resource: str) -> int | None:
    """How many units of this resource a GPU or MIG device makes on a node with these labels; None where not all make as
    many, and where it cannot be told."""
    settings = in_force(config, labels)
    if settings is None:
        return None
    counts = {share.replicas for share in settings.shares if share.rename == resource}
    divided = [share for share in settings.shares if share.resource == resource]
    if not counts or (divided and all(share.devices for share in divided)):
        counts.add(1)  # those that no share names stay whole
    return counts.pop() if len(counts) == 1 else None


def unlisted(config: PluginConfig | None, gpus: Sequence[Gpu], labels: Mapping[str, str]) -> bool:
    """Whether it cannot be told what a node with these labels is to offer, as its host did not list MIG devices."""
    settings = in_force(config, labels)
    cut = settings is not None and settings.mig_strategy != "none"
    return cut and any(gpu.mig is None for gpu in gpus)


def memory(config: PluginConfig | None, labels: Mapping[str, str]) -> str:
    """The resource as which GPU memory is offered under a name of its own on a node with these labels; "" for none."""
    settings = in_force(config, labels)
    return _named(settings) if settings else ""


def cdi_alone(config: PluginConfig | None, labels: Mapping[str, str]) -> tuple[str, ...]:
    """The device list strategies on a node with these labels where all of them are CDI's; () where one is not."""
    settings = in_force(config, labels)
    strategies = settings.device_list_strategy if settings else ()
    return strategies if CDI.issuperset(strategies) else ()


def unconfigured(config: PluginConfig | None, labels: Mapping[str, str]) -> bool:
    """Whether none of several configurations is for a node with these labels."""
    return config is not None and bool(config.files) and not choice(config.files, labels.get(LABEL, ""))


def makes(config: PluginConfig | None, labels: Mapping[str, str], resource: str) -> bool:
    """Whether any device may be offered as this resource on a node with these labels; True where it cannot be told."""
    settings = in_force(config, labels)
    if settings is None:
        return True
    shared, whole = settings.memory, [share for share in settings.shares if share.resource == GPU]
    if shared and (resource == shared.resource or (resource == GPU_COUNT and counts(shared))):
        return True
    if any(share.rename == resource for share in settings.shares):
        return True
    if resource == GPU:
        return not (shared and not shared.devices) and all(share.devices for share in whole)
    return settings.mig_strategy == "mixed" and resource.startswith("nvidia.com/mig-")


def misnamed(config: PluginConfig | None, labels: Mapping[str, str]) -> str:
    """That the label of a node with these labels names no configuration; "" where it does or there is no choice."""
    named = labels.get(LABEL, "")
    if not config or not config.files or not named or named in config.files:
        return ""
    there = ", ".join(sorted(config.files))
    return f"label {LABEL} names `{named}`; there {'is' if len(config.files) == 1 else 'are'} {there}"


def in_force(config: PluginConfig | None, labels: Mapping[str, str]) -> Config | None:
    """The configuration for a node with these labels, the plugin's own where the inventory has none; None where the
    label names none."""
    if config is None:
        return Config()
    named = choice(config.files.keys(), labels.get(LABEL, ""))
    text = config.files.get(named) if config.files else config.text
    return configfile.config(text) if text else None


def devices(gpus: Sequence[Gpu]) -> list[Device]:
    """The GPUs and MIG devices as NVML tells the plugin of them."""
    found = []
    for gpu in gpus:
        whole = Device(gpu.uuid, str(gpu.index), gpu.name, gpu.uuid, gpu.pci, gpu.memory_mib * MIB)
        found.append(replace(whole, mig_enabled=gpu.mig_on))
        found += [
            replace(whole, uuid=part.uuid, index=f"{gpu.index}:{part.number}", profile=part.profile)
            for part in gpu.mig or ()
        ]
    return found


def _offered(settings: Config, gpus: Sequence[Gpu]) -> Mapping[str, Sequence[Unit]] | None:
    """What the plugin makes of them; None where it would refuse, and where MIG devices are not known."""
    if settings.mig_strategy != "none" and any(gpu.mig is None for gpu in gpus):
        return None
    try:
        return offers(devices(gpus), settings.mig_strategy, settings.shares, settings.memory)
    except Unfit:
        return None


def _named(settings: Config) -> str:
    return settings.memory.resource if settings.memory and settings.memory.resource != GPU_MEM else ""
