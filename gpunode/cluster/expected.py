"""What the plugin makes of a host's GPUs by its configuration: worked out as the plugin itself does. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import yaml

from gpunode.deviceplugin import configfile
from gpunode.deviceplugin.config import GPU, GPU_MEM, LABEL, Config, choice
from gpunode.deviceplugin.devices import MIB, Device
from gpunode.deviceplugin.resources import Unfit, offers
from gpunode.model import Gpu, PluginConfig


def units(
    config: PluginConfig | None, gpus: Sequence[Gpu], labels: Mapping[str, str]
) -> Mapping[str, int] | None:
    """Units of each resource where GPUs are shared by time-slicing or MPS, or by memory under a name of its own, on a
    node with these labels; None where they are not, and where it cannot be told from here (MIG devices, which the
    host's facts do not have; a label that names no configuration, so that the one of before is in force)."""
    settings = _settings(config, labels)
    if settings is None or settings.mig_strategy != "none":
        return None
    if not any(share.resource == GPU for share in settings.shares) and not _named(settings):
        return None
    devices = [
        Device(gpu.uuid, str(gpu.index), gpu.name, gpu.uuid, gpu.pci, gpu.memory_mib * MIB) for gpu in gpus
    ]
    try:
        offered = offers(devices, settings.mig_strategy, settings.shares, settings.memory)
    except Unfit:
        return None
    return {resource: len(several) for resource, several in offered.items()}


def memory(config: PluginConfig | None, labels: Mapping[str, str]) -> str:
    """The resource as which GPU memory is offered under a name of its own on a node with these labels; "" for none."""
    settings = _settings(config, labels)
    return _named(settings) if settings else ""


def cdi_alone(config: PluginConfig | None, labels: Mapping[str, str]) -> bool:
    """Whether containers on a node with these labels are told their devices by the kubelet's CDI field and nothing else."""
    settings = _settings(config, labels)
    return settings is not None and settings.device_list_strategy == ("cdi-cri",)


def _named(settings: Config) -> str:
    return settings.memory.resource if settings.memory and settings.memory.resource != GPU_MEM else ""


def _settings(config: PluginConfig | None, labels: Mapping[str, str]) -> Config | None:
    """The configuration for a node with these labels; None where there is none."""
    text = config.text if config else None
    if config and config.files:
        text = config.files.get(choice(config.files.keys(), labels.get(LABEL, "")))
    return Config(**configfile.values(yaml.safe_load(text))) if text else None
