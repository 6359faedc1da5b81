"""The facts of a host, read in parallel."""

import os
import sys
import time
from typing import Any, Dict, Optional

from gpunode.agent.machine import (
    read_arch,
    read_cgroup,
    read_os,
    read_secure_boot,
    read_units,
    read_uptime,
    read_versions,
)
from gpunode.agent.processes import count_containers, read_cgroups
from gpunode.agent.record import RECORDS, lock_holder, read_unconfirmed
from gpunode.agent.section import Section
from gpunode.agent.system import ROOT, Message, glob_of, line_of
from gpunode.engine.on_host.traces import read_traces
from gpunode.links.driver.on_host.gpus import (
    read_boot_default,
    read_gpu_users,
    read_installed_run,
    read_kernels,
    read_library_version,
    read_module_files,
    read_modules,
    read_pci,
    read_smi,
    read_stopped,
    read_unlinked,
)
from gpunode.links.kubelet.on_host import read_kubelet, read_watched_files
from gpunode.links.plugin.on_host import read_images
from gpunode.links.pod.on_host.containers import read_gpu_containers
from gpunode.links.runtime.on_host.containerd import read_containerd
from gpunode.links.runtime.on_host.docker import read_docker
from gpunode.packages.on_host import read_packages

PROBE_SECONDS = 60


def probe(watch: Dict[str, Any], own: Optional[str] = None, patience: float = PROBE_SECONDS) -> Message:
    """All facts. A section that fails or times out is None, with its reason in `errors`.

    `own` is the apply that probes, which is not reported as `running`.
    """
    deadline = time.monotonic() + patience
    arch, units = Section(read_arch), Section(read_units, watch["units"])
    cgroups, pci = Section(read_cgroups), Section(read_pci)
    modules, users, kubelet = Section(read_modules), Section(read_gpu_users), Section(read_kubelet, units)
    files = Section(read_watched_files, watch["files"], kubelet)
    sections: Dict[str, Section] = {
        "os": Section(read_os),
        "arch": arch,
        "uptime": Section(read_uptime),
        "cgroup": Section(read_cgroup),
        "secure_boot": Section(read_secure_boot),
        "pci": pci,
        "modules": modules,
        "kernels": Section(read_kernels),
        "boot_default": Section(read_boot_default),
        "module_files": Section(read_module_files),
        "versions": Section(read_versions),
        "unlinked": Section(read_unlinked),
        "library_version": Section(read_library_version),
        "installed_run": Section(read_installed_run),
        "smi": Section(read_smi, bool(watch.get("mig")), pci, modules, users),
        "packages": Section(read_packages, watch["packages"], arch),
        "units": units,
        "docker": Section(read_docker),
        "containerd": Section(read_containerd),
        "containers": Section(count_containers, cgroups),
        "gpu_containers": Section(read_gpu_containers, cgroups),
        "kubelet": kubelet,
        "gpu_users": users,
        "unconfirmed": Section(read_unconfirmed),
        "images": Section(read_images, watch["images"]),
        "files": files,
        "traces": Section(read_traces, files),
    }
    facts: Message = {
        "time": time.time(),
        "hostname": line_of("/proc/sys/kernel/hostname"),
        "kernel": line_of("/proc/sys/kernel/osrelease"),
        "boot_id": line_of("/proc/sys/kernel/random/boot_id"),
        "machine_id": line_of("/etc/machine-id") or line_of("/var/lib/dbus/machine-id"),
        "product_uuid": line_of("/sys/class/dmi/id/product_uuid"),
        "python": ".".join(str(part) for part in sys.version_info[:3]),
        "module_banner": line_of("/proc/driver/nvidia/version") or None,
        "stopped": read_stopped(),
        "running": None,
        "errors": {},
    }
    holder = lock_holder()
    if holder and holder["run"] != own:
        facts["running"] = holder
    for name, section in sections.items():
        facts[name] = None
        try:
            facts[name] = section.result(deadline, patience)
        except Exception as error:
            facts["errors"][name] = sentence(error)
    if facts["files"] and facts["running"] is None and glob_of(RECORDS + "/*/guard.json"):
        from gpunode.engine.on_host.guard import put_back_next  # only here: few probes need it

        facts["files"].update(put_back_next(facts["files"]))
    facts["packages"], facts["half_installed"] = facts["packages"] or (None, None)
    facts["traces"], facts["holds"] = facts["traces"] or (None, None)
    if not ROOT and os.geteuid():
        facts["errors"]["root"] = "the agent runs as user %d" % os.geteuid()
    if "packages" in facts["errors"]:
        facts["errors"]["half_installed"] = facts["errors"]["packages"]
    return facts


def sentence(error: Exception) -> str:
    """Why a section could not be read."""
    if not isinstance(error, OSError):
        return "gpunode does not understand the host's answer (%s: %.200s)" % (type(error).__name__, error)
    return "%s: %s" % (error.filename, error.strerror) if error.filename else str(error)
