"""The configuration file of NVIDIA's device plugin (version v1), read as that plugin reads it, but strictly.

A key that neither knows is an error that names it. Keys of NVIDIA's that have no meaning here are listed in
IGNORED and said in the log.
"""

from __future__ import annotations

import difflib
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from .config import OPTIONS, BadConfig, Share, parse

log = logging.getLogger(__name__)

IGNORED = (
    "flags.gfd",  # gpu-feature-discovery's
    "flags.useNodeFeatureAPI",
    "flags.deviceDiscoveryStrategy",  # NVML is all there is here
    "flags.cdiFeatureFlags",
    "flags.plugin.containerDriverRoot",  # CDI specs here are made of NVML's facts, not of files in that root
    "flags.plugin.nvidiaCTKPath",
    "flags.plugin.nvidiaCDIHookPath",
    "resources",  # renaming is switched off in NVIDIA's plugin too
)
REFUSED = {
    "flags.mpsRoot": "MPS is not supported",
    "sharing.mps": "MPS is not supported; use sharing.timeSlicing",
    "imex": "IMEX channels are not supported",
}
SHARING = ("renameByDefault", "failRequestsGreaterThanOne", "resources")
SHARE = ("name", "replicas", "rename", "devices")


def read(path: Path) -> dict[str, Any]:
    """Values for fields of Config. Raises BadConfig with the file's name and the key."""
    try:
        document = yaml.safe_load(path.read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise BadConfig(f"{path}: {error}") from None
    try:
        return values(document)
    except BadConfig as error:
        raise BadConfig(f"{path}: {error}") from None


def values(document: Any) -> dict[str, Any]:
    """Values for fields of Config, from the parsed file. Raises BadConfig with the key."""
    if not isinstance(document, dict):
        raise BadConfig("expected keys: version, flags, resources, sharing")
    if document.get("version") != "v1":
        raise BadConfig(f"version: expected v1, found {document.get('version')!r}")
    options = {option.key: option for option in OPTIONS if option.key}
    found: dict[str, Any] = {}
    for key, value in _leaves({name: part for name, part in document.items() if name != "version"}):
        if key in options:
            text = ",".join(map(str, value)) if isinstance(value, list) else str(value)
            found[options[key].field] = parse(options[key], key, text)
        elif key == "sharing.timeSlicing":
            found |= _time_slicing(key, value)
        elif key in REFUSED:
            raise BadConfig(f"{key}: {REFUSED[key]}")
        elif key in IGNORED:
            log.warning("the configuration file's %s has no meaning for this plugin", key)
        else:
            near = difflib.get_close_matches(key, (*options, *IGNORED, "sharing.timeSlicing"), 1)
            raise BadConfig(f"{key}: unknown key" + (f"; is {near[0]} meant?" if near else ""))
    return found


def _leaves(part: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The settings with their dotted keys; empty ones (`~`) are as if they were not there."""
    sections = ("flags", "flags.plugin", "sharing")
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


def _time_slicing(key: str, section: Any) -> dict[str, Any]:
    _only(key, section, SHARING)
    by_default = _flag(f"{key}.renameByDefault", section.get("renameByDefault"))
    resources = section.get("resources")
    if not isinstance(resources, list) or not resources:
        raise BadConfig(f"{key}.resources: expected a list of name and replicas")
    shares = []
    for number, entry in enumerate(resources):
        where = f"{key}.resources[{number}]"
        _only(where, entry, SHARE)
        name, replicas = entry.get("name"), entry.get("replicas")
        if not isinstance(name, str) or not name:
            raise BadConfig(f"{where}.name: expected a resource, e.g. nvidia.com/gpu")
        name = name if "/" in name else f"nvidia.com/{name}"
        if not isinstance(replicas, int) or isinstance(replicas, bool) or replicas < 2:
            raise BadConfig(f"{where}.replicas: expected a whole number from 2 up, found {replicas!r}")
        rename = entry.get("rename") or (f"{name}.shared" if by_default else name)
        rename = rename if "/" in rename else f"nvidia.com/{rename}"
        shares.append(
            Share(name, replicas, rename, _devices(f"{where}.devices", entry.get("devices", "all")))
        )
    doubled = {share.resource for share in shares if not share.devices}
    if len(doubled) != sum(not share.devices for share in shares):
        raise BadConfig(f"{key}.resources: a resource is there twice for all its devices")
    fail = _flag(f"{key}.failRequestsGreaterThanOne", section.get("failRequestsGreaterThanOne"))
    return {"shares": tuple(shares), "fail_requests_greater_than_one": fail}


def _devices(key: str, value: Any) -> tuple[str, ...]:
    if value == "all":
        return ()
    if not isinstance(value, list) or not value:
        raise BadConfig(f"{key}: expected `all` or a list of indexes and UUIDs, found {value!r}")
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
            raise BadConfig(f"{key}.{name}: unknown key; known are {', '.join(known)}")
