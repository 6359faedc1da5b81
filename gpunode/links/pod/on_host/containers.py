"""Running containers that have device files of GPUs, and whether their device cgroups still allow these. Nothing is opened or run."""

import os
import re
import stat
from typing import Any, Callable, Dict, List, Optional, Tuple

from gpunode.agent.processes import CONTAINER, HOST, innermost, owner, task
from gpunode.agent.section import Section
from gpunode.agent.system import below, names_in, text_of

# Without these a program finds no GPU.
NEEDED = re.compile(r"nvidia(\d+|ctl|-uvm)$")
GPU = re.compile(r"nvidia\d+$")
Rules = Callable[[int, int], Optional[bool]]  # major, minor -> may be read and written; None: cannot be told


def read_gpu_containers(read: Section) -> List[Dict[str, Any]]:
    """Every container that was given device files of GPUs. `lost`: those that its cgroup refuses; None: it cannot be told."""
    if not any(GPU.match(name) for name in names_in("/dev")):
        return []
    cgroups, host = read.result(), text_of(HOST) or ""
    first: Dict[str, Tuple[int, str]] = {}  # container -> its first process, and the cgroup of that
    for cgroup, pid in sorted(cgroups.items(), key=lambda item: item[1]):
        container = innermost(cgroup, host, CONTAINER) or task(cgroup)
        # CRI-O's and podman's conmon watches over the container from the host.
        if container and "conmon-" not in cgroup:
            first.setdefault(container, (pid, cgroup))
    containers = []
    for container, (pid, cgroup) in first.items():
        devices = devices_of(pid)
        if any(GPU.search(path) for path in devices):
            allows = rules_of(cgroup)
            answers = {path: allows(*numbers) for path, numbers in sorted(devices.items())}
            lost = None if None in answers.values() else [path for path in answers if not answers[path]]
            containers.append(dict(owner(cgroup), container=container, devices=sorted(devices), lost=lost))
    return containers


def devices_of(pid: int) -> Dict[str, Tuple[int, int]]:
    """NVIDIA's device files in the /dev of a process's container, with major and minor; none where it has the host's /dev, or all
    devices, as a privileged one: it loses none, and nobody gave it these."""
    folder = "/proc/%d/root/dev" % pid
    devices = {}
    try:
        names = names_in(folder)
        if "kmsg" in names or os.path.samefile(below(folder), below("/dev")):
            return {}
        for name in filter(NEEDED.match, names):
            status = os.lstat(below(folder + "/" + name))
            if stat.S_ISCHR(status.st_mode):
                devices["/dev/" + name] = (os.major(status.st_rdev), os.minor(status.st_rdev))
    except OSError:  # it has just ended
        return {}
    return devices


def rules_of(cgroup: str) -> Rules:
    """What a device cgroup allows: in v1 its list, in v2 the programs that the kernel runs for it."""
    # Compiled only on hosts whose containers have GPUs.
    from gpunode.links.pod.on_host.device_rules import all_allow, in_list, read_programs

    listed = re.search(r"(?m)^\d+:(?:[^:\n]*,)?devices(?:,[^:\n]*)?:(/.*)$", cgroup)
    if listed:
        text = text_of("/sys/fs/cgroup/devices" + listed.group(1) + "/devices.list")
        return lambda major, minor: None if text is None else in_list(text, major, minor)
    unified = re.search(r"(?m)^0::(/.*)$", cgroup)
    programs = read_programs(below("/sys/fs/cgroup" + unified.group(1))) if unified else None
    return lambda major, minor: None if programs is None else all_allow(programs, major, minor)
