"""Writes the plugin's own CDI specification, for the strategies cdi-cri and cdi-annotations.

It is made from the toolkit's specifications (`spec.py`) in the same directory and in /etc/cdi, as runtimes read them.
"""

from __future__ import annotations

import errno
import json
import os
import tempfile
import threading
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from .spec import (
    TOOLKIT,
    Allocation,
    Edits,
    Toolkit,
    added,
    allocations,
    has_all,
    merged,
    names,
    parsed,
    qualified,
    specification,
)

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
                if same and self._good == (self._seen, _identity(self._path)):
                    return {}
                self._write(toolkit, *self._known())
            except CdiUnavailable as error:
                return {uuid: _NAMELESS if "/" in uuid else str(error) for uuid in devices}
            unknown = {uuid: _unknown(toolkit, uuid) for uuid in devices if uuid not in toolkit.devices}
            if not unknown:
                self._good = (self._seen, _identity(self._path))
            return unknown

    def edits(self, device: str) -> Edits:
        """The toolkit's edits for a device (UUID). Raises CdiUnavailable."""
        with self._lock:
            toolkit = self._read_toolkit()
        if device not in toolkit.devices:
            raise CdiUnavailable(_unknown(toolkit, device))
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
            before, earlier = self._known()
            self._write(self._read_toolkit(), added(before, new, units), earlier)
        return qualified(new.name)

    def _read_toolkit(self) -> Toolkit:
        """The toolkit's specification, read again when any file in the directories has changed. Raises CdiUnavailable."""
        files = [path for directory in self._directories for path in self._files(directory)]
        seen = tuple((path, _identity(path)) for path in files)
        if seen != self._seen or not self._seen:
            documents, broken = _documents(files)
            self._toolkit = self._merged(documents, broken)
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

    def _merged(self, documents: Iterable[tuple[Path, Any]], broken: str) -> Toolkit | str:
        """The toolkit's specifications of GPUs as one; or why there is none.

        Of two files of a directory the newer one counts, where runtimes resolve neither: ours is of another kind.
        """
        found: list[tuple[tuple[int, float], Toolkit]] = []
        for path, document in documents:
            try:
                toolkit = parsed(path, document)
                if toolkit is not None and toolkit.by_uuid:
                    place = self._directories.index(path.parent)
                    found.append(((place, path.stat().st_mtime), toolkit))
                elif toolkit is not None:
                    broken = f"; {path} names no device by UUID (nvidia-ctk's --device-name-strategy)"
            except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
                broken = f"; {path} cannot be read as a CDI specification: {error}"
        if not found:
            places = " or ".join(map(str, reversed(self._directories)))
            return f"no CDI specification of kind {TOOLKIT} in {places}, from which the plugin's own is made{broken}; {_RENEW}"
        return merged([one for _, one in sorted(found, key=lambda item: item[0])])

    def _known(self) -> tuple[list[Allocation], list[str]]:
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
            replace(self._path, new)
        except OSError as error:
            raise CdiUnavailable(_cannot("write", self._path, error)) from None


def _identity(path: Path) -> tuple[int, int, int] | None:
    """An identity that changes with the file's content; None if there is no file."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size


def replace(path: Path, content: bytes) -> None:
    """Replace a file atomically. Raises OSError; `path` is then unchanged, and no temporary file is left.

    The new file is made in the same directory: a CDI cache (pkg/cdi/cache.go) reacts when the temporary name goes.
    """
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

    found, broken = [], ""
    for path in files:
        try:
            document = yaml_text.data(path.read_text(encoding="utf-8"))  # JSON is YAML
            if not isinstance(document["kind"], str) or not isinstance(document["devices"], list):
                raise TypeError("kind is not a word, or devices not a list")
            found.append((path, document))
        except (OSError, ValueError, KeyError, TypeError, yaml.YAMLError) as error:
            broken = f"; {path} cannot be read as a CDI specification: {' '.join(str(error).split())}"
    return found, broken


_NAMELESS = (
    "drivers before branch 470 name MIG devices MIG-GPU-…/7/0, and in CDI no name has a slash: upgrade the driver, or let "
    "deviceListStrategy be envvar"
)


def _unknown(toolkit: Toolkit, uuid: str) -> str:
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
