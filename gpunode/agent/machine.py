"""The machine's distribution, architecture, cgroup version and firmware; systemd's units, and their lines in the journal."""

import os
import re
import shlex
import time
from typing import Any, Dict, Iterable, List, Optional

from gpunode.agent.system import below, glob_of, last, line_of, number, run, text_of


def read_os() -> Dict[str, str]:
    release = {}
    text = text_of("/etc/os-release") or text_of("/usr/lib/os-release") or ""
    for line in text.splitlines():
        key, equals, value = line.partition("=")
        if equals and not key.startswith("#"):
            try:
                release[key.strip()] = " ".join(shlex.split(value))
            except ValueError:  # a quote without its end
                release[key.strip()] = value.strip()
    return release


def read_arch() -> str:
    """By Debian's name, whatever the distribution."""
    answer = run("dpkg", "--print-architecture")
    machine = os.uname().machine
    return answer.out.strip() or {"x86_64": "amd64", "aarch64": "arm64"}.get(machine, machine)


def read_uptime() -> float:
    """Seconds since the boot. Raises OSError where the kernel names none."""
    line = line_of("/proc/uptime")
    if re.match(r"\d+(\.\d+)?( |$)", line) is None:
        raise OSError("/proc/uptime: expected a number of seconds, got %.60r" % line)
    return float(line.split()[0])


def read_cgroup() -> str:
    if os.path.exists(below("/sys/fs/cgroup/cgroup.controllers")):
        return "v2"
    return "hybrid" if os.path.isdir(below("/sys/fs/cgroup/unified")) else "v1"


def read_secure_boot() -> Optional[bool]:
    """Whether Secure Boot is on; None if unknown: no firmware folder (a container), or no such variable."""
    if not os.path.isdir(below("/sys/firmware/efi")):
        return False if os.path.isdir(below("/sys/firmware")) else None
    for path in glob_of("/sys/firmware/efi/efivars/SecureBoot-*"):
        with open(below(path), "rb") as file:
            return file.read()[4:5] == b"\1"
    return None


# What containers are started with beside the runc of PATH: what k3s, RKE2, k0s, CRI-O and MicroK8s bring.
RUNC = (
    "/var/lib/rancher/k3s/data/current/bin/runc",
    "/var/lib/rancher/rke2/bin/runc",
    "/var/lib/k0s/bin/runc",
    "/usr/libexec/crio/runc",
    "/snap/microk8s/current/bin/runc",
)


def read_versions() -> Dict[str, str]:
    """Version of systemd, nvidia-ctk and each runc, by its name or path; those that are there."""
    programs = {"systemd": "systemctl", "nvidia-ctk": "nvidia-ctk", "runc": "runc"}
    versions = {}
    for name, program in [*programs.items(), *((path, below(path)) for path in RUNC)]:
        number = re.search(
            r"(?m)^(?:systemd|runc version|.* CLI version) v?(\d[\w.]*)", run(program, "--version").out
        )
        if number:
            versions[name] = number.group(1)
    return versions


UNIT_PROPERTIES = (
    "LoadState,ActiveState,SubState,UnitFileState,ActiveEnterTimestampMonotonic,NRestarts,MainPID,Type,Result,"
    "ConditionResult"
)


def show_units(names: Iterable[str]) -> List[Dict[str, str]]:
    """`systemctl show` of all units at once, in the order asked for."""
    answer = run("systemctl", "show", "--no-pager", "-p", UNIT_PROPERTIES, "--", *names)
    if answer.status:
        raise OSError(answer.message)
    blocks = answer.out.strip("\n").split("\n\n")
    return [dict(line.split("=", 1) for line in block.splitlines() if "=" in line) for block in blocks]


def read_units(names: List[str]) -> Dict[str, Dict[str, Any]]:
    names = list(dict.fromkeys([*names, "kubelet.service"]))
    units = {}
    booted = time.time() - time.monotonic()
    answers = show_units(names)
    if len(answers) != len(names) or not all("LoadState" in answer for answer in answers):
        raise OSError("`systemctl show` does not answer for each of " + ", ".join(names))
    for name, shown in zip(names, answers):  # noqa: B905 - Python 3.10 has `strict`
        since, restarts, pid = (
            number(shown.get(key, ""), "%s of %s, by systemctl show" % (key, name))
            for key in ("ActiveEnterTimestampMonotonic", "NRestarts", "MainPID")
        )
        active = shown.get("ActiveState") in ("active", "reloading")
        units[name] = {
            "load": shown.get("LoadState", ""),
            "active": shown.get("ActiveState", ""),
            "sub": shown.get("SubState", ""),
            "enabled": shown.get("UnitFileState", ""),
            "active_since": booted + since / 1e6 if active and since else None,
            "restarts": restarts,
            "pid": pid,
        }
    return units


CHATTER = re.compile(
    r"Scheduled restart job|Main process exited|Failed with result|Start request repeated|Control process exited"
    r"|^(Started|Starting|Stopped|Stopping) |^Failed to start |Deactivated successfully|Consumed .* CPU time"
)


def journal(unit: str, count: int, since: Optional[float] = None) -> List[str]:
    """The unit's last lines in the journal; systemd's own lines only if there are no others."""
    newer = ["--since", "@%d" % since] if since else []
    lines = last(run("journalctl", "-u", unit, "-o", "cat", "--no-pager", "-n", "200", *newer).out, 200)
    return ([line for line in lines if not CHATTER.search(line)] or lines)[-count:]
