"""SELinux: the labels of new files, and the change `selinux_boolean`."""

import os
import sys
from typing import Optional

from gpunode.agent.failures import Failure
from gpunode.agent.record import Run
from gpunode.agent.system import Message, below, have, last, run


def relabel(path: str, label: Optional[str] = None) -> None:
    """Give a file that is new this label, or that which the policy has for its path; it has its folder's until then."""
    if label and sys.platform == "linux" and os.path.exists(below("/sys/fs/selinux/enforce")):
        os.setxattr(below(path), "security.selinux", label.encode())
    elif os.path.exists(below("/sys/fs/selinux/enforce")) and have("restorecon"):
        run("restorecon", below(path), timeout=60)


def selinux_boolean(_this: Run, change: Message) -> Message:
    state = "on" if change["on"] else "off"
    answer = run("setsebool", "-P", change["name"], state, timeout=300)
    if answer.status:
        sentence = "setsebool -P %s %s: %s" % (
            change["name"],
            state,
            (last(answer.message, 1) or ["no output"])[0],
        )
        raise Failure("selinux-failed", sentence, last(answer.message, 5))
    return {}
