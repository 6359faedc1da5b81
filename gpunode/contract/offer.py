"""GPUs, and the resources and units that a configuration makes of them. Pure.

An id is all that the kubelet keeps of an allocation, so each one encodes what it stands for: a plugin that starts later,
with another configuration, reads from the ids what is still in use. A whole device has its UUID as id; a share has the
UUID, two colons and a number, as in NVIDIA's plugin. So every id begins with the UUID.

Memory: the kubelet counts pieces of a GPU's memory. Resource names and variables are those of
AliyunContainerService/gpushare-device-plugin (pkg/gpu/nvidia/{const,nvidia,allocate}.go), so that pods written for it run
unchanged. Unlike there, every GPU counts with its own size, an id encodes its size, and only the kubelet and the plugin
choose the GPU.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import count

from .config import GPU, GPU_COUNT, GPU_MEM, MemorySharing, Share

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Device:
    """A GPU, or a MIG device of one."""

    uuid: str
    index: str  # NVML's: "1" for a GPU, "1:0" for the first MIG device of GPU 1
    name: str  # the product, e.g. "Tesla P100-PCIE-16GB"
    gpu: str  # UUID of the GPU itself, or of a MIG device's parent
    bus: str  # PCI address as in /sys/bus/pci/devices
    memory: int | None  # bytes; None: it shares the host's
    numa: int | None = None
    nodes: tuple[str, ...] = ()  # its own device nodes, e.g. /dev/nvidia0
    mig_enabled: bool = False  # a GPU with MIG on, with or without MIG devices
    profile: str | None = None  # of a MIG device, e.g. "1g.10gb"
    capability: tuple[int, int] | None = None  # CUDA's, of a GPU; None if unknown
    instance: tuple[int, int] | None = None  # of a MIG device: ids of its GPU instance and compute instance


WHOLE, TIME_SLICING, MPS, MEMORY = "whole", "time-slicing", "mps", "memory"
GPUSHARE = "gpushare"  # memory of a GPU that gpushare's plugin chose, not of the one in the id


@dataclass(frozen=True, slots=True)
class Claim:
    """The meaning of an id: a device's UUID, and the way it is shared."""

    device: str
    way: str
    mib: int = 0  # of its memory


def share_ids(device: str, share: Share) -> list[str]:
    return [share_id(device, share, number) for number in range(share.replicas)]


def share_id(device: str, share: Share, number: int) -> str:
    return f"{device}::{'mps-' if share.mps else ''}{number}"


def claim_of(unit_id: str) -> Claim | None:
    """The claim that an id encodes; None for an unknown format."""
    device, _, rest = unit_id.partition(":")
    if not rest:
        gpu, mark, number = unit_id.rpartition("-_-")
        return Claim(gpu, GPUSHARE) if mark and number.isdecimal() else Claim(unit_id, WHOLE)
    share = rest.removeprefix(":mps-")
    if share != rest:
        return Claim(device, MPS) if share.isdecimal() else None
    first, _, second = rest.partition(":")
    if not second.isdecimal():
        return None
    if not first:
        return Claim(device, TIME_SLICING)
    return Claim(device, MEMORY, int(first)) if first.isdecimal() else None


# A container sees only the MIG devices that existed when it started: it has no device nodes of others.
UNCUT = "MIG is on, but the plugin sees no MIG device there"
VOLTA = (7, 0)  # the first compute capability whose MPS servers enforce limits and isolate clients


@dataclass(frozen=True, slots=True)
class ClientLimits:
    """The limits of one MPS client on a GPU."""

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
            return MPS
        return MEMORY if self.mib else TIME_SLICING if self.shared else WHOLE


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
            made = share_ids(device.uuid, share)
            units = [Unit(unit_id, device, shared=True, mps=mps) for unit_id in made]
            offered.setdefault(share.rename, []).extend(units)
    return {name: tuple(units) for name, units in offered.items()}


def uncut_gpus(devices: Sequence[Device], mig_strategy: str) -> tuple[Device, ...]:
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
    sentences = [f"GPU {gpu.index} is not offered: {UNCUT}" for gpu in uncut_gpus(devices, mig_strategy)]
    sentences += [
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
            sentences.append(f"sharing of {resource} has no effect: this node has no such device")
        sentences += [
            f"sharing of {resource} names device {name}, which this node does not have"
            for name in names
            if name not in known
        ]
    return list(dict.fromkeys(sentences))


def _in_pieces(device: Device, sharing: MemorySharing | None) -> bool:
    if sharing is None:
        return False
    return not sharing.devices or bool({device.uuid, device.index} & set(sharing.devices))


def _by_memory(gpus: Sequence[Device], sharing: MemorySharing) -> dict[str, list[Unit]]:
    why = memory_obstacle(gpus, sharing)
    if why is not None:
        raise CannotOffer(f"sharing by memory: {why}")
    offered = {
        sharing.resource: [
            Unit(f"{gpu.uuid}:{sharing.chunk}:{number}", gpu, mib=sharing.chunk)
            for gpu in gpus
            for number in range(count_pieces(gpu, sharing))
        ]
    }
    if counts_gpus(sharing):
        offered[GPU_COUNT] = [Unit(gpu.uuid, gpu, counted=True) for gpu in gpus]
    return offered


def _share(name: str, device: Device, shares: Sequence[Share]) -> Share | None:
    """The share that applies to a device: one that names it takes precedence over one for all."""
    fitting = [share for share in shares if share.resource == name]
    named = [share for share in fitting if {device.uuid, device.index} & set(share.devices)]
    return next(iter(named or [share for share in fitting if not share.devices]), None)


def _check_lengths(shared: Iterable[tuple[Device, Share]]) -> None:
    """Raises CannotOffer where shares of one name make a longer list than the kubelet takes. Before they are made."""
    lists: dict[str, list[tuple[int, int]]] = {}  # name -> replicas, and bytes of each, by device
    for device, share in shared:
        longest = share_id(device.uuid, share, share.replicas - 1)
        lists.setdefault(share.rename, []).append((share.replicas, unit_bytes(longest, device)))
    for name, counted in lists.items():
        length = sum(replicas * size for replicas, size in counted)
        if length > MAX_LIST:
            fits = MAX_LIST // sum(size for _, size in counted)
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
        return {GPU: _single_strategy(gpus, whole, parts)}
    named: dict[str, list[Device]] = {GPU: whole}
    for part in parts:
        named.setdefault(mig_resource(part.profile or ""), []).append(part)
    return named


def mig_resource(profile: str) -> str:
    """The resource of MIG devices of this profile with MIG strategy `mixed`, whose name takes no `+`."""
    return f"nvidia.com/mig-{profile.replace('+', '.')}"


def _single_strategy(gpus: list[Device], whole: list[Device], parts: list[Device]) -> list[Device]:
    """MIG strategy `single`: either no GPU has MIG on, or all have, with MIG devices of one profile."""
    if len(whole) == len(gpus):
        return whole
    if whole:
        raise CannotOffer(
            f"MIG strategy single: MIG is on for some GPUs but off for GPU {', '.join(gpu.index for gpu in whole)}; "
            "make them alike, or use MIG strategy mixed"
        )
    empty = [gpu.index for gpu in uncut_gpus([*gpus, *parts], "single")]
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


MAX_LIST = 4 * 1024 * 1024  # bytes of a message that the kubelet takes (gRPC's default)


def unit_bytes(longest_id: str, device: Device) -> int:
    """The most bytes that one unit of a device takes.

    Counted with the longest id and as Unhealthy, the longer of the two words: the list must also fit when GPUs fail.
    """
    topology = 0 if device.numa is None else 6
    size = (2 + len(longest_id)) + (2 + len("Unhealthy")) + topology
    return size + 2  # each field's and each message's tag and length are a byte each, below 128


def count_pieces(device: Device, sharing: MemorySharing) -> int:
    """Number of a GPU's units, rounded down."""
    return (device.memory or 0) // MIB // sharing.chunk


def counts_gpus(sharing: MemorySharing) -> bool:
    """True if the node also offers aliyun.com/gpu-count, the number of GPUs shared by memory.

    gpushare's scheduler extender and its inspect divide the node's memory by that number (pkg/utils/node.go,
    cmd/inspect/nodeinfo.go). gpushare's plugin writes it into the node's status, for which it needs the right to patch
    nodes. A resource registered with the kubelet needs no such right; its units are never allocated.
    """
    return sharing.resource == GPU_MEM


def memory_obstacle(devices: Sequence[Device], sharing: MemorySharing) -> str | None:
    """Why these GPUs cannot be shared by memory, with the fix; None if they can."""
    for gpu in devices:
        instead = "name only the other GPUs in sharing.memory.devices"
        if gpu.mig_enabled or gpu.profile is not None:
            return f"MIG is on for GPU {gpu.index}, and memory is shared of whole GPUs only: switch MIG off, or {instead}"
        if gpu.memory is None:
            return f"the memory of GPU {gpu.index} is shared with the host, so there is none of its own to divide: {instead}"
        if not count_pieces(gpu, sharing):
            return f"GPU {gpu.index} has {format_mib(gpu.memory // MIB)}, less than one unit of {format_mib(sharing.chunk)}: {instead}"
    chunk = sharing.chunk
    total = sum(count_pieces(gpu, sharing) for gpu in devices)
    length = list_bytes(devices, chunk)
    if length <= MAX_LIST:
        return None
    enough = next(larger for larger in count(chunk) if list_bytes(devices, larger) <= MAX_LIST)
    return (
        f"{total} units of {format_mib(chunk)} make a list of up to {length} bytes, but the kubelet takes no more than "
        f"{MAX_LIST}: set sharing.memory.chunk to {enough} or more (MiB), or sharing.memory.unit to GiB"
    )


def list_bytes(devices: Sequence[Device], chunk: int) -> int:
    """Upper bound of the list's size in the device plugin protocol, in bytes."""
    total = 0
    for gpu in devices:
        units = (gpu.memory or 0) // MIB // chunk
        total += units * unit_bytes(f"{gpu.uuid}:{chunk}:{max(units - 1, 0)}", gpu)
    return total


def format_mib(mib: int) -> str:
    """MiB in words: "6 GiB", "300 MiB"."""
    return f"{mib // 1024} GiB" if mib and mib % 1024 == 0 else f"{mib} MiB"
