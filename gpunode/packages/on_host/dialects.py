"""dnf 4, dnf 5 and yum 3: their options, the files of their locks, and what they print."""

import os
import re
from typing import List, NamedTuple, Tuple

from gpunode.agent.failures import Failure
from gpunode.agent.system import have

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


def dialect() -> Dialect:
    """The host's. Raises Failure where it has none."""
    dnf = have("dnf")
    if dnf is not None:
        return DNF5 if os.path.basename(os.path.realpath(dnf)) == "dnf5" else DNF4
    if have("yum") is None:
        raise Failure("unsupported-package-manager", "this host has neither dnf nor yum")
    return YUM


def spoken() -> Dialect:
    """The host's, dnf 4 where it has none: for reading locks."""
    try:
        return dialect()
    except Failure:
        return DNF4


def lock_of(name: str, version: str) -> str:
    """A line of versionlock's list: `NAME-EPOCH:VERSION.*`, by yum `EPOCH:NAME-VERSION.*`."""
    epoch, _, rest = version.partition(":")
    return "%s:%s-%s.*" % (epoch, name, rest) if spoken() is YUM else "%s-%s.*" % (name, version)


def as_dnf_has_it(lock: str) -> str:
    """A lock in dnf's order, whoever wrote it."""
    of_yum = re.match(r"(\d+):(.+)-([^-]+-[^-]+)$", lock)
    return "%s-%s:%s" % (of_yum.group(2), of_yum.group(1), of_yum.group(3)) if of_yum else lock
