"""The driver with modules that the distribution builds and signs: they need no compiler, and load with Secure Boot."""

from gpunode.errors import CannotPlan
from gpunode.links.driver import branches as kernels
from gpunode.links.driver import choose as driver
from gpunode.links.driver import origin
from gpunode.links.driver.branches import branches
from gpunode.links.driver.origin import LEAVE
from gpunode.links.machine import pci
from gpunode.model import DriverSpec, Facts, Host, PackageSpec
from gpunode.packages.dnf.plan import repos
from gpunode.packages.names import PackageSystem
from gpunode.packages.releases import Prebuilt, prebuilt
from gpunode.planning.versions import branch_of, upstream


def applies(host: Host, facts: Facts, system: PackageSystem) -> bool:
    """Whether the host gets its driver so: asked for, there already, the only way, or as the kernel loads no other."""
    rows = prebuilt(facts.os, facts.kernel)
    if not rows or host.driver_run is not None:
        return False
    if host.driver_from == "nvidia" and system.names.has_drivers:
        return False
    installed = any(row.module in facts.packages for row in rows)
    # NVIDIA's own driver may be signed by a key of the host's: dkms has it, and only its module is away for now
    theirs = system.names.from_nvidia(origin.parts(facts, system.names))
    needed = bool(facts.secure_boot) and "nvidia" not in facts.modules and not theirs
    return installed or needed or host.driver_from == "distribution" or not system.names.has_drivers


def decide(host: Host, facts: Facts, system: PackageSystem, models: list[pci.Model]) -> DriverSpec:
    """That driver. Raises CannotPlan with the reason where none of them fits, or a repository of it is not enabled."""
    if host.driver_from == "nvidia":
        raise CannotPlan(
            f"`driver: {{from: nvidia}}`: on {facts.os.pretty} gpunode installs the modules that SUSE builds, and no others",
            hint=f"Leave `from` out, {LEAVE}",
        )
    if not system.names.driver_family(facts.packages):  # packages of another way are replaced
        origin.check(host, facts, system)
    row = _choose(host, facts, models)
    _check_enabled(facts, row)
    module = facts.packages.get(row.module)
    version = upstream(module.version).partition("_")[0] if module else ""
    own = branch_of(version) if module else None
    same = f"{version}-*" if version else f"={row.module}"
    switches = bool(pci.switches(facts.pci))
    parts = (row.fabric,) if switches or row.fabric in facts.packages else ()
    exactly = PackageSpec(
        row.fabric, same if row.follows else "", "nvidia" if row.follows else "distribution"
    )
    return DriverSpec(
        branch=own or row.branch,
        flavour=row.flavour,
        version="",
        pin=(),
        headers=(),
        packages=(
            *(PackageSpec(name) for name in row.packages),
            *(PackageSpec(name, same, origin="nvidia", downgrade=True) for name in row.follows),
        ),
        why=f"{'Secure Boot is on, and ' * bool(facts.secure_boot)}{system.name} has modules that are built"
        f"{' and signed' * row.trusted}, {row.module}",
        ahead=kernels.next_kernel(facts),
        ahead_why=kernels.unbuilt_reason(facts, (), builds=False, complete=module is not None),
        fabric=tuple(exactly for _ in parts),
        switches=switches,
        archive=True,
        modules=(PackageSpec(row.module, origin="distribution" if row.trusted else "nvidia"),),
        replaces=_replaces(facts, system, row),
        brings=row.brings,
        locks=row.locks,
    )


def _choose(host: Host, facts: Facts, models: list[pci.Model]) -> Prebuilt:
    """The way that is installed, or the first that fits."""
    obstacles: list[str] = []
    fitting: list[Prebuilt] = []
    for row in prebuilt(facts.os, facts.kernel):
        obstacle = _obstacle(host, facts, models, row)
        if obstacle is None:
            fitting.append(row)
        obstacles.append(f"{row.module}: {obstacle}")
    if not fitting:
        raise CannotPlan(
            f"no module that {facts.os.pretty} has fits this host\n" + "\n".join(obstacles),
            hint=f"Remove these obstacles, turn Secure Boot off for a module that is built here, {LEAVE}"
            if facts.secure_boot
            else f"Remove these obstacles, {LEAVE}",
        )
    installed = [row for row in fitting if row.module in facts.packages]
    return (installed or fitting)[0]


def _obstacle(host: Host, facts: Facts, models: list[pci.Model], row: Prebuilt) -> str | None:
    if host.driver != "auto":
        if "." in host.driver:
            return f"its version is the distribution's to choose, not {host.driver}"
        module = facts.packages.get(row.module)
        installed = module is not None and branch_of(module.version) == int(host.driver)
        if (
            not installed
            and not max(row.first, row.branch if row.first == 0 else 0) <= int(host.driver) <= row.last
        ):
            return f"it is of branch {row.branch}, not {host.driver}"
    if facts.secure_boot and not row.trusted:
        return "Secure Boot is on, and the kernel does not trust it"
    branch = branches()[row.branch]
    if row.flavour not in driver.flavours(models, row.branch):
        return driver.obstacle_of(facts, models, branch, packaged=False) or (
            f"{driver.model_names(models)} need another kernel module than the {row.flavour} one"
        )
    return driver.obstacle_of(facts, models, branch, packaged=False)


def _check_enabled(facts: Facts, row: Prebuilt) -> None:
    enabled = {repo.id for repo in repos(facts) if repo.enabled}
    missing = [group for group in row.repositories if not enabled & set(group)]
    if missing and row.module not in facts.packages:
        first, cloud = [group[0] for group in missing], [group[-1] for group in missing]
        raise CannotPlan(
            f"{facts.os.pretty} has signed modules in repositories that are not enabled: {', '.join(first)}",
            hint=f"On the host: `subscription-manager repos {' '.join(f'--enable={name}' for name in first)}`; on a pay-as-you-go "
            f"image `dnf config-manager --set-enabled {' '.join(cloud)}`; then run again.",
        )


def _replaces(facts: Facts, system: PackageSystem, row: Prebuilt) -> tuple[str, ...]:
    """All of a driver of another way: its modules exclude these."""
    names = system.names
    family = names.driver_family(facts.packages)
    # `packages` share their names with NVIDIA's, whose versions are others
    desired = {row.module, *row.follows}
    built = {
        *names.of_flavour(family, "open"),
        *names.of_flavour(family, "proprietary"),
        *names.foreign(family),
    }
    others = {name for name in built if not _belongs(name, row)}
    others |= {name for name in family if row.generation and "G0" in name and row.generation not in name}
    return tuple(sorted(set(family) - desired | others)) if others else ()


def _belongs(name: str, row: Prebuilt) -> bool:
    """Whether a package has modules of this way: the same, or those of one kernel."""
    return name == row.module or (
        name.startswith(("kmod-nvidia-open-", f"{row.module}-")) and "dkms" not in name
    )
