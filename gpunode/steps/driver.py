"""NVIDIA's driver: packages of the right branch, kept there, and its modules loaded in the same version."""

from __future__ import annotations

from collections.abc import Iterator

from gpunode import compat
from gpunode.model import Change, Desired, DriverWish, Facts, KernelModule, Packages, Reboot, RemoveFile
from gpunode.render import Unfit, template
from gpunode.steps import files, users

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
AT_BOOT = "/etc/modules-load.d/gpunode.conf"
PREFERENCE = "/etc/apt/preferences.d/gpunode-driver.pref"

FILES = (AT_BOOT, PREFERENCE)
UNITS = ()
PACKAGES = (
    "cuda-drivers*",
    "*nvidia*",
    "libcuda1*",
    "libcudadebugger1",
    "libnvcuvid*",
    "linux-headers-*",
    "dkms",
)


def plan(facts: Facts, desired: Desired) -> tuple[Change, ...]:
    """Packages, then modules. What a reboot or a reload would end is named."""
    wish = desired.driver
    if wish is None:
        return ()
    wrong = _wrong(facts, wish)
    return (
        *_pin(facts, wish),
        *_packages(facts, wish, missing(facts, desired), wrong),
        *files.write(
            facts,
            AT_BOOT,
            template("etc/modules-load.d/gpunode.conf", modules=LOAD),
            "the modules are there after every boot, not only after a first user",
        ),
        *_modules(facts, wish, changed=bool(wrong)),
    )


def missing(facts: Facts, desired: Desired) -> tuple[str, ...]:
    """What is to be installed, the pin first. Headers only while no fitting module is loaded: it was built then."""
    wish = desired.driver
    if wish is None:
        return ()
    lacking = [p for p in (*wish.pin, *wish.packages) if not compat.is_installed(facts.packages, p)]
    loaded = facts.modules.get("nvidia")
    built = (
        loaded is not None and loaded.version is not None and compat.branch_of(loaded.version) == wish.branch
    )
    driver_lacks = any("=" in package for package in lacking)
    return tuple(p for p in lacking if "=" in p or p in wish.pin or driver_lacks or not built)


def _wrong(facts: Facts, wish: DriverWish) -> tuple[str, ...]:
    """Installed driver packages of another branch or of the other flavour."""
    family = compat.driver_family(facts.packages)
    other: compat.Flavour = "proprietary" if wish.flavour == "open" else "open"
    parts = {**family, **{name: facts.packages[name] for name in compat.accessories(facts.packages)}}
    wrong = {name for name, p in parts.items() if compat.branch_of(p.version) not in (None, wish.branch)}
    wrong |= set(compat.of_flavour(family, other))
    return tuple(sorted(wrong - set(_pins(facts))))


def _pins(facts: Facts) -> tuple[str, ...]:
    return tuple(sorted(name for name in facts.packages if compat.is_pin(name)))


def _pin(facts: Facts, wish: DriverWish) -> Iterator[Change]:
    """apt kept on the branch: by NVIDIA's package for it, of which only one fits, else by a file of ours."""
    others = tuple(name for name in _pins(facts) if name not in wish.pin)
    why = f"keeps apt on driver branch {wish.branch}"
    absent = tuple(name for name in wish.pin if name not in facts.packages)
    if absent or others:
        yield Packages(why, install=absent, remove=others)
    there = files.text(facts, PREFERENCE)
    if not wish.pin:
        name = PREFERENCE.lstrip("/")
        text = template(name, packages=compat.driver_patterns(), version=f"{wish.branch}.*")
        yield from files.write(facts, PREFERENCE, text, why)
    elif there is not None:
        yield RemoveFile(PREFERENCE, there, f"{', '.join(wish.pin)} says it now")


def _packages(
    facts: Facts, wish: DriverWish, install: tuple[str, ...], wrong: tuple[str, ...]
) -> Iterator[Packages]:
    """The wrong ones out first: branches share names, and apt parts them safely only one after the other."""
    fabric = compat.fabric_packages(facts.packages)
    if wrong and fabric:
        raise Unfit(
            f"{', '.join(fabric)} must be of exactly the driver's version, and the driver is to change",
            hint="gpunode does not manage NVSwitch hosts yet: change driver and fabric packages together by hand, "
            "or set `driver: none`.",
        )
    if wrong:
        yield Packages("another branch or flavour than the one that fits", remove=wrong)
    rest = tuple(package for package in install if package not in wish.pin)
    names = [package.partition("=")[0] for package in wish.packages if "=" in package]
    # apt may forget a hold when it installs, so all are held again then
    again = any("=" in package for package in rest)
    hold = tuple(n for n in names if again or n not in facts.packages or not facts.packages[n].held)
    if rest:
        yield Packages(wish.why[0].upper() + wish.why[1:], install=rest, hold=hold)
    elif hold:
        yield Packages("an upgrade by others would part library and loaded module", hold=hold)


def _modules(facts: Facts, wish: DriverWish, *, changed: bool) -> Iterator[Change]:
    if any(device.driver == "nouveau" for device in compat.gpus(facts.pci)):
        return  # nvidia cannot take the GPUs before the reboot that is planned for nouveau
    if "nvidia" not in facts.modules:
        yield KernelModule("the GPUs have no driver loaded", load=LOAD)
        return
    reason = "its packages change" if changed else _mismatch(facts, wish)
    if reason is not None:
        yield _reload(facts, reason)
        return
    absent = tuple(name for name in LOAD if name not in facts.modules)
    if absent:
        yield KernelModule("CUDA programs find no device files without them", load=absent)


def _mismatch(facts: Facts, wish: DriverWish) -> str | None:
    """Why the loaded module is not the one that is wished, or None."""
    version = facts.modules["nvidia"].version or ""
    if facts.library_version is not None and facts.library_version != version:
        return f"the module is {version}, the library {facts.library_version}: NVML answers nobody"
    if compat.branch_of(version) != wish.branch:
        return f"the loaded module is {version}, of another branch than {wish.branch}"
    if "*" not in wish.version and version != wish.version:
        return f"the loaded module is {version}, not {wish.version}"
    banner = facts.module_banner
    flavour = "open" if "Open Kernel Module" in (banner or "") else "proprietary"
    if banner is not None and flavour != wish.flavour:
        return f"the loaded module is the {flavour} one, the GPUs want the {wish.flavour} one"
    return None


def _reload(facts: Facts, reason: str) -> Change:
    """Unload and load when nobody uses the GPUs, else a reboot that says whose work it ends."""
    loaded = tuple(name for name in UNLOAD if name in facts.modules)
    inner = [name for name in loaded if name != "nvidia"]
    if facts.gpu_users:
        return Reboot(f"{reason}; a reboot ends what uses the GPUs: {users.names(facts.gpu_users)}")
    uvm = facts.modules.get("nvidia_uvm")
    if facts.modules["nvidia"].refcnt > len(inner) or (uvm is not None and uvm.refcnt > 0):
        return Reboot(f"{reason}; the kernel itself still uses the old module, so it cannot be unloaded")
    return KernelModule(f"{reason}; nobody uses the GPUs", unload=loaded, load=LOAD)
