"""gpunode's agent on simulated hosts: recognised in the command that starts it, and forked instead."""

from __future__ import annotations

import shlex

from gpunode.host import bundle
from gpunode.sim.forkserver import ForkServer

LOCALE = {"LC_ALL": "C"}  # of the agent; Python reads it at its own start
# Load the agent's imports and compile its modules, then remove its own modules again.
LOAD = """
import sys
finders, known = list(sys.meta_path), set(sys.modules)
exec(compile({agent!r}, "agent.py", "exec"), {{"__name__": "agent"}})
sys.meta_path[:], sys.excepthook = finders, sys.__excepthook__
for name in set(sys.modules) - known:
    if name.partition(".")[0] == "gpunode":
        del sys.modules[name]
"""


def fork_server() -> ForkServer:
    """A server whose forks are like a new `python3 -I -S`, where the agent's bootstrap compiles nothing again."""
    return ForkServer(LOAD.format(agent=bundle.program().encode()), environment=LOCALE)


def bootstrap(command: str) -> str | None:
    """The program in `exec /bin/sh -c 'SCRIPT' gpunode 'PROGRAM'`, as gpunode starts its agent; None in other commands.

    Every simulated host has what the script looks for: python3, and sudo without a password.
    """
    try:
        words = shlex.split(command)
    except ValueError:
        return None
    agent = words[:3] == ["exec", "/bin/sh", "-c"] and words[4:5] == ["gpunode"] and len(words) == 6
    return words[5] if agent else None
