"""States of a host's systemd units."""

from __future__ import annotations

from collections.abc import Iterable

from gpunode.model import Facts
from gpunode.planning import files


def is_loaded(facts: Facts, unit: str) -> bool:
    """Whether the unit exists and is not masked."""
    state = facts.units.get(unit)
    return state is not None and state.load == "loaded"


def is_active(facts: Facts, unit: str) -> bool:
    """Whether the unit is active."""
    state = facts.units.get(unit)
    return state is not None and state.active == "active"


AT_START = "it reads its configuration at its start"


def restart(
    facts: Facts, unit: str, paths: Iterable[str], *, changed: bool, why: str = AT_START
) -> str | None:
    """Why a unit that reads these files at its start must be restarted; None: it need not. `changed`: this plan writes them, and
    `why` says what that restart is for."""
    if not is_active(facts, unit):
        return "it is not running"
    if changed:
        return why
    stale = next((path for path in paths if files.newer(facts, path, unit)), None)
    return f"{stale} is newer than the running one" if stale else None
