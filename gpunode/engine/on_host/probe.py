"""The facts of a host, read in parallel."""

import concurrent.futures
import sys
import threading
import time
from typing import Any, Callable, Dict, List, Optional

from gpunode.agent.machine import (
    read_arch,
    read_cgroup,
    read_os,
    read_secure_boot,
    read_units,
    read_uptime,
    read_versions,
)
from gpunode.agent.processes import read_containers
from gpunode.agent.record import lock_holder
from gpunode.agent.system import Message, line_of
from gpunode.engine.on_host.confirmation import read_unconfirmed
from gpunode.links.driver.on_host.gpus import (
    read_boot_default,
    read_gpu_users,
    read_kernels,
    read_library_version,
    read_module_files,
    read_modules,
    read_pci,
    read_smi,
    read_unlinked,
)
from gpunode.links.driver.on_host.runfile import read_installed_run
from gpunode.links.kubelet.on_host import read_kubelet, read_watched_files
from gpunode.links.plugin.on_host import read_images
from gpunode.links.runtime.on_host.containerd import read_containerd
from gpunode.links.runtime.on_host.docker import read_docker
from gpunode.packages.on_host import read_half_installed, read_packages

PROBE_SECONDS = 60


def probe(watch: Dict[str, List[str]], own: Optional[str] = None, patience: float = PROBE_SECONDS) -> Message:
    """All facts. A section that fails or times out is None, with its reason in `errors`.

    `own` is the apply that probes, which is not reported as `running`.
    """
    deadline = time.monotonic() + patience
    units = begin(read_units, watch["units"])
    modules, users, kubelet = begin(read_modules), begin(read_gpu_users), begin(read_kubelet, units)
    sections: Dict[str, concurrent.futures.Future[Any]] = {
        "os": begin(read_os),
        "arch": begin(read_arch),
        "uptime": begin(read_uptime),
        "cgroup": begin(read_cgroup),
        "secure_boot": begin(read_secure_boot),
        "pci": begin(read_pci),
        "modules": modules,
        "kernels": begin(read_kernels),
        "boot_default": begin(read_boot_default),
        "module_files": begin(read_module_files),
        "versions": begin(read_versions),
        "unlinked": begin(read_unlinked),
        "library_version": begin(read_library_version),
        "installed_run": begin(read_installed_run),
        "smi": begin(read_smi, modules, users),
        "packages": begin(read_packages, watch["packages"]),
        "half_installed": begin(read_half_installed, watch["packages"]),
        "units": units,
        "docker": begin(read_docker),
        "containerd": begin(read_containerd),
        "containers": begin(read_containers),
        "kubelet": kubelet,
        "gpu_users": users,
        "unconfirmed": begin(read_unconfirmed),
        "images": begin(read_images, watch["images"]),
        "files": begin(read_watched_files, watch["files"], kubelet),
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
        "running": None,
        "errors": {},
    }
    holder = lock_holder()
    if holder and holder["run"] != own:
        facts["running"] = holder
    for name, section in sections.items():
        try:
            facts[name] = section.result(max(0.0, deadline - time.monotonic()))
        except concurrent.futures.TimeoutError:
            facts[name] = None
            facts["errors"][name] = "no answer within %g seconds" % patience
        except Exception as error:
            facts[name] = None
            facts["errors"][name] = sentence(error)
    return facts


def sentence(error: Exception) -> str:
    """Why a section could not be read."""
    if not isinstance(error, OSError):
        return "gpunode does not understand the host's answer (%s: %.200s)" % (type(error).__name__, error)
    return "%s: %s" % (error.filename, error.strerror) if error.filename else str(error)


def begin(read: Callable[..., Any], *arguments: Any) -> "concurrent.futures.Future[Any]":
    """Read in a thread that nothing waits for at exit: it may hang in the kernel, e.g. on a dead file server."""
    future: concurrent.futures.Future[Any] = concurrent.futures.Future()

    def work() -> None:
        try:
            future.set_result(read(*arguments))
        except Exception as error:
            future.set_exception(error)

    threading.Thread(target=work, daemon=True).start()
    return future
