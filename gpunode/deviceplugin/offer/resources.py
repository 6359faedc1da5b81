"""Which resources a node offers, and the units that pods are given of them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..gpus.devices import MIB, Device
from ..settings.config import GPU, GPU_COUNT, MemorySharing, Share
from . import ids, memory
from .listing import MAX_LIST, unit_bytes

# A container sees those that were there when it was started: it has no device nodes of others.
UNCUT = "MIG is on, but no MIG device of it is to be seen"
VOLTA = (7, 0)  # the first compute capability whose MPS servers keep clients to limits and apart


@dataclass(frozen=True, slots=True)
class ClientLimits:
    """What one MPS client may have of a GPU."""

    memory: int | None  # MiB; None where NVML does not say how much there is
    threads: int  # percent


@dataclass(frozen=True, slots=True)
class Unit:
    """What the kubelet counts and hands out: one device, one share of it, or a piece of its memory."""

    id: str
    device: Device
    shared: bool = False
    mps: ClientLimits | None = None  # of a share by MPS
    mib: int = 0  # that a piece of memory stands for
    counted: bool = False  # is there to be counted, and never handed out

    @property
    def way(self) -> str:
        """The way in which its device is shared, as its id says too."""
        if self.mps is not None:
            return ids.MPS
        return ids.MEMORY if self.mib else ids.TIME_SLICING if self.shared else ids.WHOLE


class Unfit(Exception):
    """The devices of this node cannot be offered as the configuration asks; says why."""


def offers(
    devices: Sequence[Device],
    mig_strategy: str,
    shares: Sequence[Share] = (),
    by_memory: MemorySharing | None = None,
) -> dict[str, tuple[Unit, ...]]:
    """Resource name -> its units, in the order of NVML's indexes. Raises Unfit."""
    offered: dict[str, list[Unit]] = {}
    others: list[tuple[str, Device, Share | None]] = []
    for name, group in _by_resource(devices, mig_strategy).items():
        pieces = [device for device in group if name == GPU and _in_pieces(device, by_memory)]
        if by_memory is not None and pieces:
            offered |= _by_memory(pieces, by_memory)
        others += [(name, device, _share(name, device, shares)) for device in group if device not in pieces]
    _check_lengths((device, share) for _, device, share in others if share is not None)
    for name, device, share in others:
        if share is None:
            offered.setdefault(name, []).append(Unit(device.uuid, device))
        else:
            mps = _client_limits(device, share) if share.mps else None
            made = ids.shares(device.uuid, share)
            units = [Unit(unit_id, device, shared=True, mps=mps) for unit_id in made]
            offered.setdefault(share.rename, []).extend(units)
    return {name: tuple(units) for name, units in offered.items()}


def uncut(devices: Sequence[Device], mig_strategy: str) -> tuple[Device, ...]:
    """The GPUs of which nothing is offered, because they are to be cut into MIG devices and are not."""
    cut = {device.gpu for device in devices if device.profile is not None}
    return tuple(gpu for gpu in devices if gpu.mig_enabled and gpu.uuid not in cut and mig_strategy != "none")


def left_out(
    devices: Sequence[Device],
    mig_strategy: str,
    shares: Sequence[Share] = (),
    by_memory: MemorySharing | None = None,
) -> list[str]:
    """What of the node or of the configuration comes to nothing without being an error, and why, in sentences."""
    groups = _by_resource(devices, mig_strategy)
    told = [f"GPU {gpu.index} is not offered: {UNCUT}" for gpu in uncut(devices, mig_strategy)]
    told += [
        f"GPU {gpu.index} is given to pods whole, though MIG is on: CUDA finds no device in it; switch MIG off, or set "
        "another MIG strategy"
        for gpu in devices
        if gpu.mig_enabled and mig_strategy == "none"
    ]
    known = {name for device in devices for name in (device.uuid, device.index)}
    wanted = [(share.resource, share.devices) for share in shares]
    wanted += [(GPU, by_memory.devices)] if by_memory is not None else []
    for resource, names in wanted:
        if not groups.get(resource):
            told.append(f"sharing of {resource} comes to nothing: this node has no such device")
        told += [
            f"sharing of {resource} names device {name}, which this node does not have"
            for name in names
            if name not in known
        ]
    return list(dict.fromkeys(told))


def _in_pieces(device: Device, sharing: MemorySharing | None) -> bool:
    if sharing is None:
        return False
    return not sharing.devices or bool({device.uuid, device.index} & set(sharing.devices))


def _by_memory(gpus: Sequence[Device], sharing: MemorySharing) -> dict[str, list[Unit]]:
    why = memory.obstacle(gpus, sharing)
    if why is not None:
        raise Unfit(f"sharing by memory: {why}")
    found = {
        sharing.resource: [
            Unit(unit_id, gpu, mib=sharing.chunk) for gpu in gpus for unit_id in memory.ids(gpu, sharing)
        ]
    }
    if memory.counts(sharing):
        found[GPU_COUNT] = [Unit(gpu.uuid, gpu, counted=True) for gpu in gpus]
    return found


def _share(name: str, device: Device, shares: Sequence[Share]) -> Share | None:
    """The share that concerns a device: one that names it before one for all."""
    fitting = [share for share in shares if share.resource == name]
    named = [share for share in fitting if {device.uuid, device.index} & set(share.devices)]
    return next(iter(named or [share for share in fitting if not share.devices]), None)


def _check_lengths(shared: Iterable[tuple[Device, Share]]) -> None:
    """Raises Unfit where shares of one name would make a longer list than the kubelet takes: before they are made."""
    lists: dict[str, list[tuple[int, int]]] = {}  # name -> replicas, and bytes of each, by device
    for device, share in shared:
        longest = ids.one_share(device.uuid, share, share.replicas - 1)
        lists.setdefault(share.rename, []).append((share.replicas, unit_bytes(longest, device)))
    for name, counted in lists.items():
        length = sum(replicas * one for replicas, one in counted)
        if length > MAX_LIST:
            fits = MAX_LIST // sum(one for _, one in counted)
            raise Unfit(
                f"{sum(replicas for replicas, _ in counted)} {name} make a list of up to {length} bytes, but the kubelet "
                f"takes no more than {MAX_LIST}: use fewer replicas; {fits} of each device fit"
            )


def _client_limits(device: Device, share: Share) -> ClientLimits:
    """An equal part each, as NVIDIA's plugin has it, unless the share says otherwise. Raises Unfit."""
    if device.profile is not None or device.mig_enabled:
        raise Unfit(f"MPS is for whole GPUs, but MIG is on for GPU {device.index.partition(':')[0]}")
    volta = device.capability is None or device.capability >= VOLTA
    most = 48 if volta else 16  # clients of one server: nvidia-cuda-mps-control(1)
    if share.replicas > most:
        raise Unfit(
            f"MPS: {share.replicas} replicas of GPU {device.index}, which takes {most} clients at most"
        )
    if not volta and (share.memory or share.threads):
        raise Unfit(
            "MPS: memory and threads per client need a GPU of the Volta generation or newer; "
            f"GPU {device.index} is a {device.name}"
        )
    equal = device.memory // share.replicas // MIB
    return ClientLimits(share.memory or equal or None, share.threads or 100 // share.replicas)


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
    empty = [gpu.index for gpu in uncut([*gpus, *parts], "single")]
    if empty:
        raise Unfit(
            f"MIG strategy single: MIG is on for GPU {', '.join(empty)}, but no MIG device of it is to be seen"
        )
    profiles = sorted({part.profile or "" for part in parts})
    if len(profiles) > 1:
        raise Unfit(
            f"MIG strategy single: profiles {', '.join(profiles)}; make them alike, or use strategy mixed"
        )
    return parts
