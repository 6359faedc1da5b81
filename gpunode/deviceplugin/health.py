"""Whether a GPU can be trusted with work: what Xids mean, and one GPU's way to Unhealthy and back.

Pure: time and what was seen are handed in; `watch.py` does the looking.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from .config import BadConfig


class Verdict(Enum):
    """What an Xid asks for."""

    APPLICATION = "an application's fault; the GPU is fine"
    RESET = "reset the GPU (nvidia-smi --gpu-reset) or reboot the host"
    REBOOT = "reboot the host"
    HARDWARE = "drain the node and run diagnostics; the GPU or its board may have to be replaced"


# Source: NVIDIA, "Analyzing Xid Errors with the Xid Catalog" (docs.nvidia.com/deploy/xid-errors), column
# "Resolution Bucket (Immediate Action)": RESTART_APP and IGNORE -> APPLICATION; RESET_GPU -> RESET;
# RESTART_BM and RESTART_VM -> REBOOT; hardware that is named broken -> HARDWARE. 13, 31, 43, 45, 68 and 109 are
# also those that NVIDIA's device plugin does not act on. An Xid that is not listed counts as RESET.
XIDS: Mapping[int, tuple[Verdict, str]] = {
    8: (Verdict.APPLICATION, "GPU stopped processing"),
    11: (Verdict.APPLICATION, "invalid or corrupted push buffer stream"),
    13: (Verdict.APPLICATION, "graphics engine exception"),
    31: (Verdict.APPLICATION, "GPU memory page fault"),
    43: (Verdict.APPLICATION, "GPU stopped processing a channel"),
    45: (Verdict.APPLICATION, "preemptive cleanup, due to previous errors"),
    46: (Verdict.RESET, "GPU stopped processing"),
    48: (Verdict.RESET, "double bit ECC error"),
    63: (Verdict.APPLICATION, "memory row marked for remapping, takes effect at the next reset"),
    64: (Verdict.RESET, "memory row could not be remapped"),
    68: (Verdict.APPLICATION, "video processor exception"),
    74: (Verdict.RESET, "NVLink error"),
    79: (Verdict.REBOOT, "GPU has fallen off the bus"),
    94: (Verdict.APPLICATION, "contained memory error"),
    95: (Verdict.RESET, "uncontained memory error"),
    109: (Verdict.APPLICATION, "context switch timeout"),
    119: (Verdict.RESET, "GSP firmware does not answer"),
    120: (Verdict.RESET, "GSP firmware failed"),
    140: (Verdict.RESET, "ECC unrecovered error"),
    143: (Verdict.RESET, "GPU initialisation failed"),
}


def verdict(xid: int) -> tuple[Verdict, str]:
    """What Xid number `xid` asks for, and its name in words."""
    return XIDS.get(xid, (Verdict.RESET, "not in the catalogue that this plugin knows"))


@dataclass(frozen=True, slots=True)
class Attention:
    """Which Xids count, as NVIDIA's variables DP_DISABLE_HEALTHCHECKS and DP_ENABLE_HEALTHCHECKS say.

    DISABLE is `all` or `xids` (nothing is watched) or numbers to ignore; ENABLE is `all` or numbers to heed,
    and wins over both the table and DISABLE.
    """

    events: bool = True
    ignored: frozenset[int] = frozenset()
    heeded: frozenset[int] = frozenset()
    heed_all: bool = False

    @classmethod
    def read(cls, environ: Mapping[str, str]) -> Attention:
        """Raises BadConfig that names the variable and the word that is no Xid."""
        disable = _words("DP_DISABLE_HEALTHCHECKS", environ, ("all", "xids"))
        enable = _words("DP_ENABLE_HEALTHCHECKS", environ, ("all",))
        return cls(
            events=bool(enable) or not {"all", "xids"} & set(disable),
            ignored=frozenset(int(word) for word in disable if word.isdigit()),
            heeded=frozenset(int(word) for word in enable if word.isdigit()),
            heed_all="all" in enable,
        )

    def heeds(self, xid: int) -> bool:
        """Whether this Xid makes its GPU Unhealthy."""
        if self.heed_all or xid in self.heeded:
            return True
        return self.events and xid not in self.ignored and verdict(xid)[0] is not Verdict.APPLICATION


def _words(name: str, environ: Mapping[str, str], known: tuple[str, ...]) -> list[str]:
    words = [word.strip().lower() for word in environ.get(name, "").split(",") if word.strip()]
    wrong = [word for word in words if not word.isdigit() and word not in known]
    if wrong:
        raise BadConfig(f"{name}: {wrong[0]!r} is neither an Xid number nor one of {', '.join(known)}")
    return words


@dataclass(slots=True)
class Health:
    """One device's health. Becomes Unhealthy at once, Healthy again only after `quiet` seconds without trouble.

    Every relapse within an hour of a recovery doubles the wait (up to an hour), so that a GPU that comes and goes
    does not lure pods again and again.
    """

    quiet: float
    why: str | None = None  # None: Healthy
    _last_trouble: float = 0.0
    _recovered: float | None = None
    _wait: float = 0.0

    def xid(self, number: int, now: float) -> None:
        """An Xid that counts was raised for this device."""
        what, name = verdict(number)
        self._trouble(f"Xid {number}: {name}. {what.value}", now)

    def probed(self, problem: str | None, now: float) -> None:
        """The device was asked how it is; `problem` is None if it answered and has no complaint."""
        if problem is not None:
            self._trouble(problem, now)
        elif self.why is not None and now - self._last_trouble >= self._wait:
            self.why = None
            self._recovered = now

    def _trouble(self, why: str, now: float) -> None:
        if self.why is None:
            relapse = self._recovered is not None and now - self._recovered < 3600
            self._wait = min(self._wait * 2, 3600) if relapse else self.quiet
        self.why = why
        self._last_trouble = now
