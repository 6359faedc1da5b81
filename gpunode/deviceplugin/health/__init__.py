"""GPU health: which Xids make a GPU Unhealthy, and when it is Healthy again. Pure; `watch.py` reads NVML."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..settings.config import BadConfig
from ..status import Reason
from .xids import Verdict, name, verdict


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
    def read(cls, environ: Mapping[str, str]) -> XidPolicy:
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
    words = [word.strip().lower() for word in environ.get(variable, "").split(",") if word.strip()]
    wrong = [word for word in words if not word.isdecimal() and word not in known]
    if wrong:
        raise BadConfig(f"{variable}: {wrong[0]!r} is neither an Xid number nor one of {', '.join(known)}")
    return words


@dataclass(slots=True)
class Health:
    """One device's health: Unhealthy at once, Healthy again after `quiet` seconds without a problem.

    Every relapse within an hour of a recovery doubles the wait (up to an hour), so that a flapping GPU does not keep
    attracting pods.
    """

    quiet: float
    why: Reason | None = None  # None: Healthy
    _last_problem: float = 0.0
    _recovered: float | None = None
    _wait: float = 0.0

    def xid(self, number: int, now: float) -> None:
        """Record an Xid that counts."""
        words = f"Xid {number}: {name(number)}; {verdict(number).value}"
        self._fail(Reason(f"xid-{number}", words), now)

    def probed(self, problem: Reason | None, now: float) -> None:
        """Record the result of a probe; None: no problem."""
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
