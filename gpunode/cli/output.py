"""stdout and stderr, on terminals that lack characters and disks that are full."""

from __future__ import annotations

import codecs
import io
import os
import sys

from gpunode.errors import GpunodeError

PLAIN = {"✓": "+", "✗": "x", "·": "-", "…": "...", "≠": "!=", "“": '"', "”": '"'}


def take_any_character() -> None:
    """Let neither stream fail at a character that its encoding lacks, such as ✓."""
    codecs.register_error("gpunode", _signs)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="gpunode")


def plain(error: GpunodeError) -> str:
    """The error's text, safe for a terminal."""
    from gpunode.report.plain import lines

    return "\n".join(lines(str(error)))


def unwritable() -> str | None:
    """Why stdout takes no more, if so; what it still holds is then dropped, or Python would try again as it ends."""
    try:
        print(flush=True)  # unbuffered, it holds nothing that could be tried again
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return error.strerror or str(error)
    return None


def _signs(error: UnicodeError) -> tuple[str, int]:
    """The replacement for a character that the terminal cannot encode."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    lost = error.object[error.start : error.end]
    return "".join(PLAIN.get(sign, "?") for sign in lost), error.end
