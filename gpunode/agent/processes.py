"""The host's processes, from /proc."""

import os
import re
from typing import Iterator, Optional

from gpunode.agent.system import below, line_of, text_of


def links(folder: str) -> Iterator[str]:
    """The targets of a folder's symbolic links, without those that are removed meanwhile."""
    try:
        names = os.listdir(below(folder))
    except OSError:
        return
    for name in names:
        try:
            yield os.readlink(below(folder + "/" + name))
        except OSError:
            continue


def command_of(pid: int) -> str:
    """A process's program and, for an interpreter, the script. Never other arguments, which may be secrets."""
    words = (text_of("/proc/%d/cmdline" % pid) or "").split("\0")
    if not words[0]:
        return line_of("/proc/%d/comm" % pid) or "?"
    names = [os.path.basename(word) for word in words[:2] if word]
    script = len(names) > 1 and not words[1].startswith("-")
    return (
        " ".join(names)
        if script and re.match(r"(python|platform-python|perl|ruby|bash|sh\b)", names[0])
        else names[0]
    )


def started_at(pid: int) -> Optional[str]:
    """When a process began, in clock ticks since the boot; None if there is no such process."""
    cells = line_of("/proc/%d/stat" % pid).rpartition(")")[2].split()  # its name may hold anything
    return cells[19] if len(cells) > 19 else None


def send_signal(pid: int, started: Optional[str], number: int) -> None:
    """Send a signal, unless the process has ended and another has its number."""
    if started_at(pid) == started:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            pass
