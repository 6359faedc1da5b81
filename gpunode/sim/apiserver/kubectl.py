"""What kubectl needs beside objects: discovery, and its two bodies in Kubernetes' protobuf.

kubectl sends DeleteOptions and Evictions in protobuf since 1.32; their fields' numbers are those of generated.proto.
"""

from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

from gpunode.sim.apiserver.store import KINDS, Object, status_error

VERBS = ["create", "delete", "get", "list", "patch", "update", "watch"]
SHORT = {"Namespace": "ns", "Node": "no", "Pod": "po", "Event": "ev", "ConfigMap": "cm", "DaemonSet": "ds",
         "Deployment": "deploy", "Service": "svc",
         "ServiceAccount": "sa", "PersistentVolumeClaim": "pvc", "ResourceQuota": "quota"}  # fmt: skip
EVICTION = {
    "name": "pods/eviction", "singularName": "", "namespaced": True, "kind": "Eviction", "group": "policy",
    "version": "v1", "verbs": ["create"],
}  # fmt: skip
MAGIC = b"k8s\x00"
# Name and type by number; a mapping is a message of its own
Fields: TypeAlias = Mapping[int, tuple[str, Any]]
META: Fields = {1: ("name", "str"), 3: ("namespace", "str")}
OPTIONS: Fields = {
    1: ("gracePeriodSeconds", "int"),
    2: ("preconditions", {1: ("uid", "str"), 2: ("resourceVersion", "str")}),
    4: ("propagationPolicy", "str"),
    5: ("dryRun", "str"),
}
DECODED: Mapping[str, Fields] = {
    "DeleteOptions": OPTIONS,
    "Eviction": {1: ("metadata", META), 2: ("deleteOptions", OPTIONS)},
}
ENVELOPE: Fields = {1: ("type", {1: ("apiVersion", "str"), 2: ("kind", "str")}), 2: ("raw", "raw")}


def discover(parts: list[str]) -> Object | None:
    """The answer for /api, /apis, /api/v1, /apis/GROUP/VERSION and /openapi/v3; None for another path."""
    if parts == ["api"]:
        return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}
    if parts == ["apis"]:
        named = sorted({kind.api for kind in KINDS.values() if "/" in kind.api})
        groups = [
            {"name": api.partition("/")[0], "versions": [_version(api)], "preferredVersion": _version(api)}
            for api in named
        ]
        return {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}
    if parts[:2] == ["openapi", "v3"]:
        return _openapi("/".join(parts[2:]))
    api = "/".join(parts[1:])
    kinds = {name: kind for name, kind in KINDS.items() if kind.api == api}
    if not kinds or (parts[0] == "api") != (api == "v1"):
        return None
    resources = [
        {
            "name": kind.plural,
            "singularName": name.lower(),
            "namespaced": kind.namespaced,
            "kind": name,
            "verbs": VERBS,
            **({"shortNames": [SHORT[name]]} if name in SHORT else {}),
        }
        for name, kind in kinds.items()
    ]
    if api == "v1":
        resources.append(EVICTION)
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": api, "resources": resources}


def _openapi(place: str) -> Object | None:
    """The part of an OpenAPI document that kubectl reads before it sends a file: the server validates fields."""
    places = {("apis/" if "/" in kind.api else "api/") + kind.api: kind.api for kind in KINDS.values()}
    if not place:
        return {"paths": {place: {"serverRelativeURL": f"/openapi/v3/{place}"} for place in places}}
    paths: Object = {}
    for name, kind in KINDS.items():
        if kind.api == places.get(place):
            group, _, version = kind.api.rpartition("/")
            patch = {
                "x-kubernetes-group-version-kind": {"group": group, "version": version, "kind": name},
                "parameters": [{"name": "fieldValidation", "in": "query"}],
            }
            paths[f"/{place}/{kind.plural}/{{name}}"] = {"patch": patch}
    info = {"title": "Kubernetes", "version": "v1.36.3"}
    return {"openapi": "3.0.0", "info": info, "paths": paths} if paths else None


def _version(api: str) -> Object:
    return {"groupVersion": api, "version": api.partition("/")[2]}


def decode(data: bytes) -> Object:
    """The object in a body. Raises StatusError for another kind, ValueError if it is not protobuf."""
    unknown = _message(data.removeprefix(MAGIC), ENVELOPE)
    kind = unknown["type"]["kind"]
    if kind not in DECODED:
        message = f"the simulated API server does not read a {kind} in protobuf: write it as YAML, and `kubectl apply -f` it"
        raise status_error(415, "UnsupportedMediaType", message)
    return {**unknown["type"], **_message(unknown.get("raw", b""), DECODED[kind])}


def _message(data: bytes, fields: Fields) -> Object:
    message: Object = {}
    for number, value in _parts(data):
        name, kind = fields.get(number, ("", "raw"))
        if not isinstance(kind, str):
            message[name] = _message(value, kind)
        elif name and (value or kind == "int"):  # an empty text is an unset one
            message[name] = value.decode() if kind == "str" else value
    return message


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
