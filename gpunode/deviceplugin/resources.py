"""Which resources a node offers, and the units that pods are given of them. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .devices import Device

GPU = "nvidia.com/gpu"


@dataclass(frozen=True, slots=True)
class Unit:
    """What the kubelet counts and hands out: one device, or one share of it."""

    id: str
    device: Device


class Unfit(Exception):
    """The devices of this node cannot be offered as the configuration asks; says why."""


def offers(devices: Sequence[Device], mig_strategy: str) -> dict[str, tuple[Unit, ...]]:
    """Resource name -> its units, in the order of NVML's indexes. Raises Unfit."""
    gpus = [device for device in devices if device.profile is None]
    if mig_strategy == "none":
        return _named({GPU: gpus})
    parts = [device for device in devices if device.profile is not None]
    whole = [gpu for gpu in gpus if not gpu.mig_enabled]
    if mig_strategy == "single":
        return _named({GPU: _all_alike(gpus, whole, parts)})
    named: dict[str, list[Device]] = {GPU: whole}
    for part in parts:
        named.setdefault(f"nvidia.com/mig-{(part.profile or '').replace('+', '.')}", []).append(part)
    return _named(named)


def _all_alike(gpus: list[Device], whole: list[Device], parts: list[Device]) -> list[Device]:
    """MIG strategy `single`: either no GPU is cut, or all are, into parts of one profile."""
    if len(whole) == len(gpus):
        return whole
    if whole:
        raise Unfit(
            f"MIG strategy single: MIG is on for some GPUs but off for GPU {', '.join(gpu.index for gpu in whole)}; "
            "make them alike, or use MIG strategy mixed"
        )
    uncut = [gpu.index for gpu in gpus if not any(part.gpu == gpu.uuid for part in parts)]
    if uncut:
        raise Unfit(
            f"MIG strategy single: MIG is on for GPU {', '.join(uncut)}, but no MIG device was made on it"
        )
    profiles = sorted({part.profile or "" for part in parts})
    if len(profiles) > 1:
        raise Unfit(
            f"MIG strategy single: profiles {', '.join(profiles)}; make them alike, or use strategy mixed"
        )
    return parts


def _named(named: dict[str, list[Device]]) -> dict[str, tuple[Unit, ...]]:
    return {
        name: tuple(Unit(device.uuid, device) for device in devices)
        for name, devices in named.items()
        if devices
    }
