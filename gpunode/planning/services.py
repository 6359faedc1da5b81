"""States of a host's systemd units."""

from __future__ import annotations

from gpunode.model import Facts


def is_loaded(facts: Facts, unit: str) -> bool:
    """Whether the unit exists and is not masked."""
    state = facts.units.get(unit)
    return state is not None and state.load == "loaded"


def is_active(facts: Facts, unit: str) -> bool:
    """Whether the unit is active."""
    state = facts.units.get(unit)
    return state is not None and state.active == "active"
