"""Which resources a node offers, and the units that pods are given of them. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .config import Share
from .devices import Device

GPU = "nvidia.com/gpu"


@dataclass(frozen=True, slots=True)
class Unit:
    """What the kubelet counts and hands out: one device, or one share of it."""

    id: str
    device: Device
    shared: bool = False


class Unfit(Exception):
    """The devices of this node cannot be offered as the configuration asks; says why."""


def offers(
    devices: Sequence[Device], mig_strategy: str, shares: Sequence[Share] = ()
) -> dict[str, tuple[Unit, ...]]:
    """Resource name -> its units, in the order of NVML's indexes. Raises Unfit."""
    offered: dict[str, list[Unit]] = {}
    for name, group in _by_resource(devices, mig_strategy).items():
        for device in group:
            share = _share(name, device, shares)
            if share is None:
                offered.setdefault(name, []).append(Unit(device.uuid, device))
            else:
                units = [Unit(f"{device.uuid}::{n}", device, shared=True) for n in range(share.replicas)]
                offered.setdefault(share.rename, []).extend(units)
    return {name: tuple(units) for name, units in offered.items()}


def _share(name: str, device: Device, shares: Sequence[Share]) -> Share | None:
    """The share that concerns a device: one that names it before one for all."""
    fitting = [share for share in shares if share.resource == name]
    named = [share for share in fitting if {device.uuid, device.index} & set(share.devices)]
    return next(iter(named or [share for share in fitting if not share.devices]), None)


def _by_resource(devices: Sequence[Device], mig_strategy: str) -> dict[str, list[Device]]:
    gpus = [device for device in devices if device.profile is None]
    if mig_strategy == "none":
        return {GPU: gpus}
    parts = [device for device in devices if device.profile is not None]
    whole = [gpu for gpu in gpus if not gpu.mig_enabled]
    if mig_strategy == "single":
        return {GPU: _all_alike(gpus, whole, parts)}
    named: dict[str, list[Device]] = {GPU: whole}
    for part in parts:
        named.setdefault(f"nvidia.com/mig-{(part.profile or '').replace('+', '.')}", []).append(part)
    return named


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
