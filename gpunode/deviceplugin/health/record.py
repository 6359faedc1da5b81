"""Lasting Xids in a file, for the plugin's next process."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from . import FILE, Lasting

log = logging.getLogger(__name__)

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class XidRecord:
    """Lasting Xids of this boot of the host, by UUID. For any thread."""

    def __init__(self, directory: Path, boot_id: Path = BOOT_ID) -> None:
        self._path = directory / FILE
        self._lock = threading.Lock()
        self._stale = False  # the file: the last write failed
        try:
            self._boot = boot_id.read_text().strip()
        except OSError:
            self._boot = ""
        self._xids = dict(self._read())

    def get(self, uuid: str) -> Lasting | None:
        return self._xids.get(uuid)

    def set(self, uuid: str, lasting: Lasting | None) -> None:
        """Record a device's Xid; None: it has none. Called at each probe, and so tries a failed write again."""
        with self._lock:
            if lasting == self._xids.get(uuid) and not self._stale:
                return
            self._xids.pop(uuid, None)
            if lasting is not None:
                self._xids[uuid] = lasting
            xids = {known: asdict(one) for known, one in self._xids.items()}
            new = self._path.with_suffix(".new")
            try:
                self._path.parent.mkdir(exist_ok=True)
                new.write_text(json.dumps({"boot": self._boot, "xids": xids}))
                new.replace(self._path)  # not synced: a power cut is a boot
                self._stale = False
            except OSError as error:
                if not self._stale:
                    log.warning("a restarted plugin will not know the GPUs' Xids: %s", error)
                self._stale = True

    def _read(self) -> Mapping[str, Lasting]:
        try:
            found = json.loads(self._path.read_text())
            if found["boot"] == self._boot != "":
                return {uuid: _lasting(**one) for uuid, one in found["xids"].items()}
        except FileNotFoundError:
            pass
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            log.warning("cannot read the Xids of the plugin's earlier process: %s: %r", self._path, error)
        return {}


def _lasting(xid: int, energy: int | None) -> Lasting:
    """Raises TypeError or ValueError for what is no number."""
    return Lasting(int(xid), None if energy is None else int(energy))
