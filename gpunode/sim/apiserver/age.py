"""Ages as kubectl shows them."""

from __future__ import annotations

from datetime import datetime, timezone

MINUTE, HOUR, DAY, YEAR = 60, 3600, 86400, 365 * 86400


def human(seconds: float) -> str:
    """The age of a timestamp in kubectl's format: 119s, 5m30s, 3h, 2d5h."""
    for limit, unit, letter, below, small in (
        (2 * MINUTE, 1, "s", 0, ""),
        (10 * MINUTE, MINUTE, "m", 1, "s"),
        (3 * HOUR, MINUTE, "m", 0, ""),
        (8 * HOUR, HOUR, "h", MINUTE, "m"),
        (2 * DAY, HOUR, "h", 0, ""),
        (8 * DAY, DAY, "d", HOUR, "h"),
        (2 * YEAR, DAY, "d", 0, ""),
    ):
        if seconds < limit:
            whole, rest = divmod(max(0, int(seconds)), unit)
            return f"{whole}{letter}" + (f"{rest // below}{small}" if below and rest // below else "")
    return f"{int(seconds) // YEAR}y"


def since(time: str | None) -> str:
    """The age of an API object's time."""
    if not time:
        return "<unknown>"
    then = datetime.fromisoformat(time.replace("Z", "+00:00"))
    return human((datetime.now(timezone.utc) - then).total_seconds())


def between(begin: str, end: str) -> str:
    """The time from one API object's time to another."""
    first, last = (datetime.fromisoformat(time.replace("Z", "+00:00")) for time in (begin, end))
    return human((last - first).total_seconds())
