"""Which units a container gets, and the edits to it for them. Pure."""

from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from math import comb

from gpunode.contract.config import CDI, Config, MemorySharing, file_name
from gpunode.contract.offer import Device, Unit, count_pieces, format_mib
from gpunode.contract.promises import Place
from gpunode.contract.status import Reason

from .. import limits
from ..cdi import qualified_name
from ..gpus import Links
from ..mps.report import pipe_path, shm_path


def gpushare_variables(devices: Sequence[Device], units: int, sharing: MemorySharing) -> dict[str, str]:
    """gpushare's variables about a container's share, in units; frameworks limit themselves by them.

    The kubelet asks for one container at a time and does not name its pod. So …_POD has the container's own number,
    which is right for pods with one sharing container. …_IDX and …_DEV: of several GPUs all indexes, and the first's size.
    """
    return {
        "ALIYUN_COM_GPU_MEM_IDX": ",".join(device.index for device in devices),
        "ALIYUN_COM_GPU_MEM_POD": str(units),
        "ALIYUN_COM_GPU_MEM_CONTAINER": str(units),
        "ALIYUN_COM_GPU_MEM_DEV": str(count_pieces(devices[0], sharing)),
    }


TRIES = 20_000  # sets of GPUs to compare at most; beyond that a greedy choice is made


def prefer_units(
    available: Sequence[str],
    must: Sequence[str],
    size: int,
    units: Mapping[str, Unit],
    unhealthy: Container[str],
    reserved: Container[str] = (),
    *,
    packed: bool = False,
    links: Links | None = None,
    promised: Sequence[Place] = (),
) -> list[str]:
    """`size` ids, or fewer if there are not enough: those in `must`, then the best of the available.

    Whole GPUs: the ones best connected with each other. Shares and MIG devices: from the GPU with the most free units
    (or, `packed`, the fewest). Memory: all from one GPU with enough free, the one with the most (or, `packed`, the
    least), or of the first of the places that were `promised` with room. Unknown, Unhealthy and reserved ones come last.
    """
    first = list(dict.fromkeys(must))
    given = set(first)  # units can be tens of thousands
    pool = [unit_id for unit_id in dict.fromkeys(available) if unit_id not in given]
    known = [units[unit_id] for unit_id in pool if unit_id in units and unit_id not in reserved]
    good = [unit for unit in known if unit.device.uuid not in unhealthy]
    wanted = min(max(size - len(first), 0), len(good))
    by_promise = None if first else _units_at(good, promised)
    if by_promise is not None:
        chosen = by_promise
    elif any(unit.mib for unit in good):
        chosen = _of_one_gpu(good, [units[unit_id] for unit_id in first if unit_id in units], wanted, packed)
    elif all(unit.device.profile is None and not unit.shared for unit in good):
        chosen = _linked(good, [units[unit_id] for unit_id in first if unit_id in units], wanted, links or {})
    else:
        chosen = _spread(good, units, wanted, packed)
    ids = [unit.id for unit in chosen]
    taken = set(ids)
    return [*first, *ids, *(unit_id for unit_id in pool if unit_id not in taken)][: max(size, 0)]


def _units_at(good: Sequence[Unit], places: Sequence[Place]) -> list[Unit] | None:
    """Units of the first of these places that has so many; None if none has."""
    for place in places:
        left = [[unit for unit in good if unit.device.uuid == gpu][:count] for gpu, count in sorted(place)]
        if all(len(units) == count for units, (_, count) in zip(left, sorted(place), strict=True)):
            return [unit for units in left for unit in units]
    return None


def _of_one_gpu(good: Sequence[Unit], given: Sequence[Unit], wanted: int, packed: bool) -> list[Unit]:
    """Units of one GPU, that of `given` if there are any; of several GPUs if none has enough."""
    free: dict[str, list[Unit]] = {}
    for unit in good:
        free.setdefault(unit.device.gpu, []).append(unit)
    reserved = {unit.device.gpu for unit in given}
    enough = [left for gpu, left in free.items() if len(left) >= wanted and reserved <= {gpu}]
    return (min if packed else max)(enough, key=len, default=list(good))[:wanted]


def _spread(good: Sequence[Unit], units: Mapping[str, Unit], wanted: int, packed: bool) -> list[Unit]:
    total = Counter(unit.device.gpu for unit in units.values())
    free: dict[str, list[Unit]] = {}
    for unit in good:
        free.setdefault(unit.device.gpu, []).append(unit)
    chosen = []
    for _ in range(wanted):
        used = {gpu: total[gpu] - len(left) for gpu, left in free.items() if left}
        gpu = (max if packed else min)(used, key=lambda gpu: used[gpu])
        chosen.append(free[gpu].pop(0))
    return chosen


def _linked(good: Sequence[Unit], given: Sequence[Unit], wanted: int, links: Links) -> list[Unit]:
    if wanted in (0, len(good)) or not links:
        return list(good[:wanted])
    if comb(len(good), wanted) > TRIES:
        return _grow(good, given, wanted, links)

    between = [[_link(unit, other, links) for other in good] for unit in good]
    to_given = [sum(_link(unit, other, links) for other in given) for unit in good]
    to_good = [sum(row) for row in between]

    def value(chosen: Iterable[int]) -> tuple[int, int]:
        """How well the set is connected, within itself and with those given; then how well the remaining GPUs are.
        Those lose all links of the set: `to_good`, which counts links within the set twice."""
        some = tuple(chosen)
        within = sum([between[first][second] for first, second in combinations(some, 2)])
        return within + sum([to_given[i] for i in some]), within - sum([to_good[i] for i in some])

    return [good[index] for index in max(combinations(range(len(good)), wanted), key=value)]


def _grow(good: Sequence[Unit], given: Sequence[Unit], wanted: int, links: Links) -> list[Unit]:
    """Greedy choice: one after the other, the GPU best connected with those chosen before."""
    chosen = list(given)
    left = list(good)
    for _ in range(wanted):
        best = max(left, key=lambda unit: sum(_link(unit, other, links) for other in chosen))
        left.remove(best)
        chosen.append(best)
    return chosen[len(given) :]


def _link(unit: Unit, other: Unit, links: Links) -> int:
    return links.get(frozenset((unit.device.gpu, other.device.gpu)), 0)


VOLUME_MOUNTS = "/var/run/nvidia-container-devices"
CONTROL_NODES = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset")


class AllocationRefused(Exception):
    """An allocation that is refused; the message, with the reason, goes into the pod's event."""


@dataclass(slots=True)
class Grant:
    """The edits to one container. Mounts and nodes are pairs (path in the container, path on the host)."""

    envs: dict[str, str] = field(default_factory=dict)
    mounts: list[tuple[str, str]] = field(default_factory=list)
    nodes: list[tuple[str, str]] = field(default_factory=list)
    annotations: dict[str, str] = field(default_factory=dict)
    cdi: list[str] = field(default_factory=list)


def choose_units(
    ids: Iterable[str],
    offered: Mapping[str, Unit],
    unhealthy: Mapping[str, Reason],
    reserved: Mapping[str, str] | None = None,
    *,
    one_share: bool = False,
) -> list[Unit]:
    """The units with these ids, each once. Raises AllocationRefused for unknown ids, reserved units, Unhealthy devices.

    `one_share`: refuse more than one share, because it gives no more of a device than one does.
    """
    units = []
    for unit_id in dict.fromkeys(ids):
        unit = offered.get(unit_id)
        if unit is None:
            raise AllocationRefused(f"unknown device {unit_id!r}: it is not (or no longer) on this node")
        if unit.device.uuid in unhealthy:
            raise AllocationRefused(f"device {unit_id} is unhealthy: {unhealthy[unit.device.uuid]}")
        if reserved and unit_id in reserved:
            raise AllocationRefused(f"device {unit_id} is not free yet: {reserved[unit_id]}")
        if unit.counted:
            raise AllocationRefused(
                "it only counts the GPUs that this node shares by memory; ask for memory instead"
            )
        units.append(unit)
    if one_share and len(units) > 1 and any(unit.shared for unit in units):
        raise AllocationRefused(
            f"invalid request: maximum request size for shared resources is 1; found {len(units)}"
        )
    return units


def check_one_gpu(units: Sequence[Unit], free: Mapping[str, int] | None) -> None:
    """Raises AllocationRefused for memory of more than one GPU.

    `free`: units by GPU index that were free when the kubelet asked for a preferred allocation; None: it did not ask.
    """
    gpus = {unit.device.gpu for unit in units if unit.mib}
    if len(gpus) < 2:
        return
    chunk = units[0].mib
    asked = f"{format_mib(len(units) * chunk)} asked for, but a container gets memory of one GPU"
    if free is None:
        raise AllocationRefused(
            f"{asked}, and the kubelet chose from {len(gpus)} without asking the plugin (Kubernetes before 1.19 never asks)"
        )
    index, most = max(free.items(), key=lambda item: item[1], default=("?", 0))
    if most < len(units):
        raise AllocationRefused(
            f"{asked}, and the most that is free on one is {format_mib(most * chunk)} (GPU {index})"
        )
    raise AllocationRefused(
        f"{asked}, and the units of the pod's init containers, which the kubelet reuses, are on another GPU"
    )


def mib_of_each_gpu(units: Sequence[Unit]) -> int:
    """MiB of each GPU that a container gets: where the extender promised several, the same of each."""
    mib: dict[str, int] = {}
    for unit in units:
        mib[unit.device.gpu] = mib.get(unit.device.gpu, 0) + unit.mib
    return max(mib.values(), default=0)


def grant(
    resource: str,
    units: Sequence[Unit],
    config: Config,
    exists: Callable[[str], bool],
    cdi_device: str | None = None,
    features: Sequence[str] = (),
) -> Grant:
    """The edits that give a container exactly the devices of `units`.

    `exists` returns True if a device node exists in the plugin's own container. `cdi_device` is the qualified name of a CDI
    device made for this container to limit its memory; it replaces the devices. `features` are CDI devices that every
    container with a GPU gets.
    """
    devices = list({unit.device.uuid: unit.device for unit in units}.values())
    names = [device.index if config.device_id_strategy == "index" else device.uuid for device in devices]
    edits = Grant()
    if cdi_device is not None:
        edits.envs |= limits.variables(mib_of_each_gpu(units))
    if config.memory is not None and any(unit.mib for unit in units):
        edits.envs |= gpushare_variables(devices, len(units), config.memory)
    if "envvar" in config.device_list_strategy:
        # "void": an empty value makes the NVIDIA runtime use the image's value, which may be "all".
        edits.envs["NVIDIA_VISIBLE_DEVICES"] = ",".join(names) or "void"
    if "volume-mounts" in config.device_list_strategy:
        edits.envs["NVIDIA_VISIBLE_DEVICES"] = VOLUME_MOUNTS
        edits.mounts += [(f"{VOLUME_MOUNTS}/{name}", "/dev/null") for name in names]
    by_cdi = [qualified_name(name) for name in names] if cdi_device is None else [cdi_device]
    by_cdi += features if names else ()
    if "cdi-annotations" in config.device_list_strategy and names:
        # One key per resource: a container may have devices of several.
        key = f"{config.cdi_annotation_prefix}gpunode_{file_name(resource)}"
        edits.annotations[key] = ",".join(by_cdi)
    if "cdi-cri" in config.device_list_strategy:
        edits.cdi += by_cdi
    if config.pass_device_specs and set(config.device_list_strategy) - CDI:
        own = dict.fromkeys(node for device in devices for node in device.nodes)
        root = config.dev_root
        edits.nodes += [(node, root + node) for node in (*CONTROL_NODES, *own) if node in own or exists(node)]
    for unit in units:
        if unit.mps is not None:
            pipe = str(pipe_path(config.mps_root, unit.device.uuid))
            edits.envs["CUDA_MPS_PIPE_DIRECTORY"] = pipe
            edits.mounts += [(pipe, pipe), ("/dev/shm", str(shm_path(config.mps_root)))]  # noqa: S108
    for feature in config.features:
        edits.envs[f"NVIDIA_{feature.upper()}"] = "enabled"
    return edits
