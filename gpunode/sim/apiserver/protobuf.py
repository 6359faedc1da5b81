"""Bodies in Kubernetes' protobuf, which kubectl sends since 1.32 for objects that do not come from a user's file.

Only the few kinds that kubectl makes itself are decoded; their fields' numbers are those of the kinds' generated.proto.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, TypeAlias

from gpunode.sim.apiserver.errors import status_error
from gpunode.sim.apiserver.store import Object

MEDIA, MAGIC = "application/vnd.kubernetes.protobuf", b"k8s\x00"
# A field's type: `*` stands for a list, `{}` for a map; a mapping is a message of its own.
Fields: TypeAlias = Mapping[int, tuple[str, Any]]
META: Fields = MappingProxyType(
    {
        1: ("name", "str"),
        2: ("generateName", "str"),
        3: ("namespace", "str"),
        11: ("labels", "{str}"),
        12: ("annotations", "{str}"),
    }
)
OPTIONS: Fields = MappingProxyType(
    {
        1: ("gracePeriodSeconds", "int"),
        2: ("preconditions", {1: ("uid", "str"), 2: ("resourceVersion", "str")}),
        4: ("propagationPolicy", "str"),
        5: ("dryRun", "*str"),
    }
)
KINDS: Mapping[str, Fields] = MappingProxyType(
    {
        "DeleteOptions": OPTIONS,
        "Eviction": {1: ("metadata", META), 2: ("deleteOptions", OPTIONS)},
        "Namespace": {1: ("metadata", META)},
        "ServiceAccount": {1: ("metadata", META)},
        "ConfigMap": {1: ("metadata", META), 2: ("data", "{str}"), 3: ("binaryData", "{bytes}")},
        "Secret": {
            1: ("metadata", META),
            2: ("data", "{bytes}"),
            3: ("type", "str"),
            4: ("stringData", "{str}"),
        },
    }
)
ENVELOPE: Fields = {1: ("type", {1: ("apiVersion", "str"), 2: ("kind", "str")}), 2: ("raw", "raw")}


def read(data: bytes) -> Object:
    """The object in a body. Raises StatusError for another kind, ValueError if it is not protobuf."""
    unknown = _message(data.removeprefix(MAGIC), ENVELOPE)
    kind = unknown["type"]["kind"]
    if kind not in KINDS:
        message = f"the simulated API server does not read a {kind} in protobuf: write it as YAML, and `kubectl apply -f` it"
        raise status_error(415, "UnsupportedMediaType", message)
    return {**unknown["type"], **_message(unknown.get("raw", b""), KINDS[kind])}


def _message(data: bytes, fields: Fields) -> Object:
    found: Object = {}
    for number, value in _parts(data):
        if number not in fields:
            continue
        name, kind = fields[number]
        if not isinstance(kind, str):
            found[name] = _message(value, kind)
        elif kind.startswith("{"):
            entry = _message(value, {1: ("key", "str"), 2: ("value", kind.strip("{}"))})
            found.setdefault(name, {})[entry.get("key", "")] = entry.get("value", "")
        elif kind.startswith("*"):
            found.setdefault(name, []).append(_plain(value, kind[1:]))
        elif value or kind == "int":  # an empty text is an unset one
            found[name] = _plain(value, kind)
    return found


def _plain(value: Any, kind: str) -> Any:
    if kind == "str":
        return value.decode()
    return base64.b64encode(value).decode() if kind == "bytes" else value


def _parts(data: bytes) -> Iterator[tuple[int, Any]]:
    """Every field's number, with its value: a number or bytes."""
    at = 0
    while at < len(data):
        tag, at = _number(data, at)
        value, at = _number(data, at)
        if tag & 7 == 2:
            yield tag >> 3, data[at : at + value]
            at += value
        elif tag & 7 == 0:
            yield tag >> 3, value
        else:
            raise ValueError(f"a field of wire type {tag & 7}")


def _number(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(data):
            raise ValueError("the protobuf ends within a number")
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at
