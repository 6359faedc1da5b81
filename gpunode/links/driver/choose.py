"""The driver for a host's GPUs: which branch, which module flavour, which packages."""

from collections.abc import Iterable, Sequence

from gpunode.errors import CannotPlan
from gpunode.links.driver import branches as kernels
from gpunode.links.driver import origin
from gpunode.links.driver.branches import Branch, branches, fixed_for, flavours_of, kernel_version
from gpunode.links.driver.modules import loaded_flavour
from gpunode.links.driver.origin import LEAVE
from gpunode.links.machine import pci
from gpunode.model import DriverSpec, Facts, Flavour, Host, RunFile
from gpunode.packages import releases
from gpunode.packages.names import PackageNames, PackageSystem
from gpunode.planning.versions import branch_of, is_installed, numbers, upstream

FLAVOURS: tuple[Flavour, ...] = ("open", "proprietary")
CLASSES = {"production": "production", "lts": "long-term"}  # of branches that get fixes for years
RANK = {"production": 3, "lts": 2, "new": 1, "ended": 0}  # of branches that fit, by their status


def decide(host: Host, facts: Facts, system: PackageSystem, models: Sequence[pci.Model]) -> DriverSpec:
    """The driver that fits all GPUs of the host. Raises CannotPlan with the reason where none does."""
    origin.check(host, facts, system)
    names = system.names
    full = host.driver if "." in host.driver else ""
    branches_there = {branch_of(facts.packages[name].version) for name in names.metas(facts.packages)}
    installed = branches_there.pop() if len(branches_there) == 1 else None
    if host.driver == "auto":
        branch = _best_branch(facts, models, installed)
        why = _reason(models, branch, kept=branch.number == installed)
    else:
        branch = _named_branch(host, facts, models, installed)
        why = f"the inventory asks for {host.driver}"
    run = host.driver_run
    kept = branch.number == installed
    present = _installed_flavour(facts, names) if kept else None
    flavour = flavour_for(models, branch.number, present, names.flavours if run is None else FLAVOURS)
    if run is not None:
        flavour = _flavour_of(facts, models, run)
    secure_boot(facts)
    switches = bool(pci.switches(facts.pci))
    parts = {*names.fabric(facts.packages).values(), *(("manager",) if switches else ())}
    exactly = full or (_installed_version(facts, names) if kept else "")
    if run is not None:
        there_now = facts.installed_run.version if facts.installed_run else ""
    else:
        there_now = _installed_version(facts, names)
    builds = run is not None or not names.prebuilt
    packages = names.driver(branch.number, flavour, full) if run is None else ()
    complete = there_now == exactly and all(is_installed(facts.packages, spec) for spec in packages)
    if builds:
        kernels.check_builds(host, facts, exactly or str(branch.number), complete=complete)
    ahead = kernels.next_kernel(facts)
    headers = names.headers(ahead) if ahead and builds else ()
    fixed = fixed_for(exactly or str(branch.number), ahead) if builds else ""
    return DriverSpec(
        branch=branch.number,
        flavour=flavour,
        version=full,
        pin=names.pin(branch.number, full) if run is None else (),
        headers=(*(names.headers(facts.kernel) if builds else ()), *(names.tools if run else ())),
        packages=packages,
        why=why,
        ahead=ahead,
        ahead_headers=() if fixed else headers,
        ahead_why=f"{exactly or branch.number} does not compile for it, {fixed} does"
        if fixed
        else kernels.unbuilt_reason(facts, headers, builds=builds, complete=complete),
        fabric=tuple(names.fabric_part(part, branch.number, exactly) for part in sorted(parts)),
        switches=switches,
        run=run,
        replaces=_replaces(host, facts, names),
    )


def _replaces(host: Host, facts: Facts, names: PackageNames) -> tuple[str, ...]:
    """A distribution's own driver, where the inventory wants NVIDIA's packages in its place."""
    packages = origin.parts(facts, names)
    theirs = not names.from_nvidia(packages) and any(branch_of(p.version) for p in packages.values())
    return origin.every_part(facts, names) if host.driver_from == "nvidia" and theirs else ()


def notes(host: Host, facts: Facts, driver: DriverSpec | None) -> tuple[str, ...]:
    if driver is None:
        if "nvidia" not in facts.modules:
            return ("No nvidia module is loaded, and with `driver: none` gpunode loads none.",)
        ahead = kernels.next_kernel(facts)
        return (f"Kernel {ahead} boots next and has no nvidia module.",) if ahead else ()
    running = facts.modules.get("nvidia")
    mixed = {gpu.mig_on for gpu in facts.gpus} == {True, False}
    if mixed and running is not None and (570, 124) <= numbers(running.version or "")[:2] <= (570, 158):
        return (
            f"The driver {running.version} has a fault with MIG on some GPUs only (570.124 to 570.158): use another branch.",
        )
    branch = branches().get(driver.branch)  # a distribution's may be newer than the table
    if driver.ahead_why:
        return (f"Kernel {driver.ahead} boots next and has no nvidia module: {driver.ahead_why}.",)
    if host.driver == "auto" or branch is None or branch.alive:
        return ()
    return (_note_ended(branch, facts, packaged=host.driver_run is None),)


def _note_ended(branch: Branch, facts: Facts, *, packaged: bool) -> str:
    """That the branch gets no more fixes, and which branches that fit the host do."""
    models = [pci.gpu(device.device) for device in pci.driven(facts.pci)]
    fixed = [
        f"{other.number} ({CLASSES[other.status]}, until {other.ends})"
        for other in sorted(branches().values(), key=lambda other: -RANK[other.status])
        if other.status in CLASSES and obstacle_of(facts, models, other, packaged=packaged) is None
    ]
    since = f" (since {branch.ends})" if branch.ends else ""
    others = f"; {' and '.join(fixed)} {'do' if fixed[1:] else 'does'}" if fixed else ""
    return f"Driver branch {branch.number} gets no more fixes{since}{others}."


def _best_branch(facts: Facts, models: Sequence[pci.Model], installed: int | None) -> Branch:
    """The supported branch that is installed if it fits, else production, else LTS, else the newest that fits."""
    fitting = [
        branch
        for branch in branches().values()
        if branch.alive and obstacle_of(facts, models, branch, packaged=branch.number != installed) is None
    ]
    if not fitting:
        raise _none_fits(facts, models)
    return max(fitting, key=lambda b: (b.number == installed, RANK[b.status], b.number))


def _named_branch(host: Host, facts: Facts, models: Sequence[pci.Model], installed: int | None) -> Branch:
    number = int(host.driver.split(".")[0])
    branch = branches()[number]  # or the inventory is refused
    packaged = host.driver_run is None and number != installed
    obstacle = obstacle_of(facts, models, branch, packaged=packaged)
    if obstacle is not None:
        raise CannotPlan(
            f"`driver: {host.driver}` does not fit: {obstacle}",
            hint=_hint_elsewhere(facts, models, (branch,), f", version: {number}")
            or f"Write `driver: auto`, which chooses a branch that fits, {LEAVE}",
        )
    return branch


def _hint_elsewhere(
    facts: Facts, models: Sequence[pci.Model], branches: Iterable[Branch], version: str = ""
) -> str:
    """A hint with the inventory's line that brings the best of these branches from another source; "" where none does."""
    drive = [b for b in branches if obstacle_of(facts, models, b, packaged=False) is None]
    archive = origin.archive(facts.os)
    offered = [b for b in drive if archive and b.number in archive.branches]
    if archive and offered:
        best = max(offered, key=lambda b: (RANK[b.status], b.number)).number
        line = f"driver: {{from: distribution{version}}}"
        return f"Write `{line}`: {archive.name}'s archive has {best}, which drives {model_names(models)}, {LEAVE}"
    alive = [b.number for b in drive if b.alive]
    if alive and not version:
        return f"Take NVIDIA's installer of {alive[-1]} (`driver: {{from: run, …}}`), {LEAVE}"
    return ""


def obstacle_of(
    facts: Facts, models: Sequence[pci.Model], branch: Branch, *, packaged: bool = True
) -> str | None:
    """Why a branch does not fit this host, in one sentence; None when it does. `packaged`: it comes from a repository."""
    number = branch.number
    for model in models:
        if model.last < number:
            return f"{model.name} ({model.generation}) is driven up to branch {model.last} only"
        if model.first > number:
            return f"{model.name} ({model.generation}) is driven from branch {model.first} on"
        if not flavours_of(model, number):
            return f"branch {number} has no kernel module for {model.name} ({model.generation})"
    if not flavours(models, number):
        return f"{model_names(models)} need different kernel modules of branch {number}, and a host loads one"
    release = releases.release(facts.os) if packaged else None
    if release is not None and not release.first <= number <= release.last:
        bound = f"begins with {release.first}" if number < release.first else f"ends with {release.last}"
        return f"NVIDIA's repository for {facts.os.pretty} {bound}"
    offered = PackageNames(release.family).flavours if release is not None else FLAVOURS
    if not set(flavours(models, number)) & set(offered):
        return f"NVIDIA's repository for {facts.os.pretty} has no {flavours(models, number)[0]} modules, which {model_names(models)} need"
    if kernel_version(facts.kernel) < branch.kernel:
        floor = ".".join(str(part) for part in branch.kernel)
        return f"branch {number} needs kernel {floor} or newer, and this host runs {facts.kernel}"
    return None


def _none_fits(facts: Facts, models: Sequence[pci.Model]) -> CannotPlan:
    ended = [b for b in branches().values() if not b.alive and obstacle_of(facts, models, b) is None]
    if ended:
        last = ended[-1]
        return CannotPlan(
            f"no driver branch that gets fixes supports {model_names(models)}; "
            f"the last one, {last.number}, {f'ended {last.ends}' if last.ends else 'has ended'}",
            hint=f"Set `driver: {last.number}` if your repository has it, take the GPU out, {LEAVE}",
        )
    obstacles = {}
    for branch in branches().values():
        if branch.alive:
            obstacles[branch.number] = obstacle_of(facts, models, branch)
    lines = "\n".join(f"{number}: {obstacle}" for number, obstacle in obstacles.items())
    what = "have no driver branch in common" if len(models) > 1 else "has no driver branch that fits"
    return CannotPlan(
        f"{model_names(models)} {what} on this host\n{lines}",
        hint=_hint_elsewhere(facts, models, branches().values())
        or f"Move one kind of GPU to another host, change what is in the way, {LEAVE}",
    )


def flavours(models: Sequence[pci.Model], branch: int) -> tuple[Flavour, ...]:
    """The module flavours of a branch that drive all of these, the better one first."""
    first, *rest = (flavours_of(model, branch) for model in models)
    return tuple(flavour for flavour in first if all(flavour in other for other in rest))


def flavour_for(
    models: Sequence[pci.Model],
    branch: int,
    installed: Flavour | None,
    offered: Sequence[Flavour] = FLAVOURS,
) -> Flavour:
    """Of those that are offered the installed flavour if it drives the GPUs, else the better one."""
    usable = [flavour for flavour in flavours(models, branch) if flavour in offered]
    return next((flavour for flavour in usable if flavour == installed), usable[0])


def _flavour_of(facts: Facts, models: Sequence[pci.Model], run: RunFile) -> Flavour:
    """The inventory's, if the GPUs take it; else the loaded one's of that version, or the better one."""
    branch = int(run.version.split(".")[0])
    if run.flavour is not None:
        if run.flavour in flavours(models, branch):
            return run.flavour
        raise CannotPlan(
            f"`driver.flavour: {run.flavour}`: {model_names(models)} need another kernel module of {run.version}",
            hint="Leave out `flavour`: gpunode then chooses the module that fits the GPUs.",
        )
    same = run.version in (facts.module_banner or "")
    return flavour_for(models, branch, loaded_flavour(facts) if same else None)


def _reason(models: Sequence[pci.Model], branch: Branch, *, kept: bool) -> str:
    oldest = min(models, key=lambda model: model.last)
    usable = flavours(models, branch.number)
    module = f", and only its {usable[0]} module" if len(usable) == 1 else ""
    if oldest.last == branch.number:
        return f"{oldest.generation}: {branch.number} is the last branch that drives it{module}"
    until = f", with fixes until {branch.ends}" if branch.ends else ""
    if kept:
        return f"branch {branch.number} is installed and drives {model_names(models)}{until}"
    if branch.status == "new":
        return f"{branch.number} is the newest branch that drives {model_names(models)}{module}"
    names = {"production": "production branch", "lts": "long-term branch"}
    return f"{branch.number} is the {names[branch.status]}{until}; it drives {model_names(models)}{module}"


def model_names(models: Iterable[pci.Model]) -> str:
    """For people: `Tesla P100 and A100`."""
    return " and ".join(f"{model.name}" for model in models)


def _installed_version(facts: Facts, names: PackageNames) -> str:
    """The full version of the installed driver; "" where its packages are of several."""
    versions = {upstream(facts.packages[name].version) for name in names.metas(facts.packages)}
    return versions.pop() if len(versions) == 1 else ""


def _installed_flavour(facts: Facts, names: PackageNames) -> Flavour | None:
    metas = names.metas(facts.packages)
    opens = names.of_flavour(metas, "open")
    if not metas or (opens and opens != metas):
        return None
    return "open" if opens else "proprietary"


def secure_boot(facts: Facts) -> None:
    if facts.secure_boot and "nvidia" not in facts.modules:
        raise CannotPlan(
            "Secure Boot is on: a module built on this host needs an enrolled key, and enrolling needs a user at the console",
            hint="Enrol a key (`dkms generate_mok`, `mokutil --import`, reboot, confirm on the console) and load "
            f"a signed driver once, turn Secure Boot off, {LEAVE}",
        )
