"""What a machine's kernel and programs say of it, as files: written at every change, so that asking costs nothing."""

from __future__ import annotations

from pathlib import Path

from gpunode.sim.machine import Machine, Now


def write(folder: Path, machine: Machine, now: Now) -> None:
    """Bring the machine's /proc, /sys, /dev and the answers of its programs to how it is now."""
