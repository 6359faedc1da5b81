"""dnf 4, dnf 5 and yum 3: their options and files; running one, one at a time, for as long as it prints something."""

import os
import re
import time
from typing import Callable, List, NamedTuple, Optional, Tuple

from gpunode.agent.failures import Failure
from gpunode.agent.package_manager import lock_free, posix_holder, run_exclusively
from gpunode.agent.processes import command_of
from gpunode.agent.record import Run
from gpunode.agent.system import below, have, line_of

# Nothing recommended (a display server), no clean-up of what others may use; a repository that does not answer is left
# out, as hosts have old ones.
YUM_OPTIONS = (
    "--setopt=exit_on_lock=1 --setopt=clean_requirements_on_remove=0 --setopt=*.skip_if_unavailable=1".split()
)


class Dialect(NamedTuple):
    """`declined`: how a dry run ends. `refresh`: the commands that reload repositories. `locklist`: of versionlock, and the
    file that may name another one; "": versions are locked by the command."""

    program: str
    options: List[str]
    pid_files: Tuple[str, ...]
    declined: str
    refresh: List[List[str]]
    locklist: Tuple[str, str]


DNF4 = Dialect(
    "dnf",
    [*YUM_OPTIONS, "--setopt=install_weak_deps=0", "--color=never"],
    ("/var/cache/dnf/metadata_lock.pid", "/var/cache/dnf/download_lock.pid", "/var/lib/dnf/rpmdb_lock.pid"),
    "Operation aborted",
    [["-y", "--refresh", "makecache"]],
    ("/etc/dnf/plugins/versionlock.list", "/etc/dnf/plugins/versionlock.conf"),
)
# dnf 5 has no --color. source: dnf5(8), dnf5-versionlock(8)
DNF5 = DNF4._replace(options=[*YUM_OPTIONS, "--setopt=install_weak_deps=0"], pid_files=(), locklist=("", ""))
# source: yum(8), yum-versionlock(1)
YUM = Dialect(
    "yum",
    [*YUM_OPTIONS, "--color=never"],
    ("/var/run/yum.pid",),
    "Exiting on user command",
    [["-y", "clean", "expire-cache"], ["-y", "makecache", "fast"]],
    ("/etc/yum/pluginconf.d/versionlock.list", "/etc/yum/pluginconf.d/versionlock.conf"),
)
RPM_LOCKS = ("/var/lib/rpm/.rpm.lock", "/usr/lib/sysimage/rpm/.rpm.lock")


def dialect() -> Dialect:
    """The host's; dnf 4 where it has none."""
    dnf = have("dnf")
    if dnf is not None:
        return DNF5 if os.path.basename(os.path.realpath(dnf)) == "dnf5" else DNF4
    return YUM if have("yum") else DNF4


def dnf(this: Run, *arguments: str) -> Tuple[int, str]:
    """Wait for its locks and run it: its status, and its output without passwords."""
    ours = dialect()
    pid = lock_free(this, ours.program, holder)
    if pid is not None:
        raise dnf_locked(pid)
    status, text = run_exclusively(this, [ours.program, *ours.options, *arguments], heard=follow(this))
    taken = (
        re.search(r"already locked by (\d+)|another copy is running as pid (\d+)", text) if status else None
    )
    if taken:
        raise dnf_locked(int(taken.group(1) or taken.group(2)))
    return status, text


def holder() -> Optional[int]:
    """The process that holds a lock of dnf's, whose files hold its pid, or of rpm's."""
    for path in dialect().pid_files:
        pid = line_of(path)
        if pid.isdigit() and os.path.isdir(below("/proc/" + pid)):
            return int(pid)
    return next((pid for pid in map(posix_holder, RPM_LOCKS) if pid), None)


def dnf_locked(pid: int) -> Failure:
    return Failure("dnf-locked", "%s is in use by %s (pid %d)" % (dialect().program, command_of(pid), pid))


def follow(this: Run) -> Callable[[str], None]:
    """Turns dnf's lines (`Installing : NEVRA  3/12`) into at most two progress messages a second."""
    sent = [0.0]

    def heard(text: str) -> None:
        steps = re.findall(r"^  ([A-Z][a-z ]+?) +: +(\S+) +(\d+)/(\d+) *$", text, re.M)
        if steps and time.monotonic() - sent[0] > 0.5:
            sent[0] = time.monotonic()
            word, package, number, count = steps[-1]
            this.progress("%s %s" % (word, package), round(100.0 * int(number) / int(count), 1))

    return heard
