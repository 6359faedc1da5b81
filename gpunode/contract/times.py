"""Times as the cluster's API writes them. Pure."""

import time

DAY = 86400.0  # seconds


def utc(seconds: float | None = None) -> str:
    """RFC 3339 in UTC, of whole seconds; without `seconds` of now."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))


def is_ahead(at: str, now: float) -> bool:
    """True if one of two clocks is wrong by more than a day: nobody knows how long what was made then holds."""
    return at > utc(now + DAY)
