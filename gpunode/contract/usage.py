"""How a node's GPUs are used now: one versioned document, served on request at `/gpus`. Writer and reader share this
module. Pure."""

import json
from dataclasses import asdict, dataclass

from .status import Reason
from .typed import parse, read

VERSION = 2  # of what its readers must know; they ignore keys that they do not know (those of version 1 refuse them)
READ = (1, VERSION)
PATH = "/gpus"  # at the address of the probes


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
    document = parse(text)
    version = document.get("version") if isinstance(document, dict) else None
    if version not in READ:
        error = Newer if isinstance(version, int) and version > VERSION else ValueError
        raise error(f"it is of version {version}, this gpunode reads up to {VERSION}")
    gpus: tuple[Gpu, ...] = read(tuple[Gpu, ...], document.get("gpus"), "gpus")
    return gpus
