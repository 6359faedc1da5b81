"""The driver for a host's GPUs: which branch, which module flavour, which packages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gpunode import compat
from gpunode.errors import Refused
from gpunode.model import DriverWish, Facts, Host, PciDevice
from gpunode.wording import few

LEAVE = "or set `driver: none` to leave this host's driver alone."


def wish(host: Host, facts: Facts, gpus: Sequence[PciDevice], notes: list[str]) -> DriverWish:
    """The driver that fits all of the host's GPUs, or a refusal that says why there is none."""
    _passed_through(host, gpus)
    _own_driver(host, facts)
    models = list({device.device: compat.gpu(device.device) for device in gpus}.values())
    _known(host, models)
    full = host.driver if "." in host.driver else None
    installed = _installed_branch(facts)
    if host.driver == "auto":
        branch = _automatic(host, facts, models, installed)
        why = _reason(models, branch, kept=branch.number == installed)
    else:
        branch = _wished(host, facts, models)
        why = f"the inventory asks for {host.driver}"
        if not branch.alive:
            notes.append(
                f"Driver branch {branch.number} is end of life{f', since {branch.ends}' if branch.ends else ''}."
            )
    kept = branch.number == installed
    flavour = _flavour(models, branch.number, _installed_flavour(facts) if kept else None)
    _secure_boot(host, facts)
    version = f"{full}-*" if full else f"{branch.number}.*"
    names = compat.driver_packages(branch.number, flavour)
    return DriverWish(
        branch=branch.number,
        flavour=flavour,
        version=full or version,
        pin=compat.driver_pin(branch.number, full or str(branch.number)),
        packages=(compat.headers(facts.kernel), *(f"{name}={version}" for name in names)),
        why=why,
    )


def _automatic(
    host: Host, facts: Facts, models: Sequence[compat.Model], installed: int | None
) -> compat.Branch:
    """The living branch that is installed if it fits, else production, else the newest that fits."""
    fitting = [
        branch
        for branch in compat.branches().values()
        if branch.alive and _obstacle(facts, models, branch) is None
    ]
    order = {"production": 2, "lts": 1, "new": 0}
    if not fitting:
        raise _none_fits(host, facts, models)
    return max(fitting, key=lambda b: (b.number == installed, order[b.status], b.number))


def _wished(host: Host, facts: Facts, models: Sequence[compat.Model]) -> compat.Branch:
    number = int(host.driver.split(".")[0])
    branch = compat.branches().get(number)
    if branch is None:
        known = ", ".join(str(known) for known in compat.branches())
        raise Refused(
            host.name,
            f"`driver: {host.driver}`: gpunode knows no branch {number} (it knows {known})",
            hint="Write `driver: auto` to have the branch chosen that fits the GPUs.",
        )
    obstacle = _obstacle(facts, models, branch)
    if obstacle is not None:
        raise Refused(
            host.name,
            f"`driver: {host.driver}` does not fit: {obstacle}",
            hint=f"Write `driver: auto`, which chooses a branch that fits, {LEAVE}",
        )
    return branch


def _obstacle(facts: Facts, models: Sequence[compat.Model], branch: compat.Branch) -> str | None:
    """Why a branch cannot be this host's, in one sentence; None when it can."""
    number = branch.number
    for model in models:
        if model.last < number:
            return f"{model.name} ({model.generation}) is driven up to branch {model.last} only"
        if model.first > number:
            return f"{model.name} ({model.generation}) is driven from branch {model.first} on"
        if not model.flavours_on(number):
            return f"branch {number} has no kernel module for {model.name} ({model.generation})"
    if not _flavours(models, number):
        return f"{_names(models)} need different kernel modules of branch {number}, and a host loads one"
    system = compat.system(facts.os.id, facts.os.version, facts.os.arch)
    if system is not None and not system.first <= number <= system.last:
        bound = f"begins with {system.first}" if number < system.first else f"ends with {system.last}"
        return f"NVIDIA's repository for {facts.os.pretty} {bound}"
    if compat.kernel_version(facts.kernel) < branch.kernel:
        floor = ".".join(str(part) for part in branch.kernel)
        return f"branch {number} needs kernel {floor} or newer, and this host runs {facts.kernel}"
    return None


def _none_fits(host: Host, facts: Facts, models: Sequence[compat.Model]) -> Refused:
    ended = [b for b in compat.branches().values() if not b.alive and _obstacle(facts, models, b) is None]
    if ended:
        last = ended[-1]
        return Refused(
            host.name,
            f"no driver branch that still gets fixes drives {_names(models)}; "
            f"the last that does is {last.number}{_since(last)}",
            hint=f"Set `driver: {last.number}` if your repository has it, take the GPU out, {LEAVE}",
        )
    obstacles = {}
    for branch in compat.branches().values():
        if branch.alive:
            obstacles[branch.number] = _obstacle(facts, models, branch)
    lines = "\n".join(f"{number}: {obstacle}" for number, obstacle in obstacles.items())
    what = "have no driver branch in common" if len(models) > 1 else "has no driver branch that fits"
    return Refused(
        host.name,
        f"{_names(models)} {what} on this host\n{lines}",
        hint=f"Move one kind of GPU to another host, change what is in the way, {LEAVE}",
    )


def _flavours(models: Sequence[compat.Model], branch: int) -> tuple[compat.Flavour, ...]:
    first, *rest = (model.flavours_on(branch) for model in models)
    return tuple(flavour for flavour in first if all(flavour in other for other in rest))


def _flavour(models: Sequence[compat.Model], branch: int, installed: str | None) -> compat.Flavour:
    usable = _flavours(models, branch)
    return next((flavour for flavour in usable if flavour == installed), usable[0])


def _reason(models: Sequence[compat.Model], branch: compat.Branch, *, kept: bool) -> str:
    oldest = min(models, key=lambda model: model.last)
    flavours = _flavours(models, branch.number)
    module = f", and only its {flavours[0]} module" if len(flavours) == 1 else ""
    if oldest.last == branch.number:
        return f"{oldest.generation}: {branch.number} is the last branch that drives it{module}"
    until = f", with fixes until {branch.ends}" if branch.ends else ""
    if kept:
        return f"branch {branch.number} is installed and drives {_names(models)}{until}"
    if branch.status == "new":
        return f"{branch.number} is the newest branch that drives {_names(models)}{module}"
    words = {"production": "production branch", "lts": "long-term branch"}
    return f"{branch.number} is the {words[branch.status]}{until}; it drives {_names(models)}{module}"


def _names(models: Iterable[compat.Model]) -> str:
    return " and ".join(f"{model.name}" for model in models)


def _since(branch: compat.Branch) -> str:
    return f", which ended {branch.ends}" if branch.ends else ", which has ended"


def _known(host: Host, models: Sequence[compat.Model]) -> None:
    unknown = [model.name for model in models if not model.flavours]
    if unknown:
        raise Refused(
            host.name,
            f"{', '.join(unknown)}: not in gpunode's tables, so no driver can be chosen for it",
            hint="Use a newer gpunode, or install a driver by hand and set `driver: none`.",
        )


def _passed_through(host: Host, gpus: Sequence[PciDevice]) -> None:
    if all(device.driver == "vfio-pci" for device in gpus):
        raise Refused(
            host.name,
            f"all {len(gpus)} GPUs are bound to vfio-pci, for virtual machines",
            hint="Give a GPU back to the host (unbind vfio-pci, remove its ids from modprobe.d), "
            "or take the host out of the inventory.",
        )


def _installed_branch(facts: Facts) -> int | None:
    family = compat.driver_family(facts.packages)
    found = {compat.branch_of(package.version) for name, package in family.items() if compat.is_meta(name)}
    return found.pop() if len(found) == 1 else None


def _installed_flavour(facts: Facts) -> str | None:
    metas = [name for name in compat.driver_family(facts.packages) if compat.is_meta(name)]
    found = {"open" if name.startswith("nvidia-open") else "proprietary" for name in metas}
    return found.pop() if len(found) == 1 else None


def _own_driver(host: Host, facts: Facts) -> None:
    """A driver that did not come from NVIDIA's repositories is not gpunode's to replace."""
    found = compat.driver_family(facts.packages)
    family = {n: p for n, p in found.items() if compat.branch_of(p.version) or compat.from_nvidia([n])}
    if family and not compat.from_nvidia(family):
        some = few([f"{p.name} {p.version}" for p in family.values()], 3)
        raise Refused(
            host.name,
            f"a driver from the distribution's own archive is installed: {some}",
            hint="Its packages and NVIDIA's exclude each other: remove them "
            f"(apt-get purge {' '.join(sorted(family)[:3])} …), {LEAVE}",
        )
    if not family and facts.library_version is not None:
        raise Refused(
            host.name,
            f"a driver {facts.library_version} is installed without packages, as a .run installer does",
            hint=f"Remove it with `nvidia-uninstall`, {LEAVE}",
        )
    if not family and "nvidia" in facts.modules:
        raise Refused(
            host.name,
            f"an nvidia module {facts.modules['nvidia'].version} is loaded that no package brought: "
            "a driver container's, or one whose packages were removed",
            hint=f"Stop what loaded it and unload it (`modprobe -r nvidia`) or reboot, {LEAVE}",
        )


def _secure_boot(host: Host, facts: Facts) -> None:
    if facts.secure_boot and "nvidia" not in facts.modules:
        raise Refused(
            host.name,
            "Secure Boot is on: the kernel loads no module that is built here unless its key is enrolled, "
            "which takes somebody at the console",
            hint="Enrol a key (`dkms generate_mok`, `mokutil --import`, reboot, confirm on the console) and load "
            f"a signed driver once, turn Secure Boot off, {LEAVE}",
        )
