"""The plugin's status: one typed, versioned document about its node. Writer and reader share this module. Pure.

It is published in the node's annotation, where the configuration wants one, and always as one line of the log. Programs
read `code`; `words` are for people and may change.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace

from .typed import parse, read

VERSION = 1
ANNOTATION = "gpunode.dev/device-plugin"
MARK = "gpunode-device-plugin-status"  # in front of the document in the log
LAYOUT = "layout"  # code: the GPUs cannot be offered as the configuration asks
STARTING = "starting"  # code of the problem before the GPUs are discovered
CORDONED = "cordoned"  # code of a GPU that an operator has taken out
ENFORCED = "enforced"  # code of a memory limit that the driver enforces


class UnknownVersion(ValueError):
    """The document's version is newer than this module's, or there is none: written before there were versions."""

    def __init__(self, version: object) -> None:
        super().__init__(f"status version {version}, this program reads version {VERSION}")
        self.version = version


@dataclass(frozen=True, slots=True)
class Reason:
    """The reason of a problem: a code for programs, words for people."""

    code: str
    words: str

    def __str__(self) -> str:
        return self.words


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod by `name` (namespace/name), or by `uid` where the kubelet does not report its name."""

    name: str = ""
    uid: str = ""

    def __str__(self) -> str:
        return self.name or f"with UID {self.uid}"


@dataclass(frozen=True, slots=True)
class Resource:
    """One extended resource: its units, unhealthy and reserved ones too, and whether the kubelet has registered it."""

    units: int
    registered: bool


@dataclass(frozen=True, slots=True)
class Unavailable:
    """A GPU or MIG device that is not allocatable. `listed`: its units are Unhealthy; else the kubelet does not know
    them. `device` is its UUID, or "" if the GPU does not report it."""

    device: str
    index: str
    code: str
    words: str
    listed: bool = True

    @property
    def sentence(self) -> str:
        what = "MIG device" if ":" in self.index else "GPU"
        name = f"{what} {self.index}" + (f" ({self.device})" if self.device else "")
        if self.code == CORDONED:
            return f"{name} is {self.words}"
        return f"{name} is {'Unhealthy' if self.listed else 'not offered'}: {self.words}"


@dataclass(frozen=True, slots=True)
class Reserved:
    """Units of a device reserved until `pods` end, which use it by an earlier configuration."""

    resource: str
    device: str
    units: int
    pods: tuple[Pod, ...]
    words: str


@dataclass(frozen=True, slots=True)
class Configuration:
    """The configuration in force, and why a newer one was refused (None: it was not)."""

    mig_strategy: str
    sharing: str
    device_list_strategy: tuple[str, ...]
    file: str = ""
    refused: Reason | None = None


@dataclass(frozen=True, slots=True)
class Status:
    """The whole document. `since`: when this configuration took effect, RFC 3339. `problem`: why no GPU can be offered;
    `not_ready`: why pods can get none. `memory_limits`: by UUID of a GPU shared by memory, whether the driver enforces
    each pod's share (code ENFORCED), or why not."""

    since: str
    configuration: Configuration
    driver: str = ""
    resources: Mapping[str, Resource] = field(default_factory=dict)
    problem: Reason | None = None
    not_ready: Reason | None = None
    lost: tuple[Unavailable, ...] = ()
    reserved: tuple[Reserved, ...] = ()
    memory_limits: Mapping[str, Reason] = field(default_factory=dict)
    version: int = VERSION

    def with_refusal(self, why: Reason | None) -> "Status":
        """A copy with the reason why a newer configuration was refused; None: it was not."""
        return replace(self, configuration=replace(self.configuration, refused=why))


def dumps(status: Status) -> str:
    """The document as one line of JSON."""
    return json.dumps(asdict(status), sort_keys=True, separators=(",", ":"))


def loads(text: str) -> Status:
    """Raises UnknownVersion for a document of another version, ValueError for anything else."""
    document = parse(text)
    if not isinstance(document, dict):
        raise ValueError("a status is a JSON object")  # noqa: TRY004
    if document.get("version") != VERSION:
        raise UnknownVersion(document.get("version"))
    status: Status = read(Status, document, "status")
    return status


def find_last(log: str) -> str | None:
    """The last document in a log, not parsed; None if there is none."""
    documents = re.findall(rf" {MARK} (\{{.*\}})$", log, re.MULTILINE)
    return documents[-1] if documents else None
