"""The configuration file's sections below `sharing`. Pure; mistakes are raised as Wrong, or noted."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from .config import GPU, GPU_COUNT, GPU_MEM, MemorySharing, Share
from .document import Document, Where, Wrong, kind

WAYS = ("sharing.timeSlicing", "sharing.mps")
SHARING = ("renameByDefault", "failRequestsGreaterThanOne", "resources")
SHARE = ("name", "replicas", "rename", "devices")
LIMITS = ("memory", "threads")  # of MPS clients; this plugin's own
MEMORY = ("name", "unit", "chunk", "devices", "policy")
MOST = 70_000  # more make a list that no kubelet accepts (listing.MAX_LIST), even of one GPU
# YAML 1.1's words, which NVIDIA's plugin accepts, too.
BOOLEANS = {"yes": "true", "on": "true", "no": "false", "off": "false"}
# The kubelet's rule for an extended resource (IsExtendedResourceName, pkg/apis/core/v1/helper): a DNS subdomain that is
# not Kubernetes' own, a slash, a name.
RESOURCE = re.compile(
    r"(?!requests\.|.*kubernetes\.io/)[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*"
    r"/[A-Za-z0-9]([-.\w]{0,61}[A-Za-z0-9])?",
    re.ASCII,
)


def replicas(document: Document, where: Where, section: Any, found: Mapping[str, Any]) -> dict[str, Any]:
    """Values for fields of Config, of which `found` are set already; mistakes in entries are noted."""
    mps = where[-1] == "mps"
    if "shares" in found:
        line = document.keys["sharing", "timeSlicing" if mps else "mps"][0]
        ways = " or ".join(WAYS)
        raise Wrong(
            where,
            f"a node shares its GPUs by {ways}, not by both (line {line})",
            key=True,
        )
    _only(where, section, SHARING)
    by_default = _flag((*where, "renameByDefault"), section.get("renameByDefault"))
    fail = _flag((*where, "failRequestsGreaterThanOne"), section.get("failRequestsGreaterThanOne"))
    resources, place = section.get("resources"), (*where, "resources")
    if not isinstance(resources, list) or not resources:
        raise Wrong(place, f"expected a list of name and replicas, found {kind(resources)}")
    shares: list[Share] = []
    for number, entry in enumerate(resources):
        with document.noting():
            share = _share((*place, number), entry, by_default=by_default, mps=mps)
            if not share.devices and share.resource in {one.resource for one in shares if not one.devices}:
                raise Wrong(
                    (*place, number), f"{share.resource} is listed twice for all its devices; keep one"
                )
            shares.append(share)
    # A second share of a GPU gives an MPS client nothing; NVIDIA's plugin, too, always refuses more than one.
    return {"shares": tuple(shares), "fail_requests_greater_than_one": fail or mps}


def _share(where: Where, entry: Any, *, by_default: bool, mps: bool) -> Share:
    _only(where, entry, (*SHARE, *LIMITS) if mps else SHARE)
    name = entry.get("name")
    if not isinstance(name, str) or not name:
        raise Wrong((*where, "name"), f"expected a resource, e.g. nvidia.com/gpu, found {kind(name)}")
    name = _resource((*where, "name"), name if "/" in name else f"nvidia.com/{name}")
    if mps and name != GPU:
        raise Wrong((*where, "name"), f"MPS is for whole GPUs, {GPU}; found {name}")
    rename = entry.get("rename") or (f"{name}.shared" if by_default else name)
    rename = f"nvidia.com/{rename}" if isinstance(rename, str) and "/" not in rename else rename
    memory, threads = entry.get("memory"), entry.get("threads")
    replicas = _whole((*where, "replicas"), entry.get("replicas"), 2)
    if replicas > MOST:
        text = f"the kubelet accepts about {MOST} shares of all GPUs together, found {replicas}"
        raise Wrong((*where, "replicas"), text)
    return Share(
        name,
        replicas,
        _resource((*where, "rename"), rename),
        _devices((*where, "devices"), entry.get("devices", "all")),
        mps=mps,
        memory=None if memory is None else _whole((*where, "memory"), memory, 1, " of MiB"),
        threads=None if threads is None else _percent((*where, "threads"), threads),
    )


def _whole(where: Where, value: Any, least: int, unit: str = "") -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise Wrong(where, f"expected a whole number{unit} from {least} up, found {kind(value)}")
    return value


def _percent(where: Where, value: Any) -> int:
    if _whole(where, value, 1) > 100:
        raise Wrong(where, f"expected a percentage from 1 to 100, found {value}")
    return int(value)


def memory(where: Where, section: Any) -> MemorySharing:
    """This plugin's own section `memory`: units of GPUs' memory, as gpushare offers them."""
    _only(where, section, MEMORY)
    resource = _resource((*where, "name"), section.get("name", GPU_MEM))
    if resource in (GPU, GPU_COUNT):
        raise Wrong((*where, "name"), f"{resource} counts GPUs, not memory; the usual name is {GPU_MEM}")
    unit, chunk = _one_of((*where, "unit"), section.get("unit"), ("GiB", "MiB")), section.get("chunk")
    if chunk is not None and unit == "GiB":
        raise Wrong((*where, "chunk"), "only with unit: MiB; of unit GiB each unit is 1024 MiB", key=True)
    if chunk is not None:
        _whole((*where, "chunk"), chunk, 1, " of MiB")
    policy = _one_of((*where, "policy"), section.get("policy"), ("packed", "distributed"))
    return MemorySharing(
        resource,
        1024 if unit == "GiB" else chunk or 1,
        _devices((*where, "devices"), section.get("devices", "all")),
        packed=policy == "packed",
    )


def _one_of(where: Where, value: Any, choices: Sequence[str]) -> str:
    """A choice; the first is the default."""
    if value is None:
        return choices[0]
    if value not in choices:
        raise Wrong(where, f"expected {' or '.join(choices)}, found {kind(value)}")
    return str(value)


def _resource(where: Where, value: Any) -> str:
    if not isinstance(value, str) or not RESOURCE.fullmatch(value):
        raise Wrong(
            where,
            f"expected a resource with its domain, which is not kubernetes.io, e.g. {GPU_MEM}; found {kind(value)}",
        )
    return value


def _devices(where: Where, value: Any) -> tuple[str, ...]:
    if value in ("all", None):
        return ()
    if not isinstance(value, list) or not value:
        raise Wrong(where, f"expected `all` or a list of indexes and UUIDs, found {kind(value)}")
    for number, one in enumerate(value):
        if type(one) not in (int, str):
            raise Wrong((*where, number), f"expected an index or a UUID, found {kind(one)}")
    return tuple(map(str, value))


def _flag(where: Where, value: Any) -> bool:
    word = BOOLEANS.get(value.lower(), value) if isinstance(value, str) else value
    if word not in (None, True, False, "true", "false"):
        raise Wrong(where, f"expected true or false, found {kind(value)}")
    return word in (True, "true")


def _only(where: Where, section: Any, known: tuple[str, ...]) -> None:
    if not isinstance(section, dict):
        raise Wrong(where, f"expected keys {', '.join(known)}, found {kind(section)}")
    for name in section:
        if name not in known:
            near = get_close_matches(name, known, 1)
            meant = f"; is {near[0]} meant?" if near else ""
            raise Wrong((*where, name), f"unknown key; known are {', '.join(known)}{meant}", key=True)
