"""Installed packages, and the change `packages`."""

from typing import Any, Dict, List

from gpunode.agent.failures import Failure
from gpunode.agent.machine import package_system, read_arch
from gpunode.agent.record import Run
from gpunode.agent.system import Message, have, last, run
from gpunode.packages.on_host import dnf, repositories, transaction, zypper
from gpunode.packages.on_host.apt import apt_get, wait_for_apt
from gpunode.packages.on_host.installation import argument, dry_run, finish_interrupted, install_failure
from gpunode.packages.on_host.rpm import read_rpms


def read_packages(patterns: List[str], broken: bool = False) -> Dict[str, Dict[str, Any]]:
    """The matching packages that are fully installed; with `broken` also those half installed."""
    found: Dict[str, Dict[str, Any]] = {}
    if not patterns:
        return found
    if package_system() in ("dnf", "zypper") or have("dpkg-query") is None:
        return read_rpms(patterns)
    native = read_arch()
    for status, name, version, arch in dpkg_rows(patterns):
        if status[1] == "i" or (broken and status[1] not in "nc"):
            key = name if arch in (native, "all") else name + ":" + arch
            found[key] = {"version": version, "held": status[0] == "h"}
    return found


def read_half_installed(patterns: List[str]) -> List[str]:
    """The matching packages that dpkg has unpacked, or begun to, and not configured."""
    if not patterns or package_system() != "apt" or have("dpkg-query") is None:
        return []
    return sorted({name for status, name, _, _ in dpkg_rows(patterns) if status[1] in "HUF"})


def dpkg_rows(patterns: List[str]) -> List[List[str]]:
    shape = "${db:Status-Abbrev}\t${Package}\t${Version}\t${Architecture}\n"
    rows = [
        line.split("\t") for line in run("dpkg-query", "-W", "-f", shape, *patterns).out.split("\n") if line
    ]
    for row in rows:
        if len(row) != 4 or len(row[0]) < 2:
            raise OSError(
                "dpkg-query -W: expected a package's state, got %.60r; check /var/lib/dpkg/status"
                % "\t".join(row)
            )
    return rows


def packages(this: Run, change: Message) -> Message:
    names = [spec["name"] for spec in change["install"]]
    system = package_system()
    if system is None or (system == "apt" and have("apt-get") is None):
        sentence = (
            "this host has no apt-get" if system else "this host has none of apt-get, dnf, yum and zypper"
        )
        raise Failure("unsupported-package-manager", sentence)
    if system == "apt":
        with_apt(this, change, names)
    elif system == "zypper":
        with_zypper(this, change, names)
    else:
        with_dnf(this, change, names)
    there = read_packages(names)
    return {"packages": {name: there[name]["version"] for name in there}}


def with_apt(this: Run, change: Message, names: List[str]) -> None:
    if change["refresh"]:
        repositories.refresh(this)
    specs = change["install"]
    installed = read_packages(change["remove"], broken=True) if change["remove"] else {}
    remove = [name for name in sorted(installed) if name not in names]
    if specs or remove:
        finish_interrupted(this)
        wanted = [argument(spec) for spec in specs] + [name + "-" for name in remove]
        dry_run(this, wanted, specs, remove)
        allow = ["--allow-downgrades", "--allow-change-held-packages"] + ["--purge"] * change["purge"]
        status, text = apt_get(this, "install", *allow, *wanted)
        if status:
            raise install_failure(this, text, specs)
    if change["hold"]:
        wait_for_apt(this)
        answer = run("apt-mark", "hold", *change["hold"], timeout=180)
        if answer.status:
            raise Failure("apt-failed", "apt-mark hold: " + last(answer.words, 1)[0], last(answer.words, 5))


def with_dnf(this: Run, change: Message, names: List[str]) -> None:
    if change["refresh"]:
        dnf.refresh(this)
    gone = read_packages(change["remove"])
    transaction.make(this, change["install"], [name for name in sorted(gone) if name not in names])
    if change["hold"]:
        transaction.hold(this, change["hold"])


def with_zypper(this: Run, change: Message, names: List[str]) -> None:
    if change["refresh"]:
        zypper.refresh(this)
    gone = read_packages(change["remove"])
    zypper.make(this, change["install"], [name for name in sorted(gone) if name not in names])
    if change["hold"]:
        zypper.hold(this, change["hold"])
