"""A driver by NVIDIA's own installer (.run): one way at a time, so packages of a driver and another .run make way first."""

from __future__ import annotations

from collections.abc import Iterator

from gpunode.errors import CannotPlan
from gpunode.links.driver import modules
from gpunode.links.machine import pci
from gpunode.model import Change, DriverSpec, Facts, InstallDriver, KernelModule, Reboot, UninstallDriver
from gpunode.planning import packaging
from gpunode.planning.versions import numbers

# The first installer that takes --skip-module-load, and so works while another driver holds the GPUs.
# source: NVIDIA/nvidia-installer, option_table.h by tags
BESIDE = (550, 40, 7)


def pending(facts: Facts, wish: DriverSpec) -> str | None:
    """Why the installer has to run; None where it does not."""
    there, version = facts.installed_run, wish.version
    if there is None:
        return f"the driver {version} is not installed"
    if there.version != version:
        return f"the driver is {there.version}, not {version}"
    if facts.library_version != version:
        return f"the driver's library is {facts.library_version or 'missing'}, not {version}"
    if not there.built:
        return f"the running kernel {facts.kernel} has no module of the driver {version}"
    if facts.module_banner is not None and version in facts.module_banner:
        loaded = "open" if "Open Kernel Module" in facts.module_banner else "proprietary"
        if loaded != wish.flavour:
            return f"the loaded module is the {loaded} one, not the {wish.flavour} one"
    return None


def leave(facts: Facts, wish: DriverSpec) -> Iterator[Change]:
    """Uninstall it where packages are to bring the driver. Their modules, which come next, make the loaded ones unloadable."""
    if wish.run is None and facts.installed_run is not None:
        why = "packages of a driver and NVIDIA's installer overwrite each other's files"
        yield UninstallDriver(facts.installed_run.version, why)


def plan(facts: Facts, wish: DriverSpec, wrong: tuple[str, ...]) -> Iterator[Change]:
    """`wrong`: packages of a driver, which are removed first. The tools that build its module are there before."""
    reason = pending(facts, wish) or (f"{', '.join(wrong)} overwrote files of it" if wrong else None)
    if reason is None:
        yield from modules.plan(facts, wish, changed=False)
        return
    loaded, held = "nvidia" in facts.modules, modules.holders(facts)
    beside = bool(pci.taken(facts.pci) or (loaded and held))
    if beside and numbers(wish.version) < BESIDE:
        if pci.taken(facts.pci):
            return  # after the reboot that is planned for nouveau or nova
        raise CannotPlan(
            f"{reason}; {held}; an installer before 550.40.07 cannot work beside that",
            hint="Stop what uses the GPUs, or reboot the host; then run again.",
        )
    if loaded and not beside:
        yield modules.unload(facts, "NVIDIA's installer works only while no driver is loaded")
    if wrong:
        why = "packages of a driver and NVIDIA's installer overwrite each other's files"
        yield packaging.change(facts, why, remove=wrong, purge=True)
    if facts.installed_run is not None:
        yield UninstallDriver(facts.installed_run.version, reason, fault="")
    if wish.run is not None:
        yield InstallDriver(
            wish.version,
            wish.run.sha256,
            wish.flavour,
            wish.why[0].upper() + wish.why[1:],
            archive=wish.run.archive,
            url=wish.run.url,
            beside=beside,
            fault=reason,
        )
    if pci.taken(facts.pci):
        return
    if beside:
        yield Reboot(f"{reason}; {held}")
        return
    gone = modules.SERVICES["nvidia-persistenced"] if wrong else None
    daemons = tuple(unit for unit in modules.stopped(facts) if loaded and facts.gpu_users and unit != gone)
    yield KernelModule("the new driver's modules", load=modules.LOAD, services=daemons, fault="")
