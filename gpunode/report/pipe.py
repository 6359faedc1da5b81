"""The end of a report whose reader went away (`| head -1`): quiet, as of programs that SIGPIPE ends."""

from __future__ import annotations

import os
from typing import IO, Any, NoReturn

CODE = 141  # what a shell sees of those


def closed(stream: IO[Any]) -> NoReturn:
    """End the program; what the stream still holds is dropped, or Python would complain as it ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    raise SystemExit(CODE)
