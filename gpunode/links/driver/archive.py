"""The driver out of the distribution's own archive, as `driver: {from: distribution}` asks for it."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from gpunode.errors import CannotPlan
from gpunode.links.driver import branches as kernels
from gpunode.links.driver import choose as driver
from gpunode.links.driver import origin
from gpunode.links.driver.branches import Branch, branches
from gpunode.links.driver.origin import LEAVE
from gpunode.links.machine import pci
from gpunode.model import DriverSpec, Facts, Flavour, Host, Package, PackageSpec
from gpunode.packages.apt import lists
from gpunode.packages.names import PackageNames, PackageSystem
from gpunode.planning.versions import branch_of, is_installed

# Packages that come with modules of one flavour.
FLAVOURED = (
    r"linux-modules-nvidia-|nvidia-(dkms|headless|driver|kernel-source)-.*\d|nvidia-(open-)?kernel-dkms$"
)


class Way(NamedTuple):
    """A set of packages, and whose modules come with it: signed ones, or what dkms builds."""

    chosen: str
    packages: tuple[PackageSpec, ...]
    modules: tuple[PackageSpec, ...]


def applies(host: Host, facts: Facts, system: PackageSystem) -> bool:
    """Whether the host gets its driver so: asked for, or only its modules load."""
    return host.driver_from == "distribution" or _loads_no_other(host, facts, system)


def _loads_no_other(host: Host, facts: Facts, system: PackageSystem) -> bool:
    """Whether only its signed modules can be loaded: Secure Boot is on, and there are no packages of NVIDIA's whose key a user
    has enrolled."""
    archive = origin.archive(facts.os)
    if not facts.secure_boot or host.driver_from or host.driver_run is not None or archive is None:
        return False
    if _from_nvidia(facts, system.names) or host.driver not in ("auto", *map(str, archive.branches)):
        return False
    kinds: tuple[Flavour, ...] = ("open", "proprietary")
    return any(
        archive.modules(chosen, branch, flavour, facts.kernel)
        for branch, sets in archive.branches.items()
        for chosen in sets
        for flavour in kinds
    )


def decide(host: Host, facts: Facts, system: PackageSystem, models: Sequence[pci.Model]) -> DriverSpec:
    """The driver of the archive that fits all GPUs. One that is there is right; NVIDIA's is replaced. Raises CannotPlan with the
    reason where the archive has none."""
    archive, names = _archive(facts), system.names
    asked = f"the inventory asks for {archive.name}'s own driver"
    if not host.driver_from:
        asked = f"Secure Boot is on, and the modules of {archive.name}'s own driver are signed"
        host = replace(host, driver_from="distribution")
    origin.check(host, facts, system)
    theirs = {} if _from_nvidia(facts, names) else origin.parts(facts, names)
    installed = _branch(theirs)
    branch = _choose(host, facts, archive, models, installed)
    kept = branch.number == installed
    flavour = driver.flavour_for(
        models, branch.number, (_flavour(theirs) if kept else None) or archive.prefers
    )
    switches = bool(pci.switches(facts.pci))
    way = _way(facts, archive, branch.number, flavour, theirs, switches=switches)
    if not way.modules:
        driver.secure_boot(facts)
    fabric = _fabric(facts, archive, way, branch.number, names, switches=switches)
    needed = (*way.packages, *way.modules, *fabric)
    if not all(is_installed(facts.packages, spec) for spec in needed):
        _check_reachable(facts, system, archive, branch.number, fabric=bool(fabric))
    ahead = kernels.next_kernel(facts)
    later = names.headers(ahead) if ahead else ()
    if ahead and way.modules:
        later = archive.modules(way.chosen, branch.number, flavour, ahead)[:1]
    brought = (*way.packages, *(later if way.modules else ()))
    present = all(is_installed(facts.packages, spec) for spec in brought)
    return DriverSpec(
        branch=branch.number,
        flavour=flavour,
        version="",
        pin=(),
        headers=() if way.modules else names.headers(facts.kernel),
        packages=way.packages,
        why=f"{asked}, branch {branch.number}",
        ahead=ahead,
        ahead_headers=later,
        ahead_why=kernels.unbuilt_reason(facts, later, builds=not way.modules, complete=present),
        fabric=fabric,
        switches=switches,
        archive=True,
        modules=way.modules,
        replaces=_replaces(facts, names, branch.number, flavour, way),
    )


def _archive(facts: Facts) -> origin.Archive:
    archive = origin.archive(facts.os)
    if archive is None:
        raise CannotPlan(
            f"`driver: {{from: distribution}}`: gpunode knows no driver in the archive of {facts.os.pretty or facts.os.id}",
            hint=f"Write `driver: auto` to have NVIDIA's packages, {LEAVE}",
        )
    return archive


def _from_nvidia(facts: Facts, names: PackageNames) -> bool:
    return bool(names.from_nvidia(origin.parts(facts, names)))


def _branch(theirs: Mapping[str, Package]) -> int | None:
    """Of the installed driver's libraries and programs; None where they are of several, or there are none."""
    versions = [p.version for name, p in theirs.items() if not origin.is_independent(name)]
    numbers = {branch_of(version) for version in versions} - {None}
    return numbers.pop() if len(numbers) == 1 else None


def _flavour(theirs: Mapping[str, Package]) -> Flavour | None:
    kinds = {"-open" in name for name in theirs if re.match(FLAVOURED, name)}
    return ("open" if kinds.pop() else "proprietary") if len(kinds) == 1 else None


def _choose(
    host: Host,
    facts: Facts,
    archive: origin.Archive,
    models: Sequence[pci.Model],
    installed: int | None,
) -> Branch:
    """The branch that the inventory names; else the installed one, else the archive's best that fits."""
    known = branches()
    # The installed one, also where the archive has lost it since.
    offered = [b for number, b in known.items() if number in archive.branches or number == installed]
    allowed = [branch for branch in offered if host.driver in ("auto", str(branch.number))]
    if not allowed:
        raise CannotPlan(
            f"`driver.version: {host.driver}`: {archive.name} {archive.release} ({archive.suite}) has no branch {host.driver}; "
            f"it has {', '.join(map(str, archive.branches))}",
            hint="Name one of those, or none to have the best that fits; NVIDIA's repository has more: `driver: "
            f"{{from: nvidia, version: {host.driver}}}`.",
        )
    obstacles = {b.number: driver.obstacle_of(facts, models, b, packaged=False) for b in allowed}
    fitting = [branch for branch in allowed if obstacles[branch.number] is None]
    if not fitting:
        lines = "\n".join(f"{number}: {obstacle}" for number, obstacle in obstacles.items())
        raise CannotPlan(
            f"no driver of {archive.name} {archive.release} fits\n{lines}",
            hint=f"Write `driver: auto` to have NVIDIA's packages, {LEAVE}",
        )
    return max(fitting, key=lambda b: (b.number == installed, driver.RANK[b.status], b.number))


def _way(
    facts: Facts,
    archive: origin.Archive,
    branch: int,
    flavour: Flavour,
    theirs: Mapping[str, Package],
    *,
    switches: bool,
) -> Way:
    """What is installed already, if it is a driver; else signed modules where the kernel has them, else dkms."""
    sets = [name for name in archive.sets(branch) if not switches or archive.fabric(name, "manager", branch)]
    ways = []
    for chosen in sets:
        modules = archive.modules(chosen, branch, flavour, facts.kernel)
        if modules:
            ways.append(Way(chosen, archive.packages(chosen, "prebuilt", branch, flavour), modules))
        ways.append(Way(chosen, archive.packages(chosen, "dkms", branch, flavour), ()))
        parts = archive.packages(chosen, "parts", branch, flavour)
        builder = archive.builder(chosen, branch, flavour)
        if parts and builder:
            ways += [Way(chosen, parts, modules)] * bool(modules) + [Way(chosen, (builder, *parts), ())]
    ways = [way for way in ways if way.packages]
    if not ways:
        raise CannotPlan(
            f"{archive.name} {archive.release} has no fabric manager, which the NVSwitches need"
            if switches
            else f"{archive.name} {archive.release} has no {flavour} modules of branch {branch}",
            hint=f"Write `driver: auto` to have NVIDIA's packages, {LEAVE}",
        )
    for way in ways:
        if all(is_installed(theirs, spec) or spec.name in theirs for spec in way.modules[:1]) and all(
            is_installed(theirs, spec) for spec in way.packages
        ):
            return way
    begun = [way for way in ways if any(spec.name in theirs and spec.version for spec in way.packages)]
    return next(iter(begun), ways[0])


def _fabric(
    facts: Facts,
    archive: origin.Archive,
    way: Way,
    branch: int,
    names: PackageNames,
    *,
    switches: bool,
) -> tuple[PackageSpec, ...]:
    parts = {*names.fabric(facts.packages).values(), *(("manager",) if switches else ())}
    specs = [archive.fabric(way.chosen, part, branch) for part in sorted(parts)]
    return tuple(spec for spec in specs if spec is not None)


def _check_reachable(
    facts: Facts, system: PackageSystem, archive: origin.Archive, branch: int, *, fabric: bool
) -> None:
    """Refuse where apt cannot get the packages, or would get NVIDIA's of the same name."""
    needed = (*archive.components(branch), *(("multiverse",) if fabric else ()))
    components = lists.components(facts, archive.suite)
    missing = [name for name in dict.fromkeys(needed) if name not in components]
    if missing:
        raise CannotPlan(
            f"apt's sources of {archive.suite} have no {' and no '.join(missing)}, where {archive.name} keeps the driver",
            hint=f"Add the components {' '.join(missing)} to {archive.suite}'s sources (in /etc/apt/sources.list or below "
            "/etc/apt/sources.list.d), then run again.",
        )
    others = system.driver_sources(facts)
    if archive.shared_names and others:
        raise CannotPlan(
            f"{others[0]} has NVIDIA's repository, whose packages have the names of {archive.name}'s: apt would take those",
            hint=f"Remove that source, or take the driver from it: `driver: {{from: nvidia, version: {branch}}}`.",
        )


def _replaces(facts: Facts, names: PackageNames, branch: int, flavour: Flavour, way: Way) -> tuple[str, ...]:
    """What must go first: all of a driver from NVIDIA; else other branches, the other flavour, and the other set."""
    if _from_nvidia(facts, names):
        return origin.every_part(facts, names)
    server = way.chosen == "server"
    wrong = set()
    for name in origin.every_part(facts, names):
        own = origin.named_branch(name)
        version = branch_of(facts.packages[name].version)
        other = own is not None and own != branch
        other |= own is None and version not in (None, branch) and not origin.is_independent(name)
        other |= bool(re.match(FLAVOURED, name)) and ("-open" in name) != (flavour == "open")
        in_set = own is not None and not names.fabric([name]) and "tesla" not in name
        other |= in_set and way.chosen in ("server", "plain") and ("-server" in name) != server
        if other:
            wrong.add(name)
    return tuple(sorted(wrong))
