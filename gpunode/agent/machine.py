"""The machine's distribution, architecture, cgroup version and firmware."""

import glob
import os
import re
import shlex
from typing import Dict, Optional

from gpunode.agent.system import below, line_of, run, text_of


def read_os() -> Dict[str, str]:
    found = {}
    text = text_of("/etc/os-release") or text_of("/usr/lib/os-release") or ""
    for line in text.splitlines():
        key, equals, value = line.partition("=")
        if equals and not key.startswith("#"):
            found[key.strip()] = " ".join(shlex.split(value))
    return found


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
    for path in glob.glob(below("/sys/firmware/efi/efivars/SecureBoot-*")):
        with open(path, "rb") as file:
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
    found = {}
    for name, program in [*programs.items(), *((path, below(path)) for path in RUNC)]:
        number = re.search(
            r"(?m)^(?:systemd|runc version|.* CLI version) v?(\d[\w.]*)", run(program, "--version").out
        )
        if number:
            found[name] = number.group(1)
    return found
