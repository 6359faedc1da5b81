"""Where an installed driver comes from: the refusal to touch one that neither NVIDIA's packages nor its installer brought."""

from __future__ import annotations

from gpunode.errors import Refused
from gpunode.links.driver import archives
from gpunode.model import Facts, Host, Package
from gpunode.packages import PackageSystem
from gpunode.packages.names import PackageNames
from gpunode.planning.versions import branch_of
from gpunode.wording import few

WAYS = "have gpunode keep them (`driver: {from: distribution}`) or replace them (`driver: {from: nvidia, version: …}`), "
LEAVE = "or set `driver: none` to leave this host's driver alone."


def check(host: Host, facts: Facts, system: PackageSystem) -> None:
    """Refuse to replace a driver that is not from NVIDIA's repositories."""
    found = system.NAMES.driver_family(facts.packages)
    theirs = system.NAMES.from_nvidia(found)
    family = {name: p for name, p in found.items() if branch_of(p.version) or name in theirs}
    begun = sorted(system.NAMES.driver_family({name: Package(name, "") for name in facts.half_installed}))
    if begun and not theirs and not system.keeps_branch(facts):
        raise Refused(
            host.name,
            f"packages of a driver are half installed: {few(begun, 3)}",
            hint="Somebody's installation stopped in the middle. End it on the host (`dpkg --configure -a`, then "
            f"`apt-get --fix-broken install`), or remove them ({system.PURGE} {' '.join(begun[:3])} …), {LEAVE}",
            layer="module",
        )
    foreign = system.NAMES.foreign(family)
    replaceable = bool(host.driver_from) and archives.archive(facts.os) is not None
    if family and (foreign or (not theirs and not replaceable)):
        family = {name: family[name] for name in foreign or family}
        whose = "another repository" if foreign else "the distribution's own archive"
        some = few([f"{p.name} {p.version}" for p in family.values()], 3)
        raise Refused(
            host.name,
            f"a driver from {whose} is installed: {some}",
            hint="Its packages and NVIDIA's exclude each other: "
            + ("" if foreign or archives.archive(facts.os) is None else WAYS)
            + f"remove them ({system.PURGE} {' '.join(sorted(family)[:3])} …), {LEAVE}",
            layer="module",
        )
    run = facts.installed_run
    if (
        run is not None
        and host.driver_run is None
        and (family or (host.driver == "auto" and not host.driver_from))
    ):
        raise Refused(
            host.name,
            f"a driver {run.version} is installed without packages, by NVIDIA's .run installer",
            hint="Have gpunode keep it: "
            f'`driver: {{from: run, version: "{run.version}", …}}`; name a branch to have packages in its place, or remove it '
            f"with `nvidia-uninstall`, {LEAVE}",
            layer="module",
        )
    if not family and run is None and facts.library_version is not None and not begun:
        raise Refused(
            host.name,
            f"a driver {facts.library_version} is installed without packages, and not by NVIDIA's .run installer",
            hint=f"Remove its files the way they came, {LEAVE}",
            layer="module",
        )
    # A branch is kept, but no package there: a change of branch was cut off half way, and goes on.
    if not family and run is None and "nvidia" in facts.modules and not system.keeps_branch(facts):
        raise Refused(
            host.name,
            f"an nvidia module {facts.modules['nvidia'].version} is loaded that no package brought: "
            "a driver container's, or one whose packages were removed",
            hint=f"Stop what loaded it and unload it (`modprobe -r nvidia`) or reboot, {LEAVE}",
            layer="module",
        )


def parts(facts: Facts, names: PackageNames) -> dict[str, Package]:
    """The installed packages of a driver, by NVIDIA's names or an archive's."""
    older = archives.archive_family(facts.packages)
    return {**names.driver_family(facts.packages), **{name: facts.packages[name] for name in older}}


def every_part(facts: Facts, names: PackageNames) -> tuple[str, ...]:
    """Those that are of a branch, with what may be there beside a driver; without what keeps apt on a branch."""
    beside = (*names.accessories(facts.packages), *names.fabric(facts.packages))
    found = {**parts(facts, names), **{name: facts.packages[name] for name in beside}}
    theirs = names.from_nvidia(found)
    ours = [
        name
        for name, p in found.items()
        if name in theirs or branch_of(p.version) or archives.named_branch(name)
    ]
    return tuple(sorted(set(ours) - set(names.pins(ours))))
