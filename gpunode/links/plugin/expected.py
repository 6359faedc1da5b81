"""The units that the plugin makes of a host's GPUs by its configuration, computed with the plugin's own code. Pure."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from gpunode.cluster import pods
from gpunode.contract import config_file
from gpunode.contract.config import CDI, GPU, GPU_COUNT, GPU_MEM, LABEL, Config, choose_name
from gpunode.contract.offer import MIB, CannotOffer, Device, Unit, counts_gpus, offers
from gpunode.links.node import Node
from gpunode.model import Gpu, PluginConfig


def units(
    config: PluginConfig | None, gpus: Sequence[Gpu], labels: Mapping[str, str]
) -> Mapping[str, int] | None:
    """Units by resource on a node with these labels, where it offers MIG devices, GPUs shared by time-slicing or MPS, or
    memory under a renamed resource. None elsewhere, and where they are unknown: the label names no configuration, so an
    earlier one is in force; or MIG devices were not listed."""
    settings = find_config(config, labels)
    if settings is None:
        return None
    cut = settings.mig_strategy != "none" and any(gpu.mig_on for gpu in gpus)
    if not (cut or any(share.resource == GPU for share in settings.shares) or _resource_name(settings)):
        return None
    offered = _offered(settings, gpus)
    return {resource: len(several) for resource, several in offered.items()} if offered else None


def uuids(config: PluginConfig | None, gpus: Sequence[Gpu], labels: Mapping[str, str]) -> tuple[str, ...]:
    """UUIDs of the GPUs and MIG devices that pods on a node with these labels can get; all GPUs where the configuration
    is unknown, () where MIG devices are."""
    settings = find_config(config, labels)
    if is_unlisted(config, gpus, labels):
        return ()
    offered = _offered(settings, gpus) if settings else None
    if not offered:
        return tuple(gpu.uuid for gpu in gpus)
    return tuple(dict.fromkeys(unit.device.uuid for several in offered.values() for unit in several))


def pieces(config: PluginConfig | None, gpus: Sequence[Gpu], labels: Mapping[str, str]) -> tuple[int, ...]:
    """Units of memory of each GPU that a node with these labels shares by memory; () for none, and where unknown."""
    settings = find_config(config, labels)
    offered = _offered(settings, gpus) if settings else None
    if not offered or not settings or not settings.memory:
        return ()
    return tuple(Counter(unit.device.uuid for unit in offered.get(settings.memory.resource, ())).values())


def each(config: PluginConfig | None, labels: Mapping[str, str], resource: str) -> int | None:
    """Units of this resource per GPU or MIG device on a node with these labels; None where they differ, and where
    unknown."""
    settings = find_config(config, labels)
    if settings is None:
        return None
    counts_gpus = {share.replicas for share in settings.shares if share.rename == resource}
    divided = [share for share in settings.shares if share.resource == resource]
    if not counts_gpus or (divided and all(share.devices for share in divided)):
        counts_gpus.add(1)  # devices without a share stay whole
    return counts_gpus.pop() if len(counts_gpus) == 1 else None


def is_unlisted(config: PluginConfig | None, gpus: Sequence[Gpu], labels: Mapping[str, str]) -> bool:
    """Whether the units of a node with these labels are unknown because its host did not list MIG devices."""
    settings = find_config(config, labels)
    cut = settings is not None and settings.mig_strategy != "none"
    return cut and any(gpu.mig is None for gpu in gpus)


def memory(config: PluginConfig | None, labels: Mapping[str, str]) -> str:
    """The renamed resource of GPU memory on a node with these labels; "" for none."""
    settings = find_config(config, labels)
    return _resource_name(settings) if settings else ""


def cdi_strategies(config: PluginConfig | None, labels: Mapping[str, str]) -> tuple[str, ...]:
    """The device list strategies on a node with these labels if all are CDI's; () where one is not."""
    settings = find_config(config, labels)
    strategies = settings.device_list_strategy if settings else ()
    return strategies if CDI.issuperset(strategies) else ()


def uses_variable(config: PluginConfig | None, labels: Mapping[str, str]) -> bool:
    """Whether containers on a node with these labels learn their GPUs from a variable alone."""
    settings = find_config(config, labels)
    return settings is not None and set(settings.device_list_strategy) == {"envvar"}


def is_unconfigured(config: PluginConfig | None, labels: Mapping[str, str]) -> bool:
    """Whether none of several configurations applies to a node with these labels."""
    return config is not None and bool(config.files) and not choose_name(config.files, labels.get(LABEL, ""))


def makes(config: PluginConfig | None, labels: Mapping[str, str], resource: str) -> bool:
    """Whether a device may be offered as this resource on a node with these labels; True where unknown."""
    settings = find_config(config, labels)
    if settings is None:
        return True
    shared, whole = settings.memory, [share for share in settings.shares if share.resource == GPU]
    if shared and (resource == shared.resource or (resource == GPU_COUNT and counts_gpus(shared))):
        return True
    if any(share.rename == resource for share in settings.shares):
        return True
    if resource == GPU:
        return not (shared and not shared.devices) and all(share.devices for share in whole)
    return settings.mig_strategy == "mixed" and resource.startswith("nvidia.com/mig-")


def label_problem(config: PluginConfig | None, labels: Mapping[str, str]) -> str:
    """A message that the node's label names no configuration; "" where it names one or there is no choice."""
    named = labels.get(LABEL, "")
    if not config or not config.files or not named or named in config.files:
        return ""
    names = ", ".join(sorted(config.files))
    return f"label {LABEL} names `{named}`; there {'is' if len(config.files) == 1 else 'are'} {names}"


def find_config(config: PluginConfig | None, labels: Mapping[str, str]) -> Config | None:
    """The configuration for a node with these labels, the plugin's default where the inventory has none; None where
    the label names none."""
    if config is None:
        return Config()
    named = choose_name(config.files.keys(), labels.get(LABEL, ""))
    text = config.files.get(named) if config.files else config.text
    return config_file.parse(text) if text else None


def make_devices(gpus: Sequence[Gpu]) -> list[Device]:
    """The GPUs and MIG devices as NVML reports them to the plugin."""
    devices = []
    for gpu in gpus:
        memory = None if gpu.memory_mib is None else gpu.memory_mib * MIB
        whole = Device(gpu.uuid, str(gpu.index), gpu.name, gpu.uuid, gpu.pci, memory)
        devices.append(replace(whole, mig_enabled=gpu.mig_on))
        devices += [
            replace(whole, uuid=part.uuid, index=f"{gpu.index}:{part.number}", profile=part.profile)
            for part in gpu.mig or ()
        ]
    return devices


def _offered(settings: Config, gpus: Sequence[Gpu]) -> Mapping[str, Sequence[Unit]] | None:
    """Units by resource; None where the plugin would refuse, and where MIG devices are not known."""
    if settings.mig_strategy != "none" and any(gpu.mig is None for gpu in gpus):
        return None
    try:
        return offers(make_devices(gpus), settings.mig_strategy, settings.shares, settings.memory)
    except CannotOffer:
        return None


def _resource_name(settings: Config) -> str:
    return settings.memory.resource if settings.memory and settings.memory.resource != GPU_MEM else ""


def unit(nodes: Sequence[Node], config: PluginConfig | None) -> tuple[str, Sequence[Node]]:
    """The resource of which the pod asks for one, and the nodes that may have it: GPUs where a node offers some, or none
    offers anything; else memory, else shares or MIG devices. `config`: the plugin's, which may name the memory."""
    offers = {node.name: {*node.offers, *_named_memory(node, config)} for node in nodes}
    resources = set().union(*offers.values())
    if pods.GPU in resources or not resources:
        return pods.GPU, nodes
    memory = {pods.MEMORY, *(name for node in nodes for name in _named_memory(node, config))}
    resource = min(resources & memory or resources)
    return resource, [node for node in nodes if resource in offers[node.name]]


def _named_memory(node: Node, config: PluginConfig | None) -> set[str]:
    """Memory under a name of the user's, where the node offers some."""
    name = memory(config, node.labels)
    return {name} if node.units.get(name) else set()
