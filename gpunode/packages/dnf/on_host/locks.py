"""Installed packages, and which of them are held: by versionlock's list of dnf 4 and yum 3, or dnf 5's in TOML."""

import os
import re
from fnmatch import fnmatchcase
from typing import Any, Dict, Iterable, Iterator, List, Optional, Set

from gpunode.agent.files import put
from gpunode.agent.system import below, text_of
from gpunode.packages.dnf.on_host.program import YUM, dialect
from gpunode.packages.on_host.rpm import read_rpms

TOML_LOCKS = "/etc/dnf/versionlock.toml"
ENTRY = re.compile(r"([^*?\[!#]+)-(\d+:[^*?\[]+)\.\*")  # as `dnf versionlock add` writes it


def read(patterns: Iterable[str], _broken: bool = False) -> Dict[str, Dict[str, Any]]:
    """The matching packages; rpm has none that are half installed."""
    locks = [*locked(text_of(locklist()) or ""), *toml_locks()]
    return read_rpms(patterns, lambda name, version, arch: is_locked(locks, name, version, arch))


def toml_locks() -> List[str]:
    """The entries `NAME-EPOCH:VERSION-RELEASE` of dnf 5's list, which its own command writes."""
    found = []
    for block in (text_of(TOML_LOCKS) or "").split("[[packages]]")[1:]:
        name = re.search(r'^name\s*=\s*"([^"]+)"', block, re.M)
        evr = re.search(r'^key\s*=\s*"evr"\s*\ncomparator\s*=\s*"="\s*\nvalue\s*=\s*"([^"]+)"', block, re.M)
        if name and evr:
            found.append("%s-%s" % (name.group(1), with_epoch(evr.group(1))))
    return found


def locklist() -> str:
    """The path of versionlock's list."""
    usual, names_it = dialect().locklist
    named = re.search(r"^\s*locklist\s*=\s*(/\S+)", text_of(names_it) or "", re.M)
    return named.group(1) if named else usual


def locked(text: str) -> Iterator[str]:
    """The packages that a list locks."""
    for line in text.splitlines():
        entry = line.strip()
        if entry and not entry.startswith(("#", "!")):
            yield as_dnf_has_it(entry)


def lock_of(name: str, version: str) -> str:
    """A line of versionlock's list: `NAME-EPOCH:VERSION.*`, by yum `EPOCH:NAME-VERSION.*`."""
    epoch, _, rest = version.partition(":")
    return "%s:%s-%s.*" % (epoch, name, rest) if dialect() is YUM else "%s-%s.*" % (name, version)


def as_dnf_has_it(lock: str) -> str:
    """A lock in dnf's order, whoever wrote it."""
    of_yum = re.match(r"(\d+):(.+)-([^-]+-[^-]+)$", lock)
    return "%s-%s:%s" % (of_yum.group(2), of_yum.group(1), of_yum.group(3)) if of_yum else lock


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
        there = {name: with_epoch(package["version"]) for name, package in read(["*"]).items()}
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
