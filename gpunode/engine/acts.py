"""What a plan does, in kinds of acts: which of them disturb work on the host, and which a user has accepted."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TypeAlias

from gpunode import packages
from gpunode.links.runtime import RUNTIMES
from gpunode.links.toolkit import cdi
from gpunode.links.toolkit import plan as toolkit_config
from gpunode.model import (
    Change,
    Disturbance,
    Facts,
    InstallDriver,
    KernelModule,
    LoadImage,
    Packages,
    Reboot,
    RemoveFile,
    SelinuxBoolean,
    Service,
    UninstallDriver,
    WriteFile,
)
from gpunode.wording import few

Act: TypeAlias = tuple[str, str]  # what is done, to what: ("install", "nvidia-open"), ("reboot", "")

REBOOT = ("reboot", "")
# They do one thing and end; no work depends on them. The reload of systemd before it is another matter: Service.loses.
QUIET = frozenset({cdi.UNIT, cdi.OWN, cdi.DEV_CHAR})
RUNTIME_UNITS = frozenset(unit for runtime in RUNTIMES.values() for unit in runtime.WATCH.units)
MODULES = frozenset({("unload", "modules"), ("load", "modules")})


def disturbance(changes: Iterable[Change], *, driver: Collection[str] = ()) -> Disturbance:
    """What these changes interrupt. `driver`: the names of installed packages that make up the driver."""
    changes = tuple(changes)
    names = [name for change in changes if isinstance(change, Packages) for name in _names(change)]
    return Disturbance(
        reboot=any(isinstance(change, Reboot) for change in changes),
        restarts=tuple(
            dict.fromkeys(
                change.unit
                for change in changes
                if isinstance(change, Service) and change.restart and change.unit not in QUIET
            )
        ),
        modules=any(isinstance(change, KernelModule) and change.unload for change in changes),
        devices=any(isinstance(change, Service) and change.loses for change in changes),
        packages=(
            *dict.fromkeys(name for name in names if name in driver),
            *(f"driver {change.version}" for change in changes if isinstance(change, UninstallDriver)),
        ),
    )


def outdate(changes: Iterable[Change], facts: Facts | None) -> bool:
    """Whether these change the driver, or what the runtime makes of a container: those that run keep the libraries and
    the runtime that they were started with. Or whether a reload of systemd takes the GPUs from them. Not by headers
    of the host's kernels: they only build modules."""
    system = packages.system_of_host(facts) if facts else None
    kernels = (*facts.kernels, facts.kernel) if facts and system else ()
    headers = {spec.name for kernel in kernels if system for spec in system.names.headers(kernel)}
    return any(
        isinstance(change, (InstallDriver, KernelModule, Reboot))
        or (isinstance(change, Packages) and set(_names(change)) - headers)
        or (isinstance(change, Service) and change.restart and change.unit in RUNTIME_UNITS)
        or (isinstance(change, Service) and change.loses)
        or (isinstance(change, WriteFile) and change.path in toolkit_config.CONFIG_WATCH.files)
        for change in changes
    )


def acts(changes: Iterable[Change]) -> frozenset[Act]:
    """The kinds of acts that these changes are: packages and units by name, files and modules without."""
    return frozenset(act for change in changes for act in _acts(change))


def unshown(changes: Iterable[Change], accepted: Collection[Act]) -> str:
    """Those acts that were not accepted, in words; "" when all were."""
    new = sorted(
        act for act in acts(changes) - frozenset(accepted) if REBOOT not in accepted or not _milder(act)
    )
    return few([" ".join(filter(None, act)) for act in new], 5)


def _milder(act: Act) -> bool:
    """True if a reboot does as much: it reloads modules and restarts every unit."""
    return act in MODULES or act[0] == "restart"


def _acts(change: Change) -> Iterable[Act]:
    match change:
        case WriteFile() | RemoveFile():
            return [("write", "files")]
        case Packages():
            return [("remove" if name in change.remove else "install", name) for name in _names(change)]
        case Service():
            verb = "restart" if change.restart else "enable"
            return [(verb, change.unit)]
        case KernelModule():
            return [("unload" if change.unload else "load", "modules")]
        case LoadImage():
            return [("load", "image")]
        case InstallDriver():
            return [("install", f"driver {change.version} by NVIDIA's installer")]
        case UninstallDriver():
            return [("uninstall", f"driver {change.version}")]
        case SelinuxBoolean():
            return [("set", f"SELinux boolean {change.name}")]
        case Reboot():
            return [REBOOT]
    return []


def _names(change: Packages) -> Iterable[str]:
    """The packages that are installed or removed; a hold changes none."""
    return [*(spec.name for spec in change.install), *change.remove]
