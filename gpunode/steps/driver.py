"""NVIDIA's driver: packages of the right branch, kept there, and its modules loaded in the same version."""

from __future__ import annotations

from collections.abc import Iterator

from gpunode import compat, packages
from gpunode.model import (
    Change,
    Desired,
    DriverWish,
    Facts,
    GpuUser,
    KernelModule,
    Packages,
    PackageSpec,
    Reboot,
    Watch,
)
from gpunode.planning import files, packaging, services, users
from gpunode.render import template
from gpunode.versions import branch_of, is_installed

LOAD = ("nvidia", "nvidia_uvm", "nvidia_modeset")
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
# Daemons that keep the modules in use, and their units.
SERVICES = {"nvidia-persistenced": "nvidia-persistenced.service", "nv-hostengine": "nvidia-dcgm.service"}
AT_BOOT = "/etc/modules-load.d/gpunode.conf"

WATCH = Watch(files=(AT_BOOT,), units=tuple(SERVICES.values()))


def plan(facts: Facts, desired: Desired) -> tuple[Change, ...]:
    """Packages, then modules. Their reasons name what a reboot or a reload ends."""
    wish, system = desired.driver, packages.of(facts)
    if wish is None or system is None:
        return ()
    wrong = _wrong(facts, wish, system.NAMES)
    return (
        *system.plan_branch(facts, wish),
        *_packages(facts, wish, missing(facts, desired), wrong, headers_first=system.HEADERS_FIRST),
        *files.write(
            facts,
            AT_BOOT,
            template("etc/modules-load.d/gpunode.conf", modules=LOAD),
            "the modules are there after every boot, not only after a first user",
        ),
        *_modules(facts, wish, changed=bool(wrong)),
    )


def modules(facts: Facts, desired: Desired) -> tuple[Change, ...]:
    """The part of the plan that loads, reloads or waits for a reboot."""
    return tuple(change for change in plan(facts, desired) if isinstance(change, (KernelModule, Reboot)))


def missing(facts: Facts, desired: Desired) -> tuple[PackageSpec, ...]:
    """The packages to install, the pin first. Headers only while no fitting module is loaded, as it needs building."""
    wish = desired.driver
    if wish is None:
        return ()
    every = (*wish.pin, *wish.headers, *wish.packages, *wish.fabric)
    absent = tuple(spec for spec in every if not is_installed(facts.packages, spec))
    loaded = facts.modules.get("nvidia")
    built = loaded is not None and loaded.version is not None and branch_of(loaded.version) == wish.branch
    builds = not built or any(spec in absent for spec in wish.packages)
    return tuple(spec for spec in absent if builds or spec not in wish.headers)


def _wrong(facts: Facts, wish: DriverWish, names: compat.PackageNames) -> tuple[str, ...]:
    """Installed driver packages of another branch or of the other flavour, and their fabric's of another branch."""
    family = names.driver_family(facts.packages)
    other: compat.Flavour = "proprietary" if wish.flavour == "open" else "open"
    beside = (*names.accessories(facts.packages), *names.fabric(facts.packages))
    parts = {**family, **{name: facts.packages[name] for name in beside}}
    wrong = {name for name, p in parts.items() if branch_of(p.version) not in (None, wish.branch)}
    wrong |= set(names.of_flavour(family, other))
    return tuple(sorted(wrong - set(names.pins(wrong))))


def _packages(
    facts: Facts,
    wish: DriverWish,
    install: tuple[PackageSpec, ...],
    wrong: tuple[str, ...],
    *,
    headers_first: bool,
) -> Iterator[Packages]:
    """Wrong packages are removed first: branches share names, and apt replaces them safely only in two steps."""
    if wrong:
        yield packaging.change(facts, "another branch or flavour than the one that fits", remove=wrong)
    rest = tuple(spec for spec in install if spec not in wish.pin)
    headers = tuple(spec for spec in rest if spec in wish.headers)
    if headers_first and headers:
        yield packaging.change(
            facts, "the module is built with the running kernel's headers", install=headers
        )
        rest = tuple(spec for spec in rest if spec not in headers)
    names = [spec.name for spec in (*wish.packages, *wish.fabric)]
    # apt may forget a hold when it installs, so all are held again then
    again = any(spec.name in names for spec in rest)
    hold = tuple(n for n in names if again or n not in facts.packages or not facts.packages[n].held)
    if rest:
        yield packaging.change(facts, wish.why[0].upper() + wish.why[1:], install=rest, hold=hold)
    elif hold:
        yield packaging.change(facts, "an upgrade by others would part library and loaded module", hold=hold)


def _modules(facts: Facts, wish: DriverWish, *, changed: bool) -> Iterator[Change]:
    if any(device.driver == "nouveau" for device in compat.gpus(facts.pci)):
        return  # nvidia cannot take the GPUs before the reboot that is planned for nouveau
    if "nvidia" not in facts.modules:
        yield _load(facts, LOAD, "the GPUs have no driver loaded")
        return
    reason = "its packages change" if changed else _mismatch(facts, wish)
    if reason is not None:
        yield _reload(facts, reason)
        return
    absent = tuple(name for name in LOAD if name not in facts.modules)
    if absent:
        yield _load(facts, absent, "CUDA programs find no device files without them")


def _load(facts: Facts, modules: tuple[str, ...], why: str) -> KernelModule:
    absent = [name for name in modules if name not in facts.modules]
    fault = f"{', '.join(absent)} {'is' if len(absent) == 1 else 'are'} not loaded: {why}"
    return KernelModule(why, load=modules, fault=fault)


def _mismatch(facts: Facts, wish: DriverWish) -> str | None:
    """Why the loaded module is not the desired one; None where it is."""
    version = facts.modules["nvidia"].version or ""
    if facts.library_version is not None and facts.library_version != version:
        return f"the module is {version}, the library {facts.library_version}: NVML answers nobody"
    if branch_of(version) != wish.branch:
        return f"the loaded module is {version}, of another branch than {wish.branch}"
    if wish.version not in ("", version):
        return f"the loaded module is {version}, not {wish.version}"
    banner = facts.module_banner
    flavour = "open" if "Open Kernel Module" in (banner or "") else "proprietary"
    if banner is not None and flavour != wish.flavour:
        return f"the loaded module is the {flavour} one, the GPUs want the {wish.flavour} one"
    return None


def _reload(facts: Facts, reason: str) -> Change:
    """Unload and load when no process uses the GPUs but daemons that can be stopped, else a reboot that names them."""
    loaded = tuple(name for name in UNLOAD if name in facts.modules)
    inner = [name for name in loaded if name != "nvidia"]
    stopped = tuple(unit for unit in SERVICES.values() if services.is_active(facts, unit))
    others = [user for user in facts.gpu_users if _service(user) not in stopped]
    if others:
        return Reboot(f"{reason}; a reboot ends what uses the GPUs: {users.names(others)}")
    uvm = facts.modules.get("nvidia_uvm")
    held = facts.modules["nvidia"].refcnt > len(inner) and not facts.gpu_users
    if held or (uvm is not None and uvm.refcnt > 0):
        return Reboot(f"{reason}; the kernel itself still uses the old module, so it cannot be unloaded")
    why = f"{reason}; nobody uses the GPUs"
    if facts.gpu_users:
        return KernelModule(
            f"{why} but the driver's own daemons, which are stopped meanwhile",
            unload=loaded,
            load=LOAD,
            services=stopped,
        )
    return KernelModule(why, unload=loaded, load=LOAD)


def _service(user: GpuUser) -> str:
    """The unit that a process of the host is of; "" for none that can be stopped for a reload."""
    if user.container or user.pod:
        return ""
    return next((unit for name, unit in SERVICES.items() if user.command.startswith(name)), "")
