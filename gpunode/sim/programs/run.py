"""Starts a host's program that changes something: `run.py NAME ARGUMENT...`, for the host that GPUNODE_ROOT names."""

from __future__ import annotations

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))


def main(name: str, arguments: list[str]) -> int:
    """Run it; returns its exit status."""
    from gpunode.sim.machine import State
    from gpunode.sim.programs import apt, kernel, runtimes, systemd

    state = State(Path(os.environ["GPUNODE_ROOT"]).parent)
    programs = {
        "apt-get": apt.get,
        "apt-mark": apt.mark,
        "apt-cache": apt.cache,
        "systemctl": systemd.systemctl,
        "modprobe": kernel.modprobe,
        "dockerd": runtimes.dockerd,
        "containerd": runtimes.containerd,
        "load": runtimes.load,
    }
    return programs[name](state, arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
