"""A container's log, as whoever keeps it gives it to the API server."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple


class Log(NamedTuple):
    """What one life of a container wrote, and whether that life is over."""

    path: Path
    over: Callable[[], bool]
