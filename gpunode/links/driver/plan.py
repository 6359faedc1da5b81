"""NVIDIA's driver: packages of the right branch or its own installer, modules in the same version, fabric manager and persistence daemon."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Literal

from gpunode import packages
from gpunode.errors import CannotPlan
from gpunode.links.driver import modules, origin
from gpunode.links.driver.modules import SERVICES
from gpunode.links.machine import pci
from gpunode.model import (
    Change,
    Desired,
    DriverSpec,
    Facts,
    Flavour,
    InstallDriver,
    KernelModule,
    Package,
    Packages,
    PackageSpec,
    Reboot,
    Service,
    UninstallDriver,
    Watch,
)
from gpunode.packages.names import PackageNames, PackageSystem
from gpunode.planning import files, services, versions
from gpunode.planning.versions import branch_of, is_installed, numbers, upstream

AT_BOOT = "/etc/modules-load.d/gpunode.conf"
AFTER_EVERY_BOOT = "loads the modules at boot"
DGX = "/etc/dgx-release"
# By the startup probe of the GPU Operator's driver container, which takes it away when it stops: NVIDIA/gpu-operator,
# assets/state-driver (nvidia-driver-startup-probe), cmd/nvidia-validator.
CONTAINER = "/run/nvidia/validations/.driver-ctr-ready"

WATCH = Watch(files=(AT_BOOT, DGX, CONTAINER), units=tuple(modules.SERVICES.values()))


def plan(facts: Facts, desired: Desired) -> tuple[Change, ...]:
    """Packages, then modules. Their reasons name what a reboot or a reload ends."""
    driver, system = desired.driver, packages.system_of_host(facts)
    if driver is None or system is None:
        return ()
    wrong = _wrong_packages(facts, driver, system.names)
    changed = bool(wrong) or facts.installed_run is not None
    return (
        *(system.plan_branch(facts, driver) if driver.run is None else ()),
        *leave_run(facts, driver),
        *_packages(facts, driver, system, missing(facts, desired), wrong if driver.run is None else ()),
        *files.write_own(facts, AT_BOOT, AFTER_EVERY_BOOT, modules=modules.at_boot(driver)),
        *(plan_run(facts, driver, wrong) if driver.run else modules.plan(facts, driver, changed=changed)),
    )


def module_after(facts: Facts, desired: Desired) -> Literal["absent", "rebooted", "loaded", "reloaded"]:
    """What the steps after this one find of the module: absent, where nothing loads it; there only after a reboot; as
    it is loaded now; or loaded by this step."""
    planned = plan(facts, desired)
    taken = desired.driver is not None and pci.held_by_linux(facts.pci)
    if taken or any(isinstance(change, Reboot) for change in planned):
        return "rebooted"
    if any(isinstance(change, KernelModule) and "nvidia" in change.load for change in planned):
        return "reloaded"
    return "loaded" if "nvidia" in facts.modules else "absent"


def missing(facts: Facts, desired: Desired) -> tuple[PackageSpec, ...]:
    """The packages to install, the pin first. Headers only while no fitting module is loaded, as it needs building."""
    driver = desired.driver
    if driver is None:
        return ()
    absent = tuple(
        spec
        for spec in driver.specs
        if spec.name in driver.replaces or not is_installed(facts.packages, spec)
    )
    loaded = facts.modules.get("nvidia")
    built = loaded is not None and loaded.version is not None and branch_of(loaded.version) == driver.branch
    builds = not built or any(spec in absent for spec in driver.packages)
    if driver.run is not None:
        builds = pending_run(facts, driver) is not None
    return tuple(spec for spec in absent if builds or spec not in (*driver.headers, *driver.modules[:1]))


def _wrong_packages(facts: Facts, driver: DriverSpec, names: PackageNames) -> tuple[str, ...]:
    """Installed driver packages of another branch or of the other flavour, and their fabric's of another branch. All of a
    driver that is newer than the desired one, and packages as new beside it, if the package system cannot downgrade. All of
    a driver that NVIDIA's own installer replaces."""
    if driver.archive:
        return driver.replaces
    family = names.driver_family(facts.packages)
    other: Flavour = "proprietary" if driver.flavour == "open" else "open"
    beside = (*names.accessories(facts.packages), *names.fabric(facts.packages))
    parts = {**family, **{name: facts.packages[name] for name in beside}}
    # A prebuilt module has its kernel's version, and the branch in its name.
    own = {
        n: branch_of(p.version) or (origin.named_branch(n) if names.prebuilt else None)
        for n, p in parts.items()
    }
    wrong = {name for name, branch in own.items() if branch not in (None, driver.branch)}
    if driver.run is not None:
        versioned = {name for name, p in parts.items() if branch_of(p.version)}
        return tuple(sorted(wrong | set(family) | versioned - set(names.fabric(versioned))))
    later = _later_parts(parts, driver, names)
    if later & set(family):
        wrong |= set(family) | later
    wrong |= {*names.of_flavour(family, other), *driver.replaces}
    return tuple(sorted(wrong - set(names.pins(wrong))))


def _later_parts(parts: Mapping[str, Package], driver: DriverSpec, names: PackageNames) -> set[str]:
    """The parts of a later version than the wished one, where the package system does not go back."""
    if not driver.version or names.goes_back:
        return set()
    desired = numbers(driver.version)
    return {n for n, p in parts.items() if branch_of(p.version) and numbers(upstream(p.version)) > desired}


def later_driver(facts: Facts, driver: DriverSpec) -> str:
    """The version of the loaded driver, if it is later than the desired one; else ""."""
    loaded, desired = facts.modules.get("nvidia"), numbers(driver.version) or (driver.branch,)
    now = loaded.version if loaded and loaded.version else ""
    return now if numbers(now)[: len(desired)] > desired else ""


def _packages(
    facts: Facts,
    driver: DriverSpec,
    system: PackageSystem,
    install: tuple[PackageSpec, ...],
    wrong: tuple[str, ...],
) -> Iterator[Packages]:
    """Wrong packages are removed first: branches share names, and apt replaces them safely only in two steps."""
    if wrong:
        whose = "another driver's, or of another branch or flavour"
        why = whose if driver.replaces else f"another branch or flavour; {driver.why}"
        installed = {spec.name: facts.packages[spec.name] for spec in driver.packages if spec.name in wrong}
        if _later_parts(installed, driver, system.names):
            why = f"a later version than {driver.version}, and the package system does not downgrade"
        yield versions.change_packages(facts, why, remove=wrong)
    rest = tuple(spec for spec in install if spec not in driver.pin)
    headers = tuple(spec for spec in rest if spec in driver.headers)
    if headers and (system.rpm or driver.run is not None):
        yield versions.change_packages(
            facts, "the module is built with the running kernel's headers", install=headers
        )
        rest = tuple(spec for spec in rest if spec not in headers)
    ahead = tuple(spec for spec in rest if spec in driver.ahead_headers)
    if ahead:
        how = "this is the distribution's" if driver.modules else "dkms builds it with these headers"
        why = f"kernel {driver.ahead} boots next and has no nvidia module: {how}"
        yield versions.change_packages(facts, why, install=ahead)
        rest = tuple(spec for spec in rest if spec not in ahead)
    first = tuple(spec for spec in rest if spec in driver.modules)
    if first and any(spec.version.startswith("=") for spec in rest):
        why = "the module is the distribution's, and the driver's programs must be of its version"
        yield versions.change_packages(facts, why, install=first)
        rest = tuple(spec for spec in rest if spec not in first)
    kept = [spec.name for spec in (*driver.packages, *driver.fabric)]
    # apt may forget a hold when it installs, so all are held again then
    held = any(spec.name in kept for spec in rest)
    hold = tuple(n for n in kept if held or n not in facts.packages or not facts.packages[n].held)
    if rest:
        why = driver.why[0].upper() + driver.why[1:]
        if later := later_driver(facts, driver):
            why += f": a downgrade from {later}"
        yield versions.change_packages(facts, why, install=rest, hold=hold)
    elif hold:
        yield versions.change_packages(
            facts,
            "an upgrade from outside would give the library another version than the loaded module",
            hold=hold,
        )


# --- NVIDIA's own installer ------------------------------------------------------------------------------
#
# One way at a time: packages of a driver and another .run make way first.

# The first installer that takes --skip-module-load, and so works while another driver holds the GPUs.
# source: NVIDIA/nvidia-installer, option_table.h by tags
BESIDE = (550, 40, 7)


def pending_run(facts: Facts, driver: DriverSpec) -> str | None:
    """Why the installer has to run; None where it does not."""
    installed, version = facts.installed_run, driver.version
    if installed is None:
        return f"the driver {version} is not installed"
    if installed.version != version:
        return f"the driver is {installed.version}, not {version}"
    if facts.library_version != version:
        return f"the driver's library is {facts.library_version or 'missing'}, not {version}"
    if not installed.built:
        return f"the running kernel {facts.kernel} has no module of the driver {version}"
    loaded = modules.loaded_flavour(facts)
    if version in (facts.module_banner or "") and loaded != driver.flavour:
        return f"the loaded module is the {loaded} one, not the {driver.flavour} one"
    return None


def leave_run(facts: Facts, driver: DriverSpec) -> Iterator[Change]:
    """Uninstall it where packages are to bring the driver. Their modules, which come next, make the loaded ones unloadable."""
    if driver.run is None and facts.installed_run is not None:
        why = "packages of a driver and NVIDIA's installer overwrite each other's files"
        yield UninstallDriver(facts.installed_run.version, why)


def plan_run(facts: Facts, driver: DriverSpec, wrong: tuple[str, ...]) -> Iterator[Change]:
    """`wrong`: packages of a driver, which are removed first. The tools that build its module are there before."""
    reason = pending_run(facts, driver) or (f"{', '.join(wrong)} overwrote files of it" if wrong else None)
    if reason is None:
        yield from modules.plan(facts, driver, changed=False)
        return
    loaded, held = "nvidia" in facts.modules, modules.holders(facts)
    beside = bool(pci.held_by_linux(facts.pci) or (loaded and held))
    if beside and numbers(driver.version) < BESIDE:
        if pci.held_by_linux(facts.pci):
            return  # after the reboot that is planned for nouveau or nova
        raise CannotPlan(
            f"{reason}; {held}; an installer before 550.40.07 cannot work beside that",
            hint="Stop what uses the GPUs, or reboot the host; then run again.",
        )
    daemons: tuple[str, ...] = ()
    if loaded and not beside:
        unload = modules.unload(facts, "NVIDIA's installer works only while no driver is loaded")
        daemons = unload.services
        yield unload
    if wrong:
        why = "packages of a driver and NVIDIA's installer overwrite each other's files"
        yield versions.change_packages(facts, why, remove=wrong, purge=True)
    if facts.installed_run is not None:
        yield UninstallDriver(facts.installed_run.version, reason, fault="")
    if driver.run is not None:
        yield InstallDriver(
            driver.version,
            driver.run.sha256,
            driver.flavour,
            driver.why[0].upper() + driver.why[1:],
            archive=driver.run.archive,
            url=driver.run.url,
            beside=beside,
            fault=reason,
        )
    if pci.held_by_linux(facts.pci):
        return
    if beside:
        yield Reboot(f"{reason}; {held}")
        return
    yield KernelModule("the new driver's modules", load=modules.LOAD, services=daemons, fault="")


# --- Daemons ------------------------------------------------------------------------------------------------
#
# The fabric manager joins the GPUs of a host with NVSwitch; without it CUDA answers error 802 there. Its package must be of exactly
# the driver's version, so both are installed together. For NVSwitches of NVLink 5 its start script, which fails before the module
# ib_umad is there, starts nvlsm too. source: NVIDIA/gpu-driver-container (nvidia-driver: _ensure_nvlink5_prerequisites).

FABRIC = "nvidia-fabricmanager.service"
FABRIC_WATCH = Watch(units=(FABRIC,), packages=("nvlsm", "infiniband-diags"))


def plan_fabric(facts: Facts, desired: Desired) -> tuple[Change, ...]:
    """Enable and start its unit once the modules are loaded; before a reboot only enable it, as that starts it."""
    driver = desired.driver
    if driver is None or not driver.switches:
        return ()
    after = module_after(facts, desired)
    loads = after == "reloaded"
    missing = driver.subnet and modules.UMAD not in facts.modules
    needed = (modules.load(facts, (modules.UMAD,), "the fabric manager does not start"),) if missing else ()
    unit = facts.units.get(FABRIC)
    runs = unit is not None and unit.active == "active"
    stays = unit is not None and unit.enabled == "enabled"
    installed = all(is_installed(facts.packages, spec) for spec in (*driver.fabric, *driver.subnet))
    if after == "rebooted":
        why = "the reboot starts it: it joins the GPUs over NVSwitch"
        return () if stays and installed else (Service(FABRIC, why, enable=True, start=False, fault=""),)
    if after == "absent":
        return ()
    if runs and stays and not loads and not needed and installed:
        return ()
    fault = None if runs else f"{FABRIC} is not active: CUDA answers error 802 on a host with NVSwitch"
    why = "joins the GPUs over NVSwitch; without it CUDA answers error 802"
    restart = not runs or loads or not installed  # it aborts CUDA's jobs
    if not restart and stays:
        return needed
    ends = services.user_keys(facts.gpu_users) if runs and restart else None
    return (*needed, Service(FABRIC, why, enable=True, restart=restart, ends=ends, fault=fault))


# It keeps the GPUs initialized. source: the drop-in of Azure's images (linux-system-roles/hpc). Its condition on a device file is one
# on the module here: the daemon makes the device files itself.
PERSISTENCED = SERVICES["nvidia-persistenced"]
PERSISTENCE_DROP_IN = f"/etc/systemd/system/{PERSISTENCED}.d/gpunode.conf"
PERSISTENCE_WATCH = Watch(files=(PERSISTENCE_DROP_IN,), units=(PERSISTENCED,))


def plan_persistence(facts: Facts, desired: Desired) -> tuple[Change, ...]:
    """Its drop-in, where the unit is there or comes with the packages; nothing is restarted for it."""
    driver, unit = desired.driver, facts.units.get(PERSISTENCED)
    if driver is None:
        return ()
    comes = driver.run is None and any(not is_installed(facts.packages, spec) for spec in driver.packages)
    absent = unit is None or unit.load == "not-found"
    if not (services.is_loaded(facts, PERSISTENCED) or (absent and comes)):
        return ()
    why = "The daemon starts after the modules and restarts after a failure, from the next boot on"
    changes = files.write_own(facts, PERSISTENCE_DROP_IN, why)
    return tuple(replace(change, fault="") for change in changes)  # the daemon may well run without it


def plan_daemons(facts: Facts, desired: Desired) -> tuple[Change, ...]:
    """Start those that a killed apply has stopped, for a driver or for MIG layouts, which a host with `driver: none` has too."""
    fabric = [change.unit for change in plan_fabric(facts, desired) if isinstance(change, Service)]
    starts = tuple(modules.start(facts, fabric))
    return starts if starts and module_after(facts, desired) in ("loaded", "reloaded") else ()
