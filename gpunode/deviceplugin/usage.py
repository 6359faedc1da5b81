"""How a node's GPUs are used now: one versioned document, served on request at `/gpus`. Writer and reader share this
module. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from .status import Reason

VERSION = 1
PATH = "/gpus"  # at the address of the probes


@dataclass(frozen=True, slots=True)
class User:
    """A container that has units of a GPU, or of MIG devices of it. `pod`: namespace/name."""

    pod: str
    container: str
    resource: str
    units: int


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU. None: NVML does not say. `memory`, `used`: bytes. `utilization`: percent. `temperature`: °C. `processes`: how
    many use it that NVML lists. `unhealthy`: why, since `since` (RFC 3339; at the earliest the plugin's start). `users` is None
    where the kubelet does not report them."""

    uuid: str
    index: str
    name: str
    memory: int
    used: int | None = None
    utilization: int | None = None
    temperature: int | None = None
    processes: int | None = None
    unhealthy: Reason | None = None
    since: str = ""
    users: tuple[User, ...] | None = None


def dumps(gpus: tuple[Gpu, ...]) -> str:
    """The document as one line of JSON."""
    return (
        json.dumps({"version": VERSION, "gpus": [asdict(one) for one in gpus]}, separators=(",", ":")) + "\n"
    )


def loads(text: str) -> tuple[Gpu, ...]:
    """Raises ValueError for anything but a document of this version."""
    found = json.loads(text)
    if not isinstance(found, dict) or found.get("version") != VERSION:
        raise ValueError(f"no document of version {VERSION}")
    try:
        return tuple(_gpu(one) for one in found["gpus"])
    except (KeyError, TypeError) as error:
        raise ValueError(f"a field is wrong or missing: {error!r}") from None


def _gpu(found: Mapping[str, Any]) -> Gpu:
    users, unhealthy = found["users"], found["unhealthy"]
    read = {
        "users": None if users is None else tuple(User(**one) for one in users),
        "unhealthy": None if unhealthy is None else Reason(**unhealthy),
    }
    return Gpu(**{**found, **read})
