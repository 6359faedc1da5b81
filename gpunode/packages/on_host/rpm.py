"""rpm's database, for all package systems that stand on it."""

import os
import re
from fnmatch import fnmatchcase
from typing import Any, Callable, Dict, Iterable

from gpunode.agent.machine import read_arch
from gpunode.agent.system import last, run

MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}
# Files that are not those that an index names, as dnf, yum and zypper have it.
DAMAGED = re.compile(
    r"checksum doesn't match|incorrect checksum|does not match (?:checksum|intended download)|[Dd]igest verification failed"
)


def read_rpms(patterns: Iterable[str], is_held: Callable[[str, str, str], bool]) -> Dict[str, Dict[str, Any]]:
    """Installed packages whose name matches, with their epoch. `is_held`: of a name, version and architecture.

    Packages of kernels, which are installed side by side, are called NAME-VERSION-RELEASE; those of another
    architecture NAME.ARCH.
    """
    wanted = list(patterns)
    answer = run("rpm", "-qa", "--qf", "%{NAME}\t%{EVR}\t%{ARCH}\n")
    if answer.status not in (0, 127):
        raise OSError("rpm -qa: " + last(answer.words, 1)[0])
    native = MACHINES.get(read_arch(), os.uname().machine)
    found: Dict[str, Dict[str, Any]] = {}
    for line in answer.out.splitlines():
        name, version, arch = line.split("\t")
        key = name if arch in (native, "noarch", "(none)") else name + "." + arch
        if name.startswith("kernel"):
            key = name + "-" + version
        if any(fnmatchcase(name, pattern) or fnmatchcase(key, pattern) for pattern in wanted):
            there = found.get(key, {}).get("version", version)
            # SUSE has those side by side, as kernels; "(none)" are the keys that were imported, all of one name
            if there != version and "-kmp-" not in key and arch != "(none)":
                sentence = "rpm has %s in two versions, %s and %s: a transaction was cut off (`dnf remove --duplicates`)"
                raise OSError(sentence % (key, there, version))
            found[key] = {"version": version, "held": is_held(name, version, arch)}
    return found
