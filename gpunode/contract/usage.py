"""How a node's GPUs are used now: one versioned document, served on request at `/gpus`. Writer and reader share this
module. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

from .status import Reason

VERSION = 2  # of what its readers must know; they ignore keys that they do not know (those of version 1 refuse them)
READ = (1, VERSION)
PATH = "/gpus"  # at the address of the probes

T = TypeVar("T")


class Newer(ValueError):
    """The document's version is newer than this module's."""


@dataclass(frozen=True, slots=True)
class User:
    """A container that has units of a GPU, or of MIG devices of it. `pod`: namespace/name."""

    pod: str
    container: str
    resource: str
    units: int


@dataclass(frozen=True, slots=True)
class Offered:
    """The units of one GPU, or of its MIG devices, as one resource. `way`: as of `offer`; `mib`: of its memory, for each."""

    resource: str
    units: int
    way: str
    mib: int = 0
    mig: bool = False


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU. None: NVML does not say. `memory`, `used`: bytes; no memory: it shares the host's. `utilization`: percent. `temperature`: °C. `processes`: how
    many use it that NVML lists. `unhealthy`: why, since `since` (RFC 3339; at the earliest the plugin's start). `users` is None
    where the kubelet does not report them. `driver`: the version that runs; "" from an older plugin, which has no `offered` either."""

    uuid: str
    index: str
    name: str
    memory: int | None
    used: int | None = None
    utilization: int | None = None
    temperature: int | None = None
    processes: int | None = None
    unhealthy: Reason | None = None
    since: str = ""
    users: tuple[User, ...] | None = None
    driver: str = ""
    offered: tuple[Offered, ...] | None = None


def dumps(gpus: tuple[Gpu, ...]) -> str:
    """The document as one line of JSON."""
    return (
        json.dumps({"version": VERSION, "gpus": [asdict(gpu) for gpu in gpus]}, separators=(",", ":")) + "\n"
    )


def loads(text: str) -> tuple[Gpu, ...]:
    """Raises ValueError for anything but a document of these versions, Newer for one of a later version."""
    document = json.loads(text)
    version = document.get("version") if isinstance(document, dict) else None
    if version not in READ:
        error = Newer if isinstance(version, int) and version > VERSION else ValueError
        raise error(f"it is of version {version}, this gpunode reads up to {VERSION}")
    try:
        return tuple(_gpu(gpu) for gpu in document["gpus"])
    except (KeyError, TypeError) as error:
        raise ValueError(f"a field is wrong or missing: {error!r}") from None


def _gpu(fields: Mapping[str, Any]) -> Gpu:
    users, unhealthy, offered = fields["users"], fields["unhealthy"], fields.get("offered")
    read = {
        "offered": None if offered is None else tuple(_build(Offered, entry) for entry in offered),
        "users": None if users is None else tuple(_build(User, user) for user in users),
        "unhealthy": None if unhealthy is None else _build(Reason, unhealthy),
    }
    return _build(Gpu, {**fields, **read})


def _build(kind: type[T], fields: Mapping[str, Any]) -> T:
    return kind(**{name: fields[name] for name in kind.__annotations__ if name in fields})
