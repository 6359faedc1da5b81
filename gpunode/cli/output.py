"""stdin, stdout and stderr: closed ones, terminals that lack characters, disks that are full."""

import codecs
import contextlib
import io
import os
import sys
from typing import Any

from gpunode.errors import GpunodeError

PLAIN = {"✓": "+", "✗": "x", "·": "-", "█": "#", "░": ".", "…": "...", "≠": "!=", "“": '"', "”": '"'}


def prepare() -> None:
    """Make the streams fit for use: a closed one is as /dev/null, and neither output fails at a character that its encoding
    lacks, such as ✓. What stderr does not take is lost: a progress line ends no run and changes no exit code."""
    codecs.register_error("gpunode", _signs)
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        if getattr(sys, name) is None:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free number: this one
            setattr(sys, name, open(number, mode, closefd=False))  # noqa: SIM115 - until the program ends
    with contextlib.suppress(OSError):  # it has no file descriptor in tests
        raw = _Lossy(sys.stderr.fileno(), "w", closefd=False)
        sys.stderr = io.TextIOWrapper(io.BufferedWriter(raw), sys.stderr.encoding, line_buffering=True)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="gpunode")


class _Lossy(io.FileIO):
    """A file that drops what cannot be written."""

    def write(self, data: Any) -> int | None:  # type: ignore[override]
        try:
            return super().write(data)
        except OSError:
            return len(data)


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
