"""The configuration file of NVIDIA's device plugin (version v1), read as that plugin reads it, but strictly.

A key that neither knows is an error that names it. Keys of NVIDIA's that have no meaning here are listed in
IGNORED and said in the log.
"""

from __future__ import annotations

import difflib
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from .config import GPU, GPU_COUNT, GPU_MEM, BadConfig, MemorySharing, Share
from .options import OPTIONS, parse

log = logging.getLogger(__name__)

IGNORED = (
    "flags.gfd",  # gpu-feature-discovery's
    "flags.useNodeFeatureAPI",
    "flags.deviceDiscoveryStrategy",  # NVML is all there is here
    "flags.cdiFeatureFlags",
    "flags.plugin.containerDriverRoot",  # CDI specifications here are the toolkit's, not made of files in that root
    "flags.plugin.nvidiaCTKPath",
    "flags.plugin.nvidiaCDIHookPath",
    "imex.required",  # only with channels, which are refused
    "resources",  # renaming is switched off in NVIDIA's plugin too
)
REPLICAS = ("sharing.timeSlicing", "sharing.mps")
SHARING = ("renameByDefault", "failRequestsGreaterThanOne", "resources")
SHARE = ("name", "replicas", "rename", "devices")
LIMITS = ("memory", "threads")  # of MPS clients; this plugin's own
MEMORY = ("name", "unit", "chunk", "devices", "policy")
REPLICAS_MOST = 70_000  # more make a list that no kubelet takes (memory.MAX_LIST), and take all of the pod's memory before
# As the kubelet wants an extended resource's name (IsExtendedResourceName, pkg/apis/core/v1/helper): a DNS subdomain that
# is not Kubernetes' own, a slash, a name.
RESOURCE = re.compile(
    r"(?!requests\.|.*kubernetes\.io/)[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*"
    r"/[A-Za-z0-9]([-.\w]{0,61}[A-Za-z0-9])?",
    re.ASCII,
)


def read(path: Path) -> dict[str, Any]:
    """Values for fields of Config; logs what is passed over. Raises BadConfig with the file's name and the key."""
    try:
        document = yaml.safe_load(path.read_text())
    except (OSError, ValueError, yaml.YAMLError) as error:  # ValueError: no UTF-8, no such date
        raise BadConfig(f"{path}: {error}") from None
    try:
        found = values(document)
    except BadConfig as error:
        raise BadConfig(f"{path}: {error}") from None
    for key in (key for key, _ in _leaves(document or {}) if key in IGNORED):
        log.warning("%s: %s has no meaning for this plugin", path, key)
    return found


def values(document: Any) -> dict[str, Any]:
    """Values for fields of Config, from the parsed file. Raises BadConfig with the key. Pure."""
    document = {} if document is None else document
    if not isinstance(document, dict):
        raise BadConfig("expected keys: version, flags, resources, sharing")
    if document.get("version") not in (None, "v1"):
        raise BadConfig(f"version: expected v1, found {document['version']!r}")
    options = {option.key: option for option in OPTIONS if option.key}
    found: dict[str, Any] = {}
    for key, value in _leaves({name: part for name, part in document.items() if name != "version"}):
        if key in options:
            text = ",".join(map(str, value)) if isinstance(value, list) else str(value)
            found[options[key].field] = parse(options[key], key, text)
        elif key in REPLICAS:
            if "shares" in found:
                raise BadConfig(
                    f"{key}: a node shares its GPUs by one of {' and '.join(REPLICAS)}, not by both"
                )
            found |= _replicas(key, value, mps=key == "sharing.mps")
        elif key == "sharing.memory":
            found["memory"] = _memory(key, value)
        elif key == "imex.channelIDs":
            if value:
                raise BadConfig(f"{key}: IMEX channels are not supported")
        elif key not in IGNORED:
            near = difflib.get_close_matches(key, (*options, *IGNORED, *REPLICAS, "sharing.memory"), 1)
            raise BadConfig(f"{key}: unknown key" + (f"; is {near[0]} meant?" if near else ""))
    if "memory" in found and any(share.resource == GPU for share in found.get("shares", ())):
        raise BadConfig(
            f"sharing.memory: {GPU} is shared in another way too ({' or '.join(REPLICAS)}); a node shares its whole GPUs in "
            "one way, so take one of the two out (resources of MIG devices may stay)"
        )
    return found


def _leaves(part: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The settings with their dotted keys; empty ones (`~`) are as if they were not there."""
    sections = ("flags", "flags.plugin", "sharing", "imex")
    for name, value in part.items():
        key = f"{prefix}{name}"
        if value is None:
            continue
        if key in sections:
            if not isinstance(value, dict):
                raise BadConfig(f"{key}: expected keys, found {value!r}")
            yield from _leaves(value, f"{key}.")
        else:
            yield key, value


def _replicas(key: str, section: Any, *, mps: bool) -> dict[str, Any]:
    _only(key, section, SHARING)
    by_default = _flag(f"{key}.renameByDefault", section.get("renameByDefault"))
    resources = section.get("resources")
    if not isinstance(resources, list) or not resources:
        raise BadConfig(f"{key}.resources: expected a list of name and replicas")
    shares = [
        _share(f"{key}.resources[{number}]", entry, by_default=by_default, mps=mps)
        for number, entry in enumerate(resources)
    ]
    doubled = {share.resource for share in shares if not share.devices}
    if len(doubled) != sum(not share.devices for share in shares):
        raise BadConfig(f"{key}.resources: a resource is there twice for all its devices")
    fail = _flag(f"{key}.failRequestsGreaterThanOne", section.get("failRequestsGreaterThanOne"))
    # A second share of a GPU brings an MPS client nothing; NVIDIA's plugin does not ask either.
    return {"shares": tuple(shares), "fail_requests_greater_than_one": fail or mps}


def _share(where: str, entry: Any, *, by_default: bool, mps: bool) -> Share:
    _only(where, entry, (*SHARE, *LIMITS) if mps else SHARE)
    name = entry.get("name")
    if not isinstance(name, str) or not name:
        raise BadConfig(f"{where}.name: expected a resource, e.g. nvidia.com/gpu")
    name = _resource(f"{where}.name", name if "/" in name else f"nvidia.com/{name}")
    if mps and name != GPU:
        raise BadConfig(f"{where}.name: MPS is for whole GPUs, {GPU}; found {name}")
    rename = entry.get("rename") or (f"{name}.shared" if by_default else name)
    rename = f"nvidia.com/{rename}" if "/" not in str(rename) else rename
    memory, threads = entry.get("memory"), entry.get("threads")
    replicas = _whole(f"{where}.replicas", entry.get("replicas"), 2)
    if replicas > REPLICAS_MOST:
        raise BadConfig(
            f"{where}.replicas: the kubelet takes some {REPLICAS_MOST} shares of all GPUs together, found {replicas}"
        )
    return Share(
        name,
        replicas,
        _resource(f"{where}.rename", rename),
        _devices(f"{where}.devices", entry.get("devices", "all")),
        mps=mps,
        memory=None if memory is None else _whole(f"{where}.memory", memory, 1, " of MiB"),
        threads=None if threads is None else _percent(f"{where}.threads", threads),
    )


def _whole(key: str, value: Any, least: int, unit: str = "") -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise BadConfig(f"{key}: expected a whole number{unit} from {least} up, found {value!r}")
    return value


def _percent(key: str, value: Any) -> int:
    if _whole(key, value, 1) > 100:
        raise BadConfig(f"{key}: expected a percentage from 1 to 100, found {value!r}")
    return int(value)


def _memory(key: str, section: Any) -> MemorySharing:
    """This plugin's own: pieces of GPUs' memory, as gpushare offers them."""
    _only(key, section, MEMORY)
    resource = _resource(f"{key}.name", section.get("name", GPU_MEM))
    if resource in (GPU, GPU_COUNT):
        raise BadConfig(f"{key}.name: {resource} counts GPUs, not memory; the usual name is {GPU_MEM}")
    unit, chunk = section.get("unit", "GiB"), section.get("chunk")
    if unit not in ("GiB", "MiB"):
        raise BadConfig(f"{key}.unit: {unit!r} is not one of GiB, MiB")
    if chunk is not None and unit == "GiB":
        raise BadConfig(f"{key}.chunk: only with unit: MiB; of unit GiB each unit is 1024 MiB")
    if chunk is not None:
        _whole(f"{key}.chunk", chunk, 1, " of MiB")
    policy = section.get("policy", "packed")
    if policy not in ("packed", "distributed"):
        raise BadConfig(f"{key}.policy: {policy!r} is not one of packed, distributed")
    return MemorySharing(
        resource,
        1024 if unit == "GiB" else chunk or 1,
        _devices(f"{key}.devices", section.get("devices", "all")),
        packed=policy == "packed",
    )


def _resource(key: str, value: Any) -> str:
    if not isinstance(value, str) or not RESOURCE.fullmatch(value):
        raise BadConfig(
            f"{key}: expected a resource with its domain, which is not kubernetes.io, e.g. {GPU_MEM}; found {value!r}"
        )
    return value


def _devices(key: str, value: Any) -> tuple[str, ...]:
    if value == "all":
        return ()
    if not isinstance(value, list) or not value:
        raise BadConfig(f"{key}: expected `all` or a list of indexes and UUIDs, found {value!r}")
    for one in value:
        if isinstance(one, int) and one >= 60:
            raise BadConfig(
                f'{key}: found {one}; a MIG device needs quotes, "1:0": YAML takes it for 60 (base 60)'
            )
    return tuple(map(str, value))


def _flag(key: str, value: Any) -> bool:
    if value not in (None, True, False):
        raise BadConfig(f"{key}: expected true or false, found {value!r}")
    return bool(value)


def _only(key: str, section: Any, known: tuple[str, ...]) -> None:
    if not isinstance(section, dict):
        raise BadConfig(f"{key}: expected keys {', '.join(known)}")
    for name in section:
        if name not in known:
            near = difflib.get_close_matches(str(name), known, 1)
            meant = f"; is {near[0]} meant?" if near else ""
            raise BadConfig(f"{key}.{name}: unknown key; known are {', '.join(known)}{meant}")
