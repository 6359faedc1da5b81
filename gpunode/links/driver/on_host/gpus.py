"""The GPUs, their kernel modules and libraries, and the processes that use them."""

import os
import re
import stat
import time
from typing import Any, Dict, List, Optional

from gpunode.agent.failures import Failure
from gpunode.agent.processes import command_of, links, owner
from gpunode.agent.record import LIVE
from gpunode.agent.section import Section
from gpunode.agent.system import (
    Answer,
    below,
    glob_of,
    have,
    last,
    line_of,
    matches,
    names_in,
    number,
    resolve,
    run,
    text_of,
)


def read_pci() -> List[Dict[str, Any]]:
    """Every function of an NVIDIA device: GPUs, and their audio and USB functions, and NVSwitches; of Mellanox those InfiniBand
    functions that manage the NVSwitches of NVLink 5, which are on no PCI bus."""
    devices = []
    base = "/sys/bus/pci/devices"
    for address in sorted(names_in(base)):
        device = base + "/" + address
        vendor = line_of(device + "/vendor")[2:]
        if vendor != "10de" and not (vendor == "15b3" and manages_switches(device)):
            continue
        driver, width = below(device + "/driver"), device + "/current_link_width"
        devices.append(
            {
                "address": address,
                "vendor": vendor,
                "device": line_of(device + "/device")[2:],
                "cls": line_of(device + "/class")[2:],
                "subsystem": line_of(device + "/subsystem_device")[2:],
                "driver": os.path.basename(os.readlink(driver)) if os.path.islink(driver) else None,
                "width": number(line_of(width), width),
            }
        )
    return devices


def manages_switches(device: str) -> bool:
    """As NVIDIA's own start script for the fabric manager tells them (NVIDIA/gpu-driver-container: _assert_nvlink5_system)."""
    return line_of(device + "/class").startswith("0x0207") and "SW_MNG" in (text_of(device + "/vpd") or "")


def read_modules() -> Dict[str, Dict[str, Any]]:
    modules = {}
    patterns = ("nvidia*", "nouveau", "nova*", "ib_umad")
    for name in [name for name in names_in("/sys/module") if any(matches(name, each) for each in patterns)]:
        count = "/sys/module/%s/refcnt" % name
        version = line_of("/sys/module/%s/version" % name) or None
        modules[name] = {"version": version, "refcnt": number(line_of(count), count)}
    return modules


# Debian's own driver gives its modules other names: modprobe.d/nvidia.conf of its nvidia-kernel-support packages. So does
# Ubuntu's up to branch 384 (DEST_MODULE_NAME in its dkms.conf).
MODULE = r"(?m)^\S*/nvidia(-current(-open)?|-tesla-\d+|_\d{3})?\.ko"


def read_kernels() -> Dict[str, bool]:
    """The kernels that can be booted, and whether each has an nvidia module."""
    kernels = {}
    for path in glob_of("/boot/vmlinuz-*"):
        version = path[len("/boot/vmlinuz-") :]
        listed = text_of("/lib/modules/%s/modules.dep" % version)
        if listed is not None:  # a rescue image has no modules
            kernels[version] = re.search(MODULE, listed) is not None
    return kernels


def read_boot_default() -> Optional[str]:
    """The kernel that GRUB is told to start; "" where that is its first entry, the newest; None where it is not known."""
    text, asked = "", text_of("/etc/default/grub") or ""
    for path in glob_of("/etc/default/grub.d/*.cfg"):
        asked += "\n" + (text_of(path) or "")
    entry = (re.findall(r"(?m)^\s*GRUB_DEFAULT=[\"']?([^\"'\n#]*)", asked) or [""])[-1].strip()
    for path in ("/boot/grub2/grubenv", "/boot/grub/grubenv"):
        text += text_of(path) or ""
    kept = dict(re.findall(r"(?m)^(saved_entry|next_entry)=(.+)$", text))
    if entry == "saved" and text:  # a file without an entry: the first one
        entry = kept.get("saved_entry", "")
    entry = kept.get("next_entry", entry)
    named = [kernel for kernel in read_kernels() if kernel in entry]
    return max(named, key=len) if named else "" if entry in ("", "0") else None


def next_kernel() -> str:
    """The kernel of the next boot: as GRUB is told, else the newest; the running one where another would be older; "": not known."""
    running = line_of("/proc/sys/kernel/osrelease")
    default = read_boot_default()
    return default or ("" if default is None else max([running, *read_kernels()], key=order))


def order(release: str) -> List[int]:
    return [int(part) for part in re.findall(r"\d+", release)]


def read_module_files() -> List[str]:
    """The files of the running kernel that are the driver's module, below its folder in /lib/modules. A program of others decides
    by their names."""
    listed = text_of("/lib/modules/%s/modules.dep" % line_of("/proc/sys/kernel/osrelease")) or ""
    return sorted(match.group() for match in re.finditer(MODULE + r"[^\s:]*(?=:)", listed))


def read_library_version() -> Optional[str]:
    """The suffix of the real file behind the 64-bit libnvidia-ml.so.1."""
    for line in run("ldconfig", "-p").out.splitlines():
        name, _, path = line.strip().partition(" => ")
        if name.startswith("libnvidia-ml.so.1 ") and "64" in name:
            match = re.search(r"\.so\.(\d+\.[\d.]+)$", resolve(path))
            return match.group(1) if match else None
    return None


# Of NVIDIA's own installer (.run).
RECORD = "/var/lib/nvidia/log"  # first line: `1.0-58017804 (580.178.04)` (nvidia-installer's backup.c)
UNINSTALLER = "/usr/bin/nvidia-uninstall"


def read_installed_run() -> Optional[Dict[str, Any]]:
    """The driver that NVIDIA's installer has brought and can remove; None without one."""
    match = re.search(r"\((\d+[\d.]+)\)", line_of(RECORD))
    if not match or not os.path.exists(below(UNINSTALLER)):
        return None
    modules = text_of("/lib/modules/%s/modules.dep" % line_of("/proc/sys/kernel/osrelease")) or ""
    return {"version": match.group(1), "built": re.search(r"(?m)^([^:]*/)?nvidia\.ko", modules) is not None}


SMI_FIELDS = ["index", "uuid", "name", "pci.bus_id", "memory.total"]
SMI_MIG = ["mig.mode.current", "mig.mode.pending"]
SMI_FABRIC = ["index", "fabric.state", "fabric.status"]


def read_smi(mig: bool, pci: Section, *before: Section) -> Optional[Dict[str, Any]]:
    """The GPUs as nvidia-smi lists them. It runs after `before`, since it uses the GPUs and their module itself.

    `list` is `nvidia-smi -L`, run only if MIG is on: each call may take a second or more. None: it failed. `fabric`: of hosts with
    NVSwitches; [] from a driver that does not know it. `profiles`: the MIG profiles, for `mig`; some drivers list them only once MIG
    is on.
    """
    for section in before:
        section.wait()
    if have("nvidia-smi") is None:
        return None
    answer = query_gpus(SMI_FIELDS + SMI_MIG)
    if answer.status and "is not a valid field" in answer.out + answer.err:
        answer = query_gpus(SMI_FIELDS)  # before driver branch 450, which brought MIG
    if answer.status:
        return {"gpus": [], "error": "\n".join(last(answer.out + answer.err, 10)) or answer.message}
    rows = [[cell.strip() for cell in line.split(",")] for line in answer.out.splitlines() if line.strip()]
    rows = [row for row in rows if len(row) in (len(SMI_FIELDS), len(SMI_FIELDS + SMI_MIG))]
    smi: Dict[str, Any] = {
        "gpus": rows,
        "error": None,
        "list": "",
        "list_error": None,
        "fabric": [],
        "profiles": "",
    }
    if any(device["vendor"] == "15b3" or device["cls"].startswith("0680") for device in pci.result()):
        answer = query_gpus(SMI_FABRIC)
        cells = [[cell.strip() for cell in line.split(",")] for line in answer.out.splitlines()]
        smi["fabric"] = [] if answer.status else [row for row in cells if len(row) == len(SMI_FABRIC)]
    if mig:
        smi["profiles"] = run("nvidia-smi", "mig", "-lgip", timeout=15).out
    if any("Enabled" in row[len(SMI_FIELDS) :] for row in rows):
        listed = run("nvidia-smi", "-L", timeout=15)
        smi["list"] = None if listed.status else listed.out
        smi["list_error"] = (
            (last(listed.out + listed.err, 1) or [listed.message])[-1] if listed.status else None
        )
    return smi


def query_gpus(fields: List[str]) -> Answer:
    return run("nvidia-smi", "--query-gpu=" + ",".join(fields), "--format=csv,noheader,nounits", timeout=15)


def read_gpu_users() -> List[Dict[str, Any]]:
    """Processes with a GPU's device file open, or a device file or driver library mapped. `gpus`: the PCI addresses of
    those that each has open."""
    if not glob_of("/dev/nvidia*") and not os.path.isdir(below("/sys/module/nvidia")):
        return []
    users, minors = [], read_minors()
    for name in os.listdir(below("/proc")):
        process = "/proc/" + name
        if not name.isdigit() or not uses_gpu(process):
            continue
        opened = {minors[path] for path in links(process + "/fd") if path in minors}
        user = {"pid": int(name), "command": command_of(int(name)), "gpus": sorted(opened)}
        users.append(dict(user, **owner(text_of(process + "/cgroup") or "")))
    return sorted(users, key=lambda user: int(user["pid"]))


# The driver's, and DCGM
DAEMONS = ("nvidia-persistenced", "nv-fabricmanager", "nvidia-imex", "nv-hostengine")


STOPPED = LIVE + "/stopped"  # daemons that an apply stopped and has not started again; a boot starts them


def read_stopped() -> List[str]:
    return (text_of(STOPPED) or "").split()


def spare_newcomers(known: Optional[List[str]], patience: float, act: str, contained: bool = False) -> None:
    """Raises Failure where users of the GPUs, of containers if `contained`, are none of `known` (pids, and UIDs of pods) nor
    the driver's daemons, and have not ended after `patience` seconds: monitoring starts nvidia-smi again and again. `act`
    is what does not happen then. `known` None: it may end any user."""
    new = [] if known is None else newcomers(known, patience, contained)
    if new:
        sentence = "%s: since the plan these use the GPUs: %s" % (act, ", ".join(new[:8]))
        raise Failure("gpus-in-use", sentence)


def newcomers(known: List[str], patience: float, contained: bool) -> List[str]:
    deadline = time.monotonic() + patience
    while True:
        new = [
            "%s (pid %d%s)" % (user["command"], user["pid"], ", " + user["name"] if user["name"] else "")
            for user in read_gpu_users()
            if str(user["pid"]) not in known
            and user["pod"] not in known
            and (user["container"] or not contained)
            and not user["command"].startswith(DAEMONS)
        ]
        if not new or time.monotonic() >= deadline:
            return new
        time.sleep(0.5)


# Device files for which nvidia-ctk makes no link: cmd/nvidia-ctk/system/create-dev-char-symlinks/existing.go, nodeIsBlocked.
NEVER_LINKED = ("nvidia-fs", "nvidia-nvswitch", "nvidia-nvlink")


def read_unlinked() -> List[str]:
    """NVIDIA's device files without the link in /dev/char that udev makes for those of other drivers, as far as nvidia-ctk
    makes one for them."""
    paths = []
    for path in glob_of("/dev/nvidia*") + glob_of("/dev/nvidia-caps/nvidia-*"):
        if os.path.basename(path).startswith(NEVER_LINKED):
            continue
        try:
            status = os.stat(below(path))
        except OSError:
            continue  # a link to nowhere, or a device that has just gone
        link = "/dev/char/%d:%d" % (os.major(status.st_rdev), os.minor(status.st_rdev))
        if stat.S_ISCHR(status.st_mode) and not os.path.lexists(below(link)):
            paths.append(path)
    return paths


def read_minors() -> Dict[str, str]:
    """Device file of a GPU -> its PCI address."""
    base = "/proc/driver/nvidia/gpus"
    minors = {}
    for address in names_in(base):
        minor = re.search(r"Device Minor:\s*(\d+)", text_of("%s/%s/information" % (base, address)) or "")
        if minor:
            minors["/dev/nvidia" + minor.group(1)] = address
    return minors


def uses_gpu(process: str) -> bool:
    if any(target.startswith("/dev/nvidia") for target in links(process + "/fd")):
        return True
    return re.search(r"/dev/nvidia|/lib(cuda|nvidia-ml)\.so", text_of(process + "/maps") or "") is not None
