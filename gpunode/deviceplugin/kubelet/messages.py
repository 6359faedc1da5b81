"""The messages of the kubelet's protocols, written and read as protobuf's encoding has them, by their fields' numbers.

Device plugins v1beta1 and v1alpha (k8s.io/kubelet/pkg/apis/deviceplugin), pod resources v1 (…/podresources). By hand, because protobuf's
library costs 5 MiB for a dozen messages of texts. Readers pass over unknown fields and raise ValueError for what is no message.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple, TypeVar

from gpunode.contract.offer import Unit
from gpunode.contract.status import Pod

from ..state import ContainerDevices
from .allocate import Grant

T = TypeVar("T", int, bytes)


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 127:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _part(field: int, content: bytes) -> bytes:
    """A field that has a length: a message or, encoded, a text."""
    return _varint(field << 3 | 2) + _varint(len(content)) + content


def _text(field: int, text: str) -> bytes:
    return _part(field, text.encode()) if text else b""


def _texts(field: int, texts: Iterable[str]) -> bytes:
    return b"".join([_part(field, text.encode()) for text in texts])


def _flag(field: int, yes: bool) -> bytes:
    return _varint(field << 3) + b"\1" if yes else b""


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Number and value of each field, as they come."""
    at, end = 0, len(message)
    while at < end:
        tag, at = _number(message, at)
        kind = tag & 7
        if kind == 0:
            value, at = _number(message, at)
            yield tag >> 3, value
            continue
        if kind == 2:
            size, at = _number(message, at)
        elif kind in (1, 5):
            size = 8 if kind == 1 else 4
        else:
            raise ValueError("no type of a field")
        at += size
        if at > end:
            raise ValueError("a field ends too late")
        yield tag >> 3, message[at - size : at]


def _number(message: bytes, at: int) -> tuple[int, int]:
    number = 0
    for shift in range(0, 70, 7):
        if at >= len(message):
            raise ValueError("a number ends too late")
        byte = message[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 128:
            return number, at
    raise ValueError("a number is too long")


def _parts(message: bytes, field: int) -> list[bytes]:
    return [value for number, value in _fields(message) if number == field and isinstance(value, bytes)]


def _strings(message: bytes, field: int) -> list[str]:
    return [part.decode() for part in _parts(message, field)]


def _string(message: bytes, field: int) -> str:
    """The last, which counts; "" where there is none."""
    return next(reversed(_strings(message, field)), "")


def options(*, pre_start: bool, preferred: bool) -> bytes:
    """DevicePluginOptions."""
    return _flag(1, pre_start) + _flag(2, preferred)


def registration(version: str, endpoint: str, resource: str, plugin_options: bytes) -> bytes:
    """RegisterRequest, of any version: the old ones ignore its last field."""
    return _text(1, version) + _text(2, endpoint) + _text(3, resource) + _part(4, plugin_options)


def device(unit: Unit, health: str) -> bytes:
    """A device in a ListAndWatchResponse of any version: the old ones ignore its topology."""
    content = _text(1, unit.id) + _text(2, health)
    if unit.device.numa is not None:
        node = _varint(1 << 3) + _varint(unit.device.numa) if unit.device.numa else b""
        content += _part(3, _part(1, node))
    return _part(1, content)


class Preference(NamedTuple):
    """A ContainerPreferredAllocationRequest."""

    available: list[str]
    must: list[str]
    size: int


def preferences(message: bytes) -> list[Preference]:
    """Of a PreferredAllocationRequest."""
    return [
        Preference(_strings(container, 1), _strings(container, 2), _int32(dict(_fields(container)).get(3, 0)))
        for container in _parts(message, 1)
    ]


def _int32(value: int | bytes) -> int:
    low = int(value) & 0xFFFFFFFF if isinstance(value, int) else 0
    return low - (1 << 32) if low >> 31 else low


def preferred_response(answers: Iterable[Iterable[str]]) -> bytes:
    """PreferredAllocationResponse, with the ids for each container."""
    return b"".join([_part(1, _texts(1, ids)) for ids in answers])


def ids(message: bytes) -> list[str]:
    """Of a PreStartContainerRequest, or of an AllocateRequest of v1alpha, which has one container."""
    return _strings(message, 1)


def ids_by_container(message: bytes) -> list[list[str]]:
    """Of an AllocateRequest."""
    return [_strings(container, 1) for container in _parts(message, 1)]


def _mapping(field: int, pairs: Mapping[str, str]) -> bytes:
    return b"".join(
        [_part(field, _part(1, key.encode()) + _part(2, value.encode())) for key, value in pairs.items()]
    )


def _edits(grant: Grant, first: int = 1) -> bytes:
    """Environment, mounts and nodes, in fields from `first` on."""
    mounts = [_part(first + 1, _text(1, inside) + _text(2, host)) for inside, host in grant.mounts]
    nodes = [
        _part(first + 2, _text(1, inside) + _text(2, host) + _text(3, "rw")) for inside, host in grant.nodes
    ]
    return _mapping(first, grant.envs) + b"".join(mounts + nodes)


def allocate_response(grants: Iterable[Grant]) -> bytes:
    """AllocateResponse."""
    return b"".join(
        [
            _part(
                1,
                _edits(grant)
                + _mapping(4, grant.annotations)
                + b"".join(_part(5, _text(1, name)) for name in grant.cdi),
            )
            for grant in grants
        ]
    )


def allocate_response_1_9(grant: Grant) -> bytes:
    """AllocateResponse of v1alpha2."""
    return _edits(grant)


def allocate_response_1_8(given: Grant, unit_ids: Iterable[str]) -> bytes:
    """AllocateResponse of v1alpha1. Its kubelet expects an entry for every device, and merges the edits of all entries."""
    edits = [_edits(given, first=2)]
    return b"".join([_part(1, _text(1, unit_id) + (edits.pop() if edits else b"")) for unit_id in unit_ids])


def containers_devices(message: bytes) -> tuple[ContainerDevices, ...]:
    """Of a ListPodResourcesResponse, which reports by NUMA node, in any order."""
    by_container: dict[tuple[Pod, str, str], set[str]] = {}
    for pod in _parts(message, 1):
        name = Pod(f"{_string(pod, 2)}/{_string(pod, 1)}")
        for container in _parts(pod, 3):
            for devices in _parts(container, 2):
                key = (name, _string(container, 1), _string(devices, 1))
                by_container.setdefault(key, set()).update(_strings(devices, 2))
    return tuple(ContainerDevices(*key, tuple(sorted(held))) for key, held in by_container.items())
