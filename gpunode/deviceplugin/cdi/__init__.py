"""Keeps the plugin's own CDI specification, which the strategies cdi-cri and cdi-annotations point containers to.

It lies in the directory of the toolkit's, from which it is made (`spec.py`), so the plugin needs no other of the host's.
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
    names,
    parsed,
    qualified,
    specification,
)

# NVIDIA's plugin has the same: there are never two files that name one device, which runtimes would not resolve.
FILE = "k8s.device-plugin.nvidia.com-gpu.json"

_RENEW = "on the host: systemctl restart nvidia-cdi-refresh, or nvidia-ctk cdi generate --output=/var/run/cdi/nvidia.yaml"


class CdiUnavailable(Exception):
    """A container cannot be told its devices by CDI just now; says why and what to do."""


class Specs:
    """The specification in a directory that the container runtime reads (/var/run/cdi). May be called from any thread:
    what reads or writes files takes its time.

    The file is the only state: it survives this process, and what a running container was given stays in it.
    """

    def __init__(self, directory: Path) -> None:
        self._path = directory / FILE
        self._lock = threading.RLock()
        self._seen: tuple[object, ...] = ()  # the other files of the directory, when they were read last
        self._toolkit: Toolkit | str = ""
        self._kinds: frozenset[str] = frozenset()  # whose specification has a device `all`
        self._devices: Mapping[str, str] = {}
        self._good: tuple[object, ...] = ()  # our file and the others, when all was as it should be

    def refresh(self, devices: Mapping[str, str]) -> Mapping[str, str]:
        """Have the file name these devices (UUID -> name), with what the toolkit says of them now.

        Returns why a device cannot be given to containers, by its UUID. Costs next to nothing where all is as it was.
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
        """What the toolkit's specification has for a device (UUID). Raises CdiUnavailable."""
        with self._lock:
            toolkit = self._read_toolkit()
        if device not in toolkit.devices:
            raise CdiUnavailable(_unknown(toolkit, device))
        return toolkit.devices[device]

    def features(self, wanted: Iterable[str]) -> tuple[list[str], list[str]]:
        """The names of the CDI devices for these features of the toolkit (gds, gdrcopy, mofed); and, for each that
        nobody has specified, what to do."""
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
        """A device made for one container: these GPUs or MIG devices (UUIDs), and variables behind the pod's own.

        `units` are the ids that the kubelet gave the container. Returns the qualified name. Calling it again for the
        same container is right. Raises CdiUnavailable.
        """
        new = Allocation(min(units), len(units), tuple(devices), dict(env))
        with self._lock:
            for uuid in devices:
                self.edits(uuid)
            before, earlier = self._known()
            self._write(self._read_toolkit(), added(before, new, units), earlier)
        return qualified(new.name)

    def _read_toolkit(self) -> Toolkit:
        """What the toolkit's specification says, read again when any file in the directory has changed."""
        try:
            files = sorted(
                path
                for path in self._path.parent.iterdir()
                if path.suffix in (".yaml", ".json") and path != self._path
            )
            seen = tuple((path, _identity(path)) for path in files)
        except OSError as error:
            raise CdiUnavailable(_cannot("look into", self._path.parent, error)) from None
        if seen != self._seen or not self._seen:
            documents, broken = _documents(files)
            self._toolkit = _newest(self._path.parent, documents, broken)
            self._kinds = frozenset(document["kind"] for _, document in documents if has_all(document))
            self._seen = seen
        if isinstance(self._toolkit, str):
            raise CdiUnavailable(self._toolkit)
        return self._toolkit

    def _known(self) -> tuple[list[Allocation], list[str]]:
        """The allocations and the names of devices that the file holds; a file that cannot be understood holds none."""
        try:
            document = json.loads(self._path.read_bytes())
            return allocations(document), names(document)
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return [], []

    def _write(self, toolkit: Toolkit, known: Sequence[Allocation], earlier: Sequence[str]) -> None:
        """Replace the file if it is another. Raises CdiUnavailable; the file is then as it was."""
        document = specification(toolkit, self._devices, known, earlier)
        if not document["devices"]:
            return  # the format wants at least one
        new = json.dumps(document, sort_keys=True).encode()
        try:
            if self._path.read_bytes() == new:
                return
        except OSError:
            pass  # none yet, or none that can be read: it is replaced
        try:
            replace(self._path, new)
        except OSError as error:
            raise CdiUnavailable(_cannot("write", self._path, error)) from None


def _identity(path: Path) -> tuple[int, int, int] | None:
    """What tells one content of a file from another; None where there is no such file."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size


def replace(path: Path, content: bytes) -> None:
    """Put a file in the place of another at once. Raises OSError; `path` is then as it was, and nothing lies beside it.

    The new file is made in the same directory: a CDI cache (pkg/cdi/cache.go) wakes by the old name's going away.
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
    """What is in the files, as far as it looks like CDI specifications; and what is wrong with one that does not."""
    import yaml  # only where a CDI strategy is chosen

    found, broken = [], ""
    for path in files:
        try:
            document = yaml.safe_load(path.read_bytes())  # JSON is YAML
            if not isinstance(document["kind"], str) or not isinstance(document["devices"], list):
                raise TypeError("kind is not a word, or devices not a list")
            found.append((path, document))
        except (OSError, ValueError, KeyError, TypeError, yaml.YAMLError) as error:
            broken = f"; {path} cannot be read as a CDI specification: {' '.join(str(error).split())}"
    return found, broken


def _newest(directory: Path, documents: Iterable[tuple[Path, Any]], broken: str) -> Toolkit | str:
    """The toolkit's specification of GPUs, the newest if there are several; or why there is none."""
    found: list[tuple[float, Toolkit]] = []
    for path, document in documents:
        try:
            toolkit = parsed(path, document)
            if toolkit is not None and toolkit.by_uuid:
                found.append((path.stat().st_mtime, toolkit))
            elif toolkit is not None:
                broken = f"; {path} names no device by UUID (nvidia-ctk's --device-name-strategy)"
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            broken = f"; {path} cannot be read as a CDI specification: {error}"
    if not found:
        return f"no CDI specification of kind {TOOLKIT} in {directory}, from which the plugin's own is made{broken}; {_RENEW}"
    return max(found, key=lambda one: one[0])[1]


_NAMELESS = (
    "drivers before branch 470 name MIG devices MIG-GPU-…/7/0, and in CDI no name has a slash: upgrade the driver, or let "
    "deviceListStrategy be envvar"
)


def _unknown(toolkit: Toolkit, uuid: str) -> str:
    if "/" in uuid:
        return _NAMELESS
    return f"{toolkit.path} does not know device {uuid} (it never has a GPU whose MIG is on); {_RENEW}"


def _cannot(what: str, path: Path, error: OSError) -> str:
    hint = {
        errno.ENOSPC: "free some space there",
        errno.EDQUOT: "free some space there",
        errno.EROFS: "the directory has to be the host's, mounted writable",
        errno.EACCES: "the plugin has to run as root, with the host's directory mounted writable",
        errno.ENOENT: "mount the host's directory into the plugin's container",
    }.get(error.errno or 0)
    return f"cannot {what} {path}: {error.strerror}" + (f"; {hint}" if hint else "")
