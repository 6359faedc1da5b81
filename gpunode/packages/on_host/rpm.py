"""The database of rpm, and the list of dnf's plugin versionlock: what is installed, and what is held."""

import os
import re
from fnmatch import fnmatchcase
from typing import Any, Dict, Iterable, Iterator, List, Optional, Set

from gpunode.agent.files import put
from gpunode.agent.machine import read_arch
from gpunode.agent.system import below, last, run, text_of
from gpunode.packages.on_host.dialects import as_dnf_has_it, lock_of, spoken

MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}
TOML_LOCKS = "/etc/dnf/versionlock.toml"
ZYPP_LOCKS = "/etc/zypp/locks"
ENTRY = re.compile(r"([^*?\[!#]+)-(\d+:[^*?\[]+)\.\*")  # as `dnf versionlock add` writes it


def read_rpms(patterns: Iterable[str]) -> Dict[str, Dict[str, Any]]:
    """Installed packages whose name matches, with their epoch.

    Packages of kernels, which are installed side by side, are called NAME-VERSION-RELEASE; those of another
    architecture NAME.ARCH.
    """
    wanted = list(patterns)
    answer = run("rpm", "-qa", "--qf", "%{NAME}\t%{EVR}\t%{ARCH}\n")
    if answer.status not in (0, 127):
        raise OSError("rpm -qa: " + last(answer.words, 1)[0])
    native = MACHINES.get(read_arch(), os.uname().machine)
    locks, by_name = [*locked(text_of(locklist()) or ""), *toml_locks()], zypp_locks()
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
            held = name in by_name or is_locked(locks, name, version, arch)
            found[key] = {"version": version, "held": held}
    return found


def toml_locks() -> List[str]:
    """The entries `NAME-EPOCH:VERSION-RELEASE` of dnf 5's list, which its own command writes."""
    found = []
    for block in (text_of(TOML_LOCKS) or "").split("[[packages]]")[1:]:
        name = re.search(r'^name\s*=\s*"([^"]+)"', block, re.M)
        evr = re.search(r'^key\s*=\s*"evr"\s*\ncomparator\s*=\s*"="\s*\nvalue\s*=\s*"([^"]+)"', block, re.M)
        if name and evr:
            found.append("%s-%s" % (name.group(1), with_epoch(evr.group(1))))
    return found


def zypp_locks() -> List[str]:
    """The names that libzypp's file of locks has."""
    return re.findall(r"^solvable_name:\s*(\S+)", text_of(ZYPP_LOCKS) or "", re.M)


def locklist() -> str:
    """The path of versionlock's list."""
    usual, names_it = spoken().locklist
    named = re.search(r"^\s*locklist\s*=\s*(/\S+)", text_of(names_it) or "", re.M)
    return named.group(1) if named else usual


def locked(text: str) -> Iterator[str]:
    """The packages that a list locks."""
    for line in text.splitlines():
        entry = line.strip()
        if entry and not entry.startswith(("#", "!")):
            yield as_dnf_has_it(entry)


def is_locked(locks: List[str], name: str, version: str, arch: str) -> bool:
    """Whether one of the locks names this version: the plugin reads both spellings of a missing epoch."""
    epoch, _, plain = version.rpartition(":")
    shapes = [name + "-" + (epoch or "0") + ":" + plain] + [name + "-" + plain] * (epoch in ("", "0"))
    names = shapes + [shape + "." + arch for shape in shapes]
    return any(fnmatchcase(shape, lock) for lock in locks for shape in names)


def change_locks(run_name: str, names: List[str], add: bool) -> Optional[str]:
    """Remove versionlock's own entries of these packages, and add those of their installed versions.

    The parts of a driver, which all have its epoch and version (releases may differ), go with it: with one of them free, `dnf upgrade` would
    fail. Other lines stay: entries with wildcards in the version are a user's. Returns the list as it was, None without one.
    """
    before = text_of(locklist())
    entries = [(line, ENTRY.fullmatch(as_dnf_has_it(line.strip()))) for line in (before or "").splitlines()]
    versions = {upstream(entry.group(2)) for _, entry in entries if entry and entry.group(1) in names}
    lines = [
        line
        for line, entry in entries
        if not entry or not goes_with(entry.group(1), entry.group(2), names, versions)
    ]
    if add:
        there = {name: with_epoch(package["version"]) for name, package in read_rpms(["*"]).items()}
        versions = {upstream(there[name]) for name in names if name in there}
        lines += [lock_of(n, v) for n, v in sorted(there.items()) if goes_with(n, v, names, versions)]
    write_locks(run_name, "".join(line + "\n" for line in lines), before)
    return before


def goes_with(name: str, version: str, names: List[str], versions: Set[str]) -> bool:
    """Whether a package is one of these, or a part of one: they have these versions."""
    return name in names or (upstream(version) in versions and not version.startswith("0:"))


def upstream(version: str) -> str:
    return version.rpartition("-")[0]


def with_epoch(version: str) -> str:
    return version if ":" in version else "0:" + version


def write_locks(run_name: str, text: Optional[str], before: Optional[str]) -> None:
    """Write the list, where it is not so already."""
    if text is None or text == (before or ""):
        return
    folder = os.path.dirname(below(locklist()))
    if not os.path.isdir(folder):
        os.makedirs(folder)
    put(locklist(), text.encode(), 0o644, None, run_name)
