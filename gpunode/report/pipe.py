"""Ends the program quietly when the reader of its output is gone (`| head -1`), as SIGPIPE does."""

from __future__ import annotations

import os
from typing import IO, Any, NoReturn

CODE = 141  # 128 + SIGPIPE, as shells report it


def closed(stream: IO[Any]) -> NoReturn:
    """Exit with 141. Drops the stream's buffer, or Python would print an error at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    raise SystemExit(CODE)
