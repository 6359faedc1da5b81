"""The host's package system, its installed packages, the change `packages`; dpkg's and rpm's databases, for all systems that stand on them."""

import os
import re
from fnmatch import fnmatchcase
from importlib import import_module
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterable, List, Tuple

from gpunode.agent.failures import Failure
from gpunode.agent.machine import read_arch, read_os
from gpunode.agent.record import Run
from gpunode.agent.section import Section
from gpunode.agent.system import Message, have, last, run

if TYPE_CHECKING:
    from gpunode.agent.package_manager import PackageSystem

# The distributions that are made of each, as os-release names them and those that they are like, and its programs.
SYSTEMS = {
    "apt": ({"debian", "ubuntu"}, ["apt-get"]),
    "zypper": ({"suse", "sles", "opensuse"}, ["zypper"]),
    "dnf": ({"rhel", "fedora", "centos"}, ["dnf", "yum"]),
}


def name_of_system() -> str:
    """What the distribution itself is made of, whatever other package managers are installed on it; else by a program."""
    release = read_os()
    names = {release.get("ID", ""), *release.get("ID_LIKE", "").split()}
    fits = [system for system, (ids, _) in SYSTEMS.items() if ids & names]
    fits += [system for system, (_, programs) in SYSTEMS.items() if any(map(have, programs))]
    return fits[0] if fits else ""


def half_of(name: str) -> "PackageSystem":
    """A system's half on the host. Imported where it is needed: a probe waits for no other's, and with dpkg for none."""
    half: "PackageSystem" = import_module("gpunode.packages.%s.on_host" % name).SYSTEM
    return half


def read_packages(patterns: List[str], arch: Section) -> Tuple[Dict[str, Dict[str, Any]], List[str]]:
    """The matching packages that are fully installed, and those that dpkg has unpacked, or begun to, and not configured."""
    name = name_of_system() if patterns else ""
    if name == "apt":
        rows = dpkg_rows(patterns)
        unfinished = {name for status, name, _, _ in rows if status[1] in "HUF"}
        return installed_debs(rows, arch.result()), sorted(unfinished)
    if not name:
        return read_rpms(patterns, lambda *_: False) if patterns else {}, []
    return half_of(name).read(patterns), []


def packages(this: Run, change: Message) -> Message:
    from gpunode.agent.package_manager import note_planned

    name, specs = name_of_system(), change["install"]
    programs = [program for system, (_, all_) in SYSTEMS.items() if name in ("", system) for program in all_]
    if not name or not any(map(have, programs)):
        raise Failure("unsupported-package-manager", "this host has none of " + ", ".join(programs))
    system, names = half_of(name), [spec["name"] for spec in specs]
    if change["refresh"]:
        system.refresh(this)
    installed = system.read(change["remove"], True) if change["remove"] else {}
    remove = [name for name in sorted(installed) if name not in names]
    if specs or remove:
        system.make(this, specs, remove, change["purge"])
    note_planned(this, [*change["hold"], *change["release"]])
    left = system.read(change["release"]) if change["release"] else {}
    held = [name for name in left if left[name]["held"]]
    if held:  # last: they stay where the change is refused
        system.release(this, held)
    if change["hold"]:
        system.hold(this, change["hold"])
    present = system.read(names) if names else {}
    return {"packages": {name: present[name]["version"] for name in present}}


def installed_debs(rows: List[List[str]], native: str, broken: bool = False) -> Dict[str, Dict[str, Any]]:
    """Those of `dpkg_rows` that are fully installed; with `broken` also those half installed."""
    packages: Dict[str, Dict[str, Any]] = {}
    for status, name, version, arch in rows:
        if status[1] == "i" or (broken and status[1] not in "nc"):
            key = name if arch in (native, "all") else name + ":" + arch
            packages[key] = {"version": version, "held": status[0] == "h"}
    return packages


def dpkg_rows(patterns: List[str]) -> List[List[str]]:
    """State, name, version and architecture of each package whose name matches."""
    shape = "${db:Status-Abbrev}\t${Package}\t${Version}\t${Architecture}\n"
    answer = run("dpkg-query", "-W", "-f", shape, *patterns)
    if answer.status not in (0, 1, 127):  # 1: a pattern matches none
        raise OSError(" ".join(last(answer.message, 2)))
    rows = [line.split("\t") for line in answer.out.split("\n") if line]
    for row in rows:
        if len(row) != 4 or len(row[0]) < 2:
            raise OSError(
                "dpkg-query -W: expected a package's state, got %.60r; check /var/lib/dpkg/status"
                % "\t".join(row)
            )
    return rows


MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}
# Files that are not those that an index names, as dnf, yum and zypper have it.
DAMAGED = re.compile(
    r"checksum doesn't match|incorrect checksum|does not match (?:checksum|intended download)|[Dd]igest verification failed"
)


ARCH = r"\.(i[3-6]86|x86_64|aarch64)$"  # of a package of another architecture


def plain_name(key: str) -> str:
    """A package's own name, of that by which `read_rpms` calls it."""
    name = re.sub(ARCH, "", key)
    return name.rsplit("-", 2)[0] if name.startswith("kernel") else name


def is_named(name: str, arch: str, version: str, keys: List[str]) -> bool:
    """Whether a package of a transaction is one of these, as `read_rpms` calls them."""
    if name.startswith("kernel"):
        return name in keys or "%s-%s" % (name, version[2:] if version.startswith("0:") else version) in keys
    return (name if arch in (native_arch(), "noarch") else name + "." + arch) in keys


def native_arch() -> str:
    """The host's architecture, as rpm calls it."""
    return MACHINES.get(read_arch(), os.uname().machine)


def read_rpms(patterns: Iterable[str], is_held: Callable[[str, str, str], bool]) -> Dict[str, Dict[str, Any]]:
    """Installed packages whose name matches, with their epoch. `is_held`: of a name, version and architecture.

    Packages of kernels, which are installed side by side, are called NAME-VERSION-RELEASE; those of another
    architecture NAME.ARCH.
    """
    globs = list(patterns)
    answer = run("rpm", "-qa", "--qf", "%{NAME}\t%{EVR}\t%{ARCH}\n")
    if answer.status not in (0, 127):
        raise OSError("rpm -qa: " + last(answer.message, 1)[0])
    native = native_arch()
    rpms: Dict[str, Dict[str, Any]] = {}
    for line in answer.out.splitlines():
        name, version, arch = line.split("\t")
        key = name if arch in (native, "noarch", "(none)") else name + "." + arch
        if name.startswith("kernel"):
            key = name + "-" + version
        if any(fnmatchcase(name, pattern) or fnmatchcase(key, pattern) for pattern in globs):
            known = rpms.get(key, {}).get("version", version)
            # SUSE has those side by side, as kernels; "(none)" are the keys that were imported, all of one name
            if known != version and "-kmp-" not in key and arch != "(none)":
                sentence = "rpm has %s in two versions, %s and %s: a transaction was cut off (`dnf remove --duplicates`)"
                raise OSError(sentence % (key, known, version))
            rpms[key] = {"version": version, "held": is_held(name, version, arch)}
    return rpms
