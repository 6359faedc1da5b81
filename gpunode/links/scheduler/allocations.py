"""Who has what of each GPU: what was promised by pods' annotations, beside what kubelets allocated. Pure."""

import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from gpunode.cluster.api.kinds import Object
from gpunode.contract import offer
from gpunode.contract.checkpoint import Entry
from gpunode.contract.offer import format_mib
from gpunode.contract.promises import (
    ALLOCATION,
    INDEX,
    MEMORY_ANNOTATION,
    Demand,
    Malformed,
    Part,
    bound_demand,
    has_ended,
    parse_quantity,
    placement_of,
    pod_name,
)
from gpunode.contract.usage import Gpu
from gpunode.errors import Problem
from gpunode.share.book import Book, unit_mib
from gpunode.share.fit import notes_of
from gpunode.share.ledger import Ledger

UNKNOWN = "?"  # a GPU that is not recorded
UNIT = "unit"  # one whose size is unknown


@dataclass(frozen=True, slots=True)
class Real:
    """What a host says. `entries`: the kubelet's allocations; None: not known. `indexes`: of devices, by UUID. `offered`: by
    resource and device, how many units pods can get, and what one is; nothing of a resource of which that is not known."""

    entries: tuple[Entry, ...] | None = None
    indexes: Mapping[str, str] = field(default_factory=dict)
    counted: bool = False  # the ids only count units
    offered: Mapping[str, Mapping[str, tuple[int, str]]] = field(default_factory=dict)


NOTHING = Real()


def read_plugin(gpus: Sequence[Gpu], pods: Sequence[Object]) -> Real:
    """A node's allocations by its plugin, which asks the kubelet: for nodes whose host is not asked. MIG devices count as their GPU."""
    if any(gpu.users is None for gpu in gpus):
        return NOTHING
    uids = {name: uid for uid, name in names(pods).items()}
    entries = tuple(
        # The plugin publishes no ids; each begins with the device's UUID.
        Entry(
            uids[user.pod],
            user.container,
            user.resource,
            frozenset(f"{gpu.uuid}::{n}" for n in range(user.units)),
        )
        for gpu in gpus
        for user in gpu.users or ()
        if user.pod in uids
    )
    offered: dict[str, dict[str, tuple[int, str]]] = {}
    for gpu in gpus:
        for entry in gpu.offered or ():
            what = _unit_of_way(entry.way, entry.mib, mig=entry.mig)
            offered.setdefault(entry.resource, {})[gpu.uuid] = (entry.units, what)
    return Real(entries, {gpu.uuid: gpu.index for gpu in gpus}, counted=True, offered=offered)


def read_host(
    entries: tuple[Entry, ...], registered: Mapping[str, Iterable[str]], indexes: Mapping[str, str]
) -> Real:
    """A node's allocations and units by its kubelet's record. `registered`: ids by resource, as of `checkpoint`."""
    offered: dict[str, dict[str, tuple[int, str]]] = {}
    for resource, units in registered.items():
        counts = Counter((claim.device, _unit_of(unit)) for unit in units if (claim := offer.claim_of(unit)))
        offered[resource] = {device: (count, what) for (device, what), count in counts.items()}
    return Real(entries, indexes, offered=offered)


@dataclass(frozen=True, slots=True)
class Use:
    """One container's units of one device. `used` is None where the kubelet was not asked."""

    pod: str  # namespace/name
    container: str
    promised: int
    used: int | None


@dataclass(frozen=True, slots=True)
class Row:
    """One device (`gpu` is its index, or UNKNOWN where the node's devices are not distinguished) as one resource. `total` is None
    where the node publishes no sizes."""

    node: str
    gpu: str
    device: str
    resource: str
    total: int | None
    promised: int
    used: int | None
    uses: tuple[Use, ...]
    unit: str = UNIT


def make_rows(
    nodes: Sequence[Object], pods: Sequence[Object], resource: str, real: Mapping[str, Real]
) -> tuple[Row, ...]:
    """Every GPU that is offered in any way, by node; `resource` stands for memory, `real` is by node."""
    ledger = Ledger.of(resource, nodes, pods)
    living = [pod for pod in pods if not has_ended(pod)]
    by_node: dict[str, list[Object]] = {}
    for pod in living:
        by_node.setdefault((pod.get("spec") or {}).get("nodeName") or "", []).append(pod)
    rows: list[Row] = []
    for node in sorted(nodes, key=lambda node: str(node["metadata"]["name"])):
        name = str(node["metadata"]["name"])
        here, host = by_node.get(name, []), real.get(name, NOTHING)
        status = node.get("status") or {}
        # A kubelet forgets the resource of a plugin that is gone only after 5 minutes: nothing of it is allocatable.
        can = status.get("allocatable") or {}
        for offered, count in sorted((status.get("capacity") or {}).items()):
            unit = _unit(offered, node, host)
            if offered == resource and parse_quantity(count):
                rows += [replace(row, unit=unit) for row in _memory(name, here, ledger, host)]
            elif offered.startswith("nvidia.com/"):
                others = _others(name, here, offered, parse_quantity(can.get(offered, "0")), host)
                rows += [replace(row, unit=unit) for row in others]
    return tuple(rows)


def _unit(resource: str, node: Object, host: Real) -> str:
    """The unit of the resource: from the units offered or in use, else from what the node publishes."""
    known = () if host.counted else host.entries or ()
    units = {_unit_of(unit_id) for entry in known if entry.resource == resource for unit_id in entry.ids}
    units = {what for _, what in host.offered.get(resource, {}).values()} or units
    return units.pop() if len(units) == 1 else _memory_unit(unit_mib(node, resource))


def _unit_of(unit: str) -> str:
    claim = offer.claim_of(unit)
    if claim is None or claim.way == offer.GPUSHARE:
        return UNIT
    return _unit_of_way(claim.way, claim.mib, mig=claim.device.startswith("MIG-"))


def _unit_of_way(way: str, mib: int, *, mig: bool) -> str:
    if way == offer.WHOLE:
        return "MIG device" if mig else "GPU"
    return _memory_unit(mib) if way == offer.MEMORY else "share"


def _memory_unit(mib: int) -> str:
    return {0: UNIT, 1: "MiB", 1024: "GiB"}.get(mib) or format_mib(mib)


def names(pods: Iterable[Object]) -> dict[str, str]:
    """namespace/name of pods by UID."""
    return {str(pod["metadata"]["uid"]): pod_name(pod) for pod in pods}


def count_allocated(
    pods: Sequence[Object], resource: str, entries: Iterable[Entry]
) -> Counter[tuple[str, str, str]]:
    """Units by pod, container and device, of pods that live: its UUID, the index that gpushare's plugin gave, or ""."""
    known, units = names(pods), Counter[tuple[str, str, str]]()
    for entry in entries:
        if entry.resource == resource and entry.pod in known:
            for unit in entry.ids:
                claim = offer.claim_of(unit)
                device = claim.device if claim else unit
                if claim is not None and claim.way == offer.GPUSHARE:  # such an id does not name its GPU
                    device = entry.index if entry.index.isdecimal() else ""
                units[known[entry.pod], entry.container, device] += 1
    return units


def _memory(node: str, pods: Sequence[Object], ledger: Ledger, host: Real) -> list[Row]:
    book = ledger.book(node)
    if book is None:
        return []
    promised: dict[tuple[str, str, str], int] = {}
    here = {gpu.index: gpu for gpu in book.gpus}
    by_uuid = {gpu.uuid: gpu for gpu in book.gpus if gpu.uuid}
    for promise in ledger.promises(node).values():
        for part in promise.parts:
            gpu = by_uuid.get(part.uuid) or here.get(part.index)
            where = gpu.index if gpu else UNKNOWN
            key = promise.pod, part.container, where
            promised[key] = promised.get(key, 0) + part.units
    index = {gpu.uuid: gpu.index for gpu in book.gpus} | dict(host.indexes) | {"": UNKNOWN}
    used: dict[tuple[str, str, str], int] | None = None
    if host.entries is not None:
        real = count_allocated(pods, ledger.resource, host.entries)
        used = {(pod, box, index.get(device, device)): count for (pod, box, device), count in real.items()}
    for promise in (promise for promise in ledger.promises(node).values() if not promise.parts):
        # Not recorded where: what the kubelet gave it was promised there, and the rest of an unknown GPU.
        has = {key: count for key, count in (used or {}).items() if key[0] == promise.pod}
        promised |= has
        if (rest := promise.units - sum(has.values())) > 0:
            promised[promise.pod, "", UNKNOWN] = rest
    rows = []
    for gpu in book.gpus:
        uses = _uses(gpu.index, promised, used)
        format_mib = gpu.units + gpu.reserved
        rows.append(Row(node, gpu.index, gpu.uuid, ledger.resource, format_mib, *_sums(uses, used), uses))
    devices = {place: uuid for uuid, place in index.items()}
    for place in sorted({key[2] for key in (*promised, *(used or ()))} - {*here, UNKNOWN}):
        uses = _uses(place, promised, used)  # the node publishes no sizes
        rows.append(Row(node, place, devices.get(place, ""), ledger.resource, None, *_sums(uses, used), uses))
    if others := _uses(UNKNOWN, promised, used):
        rows.append(Row(node, UNKNOWN, "", ledger.resource, None, *_sums(others, used), others))
    return rows


def _uses(
    gpu: str, promised: Mapping[tuple[str, str, str], int], used: Mapping[tuple[str, str, str], int] | None
) -> tuple[Use, ...]:
    keys = sorted({key for key in (*promised, *(used or ())) if key[2] == gpu})
    return tuple(
        Use(key[0], key[1], promised.get(key, 0), None if used is None else used.get(key, 0)) for key in keys
    )


def _sums(uses: Sequence[Use], used: object) -> tuple[int, int | None]:
    real = None if used is None else sum(use.used or 0 for use in uses)
    return sum(use.promised for use in uses), real


def _others(node: str, pods: Sequence[Object], resource: str, total: int, host: Real) -> list[Row]:
    """Rows of whole GPUs, MIG devices and shares: the scheduler promises a number, the kubelet chooses the devices."""
    asked: dict[tuple[str, str], int] = {}
    for pod in pods:
        try:
            asks = bound_demand(pod, resource).asks
        except Malformed:
            continue
        name = pod_name(pod)
        asked |= {(name, ask.container): ask.units for ask in asks}
    if host.entries is None:
        uses = tuple(Use(*key, count, None) for key, count in sorted(asked.items()))
        if uses or total:
            return [Row(node, UNKNOWN, "", resource, total, sum(asked.values()), None, uses)]
        return []
    sizes = host.offered.get(resource, {})
    by_device: dict[str, list[Use]] = {device: [] for device in sizes}
    has: Counter[tuple[str, str]] = Counter()
    for (name, box, device), count in sorted(count_allocated(pods, resource, host.entries).items()):
        by_device.setdefault(device, []).append(Use(name, box, count, count))
        has[name, box] += count
    rows = [
        Row(node, host.indexes.get(device, device), device, resource, sizes[device][0] if device in sizes else None,
            sum(u.promised for u in uses), sum(u.used or 0 for u in uses), tuple(uses))
        for device, uses in by_device.items()
    ]  # fmt: skip
    late = tuple(Use(*key, count - has[key], 0) for key, count in sorted(asked.items()) if count > has[key])
    free = None if sizes else max(total - sum(has.values()), 0)
    rest = Row(node, UNKNOWN, "", resource, free, sum(row.promised for row in late), 0, late)
    return sorted(rows, key=lambda row: row.gpu) + ([rest] if free or late else [])


@dataclass(frozen=True, slots=True)
class Mismatch:
    """A problem of a node, its subject. `pod`: "" where it is no single pod's. `repair`: annotations for the pod; {}: none."""

    problem: Problem
    pod: str = ""
    repair: Mapping[str, str] = field(default_factory=dict)


def find_mismatches(
    nodes: Sequence[Object],
    pods: Sequence[Object],
    resource: str,
    real: Mapping[str, Real],
    scheduler: str = "",
) -> tuple[Mismatch, ...]:
    """By node. `scheduler`: the one that asks the extender, "" where all do. Of a node that is not in `real` only what the API server shows is judged. Units that a kubelet's record keeps
    for pods that are gone are none: it forgets them at its next allocation."""
    ledger = Ledger.of(resource, nodes, pods)
    bound: dict[str, list[Object]] = {}
    for pod in pods:
        node = (pod.get("spec") or {}).get("nodeName")
        if node and not has_ended(pod):
            bound.setdefault(str(node), []).append(pod)
    mismatches: list[Mismatch] = []
    for node, book in sorted(ledger.books().items()):
        here, host = bound.get(node, []), real.get(node)
        if book.why is not None and book.why.code == "not-shared":
            continue
        if book.why is not None:
            mismatches.append(_mismatch(node, "", book.why.code, book.why.words))
            continue
        entries = host.entries if host is not None else None
        units = None if entries is None else count_allocated(here, resource, entries)
        for pod in here:
            mismatches += _pod_mismatches(node, pod, book, resource, units, scheduler)
        for gpu, promised in zip(book.gpus, book.promised, strict=True):
            # Where units are reserved, their pods are counted twice, and maybe in another unit, until they end.
            if promised > gpu.units and not gpu.reserved:
                what = f"{promised} of {gpu.units} units of GPU {gpu.index} are promised"
                mismatches.append(_mismatch(node, "", "overcommitted", what))
    return tuple(mismatches)


def _pod_mismatches(
    node: str,
    pod: Object,
    book: Book,
    resource: str,
    units: Mapping[tuple[str, str, str], int] | None,
    scheduler: str,
) -> list[Mismatch]:
    name = pod_name(pod)
    try:
        held = bound_demand(pod, resource)
    except Malformed as error:
        return [_mismatch(node, name, "malformed", str(error))]
    if not held.asks:
        return []
    promised = placement_of(pod, node, held)
    actual = None if units is None else _actual(name, held, book, units)
    repair: Mapping[str, str] = {}
    if actual:
        repair = notes_of(node, held, actual, book.gpus, time.time_ns())
    if promised is None:
        annotations = (pod.get("metadata") or {}).get("annotations") or {}
        edited = any(key in annotations for key in (MEMORY_ANNOTATION, ALLOCATION, INDEX))
        what = "its annotations contradict its spec or its node" if edited else "its GPU is not noted"
        code = "unreadable" if edited else "not-noted"
        own = str(pod["spec"].get("schedulerName") or "default-scheduler")
        if scheduler and own != scheduler and not edited:
            what, code = f"its scheduler {own} does not ask the extender, {what}", "other-scheduler"
        return [
            _mismatch(node, name, code, f"{what}: its {held.units} units count against every GPU", repair)
        ]
    if units is None:
        return []
    if not any(key[0] == name for key in units):
        started = (pod.get("status") or {}).get("phase") == "Running"
        what = "it runs, and the kubelet gave it no units"
        return [_mismatch(node, name, "no-devices", what)] if started else []
    if actual and _by_gpu(actual, book) != _by_gpu(promised, book):
        what = f"it was promised GPU {_join(promised)}, and got GPU {_join(actual)}"
        return [_mismatch(node, name, "elsewhere", what, repair)]
    return []


def _actual(
    pod: str, held: Demand, book: Book, units_by_place: Mapping[tuple[str, str, str], int]
) -> tuple[Part, ...] | None:
    """Where the pod's containers are; None where not all have their units yet, or of a GPU that the node does not publish."""
    by_uuid = {gpu.uuid: gpu for gpu in book.gpus if gpu.uuid}
    parts = []
    for ask in held.asks:
        mine = {
            device: units
            for (name, box, device), units in units_by_place.items()
            if (name, box) == (pod, ask.container)
        }
        if sum(mine.values()) != ask.units or not set(mine) <= set(by_uuid):
            return None
        parts += [
            Part(ask.container, by_uuid[device].index, units, device)
            for device, units in sorted(mine.items())
        ]
    return tuple(parts)


def _by_gpu(parts: Sequence[Part], book: Book) -> set[tuple[str, str, int]]:
    index = {gpu.uuid: gpu.index for gpu in book.gpus if gpu.uuid}
    return {(part.container, index.get(part.uuid, part.index), part.units) for part in parts}


def _join(parts: Sequence[Part]) -> str:
    return ", ".join(dict.fromkeys(part.index for part in parts))


def _mismatch(node: str, pod: str, code: str, what: str, repair: Mapping[str, str] | None = None) -> Mismatch:
    return Mismatch(Problem(code, what, subject=node), pod, repair or {})
