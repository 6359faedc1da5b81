"""A container's log, as the kubelet returns it to the API server."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple


class Log(NamedTuple):
    """The output of one life of a container, and whether it has ended."""

    path: Path
    over: Callable[[], bool]
