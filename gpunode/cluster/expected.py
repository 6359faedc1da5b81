"""What the plugin makes of a host's GPUs by its configuration: worked out as the plugin itself does. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import yaml

from gpunode.deviceplugin import configfile
from gpunode.deviceplugin.config import GPU, LABEL, Config, choice
from gpunode.deviceplugin.devices import MIB, Device
from gpunode.deviceplugin.resources import Unfit, offers
from gpunode.model import Gpu, PluginConfig


def replicas(
    config: PluginConfig | None, gpus: Sequence[Gpu], labels: Mapping[str, str]
) -> Mapping[str, int] | None:
    """Units of each resource where GPUs are shared by time-slicing or MPS, on a node with these labels; None where they
    are not, and where it cannot be told from here (MIG devices, which the host's facts do not have; a label that names
    no configuration, so that the one of before is in force)."""
    text = _text(config, labels) if config else None
    if text is None:
        return None
    settings = Config(**configfile.values(yaml.safe_load(text)))
    if settings.mig_strategy != "none" or not any(share.resource == GPU for share in settings.shares):
        return None
    devices = [
        Device(gpu.uuid, str(gpu.index), gpu.name, gpu.uuid, gpu.pci, gpu.memory_mib * MIB) for gpu in gpus
    ]
    try:
        offered = offers(devices, settings.mig_strategy, settings.shares)
    except Unfit:
        return None
    return {resource: len(units) for resource, units in offered.items()}


def _text(config: PluginConfig, labels: Mapping[str, str]) -> str | None:
    """The configuration for a node with these labels; None where there is none."""
    if not config.files:
        return config.text
    name = choice(config.files.keys(), labels.get(LABEL, ""))
    return config.files.get(name)
