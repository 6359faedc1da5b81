"""The refusal of code that knows a host's files but not the host's name."""

from __future__ import annotations

from gpunode.errors import GpunodeError


class Unfit(GpunodeError):
    """What is found on a host cannot be planned on. The pipeline makes it the host's `Refused`."""

    exit_code = 4


def at(path: str, text: str, offset: int) -> str:
    """`path:line:column` of an offset, counted as editors do."""
    line = text.count("\n", 0, offset) + 1
    column = offset - (text.rfind("\n", 0, offset) + 1) + 1
    return f"{path}:{line}:{column}"
