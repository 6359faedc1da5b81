"""NVIDIA's driver: packages of the right branch, kept there, and its modules loaded in the same version."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal

from gpunode import packages
from gpunode.links.driver import archives, modules, runfile
from gpunode.links.machine import pci
from gpunode.model import (
    Change,
    Desired,
    DriverSpec,
    Facts,
    Flavour,
    KernelModule,
    Package,
    Packages,
    PackageSpec,
    Reboot,
    Watch,
)
from gpunode.packages.names import PackageNames
from gpunode.planning import files, packaging
from gpunode.planning.templates import template
from gpunode.planning.versions import branch_of, is_installed, numbers, upstream

AT_BOOT = "/etc/modules-load.d/gpunode.conf"

WATCH = Watch(files=(AT_BOOT, "/etc/dgx-release"), units=tuple(modules.SERVICES.values()))


def plan(facts: Facts, desired: Desired) -> tuple[Change, ...]:
    """Packages, then modules. Their reasons name what a reboot or a reload ends."""
    wish, system = desired.driver, packages.system_of_host(facts)
    if wish is None or system is None:
        return ()
    wrong = _wrong(facts, wish, system.NAMES)
    changed = bool(wrong) or facts.installed_run is not None
    return (
        *(system.plan_branch(facts, wish) if wish.run is None else ()),
        *runfile.leave(facts, wish),
        *_packages(
            facts,
            wish,
            missing(facts, desired),
            wrong if wish.run is None else (),
            names=system.NAMES,
            headers_first=system.HEADERS_FIRST or wish.run is not None,
        ),
        *files.write(
            facts,
            AT_BOOT,
            template("etc/modules-load.d/gpunode.conf", modules=modules.at_boot(wish)),
            "the modules are there after every boot, not only after a first user",
        ),
        *(runfile.plan(facts, wish, wrong) if wish.run else modules.plan(facts, wish, changed=changed)),
    )


def module_changes(facts: Facts, desired: Desired) -> tuple[Change, ...]:
    """The part of the plan that loads, reloads or waits for a reboot."""
    return tuple(change for change in plan(facts, desired) if isinstance(change, (KernelModule, Reboot)))


def module_after(facts: Facts, desired: Desired) -> Literal["absent", "rebooted", "loaded", "reloaded"]:
    """What the steps after this one find of the module: absent, where nothing loads it; there only after a reboot; as
    it is loaded now; or loaded by this step."""
    planned = module_changes(facts, desired)
    taken = desired.driver is not None and pci.taken(facts.pci)
    if taken or any(isinstance(change, Reboot) for change in planned):
        return "rebooted"
    if any(isinstance(change, KernelModule) and "nvidia" in change.load for change in planned):
        return "reloaded"
    return "loaded" if "nvidia" in facts.modules else "absent"


def missing(facts: Facts, desired: Desired) -> tuple[PackageSpec, ...]:
    """The packages to install, the pin first. Headers only while no fitting module is loaded, as it needs building."""
    wish = desired.driver
    if wish is None:
        return ()
    every = (
        *wish.pin,
        *wish.headers,
        *wish.ahead_headers,
        *wish.modules,
        *wish.packages,
        *wish.fabric,
        *wish.subnet,
    )
    absent = tuple(
        spec for spec in every if spec.name in wish.replaces or not is_installed(facts.packages, spec)
    )
    loaded = facts.modules.get("nvidia")
    built = loaded is not None and loaded.version is not None and branch_of(loaded.version) == wish.branch
    builds = not built or any(spec in absent for spec in wish.packages)
    if wish.run is not None:
        builds = runfile.pending(facts, wish) is not None
    return tuple(spec for spec in absent if builds or spec not in (*wish.headers, *wish.modules[:1]))


def _wrong(facts: Facts, wish: DriverSpec, names: PackageNames) -> tuple[str, ...]:
    """Installed driver packages of another branch or of the other flavour, and their fabric's of another branch. All of the
    driver, and what is as late beside it, where it is later than the wished one and the package system does not go back; all
    of the driver where NVIDIA's own installer is to bring it."""
    if wish.archive:
        return wish.replaces
    family = names.driver_family(facts.packages)
    other: Flavour = "proprietary" if wish.flavour == "open" else "open"
    beside = (*names.accessories(facts.packages), *names.fabric(facts.packages))
    parts = {**family, **{name: facts.packages[name] for name in beside}}
    # A prebuilt module has its kernel's version, and the branch in its name.
    own = {
        n: branch_of(p.version) or (archives.named_branch(n) if names.prebuilt else None)
        for n, p in parts.items()
    }
    wrong = {name for name, branch in own.items() if branch not in (None, wish.branch)}
    if wish.run is not None:
        versioned = {name for name, p in parts.items() if branch_of(p.version)}
        return tuple(sorted(wrong | set(family) | versioned - set(names.fabric(versioned))))
    later = _later(parts, wish, names)
    if later & set(family):
        wrong |= set(family) | later
    wrong |= {*names.of_flavour(family, other), *wish.replaces}
    return tuple(sorted(wrong - set(names.pins(wrong))))


def _later(parts: Mapping[str, Package], wish: DriverSpec, names: PackageNames) -> set[str]:
    """The parts of a later version than the wished one, where the package system does not go back."""
    if not wish.version or names.goes_back:
        return set()
    wished = numbers(wish.version)
    return {n for n, p in parts.items() if branch_of(p.version) and numbers(upstream(p.version)) > wished}


def _packages(
    facts: Facts,
    wish: DriverSpec,
    install: tuple[PackageSpec, ...],
    wrong: tuple[str, ...],
    *,
    names: PackageNames,
    headers_first: bool,
) -> Iterator[Packages]:
    """Wrong packages are removed first: branches share names, and apt replaces them safely only in two steps."""
    if wrong:
        whose = "another driver's, or of another branch or flavour than the one that is wished"
        why = whose if wish.replaces else f"another branch or flavour; {wish.why}"
        installed = {spec.name: facts.packages[spec.name] for spec in wish.packages if spec.name in wrong}
        if _later(installed, wish, names):
            why = f"a later version than {wish.version}, which nothing is installed over"
        yield packaging.change(facts, why, remove=wrong)
    rest = tuple(spec for spec in install if spec not in wish.pin)
    headers = tuple(spec for spec in rest if spec in wish.headers)
    if headers_first and headers:
        yield packaging.change(
            facts, "the module is built with the running kernel's headers", install=headers
        )
        rest = tuple(spec for spec in rest if spec not in headers)
    ahead = tuple(spec for spec in rest if spec in wish.ahead_headers)
    if ahead:
        how = "this is the distribution's" if wish.modules else "dkms builds it with these headers"
        why = f"kernel {wish.ahead} boots next and has no nvidia module: {how}"
        yield packaging.change(facts, why, install=ahead)
        rest = tuple(spec for spec in rest if spec not in ahead)
    first = tuple(spec for spec in rest if spec in wish.modules)
    if first and any(spec.version.startswith("=") for spec in rest):
        why = "the module is the distribution's, and the driver's programs must be of its version"
        yield packaging.change(facts, why, install=first)
        rest = tuple(spec for spec in rest if spec not in first)
    kept = [spec.name for spec in (*wish.packages, *wish.fabric)]
    # apt may forget a hold when it installs, so all are held again then
    again = any(spec.name in kept for spec in rest)
    hold = tuple(n for n in kept if again or n not in facts.packages or not facts.packages[n].held)
    if rest:
        yield packaging.change(facts, wish.why[0].upper() + wish.why[1:], install=rest, hold=hold)
    elif hold:
        yield packaging.change(facts, "an upgrade by others would part library and loaded module", hold=hold)
