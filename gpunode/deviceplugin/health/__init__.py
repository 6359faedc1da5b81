"""Whether a GPU can be trusted with work: which Xids count, and one GPU's way to Unhealthy and back.

Pure: time and what was seen are handed in; `watch.py` does the looking.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..settings.config import BadConfig
from ..status import Reason
from .xids import Verdict, name, verdict


@dataclass(frozen=True, slots=True)
class Attention:
    """Which Xids count, as NVIDIA's variables DP_DISABLE_HEALTHCHECKS and DP_ENABLE_HEALTHCHECKS say.

    DISABLE is `all` or `xids`, or numbers to ignore; ENABLE is `all` or numbers to heed, and wins over both the table and
    DISABLE.
    """

    ignore_all: bool = False
    ignored: frozenset[int] = frozenset()
    heeded: frozenset[int] = frozenset()
    heed_all: bool = False

    @classmethod
    def read(cls, environ: Mapping[str, str]) -> Attention:
        """Raises BadConfig that names the variable and the word that is no Xid."""
        disable = _words("DP_DISABLE_HEALTHCHECKS", environ, ("all", "xids"))
        enable = _words("DP_ENABLE_HEALTHCHECKS", environ, ("all",))
        return cls(
            ignore_all=bool({"all", "xids"} & set(disable)),
            ignored=frozenset(int(word) for word in disable if word.isdecimal()),
            heeded=frozenset(int(word) for word in enable if word.isdecimal()),
            heed_all="all" in enable,
        )

    @property
    def events(self) -> bool:
        """Whether there is any Xid to listen for."""
        return self.heed_all or bool(self.heeded) or not self.ignore_all

    def heeds(self, xid: int) -> bool:
        """Whether this Xid makes its GPU Unhealthy."""
        if self.heed_all or xid in self.heeded:
            return True
        return not self.ignore_all and xid not in self.ignored and verdict(xid) is not Verdict.APPLICATION


def _words(variable: str, environ: Mapping[str, str], known: tuple[str, ...]) -> list[str]:
    words = [word.strip().lower() for word in environ.get(variable, "").split(",") if word.strip()]
    wrong = [word for word in words if not word.isdecimal() and word not in known]
    if wrong:
        raise BadConfig(f"{variable}: {wrong[0]!r} is neither an Xid number nor one of {', '.join(known)}")
    return words


@dataclass(slots=True)
class Health:
    """One device's health. Becomes Unhealthy at once, Healthy again only after `quiet` seconds without trouble.

    Every relapse within an hour of a recovery doubles the wait (up to an hour), so that a GPU that comes and goes
    does not lure pods again and again.
    """

    quiet: float
    why: Reason | None = None  # None: Healthy
    _last_trouble: float = 0.0
    _recovered: float | None = None
    _wait: float = 0.0

    def xid(self, number: int, now: float) -> None:
        """An Xid that counts was raised for this device."""
        words = f"Xid {number}: {name(number)}; {verdict(number).value}"
        self._trouble(Reason(f"xid-{number}", words), now)

    def probed(self, problem: Reason | None, now: float) -> None:
        """The device was asked how it is; `problem` is None if it answered and has no complaint."""
        if problem is not None:
            self._trouble(problem, now)
        elif self.why is not None and now - self._last_trouble >= self._wait:
            self.why = None
            self._recovered = now

    def _trouble(self, why: Reason, now: float) -> None:
        if self.why is None:
            relapse = self._recovered is not None and now - self._recovered < 3600
            self._wait = min(self._wait * 2, 3600) if relapse else self.quiet
        self.why = why
        self._last_trouble = now
