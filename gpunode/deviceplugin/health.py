"""GPU health: which Xids make a GPU Unhealthy, and when it is Healthy again; `watch.py` reads NVML."""

import json
import logging
import re
import threading
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from gpunode.contract.config import BadConfig
from gpunode.contract.status import Reason
from gpunode.contract.typed import read
from gpunode.contract.xids import Verdict, verdict, xid_name

# In the kubelet's directory for device plugins, which each plugin can write. A kubelet that starts removes its files,
# but no folders (CleanupPluginDirectory in pkg/kubelet/cm/devicemanager/manager.go).
FILE = Path("gpunode/xids.json")


@dataclass(frozen=True, slots=True)
class XidPolicy:
    """Which Xids make a GPU Unhealthy, by NVIDIA's variables DP_DISABLE_HEALTHCHECKS and DP_ENABLE_HEALTHCHECKS.

    DISABLE is `all` or `xids`, or numbers to ignore. ENABLE is `all` or numbers that count; it takes precedence over
    the table and DISABLE.
    """

    ignore_all: bool = False
    ignored: frozenset[int] = frozenset()
    enabled: frozenset[int] = frozenset()
    enable_all: bool = False

    @classmethod
    def read(cls, environ: Mapping[str, str]) -> "XidPolicy":
        """Raises BadConfig with the variable and the word that is no Xid."""
        disable = _words("DP_DISABLE_HEALTHCHECKS", environ, ("all", "xids"))
        enable = _words("DP_ENABLE_HEALTHCHECKS", environ, ("all",))
        return cls(
            ignore_all=bool({"all", "xids"} & set(disable)),
            ignored=frozenset(int(word) for word in disable if word.isdecimal()),
            enabled=frozenset(int(word) for word in enable if word.isdecimal()),
            enable_all="all" in enable,
        )

    @property
    def events(self) -> bool:
        """True if any Xid counts."""
        return self.enable_all or bool(self.enabled) or not self.ignore_all

    def counts(self, xid: int) -> bool:
        """True if this Xid makes its GPU Unhealthy."""
        if self.enable_all or xid in self.enabled:
            return True
        return not self.ignore_all and xid not in self.ignored and verdict(xid) is not Verdict.APPLICATION


def _words(variable: str, environ: Mapping[str, str], known: tuple[str, ...]) -> list[str]:
    numbers = [word.strip().lower() for word in environ.get(variable, "").split(",") if word.strip()]
    wrong = [word for word in numbers if not re.fullmatch("[0-9]{1,9}", word) and word not in known]
    if wrong:
        raise BadConfig(f"{variable}: {wrong[0]!r} is neither an Xid number nor one of {', '.join(known)}")
    return numbers


@dataclass(frozen=True, slots=True)
class Lasting:
    """An Xid that lasts until the GPU was reset or the host has booted, where the driver reports no recovery action.

    `energy`: the GPU's counter at the last probe before the Xid, in mJ; it begins again with a reset. None: only a boot ends the Xid.
    """

    xid: int
    energy: int | None = None

    @property
    def reason(self) -> Reason:
        until = f"this is done: {verdict(self.xid).value}"
        if verdict(self.xid) is Verdict.RESET and self.energy is None:
            until = f"the host boots; after a reset delete {FILE} beside the plugin's socket, and its pod"
        return Reason(f"xid-{self.xid}", f"Xid {self.xid}: {xid_name(self.xid)}; Unhealthy until {until}")


@dataclass(slots=True)
class Health:
    """One device's health: Unhealthy at once, Healthy again after `quiet` seconds without a problem.

    `lasting` is a problem as long as it is set. Every relapse within an hour of a recovery doubles the wait (up to an hour), so that a flapping GPU does not keep
    attracting pods.
    """

    quiet: float
    why: Reason | None = None  # None: Healthy
    lasting: Lasting | None = None
    _last_problem: float = 0.0
    _recovered: float | None = None
    _wait: float = 0.0

    def xid(self, number: int, now: float, lasting: Lasting | None = None) -> None:
        """Record an Xid that counts. One that only a boot ends is not replaced by one that a reset ends, too."""
        if self.lasting is None or verdict(self.lasting.xid) is Verdict.RESET:
            self.lasting = lasting or self.lasting
        message = f"Xid {number}: {xid_name(number)}; {verdict(number).value}"
        self._fail(self.lasting.reason if self.lasting else Reason(f"xid-{number}", message), now)

    def record_probe(self, problem: Reason | None, now: float) -> None:
        """Record the result of a probe; None: no problem."""
        if problem is None and self.lasting is not None:
            problem = self.lasting.reason
        if problem is not None:
            self._fail(problem, now)
        elif self.why is not None and now - self._last_problem >= self._wait:
            self.why = None
            self._recovered = now

    def _fail(self, why: Reason, now: float) -> None:
        if self.why is None:
            relapse = self._recovered is not None and now - self._recovered < 3600
            self._wait = min(self._wait * 2, 3600) if relapse else self.quiet
        self.why = why
        self._last_problem = now


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
            xids = {known: asdict(lasting) for known, lasting in self._xids.items()}
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
            record = json.loads(self._path.read_text())
            if record["boot"] == self._boot != "":
                xids: Mapping[str, Lasting] = read(Mapping[str, Lasting], record["xids"], "xids")
                return xids
        except FileNotFoundError:
            pass
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            log.warning("cannot read the Xids of the plugin's earlier process: %s: %r", self._path, error)
        return {}
