"""The plugin's own CDI specification, for the strategies cdi-cri and cdi-annotations.

The NVIDIA Container Toolkit finds what a GPU container needs of its host (driver libraries and their ld cache, control
nodes, hooks), and specifies it as kind nvidia.com/gpu, in the directory of the plugin's file or in /etc/cdi. The plugin's
specification copies those edits under its own kind, and adds what the toolkit cannot know: what one allocation gets
besides its devices.

Format: https://github.com/cncf-tags/container-device-interface/blob/main/SPEC.md
"""

import errno
import json
import os
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from . import limits
from .directory import identity

# Kind and device names are those of NVIDIA's plugin (internal/cdi): what the kubelet remembers of running containers
# stays valid when one plugin replaces the other.
KIND = "k8s.device-plugin.nvidia.com/gpu"
TOOLKIT = "nvidia.com/gpu"
ALLOCATION = "gpunode.dev/allocation"  # annotation of a device that is one allocation
# Versions of the format: names may begin with a digit; annotations
LEAST, WITH_ANNOTATIONS = ((0, 5, 0), (0, 6, 0))
OVER_KEPT = 32  # allocations that seem over; a pod has fewer init containers with GPUs

Edits = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Allocation:
    """One container's devices and variables."""

    unit: str  # the first of its units' ids
    units: int  # how many it has
    devices: tuple[str, ...]  # UUIDs
    env: Mapping[str, str]
    over: bool = False  # one of its units was given to another container since

    @property
    def name(self) -> str:
        """The name of its device. No two allocations of one pod have the same first unit and number of units."""
        return f"allocation-{self.unit}-{self.units}"


@dataclass(frozen=True, slots=True)
class Toolkit:
    """The toolkit's specification: edits for every GPU container, and the edits of each device by name.

    `path`: its file, or several with commas between them.
    """

    path: str
    version: str
    common: Edits
    devices: Mapping[str, Edits]

    @property
    def by_uuid(self) -> bool:
        """True if it names any device by UUID; else it has no GPUs, or only indexes."""
        return any(name.startswith(("GPU-", "MIG-")) for name in self.devices)


def parse(path: Path, document: Any) -> Toolkit | None:
    """The toolkit's specification; None if the document is of another kind. Raises ValueError, KeyError, TypeError."""
    if document["kind"] != TOOLKIT:
        return None
    version = str(document["cdiVersion"])
    _numbers(version)
    devices = {str(entry["name"]): _edits(entry["containerEdits"]) for entry in document["devices"]}
    return Toolkit(str(path), version, _edits(document.get("containerEdits") or {}), devices)


def merge(toolkits: Sequence[Toolkit]) -> Toolkit:
    """One specification of these, in which a device is as the last one has it.

    A file's own edits are for its devices only: where files differ in them, each device gets those of its file.
    """
    owners = {name: toolkit for toolkit in toolkits for name in toolkit.devices}
    used = [toolkit for toolkit in toolkits if any(owner is toolkit for owner in owners.values())]
    alike = all(toolkit.common == used[0].common for toolkit in used)
    return Toolkit(
        path=", ".join(toolkit.path for toolkit in used),
        version=max((toolkit.version for toolkit in used), key=_numbers),
        common=used[0].common if alike else {},
        devices={
            name: toolkit.devices[name] if alike else _join((toolkit.common, toolkit.devices[name]))
            for name, toolkit in owners.items()
        },
    )


def _join(sections: Iterable[Edits]) -> dict[str, Any]:
    joined: dict[str, Any] = {}
    for edits in sections:
        for key, value in edits.items():
            joined[key] = [*joined.get(key, ()), *value] if isinstance(value, list) else value
    return joined


def _edits(section: Any) -> dict[str, Any]:
    """Lists by name; an empty one may be written as null."""
    edits = {name: value for name, value in dict(section).items() if value is not None}
    for name, value in edits.items():
        if not isinstance(value, (list, dict)):
            raise TypeError(f"containerEdits.{name} is no list")
    return edits


def has_all(document: Any) -> bool:
    """Whether a specification has a device `all`, as the toolkit's ones for GPUDirect Storage and the like do."""
    return any(isinstance(entry, dict) and entry.get("name") == "all" for entry in document["devices"])


def qualified_name(name: str) -> str:
    """The name by which a runtime knows a device of this specification."""
    return f"{KIND}={name}"


def specification(
    toolkit: Toolkit,
    devices: Mapping[str, str],
    allocations: Iterable[Allocation],
    earlier: Iterable[str] = (),
) -> dict[str, Any]:
    """The specification. `devices`: names by UUID. Devices that the toolkit does not know are excluded.

    `earlier`: device names of the file before. Their containers need them at a restart, even if the devices are no
    longer offered or have other names. They are looked up by the toolkit's names.
    """
    named = {name: toolkit.devices[name] for name in earlier if name in toolkit.devices and name != "all"}
    named |= {name: toolkit.devices[uuid] for uuid, name in devices.items() if uuid in toolkit.devices}
    plain = [{"name": name, "containerEdits": edits} for name, edits in named.items()]
    made = [
        _entry(allocation, toolkit)
        for allocation in allocations
        if all(uuid in toolkit.devices for uuid in allocation.devices)
    ]
    version = max(_numbers(toolkit.version), WITH_ANNOTATIONS if made else LEAST)
    common = dict(toolkit.common)
    # Runtimes apply the edits before the nvidia runtime, where it is used, looks at the variable. An image that
    # says "all", as CUDA's do, would otherwise get every GPU from it.
    env = [line for line in common.get("env", ()) if not line.startswith("NVIDIA_VISIBLE_DEVICES=")]
    common["env"] = [*env, "NVIDIA_VISIBLE_DEVICES=void"]
    return {
        "cdiVersion": ".".join(map(str, version)),
        "kind": KIND,
        "devices": [*plain, *made],
        "containerEdits": common,
    }


def _entry(allocation: Allocation, toolkit: Toolkit) -> dict[str, Any]:
    edits = _join(toolkit.devices[uuid] for uuid in allocation.devices)
    if "hooks" in edits:
        edits["hooks"] = [limits.bind_hook(hook, allocation.env) for hook in edits["hooks"]]
    edits["env"] = [*edits.get("env", ()), *(f"{name}={value}" for name, value in allocation.env.items())]
    notes = {ALLOCATION: json.dumps(asdict(allocation))}
    return {"name": allocation.name, "annotations": notes, "containerEdits": edits}


def allocations(document: Any) -> list[Allocation]:
    """The allocations in a specification of ours, oldest first. Raises ValueError, KeyError, TypeError, AttributeError."""
    notes = [
        json.loads(entry["annotations"][ALLOCATION])
        for entry in document["devices"]
        if ALLOCATION in entry.get("annotations", {})
    ]
    return [Allocation(**{**note, "devices": tuple(note["devices"])}) for note in notes]


def names(document: Any) -> list[str]:
    """The devices in a specification of ours that are no allocations. Raises KeyError, TypeError, AttributeError."""
    entries = document["devices"]
    return [str(entry["name"]) for entry in entries if ALLOCATION not in entry.get("annotations", {})]


def add_allocation(known: Sequence[Allocation], new: Allocation, units: Iterable[str]) -> list[Allocation]:
    """`known` and a new allocation of these units.

    No two containers use a unit at a time, so an older allocation with one of these units is probably over; the kubelet
    does not report the end of a container. It may not be over while a pod starts: the kubelet allocates for all its
    containers at once, and reuses units of an init container that has yet to run. So the last OVER_KEPT stay.
    """
    given = set(units)
    others = [
        allocation if allocation.unit not in given else replace(allocation, over=True)
        for allocation in known
        if allocation.name != new.name
    ]
    past = [allocation for allocation in others if allocation.over]
    gone = past[: max(0, len(past) - OVER_KEPT)]
    return [*(allocation for allocation in others if allocation not in gone), new]


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


# The same name as NVIDIA's plugin: runtimes do not resolve a device that two files name.
FILE = "k8s.device-plugin.nvidia.com-gpu.json"

STATIC = Path("/etc/cdi")  # for runtimes, a device in the other directory takes precedence

_RENEW = "on the host: systemctl restart nvidia-cdi-refresh, or nvidia-ctk cdi generate --output=/var/run/cdi/nvidia.yaml"


class CdiUnavailable(Exception):
    """Devices cannot be passed by CDI now; the message has the reason and the fix."""


class Specs:
    """The specification in a directory that the container runtime reads (/var/run/cdi). For any thread: file access is
    slow.

    The file is the only state: it survives this process, and keeps the devices of running containers.
    """

    def __init__(self, directory: Path, static: Path = STATIC) -> None:
        self._path = directory / FILE
        self._directories = [directory] if directory == static else [static, directory]
        self._lock = threading.RLock()
        self._seen: tuple[object, ...] = ()  # the directories' other files at the last read
        self._toolkit: Toolkit | str = ""
        self._kinds: frozenset[str] = frozenset()  # of specifications with a device `all`
        self._devices: Mapping[str, str] = {}
        self._good: tuple[object, ...] = ()  # our file and the others, after the last complete refresh

    def refresh(self, devices: Mapping[str, str]) -> Mapping[str, str]:
        """Name these devices (UUID -> name) in the file, with the toolkit's current edits.

        Returns by UUID why a device cannot be named. Cheap if nothing has changed.
        """
        with self._lock:
            same, self._devices = devices == self._devices, devices
            try:
                toolkit = self._read_toolkit()
                if same and self._good == (self._seen, identity(self._path)):
                    return {}
                self._write(toolkit, *self._read_own())
            except CdiUnavailable as error:
                return {uuid: _NAMELESS if "/" in uuid else str(error) for uuid in devices}
            unknown = {uuid: _not_named(toolkit, uuid) for uuid in devices if uuid not in toolkit.devices}
            if not unknown:
                self._good = (self._seen, identity(self._path))
            return unknown

    def edits(self, device: str) -> Edits:
        """The toolkit's edits for a device (UUID). Raises CdiUnavailable."""
        with self._lock:
            toolkit = self._read_toolkit()
        if device not in toolkit.devices:
            raise CdiUnavailable(_not_named(toolkit, device))
        return toolkit.devices[device]

    def features(self, wanted: Iterable[str]) -> tuple[list[str], list[str]]:
        """CDI device names for these features of the toolkit (gds, gdrcopy, mofed); and, for each feature without a
        specification, a sentence with the fix."""
        names, missing = [], []
        for feature in wanted:
            if f"nvidia.com/{feature}" in self._kinds:
                names.append(f"nvidia.com/{feature}=all")
            else:
                missing.append(
                    f"containers get no {feature}: there is no CDI specification of kind nvidia.com/{feature}; on the host: nvidia-ctk "
                    f"cdi generate --mode={feature} --class={feature} --output={self._path.parent}/nvidia-{feature}.yaml"
                )
        return names, missing

    def write(self, units: Sequence[str], devices: Sequence[str], env: Mapping[str, str]) -> str:
        """Write a device for one container: these GPUs or MIG devices (UUIDs), and variables after the pod's own.

        `units` are the container's ids from the kubelet. Returns the qualified name. Idempotent. Raises CdiUnavailable.
        """
        new = Allocation(min(units), len(units), tuple(devices), dict(env))
        with self._lock:
            for uuid in devices:
                self.edits(uuid)
            before, earlier = self._read_own()
            self._write(self._read_toolkit(), add_allocation(before, new, units), earlier)
        return qualified_name(new.name)

    def _read_toolkit(self) -> Toolkit:
        """The toolkit's specification, read again when any file in the directories has changed. Raises CdiUnavailable."""
        files = [path for directory in self._directories for path in self._files(directory)]
        seen = tuple((path, identity(path)) for path in files)
        if seen != self._seen or not self._seen:
            documents, broken = _documents(files)
            self._toolkit = self._merge(documents, broken)
            self._kinds = frozenset(document["kind"] for _, document in documents if has_all(document))
            self._seen = seen
        if isinstance(self._toolkit, str):
            raise CdiUnavailable(self._toolkit)
        return self._toolkit

    def _files(self, directory: Path) -> list[Path]:
        """Specifications but ours; none where there is no /etc/cdi. Raises CdiUnavailable."""
        try:
            return sorted(
                path
                for path in directory.iterdir()
                if path.suffix in (".yaml", ".json") and path != self._path
            )
        except OSError as error:
            if isinstance(error, FileNotFoundError) and directory != self._path.parent:
                return []
            raise CdiUnavailable(_cannot("look into", directory, error)) from None

    def _merge(self, documents: Iterable[tuple[Path, Any]], broken: str) -> Toolkit | str:
        """The toolkit's specifications of GPUs as one; or why there is none.

        Of two files of a directory the newer one counts, where runtimes resolve neither: ours is of another kind.
        """
        toolkits: list[tuple[tuple[int, float], Toolkit]] = []
        for path, document in documents:
            try:
                toolkit = parse(path, document)
                if toolkit is not None and toolkit.by_uuid:
                    place = self._directories.index(path.parent)
                    toolkits.append(((place, path.stat().st_mtime), toolkit))
                elif toolkit is not None:
                    broken = f"; {path} names no device by UUID (nvidia-ctk's --device-name-strategy)"
            except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
                broken = f"; {path} cannot be read as a CDI specification: {error}"
        if not toolkits:
            places = " or ".join(map(str, reversed(self._directories)))
            return f"no CDI specification of kind {TOOLKIT} in {places}, from which the plugin's own is made{broken}; {_RENEW}"
        return merge([toolkit for _, toolkit in sorted(toolkits, key=lambda item: item[0])])

    def _read_own(self) -> tuple[list[Allocation], list[str]]:
        """The file's allocations and device names; none if it cannot be parsed."""
        try:
            document = json.loads(self._path.read_bytes())
            return allocations(document), names(document)
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return [], []

    def _write(self, toolkit: Toolkit, known: Sequence[Allocation], earlier: Sequence[str]) -> None:
        """Replace the file if its content changes. Raises CdiUnavailable; the file is then unchanged."""
        document = specification(toolkit, self._devices, known, earlier)
        if not document["devices"]:
            return  # the format requires at least one
        new = json.dumps(document, sort_keys=True).encode()
        try:
            if self._path.read_bytes() == new:
                return
        except OSError:
            pass  # missing or unreadable: it is replaced
        try:
            replace_file(self._path, new)
        except OSError as error:
            raise CdiUnavailable(_cannot("write", self._path, error)) from None


def replace_file(path: Path, content: bytes) -> None:
    """Replace a file atomically. Raises OSError; `path` is then unchanged, and no temporary file is left.

    The new file is made in the same directory: a CDI cache (pkg/cdi/cache.go) reacts when the temporary name goes.
    """
    import tempfile  # 1 MiB, for few configurations

    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".new")
    fresh = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(handle)
        fresh.chmod(0o644)
        fresh.rename(path)
    except BaseException:
        fresh.unlink(missing_ok=True)
        raise


def _documents(files: Iterable[Path]) -> tuple[list[tuple[Path, Any]], str]:
    """The parsed CDI specifications among the files; and the problem of one that is none, or ""."""
    import yaml  # only where a CDI strategy is chosen

    from gpunode.contract import yaml_text

    documents, broken = [], ""
    for path in files:
        try:
            document = yaml_text.data(path.read_text(encoding="utf-8"))  # JSON is YAML
            if not isinstance(document["kind"], str) or not isinstance(document["devices"], list):
                raise TypeError("kind is not a word, or devices not a list")
            documents.append((path, document))
        except (OSError, ValueError, KeyError, TypeError, yaml.YAMLError) as error:
            broken = f"; {path} cannot be read as a CDI specification: {' '.join(str(error).split())}"
    return documents, broken


_NAMELESS = "drivers before branch 470 name MIG devices MIG-GPU-…/7/0, and CDI allows no slash: upgrade the driver, or set deviceListStrategy to envvar"


def _not_named(toolkit: Toolkit, uuid: str) -> str:
    if "/" in uuid:
        return _NAMELESS
    return f"device {uuid} is not in {toolkit.path} (a GPU whose MIG is on never is); {_RENEW}"


def _cannot(what: str, path: Path, error: OSError) -> str:
    hint = {
        errno.ENOSPC: "free some space there",
        errno.EDQUOT: "free some space there",
        errno.EROFS: "the directory has to be the host's, mounted writable",
        errno.EACCES: "the plugin has to run as root, with the host's directory mounted writable",
        errno.ENOENT: "mount the host's directory into the plugin's container",
    }.get(error.errno or 0)
    return f"cannot {what} {path}: {error.strerror}" + (f"; {hint}" if hint else "")
