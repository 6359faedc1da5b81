"""The refusal of a planner, which does not know the host's name."""

from __future__ import annotations

from gpunode.errors import GpunodeError


class CannotPlan(GpunodeError):
    """A host's state that no plan can be based on. The pipeline turns it into the host's `Refused`."""

    exit_code = 4


def at(path: str, text: str, offset: int) -> str:
    """`path:line:column` of an offset, counted as editors do."""
    line = text.count("\n", 0, offset) + 1
    column = offset - (text.rfind("\n", 0, offset) + 1) + 1
    return f"{path}:{line}:{column}"
