"""The driver's kernel modules: loaded, in the version of its library; reloaded, or waiting for a reboot; nouveau and nova blacklisted."""

from collections.abc import Collection, Iterator

from gpunode.errors import CannotPlan
from gpunode.links.machine import pci
from gpunode.model import Change, Desired, DriverSpec, Facts, Flavour, GpuUser, KernelModule, Reboot, Watch
from gpunode.planning import files, services
from gpunode.planning.versions import branch_of

LOAD = ("nvidia", "nvidia_uvm", "nvidia_modeset")
UMAD = "ib_umad"  # over which the fabric manager talks to NVSwitches of NVLink 5
# Dependants first, as NVIDIA's installer unloads them.
UNLOAD = (
    "nv_peer_mem",
    "nvidia_peermem",
    "nvidia_fs",
    "gdrdrv",
    "nvidia_vgpu_vfio",
    "nvidia_uvm",
    "nvidia_drm",
    "nvidia_modeset",
    "nvidia",
)
# Daemons that keep the modules in use, and their units, in the order in which they are started. NVIDIA's driver container
# stops its fabric manager before it unloads the modules, too.
SERVICES = {
    "nvidia-persistenced": "nvidia-persistenced.service",
    "nv-fabricmanager": "nvidia-fabricmanager.service",
    "nvidia-imex": "nvidia-imex.service",
    "nv-hostengine": "nvidia-dcgm.service",
}


def plan(facts: Facts, driver: DriverSpec, *, changed: bool) -> Iterator[Change]:
    """Load them, reload them, or reboot. `changed`: packages of the driver change first."""
    if pci.held_by_linux(facts.pci):
        return  # nvidia cannot take the GPUs before the reboot that is planned for nouveau or nova
    if "nvidia" not in facts.modules:
        yield load(facts, LOAD, "the GPUs have no driver loaded")
        return
    reason = "the driver's packages change" if changed else _mismatch(facts, driver)
    if reason is not None:
        yield reload(facts, reason)
        return
    absent = tuple(name for name in LOAD if name not in facts.modules)
    if absent:
        yield load(facts, absent, "CUDA programs find no device files without them")


def loaded_flavour(facts: Facts) -> Flavour:
    """The flavour of the loaded module, by its banner."""
    return "open" if "Open Kernel Module" in (facts.module_banner or "") else "proprietary"


def at_boot(driver: DriverSpec) -> tuple[str, ...]:
    return (*LOAD, *((UMAD,) if driver.subnet else ()))


def load(facts: Facts, modules: tuple[str, ...], why: str) -> KernelModule:
    absent = [name for name in modules if name not in facts.modules]
    fault = f"{', '.join(absent)} {'is' if len(absent) == 1 else 'are'} not loaded: {why}"
    return KernelModule(why, load=modules, fault=fault)


def start(facts: Facts, others: Collection[str]) -> Iterator[KernelModule]:
    """Start the daemons that are still `stopped`; the plan has another change for the `others`."""
    if units := tuple(unit for unit in stopped(facts) if unit not in others):
        yield KernelModule("a killed apply has stopped them", services=units, fault="")


def _mismatch(facts: Facts, driver: DriverSpec) -> str | None:
    """Why the loaded module is not the desired one; None where it is."""
    version = facts.modules["nvidia"].version or ""
    if facts.library_version is not None and facts.library_version != version:
        return f"the module is {version}, the library {facts.library_version}: NVML fails for every program"
    if branch_of(version) != driver.branch:
        return f"the loaded module is {version}, of another branch than {driver.branch}"
    if driver.version not in ("", version):
        return f"the loaded module is {version}, not {driver.version}"
    flavour = loaded_flavour(facts)
    if facts.module_banner is not None and flavour != driver.flavour:
        return f"the loaded module is the {flavour} one, the GPUs need the {driver.flavour} one"
    return None


def reload(facts: Facts, reason: str) -> Change:
    """Unload and load when no process uses the GPUs but daemons that can be stopped, else a reboot that names them."""
    held = holders(facts)
    if held:
        return Reboot(f"{reason}; {held}")
    return unload(facts, reason, LOAD)


def unload(facts: Facts, reason: str, load: tuple[str, ...] = ()) -> KernelModule:
    """Unload all, while daemons that use the GPUs are stopped, and then load these."""
    loaded = tuple(name for name in UNLOAD if name in facts.modules)
    why = f"{reason}; no process uses the GPUs"
    if facts.gpu_users:
        why = f"{why} but the driver's own daemons, which are stopped meanwhile"
        return KernelModule(why, unload=loaded, load=load, services=daemons(facts))
    return KernelModule(why, unload=loaded, load=load)


def holders(facts: Facts) -> str:
    """Why the modules cannot be unloaded before a reboot; "" where they can."""
    others = [user for user in facts.gpu_users if _service(user) not in daemons(facts)]
    if others and all(user.is_plugin for user in others):
        return "gpunode first removes its device plugin, which uses the GPUs"
    if others:
        return f"in use by {services.user_names(others)}"
    inner = [name for name in UNLOAD if name in facts.modules and name != "nvidia"]
    uvm, nvidia = facts.modules.get("nvidia_uvm"), facts.modules.get("nvidia")
    held = nvidia is not None and nvidia.refcnt > len(inner) and not facts.gpu_users
    if held or (uvm is not None and uvm.refcnt > 0):
        return "the kernel itself still uses the old module, so it cannot be unloaded"
    return ""


def daemons(facts: Facts) -> tuple[str, ...]:
    """The daemons' units that are active, and so to be stopped."""
    return tuple(unit for unit in SERVICES.values() if services.is_active(facts, unit))


def stopped(facts: Facts) -> tuple[str, ...]:
    """The daemons' units that an apply has stopped and, as it was killed, not started again."""
    there = (unit for unit in facts.stopped if services.is_loaded(facts, unit))
    return tuple(unit for unit in there if not services.is_active(facts, unit))


def _service(user: GpuUser) -> str:
    """The unit that a process of the host is of; "" for none that can be stopped for a reload."""
    if user.container or user.pod:
        return ""
    return next((unit for name, unit in SERVICES.items() if user.command.startswith(name)), "")


BLACKLIST = "/etc/modprobe.d/gpunode-nouveau.conf"
NOUVEAU_WATCH = Watch(files=(BLACKLIST,))


def plan_nouveau(facts: Facts, desired: Desired) -> tuple[Change, ...]:
    """Blacklist both where one is loaded; reboot where it holds a GPU, as unloading it is not safe. A host that loads neither
    keeps the file that it has."""
    if desired.driver is None:
        return ()
    held = pci.held_by_linux(facts.pci)
    loaded = next((name for name in pci.FREE_MODULES if name in facts.modules), "")
    if not held and not loaded:
        return ()
    why = f"{loaded} is loaded and would take the GPUs first"
    if held:
        why = f"{held[0].driver} holds {', '.join(device.address for device in held)}"
    changes: list[Change] = list(files.write_own(facts, BLACKLIST, f"{why}; nvidia needs them"))
    if held and _booted_without(facts, held[0].driver):
        raise CannotPlan(
            f"{why} although {BLACKLIST} was there at the last boot: another reboot would not help",
            hint="The initial ramdisk or a script loads it: run `update-initramfs -u` (RHEL: `dracut --force`) on the host and "
            f"reboot it, or search for `modprobe {loaded or held[0].driver}`; then run again.",
        )
    if held:
        changes.append(Reboot(f"{why} and cannot be unloaded safely"))
    return tuple(changes)


def _booted_without(facts: Facts, driver: str | None) -> bool:
    """Whether the file is older than the running system, and keeps this driver away."""
    file, module = facts.files.get(BLACKLIST), "nouveau" if driver == "nouveau" else "nova_core"
    if file is None or file.mtime is None or f"blacklist {module}" not in (file.content or "").splitlines():
        return False
    return file.mtime < facts.time - facts.uptime
