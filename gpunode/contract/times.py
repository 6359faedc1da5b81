"""Times as the cluster's API writes them. Pure."""

from __future__ import annotations

import time


def utc(seconds: float | None = None) -> str:
    """RFC 3339 in UTC, of whole seconds; without `seconds` of now."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))
