"""Starts a host's program that changes something: `run.py NAME ARGUMENT...`, for the host that GPUNODE_ROOT names.

Half the cost of such a program is its imports: what few programs need is imported where it is used. What the agent starts is
forked instead (gpunode/sim/forkserver.py).
"""

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

# Program -> its module and function.
PROGRAMS = {
    "apt-get": ("apt", "apt_get"),
    "apt-mark": ("apt", "apt_mark"),
    "apt-cache": ("apt", "apt_cache"),
    "systemctl": ("systemd", "systemctl"),
    "journalctl": ("systemd", "journal"),
    "nvidia-smi": ("driver", "nvidia_smi"),
    "modprobe": ("driver", "modprobe"),
    "nvidia-installer": ("driver", "install"),
    "nvidia-uninstall": ("driver", "uninstall"),
    "dockerd": ("daemons", "dockerd"),
    "containerd": ("daemons", "containerd"),
    "load": ("daemons", "load_image"),
    "rmi": ("daemons", "remove_image"),
}

# As the scripts in programs/ call this file
CALL = r'exec "\$GPUNODE_SIM_PYTHON" -I "\$GPUNODE_SIM_RUN" ([\w-]+) "\$@"'


def find_program(script: str, arguments: Sequence[str]) -> str | None:
    """The program that this script of a host starts with all its arguments and without doing anything else; None: another one."""
    import re

    if whole := re.fullmatch(rf"#!/bin/sh\n{CALL}\n", script):
        return whole[1]
    rest = re.search(rf"\ncase \$1 in\n.*\n\*\) {CALL} ;;\nesac\n$", script, re.DOTALL)
    cases = re.findall(r"^([\w-]+)\)", script, re.MULTILINE)
    return rest[1] if rest and arguments and arguments[0] not in cases else None


def main(name: str, arguments: list[str]) -> int:
    """Run a program; returns its exit status."""
    from gpunode.sim.host.state import State

    state = State(Path(os.environ["GPUNODE_ROOT"]).parent)
    module, function = PROGRAMS[name]
    program = getattr(import_module(f"gpunode.sim.host.{module}"), function)
    return int(program(state, arguments))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
