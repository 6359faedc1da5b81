"""The output of systemctl and journalctl for users of a simulated host."""

from __future__ import annotations

import sys
import time

from gpunode.sim.host.machine import UnitNow
from gpunode.sim.host.state import State

ACTIVE, INACTIVE, MISSING = 0, 3, 4  # systemctl's exit statuses
LINES = 10


def full(name: str) -> str:
    """A unit's name, completed as systemd does."""
    return name if "." in name else f"{name}.service"


def status(state: State, names: list[str]) -> int:
    """`systemctl status NAME...`."""
    now, worst = state.now(), ACTIVE
    for number, name in enumerate(map(full, names)):
        unit = now.units.get(name)
        if unit is None:
            sys.stderr.write(f"Unit {name} could not be found.\n")
            worst = MISSING
            continue
        worst = max(worst, ACTIVE if unit.active == "active" else INACTIVE)
        enabled = "enabled" if unit.enabled else "disabled"
        print("\n" * (number > 0) + f"{'×' if unit.active == 'failed' else '●'} {name}")
        print(f"     Loaded: loaded (/lib/systemd/system/{name}; {enabled})")
        print(f"     Active: {_active(unit)}")
        if unit.pid:
            print(f"   Main PID: {unit.pid} ({name.partition('.')[0]})")
        print("".join(f"\n{line}" for line in _lines(state.machine().name, unit)[-LINES:]))
    return worst


def is_active(state: State, names: list[str]) -> int:
    """`systemctl is-active NAME...`."""
    now = state.now()
    words = [now.units.get(full(name), UnitNow()).active for name in names]
    print("\n".join(words))
    return ACTIVE if "active" in words else INACTIVE


def journal(state: State, arguments: list[str]) -> int:
    """`journalctl -u NAME [-n COUNT]`, as users call it; the agent's form has its own, faster answer."""
    name, count = "", 0
    words = iter(arguments)
    for word in words:
        if word.startswith("-") and not word.startswith("--") and word.endswith(("u", "n")):
            value = next(words, "")
            if word.endswith("u"):
                name = full(value)
            elif value.isdigit():
                count = int(value)
        elif word.startswith("--unit="):
            name = full(word.partition("=")[2])
    if not name:
        sys.stderr.write(
            "journalctl: of a simulated host there are the journals of units: journalctl -u NAME\n"
        )
        return 1
    lines = _lines(state.machine().name, state.now().units.get(name, UnitNow()))
    print("\n".join(lines[-count:]) or "-- No entries --")
    return 0


def _active(unit: UnitNow) -> str:
    words = f"{unit.active} ({unit.sub})"
    if unit.active == "failed":
        words = "failed (Result: exit-code)"
    elif unit.sub == "auto-restart":
        words += " (Result: exit-code)"
    if unit.since:
        words += f" since {time.strftime('%a %Y-%m-%d %H:%M:%S UTC', time.gmtime(unit.since))}"
    return words


def _lines(host: str, unit: UnitNow) -> list[str]:
    return [
        f"{time.strftime('%b %d %H:%M:%S', time.gmtime(when))} {host} systemd[1]: {line}"
        for when, line in unit.journal
    ]
