"""Which resources a node offers, and their units. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..gpus.devices import MIB, Device
from ..settings.config import GPU, GPU_COUNT, MemorySharing, Share
from . import ids, memory
from .listing import MAX_LIST, unit_bytes

# A container sees only the MIG devices that existed when it started: it has no device nodes of others.
UNCUT = "MIG is on, but the plugin sees no MIG device there"
VOLTA = (7, 0)  # the first compute capability whose MPS servers enforce limits and isolate clients


@dataclass(frozen=True, slots=True)
class ClientLimits:
    """What one MPS client may use of a GPU."""

    memory: int | None  # MiB; None where the GPU shares the host's
    threads: int  # percent


@dataclass(frozen=True, slots=True)
class Unit:
    """What the kubelet counts and allocates: one device, one share of it, or a piece of its memory."""

    id: str
    device: Device
    shared: bool = False
    mps: ClientLimits | None = None  # of an MPS share
    mib: int = 0  # that a piece of memory stands for
    counted: bool = False  # only counts GPUs; never allocated

    @property
    def way(self) -> str:
        """The way in which its device is shared, as encoded in its id."""
        if self.mps is not None:
            return ids.MPS
        return ids.MEMORY if self.mib else ids.TIME_SLICING if self.shared else ids.WHOLE


class CannotOffer(Exception):
    """The devices of this node cannot be offered as the configuration asks; the message has the reason."""


def offers(
    devices: Sequence[Device],
    mig_strategy: str,
    shares: Sequence[Share] = (),
    by_memory: MemorySharing | None = None,
) -> dict[str, tuple[Unit, ...]]:
    """Units by resource name, in the order of NVML's indexes. Raises CannotOffer."""
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
    """The GPUs of which nothing is offered, because MIG is on and they have no MIG devices."""
    cut = {device.gpu for device in devices if device.profile is not None}
    return tuple(gpu for gpu in devices if gpu.mig_enabled and gpu.uuid not in cut and mig_strategy != "none")


def warnings(
    devices: Sequence[Device],
    mig_strategy: str,
    shares: Sequence[Share] = (),
    by_memory: MemorySharing | None = None,
) -> list[str]:
    """Warnings: what the configuration asks for and this node cannot do, without an error."""
    groups = _by_resource(devices, mig_strategy)
    found = [f"GPU {gpu.index} is not offered: {UNCUT}" for gpu in uncut(devices, mig_strategy)]
    found += [
        f"GPU {gpu.index} is offered whole, though MIG is on: CUDA finds no device in it; switch MIG off, or set "
        "another MIG strategy"
        for gpu in devices
        if gpu.mig_enabled and mig_strategy == "none"
    ]
    known = {name for device in devices for name in (device.uuid, device.index)}
    wanted = [(share.resource, share.devices) for share in shares]
    wanted += [(GPU, by_memory.devices)] if by_memory is not None else []
    for resource, names in wanted:
        if not groups.get(resource):
            found.append(f"sharing of {resource} has no effect: this node has no such device")
        found += [
            f"sharing of {resource} names device {name}, which this node does not have"
            for name in names
            if name not in known
        ]
    return list(dict.fromkeys(found))


def _in_pieces(device: Device, sharing: MemorySharing | None) -> bool:
    if sharing is None:
        return False
    return not sharing.devices or bool({device.uuid, device.index} & set(sharing.devices))


def _by_memory(gpus: Sequence[Device], sharing: MemorySharing) -> dict[str, list[Unit]]:
    why = memory.obstacle(gpus, sharing)
    if why is not None:
        raise CannotOffer(f"sharing by memory: {why}")
    found = {
        sharing.resource: [
            Unit(unit_id, gpu, mib=sharing.chunk) for gpu in gpus for unit_id in memory.ids(gpu, sharing)
        ]
    }
    if memory.counts(sharing):
        found[GPU_COUNT] = [Unit(gpu.uuid, gpu, counted=True) for gpu in gpus]
    return found


def _share(name: str, device: Device, shares: Sequence[Share]) -> Share | None:
    """The share that applies to a device: one that names it takes precedence over one for all."""
    fitting = [share for share in shares if share.resource == name]
    named = [share for share in fitting if {device.uuid, device.index} & set(share.devices)]
    return next(iter(named or [share for share in fitting if not share.devices]), None)


def _check_lengths(shared: Iterable[tuple[Device, Share]]) -> None:
    """Raises CannotOffer where shares of one name make a longer list than the kubelet takes. Before they are made."""
    lists: dict[str, list[tuple[int, int]]] = {}  # name -> replicas, and bytes of each, by device
    for device, share in shared:
        longest = ids.one_share(device.uuid, share, share.replicas - 1)
        lists.setdefault(share.rename, []).append((share.replicas, unit_bytes(longest, device)))
    for name, counted in lists.items():
        length = sum(replicas * one for replicas, one in counted)
        if length > MAX_LIST:
            fits = MAX_LIST // sum(one for _, one in counted)
            raise CannotOffer(
                f"{sum(replicas for replicas, _ in counted)} {name} make a list of up to {length} bytes, but the kubelet "
                f"takes no more than {MAX_LIST}: use fewer replicas; {fits} of each device fit"
            )


def _client_limits(device: Device, share: Share) -> ClientLimits:
    """An equal part for each client, as in NVIDIA's plugin, unless the share sets limits. Raises CannotOffer."""
    if device.profile is not None or device.mig_enabled:
        raise CannotOffer(f"MPS is for whole GPUs, but MIG is on for GPU {device.index.partition(':')[0]}")
    volta = device.capability is None or device.capability >= VOLTA
    most = 48 if volta else 16  # clients of one server: nvidia-cuda-mps-control(1)
    if share.replicas > most:
        raise CannotOffer(
            f"MPS: {share.replicas} replicas of GPU {device.index}, which takes {most} clients at most"
        )
    if not volta and (share.memory or share.threads):
        raise CannotOffer(
            "MPS: memory and threads per client need a GPU of the Volta generation or newer; "
            f"GPU {device.index} is a {device.name}"
        )
    equal = (device.memory or 0) // share.replicas // MIB
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
    """MIG strategy `single`: either no GPU has MIG on, or all have, with MIG devices of one profile."""
    if len(whole) == len(gpus):
        return whole
    if whole:
        raise CannotOffer(
            f"MIG strategy single: MIG is on for some GPUs but off for GPU {', '.join(gpu.index for gpu in whole)}; "
            "make them alike, or use MIG strategy mixed"
        )
    empty = [gpu.index for gpu in uncut([*gpus, *parts], "single")]
    if empty:
        raise CannotOffer(
            f"MIG strategy single: MIG is on for GPU {', '.join(empty)}, but the plugin sees no MIG device there"
        )
    profiles = sorted({part.profile or "" for part in parts})
    if len(profiles) > 1:
        raise CannotOffer(
            f"MIG strategy single: profiles {', '.join(profiles)}; make them alike, or use strategy mixed"
        )
    return parts
