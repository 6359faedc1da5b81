"""Where an installed driver comes from, and what the distributions' archives have; the refusal to touch one that neither NVIDIA's
packages nor its installer brought."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from gpunode.errors import CannotPlan
from gpunode.model import Facts, Flavour, Host, Os, Package, PackageSpec
from gpunode.packages.names import PackageNames, PackageSystem
from gpunode.packages.releases import distribution
from gpunode.planning.tables import table
from gpunode.planning.versions import branch_of
from gpunode.wording import few

KERNEL = re.compile(r"(?P<series>\d+\.\d+)\.\d+-\d+-(?P<flavour>.+)")


@dataclass(frozen=True, slots=True)
class Archive:
    """A release's archive. `sets` of a branch: ways to name its packages, the one that is installed first."""

    name: str
    release: str
    suite: str
    branches: Mapping[int, tuple[str, ...]]
    shared_names: bool  # NVIDIA's repository has packages of these names
    rows: Mapping[str, Any]
    kernel: str = ""  # the release's own series

    @property
    def prefers(self) -> Flavour | None:
        """The flavour that is installed where GPUs take both; None: the better one for the GPUs."""
        flavour: Flavour | None = self.rows.get("prefers")
        return flavour

    def components(self, branch: int) -> tuple[str, ...]:
        return tuple(self.rows["components"].get(branch, ()))

    def sets(self, branch: int) -> tuple[str, ...]:
        """The sets of a branch, one that the archive has lost included."""
        return self.branches.get(branch) or tuple(self.rows["sets"])

    def packages(self, chosen: str, way: str, branch: int, flavour: Flavour) -> tuple[PackageSpec, ...]:
        """The packages of a set by a way: `prebuilt`, `dkms`, or `parts`, what makes up a driver without its modules; () where
        the set does not have it."""
        row = self.rows["sets"][chosen]
        open_ = "-open" if flavour == "open" else ""
        if flavour == "open" and not any("{open}" in name for name in row["dkms"]):
            return ()
        names = [name.format(branch=branch, open=open_) for name in row.get(way, ())]
        daemons = row.get("daemons", ()) if names else ()
        return (*(_spec(name, branch) for name in names), *(PackageSpec(name) for name in daemons))

    def builder(self, chosen: str, branch: int, flavour: Flavour) -> PackageSpec | None:
        """The package that builds the modules of `parts`; None where a set has none."""
        pattern = self.rows["sets"][chosen].get("builds")
        if pattern:
            return _spec(pattern.format(branch=branch, open="-open" if flavour == "open" else ""), branch)
        return None

    def modules(self, chosen: str, branch: int, flavour: Flavour, kernel: str) -> tuple[PackageSpec, ...]:
        """The signed modules of a kernel, and the package that follows its newest; () where there are none."""
        pattern, match = self.rows["sets"][chosen].get("modules"), KERNEL.fullmatch(kernel)
        if pattern is None or match is None or match["flavour"] not in self.rows["prebuilt"]:
            return ()
        kernels = [kernel]
        if match["flavour"] in self.rows["follows"]:
            newer = "" if match["series"] == self.kernel else f"-hwe-{self.release}"
            kernels.append(match["flavour"] + newer)
        open_ = "-open" if flavour == "open" else ""
        return tuple(
            PackageSpec(pattern.format(branch=branch, open=open_, kernel=kernel)) for kernel in kernels
        )

    def fabric(self, chosen: str, part: str, branch: int) -> PackageSpec | None:
        """The package that is this part beside a driver; None where the archive has none."""
        pattern = self.rows["sets"][chosen].get("fabric", {}).get(part)
        return _spec(pattern.format(branch=branch), branch) if pattern else None


def archive(os: Os) -> Archive | None:
    """The host's, or None where gpunode knows none with a driver."""
    rows = table(__package__, "archives.yaml").get(os.id, {})
    row = rows.get("releases", {}).get(os.version)
    if row is None:
        return None
    branches = {number: tuple(sets) for number, sets in row["branches"].items()}
    return Archive(
        distribution(os.id),
        os.version,
        row["suite"],
        branches,
        rows["shared_names"],
        rows,
        row.get("kernel", ""),
    )


def archive_family(names: Iterable[str]) -> tuple[str, ...]:
    """Those packages of a driver that only archives name so."""
    return tuple(name for name in names if _matches(name, table(__package__, "archives.yaml")["family"]))


def is_independent(name: str) -> bool:
    """Whether an archive's package has versions of its own, not the driver's."""
    return _matches(name, table(__package__, "archives.yaml")["independent"])


def scatters(name: str) -> bool:
    """Whether a driver's package has its libraries in another folder than libcuda's, where the toolkit's CDI modes find none."""
    return _matches(name, table(__package__, "archives.yaml")["scattered"])


def named_branch(name: str) -> int | None:
    """The branch in an archive's package's name: 580 of nvidia-utils-580-server; None without one."""
    match = re.search(r"-(\d{3})(?=[-:]|$)", name)
    return int(match[1]) if match else None


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _spec(name: str, branch: int) -> PackageSpec:
    return PackageSpec(name, f"{branch}.*", downgrade=True)


WAYS = "have gpunode keep them (`driver: {from: distribution}`) or replace them (`driver: {from: nvidia, version: …}`), "
LEAVE = "or set `driver: none` to leave this host's driver alone."


def check(host: Host, facts: Facts, system: PackageSystem) -> None:
    """Refuse to replace a driver that is not from NVIDIA's repositories."""
    installed = system.names.driver_family(facts.packages)
    theirs = system.names.from_nvidia(installed)
    family = {name: p for name, p in installed.items() if branch_of(p.version) or name in theirs}
    begun = sorted(system.names.driver_family({name: Package(name, "") for name in facts.half_installed}))
    if begun and not theirs and not system.keeps_branch(facts):
        raise CannotPlan(
            f"driver packages are half installed: {few(begun, 3)}",
            hint="An installation was interrupted. Finish it on the host (`dpkg --configure -a`, then "
            f"`apt-get --fix-broken install`), or remove them ({system.purge} {' '.join(begun[:3])} …), {LEAVE}",
        )
    foreign = system.names.foreign(family)
    replaceable = bool(host.driver_from) and archive(facts.os) is not None
    if family and (foreign or (not theirs and not replaceable)):
        family = {name: family[name] for name in foreign or family}
        whose = "another repository" if foreign else "the distribution's own archive"
        some = few([f"{p.name} {p.version}" for p in family.values()], 3)
        raise CannotPlan(
            f"a driver from {whose} is installed: {some}",
            hint="Its packages and NVIDIA's exclude each other: "
            + ("" if foreign or archive(facts.os) is None else WAYS)
            + f"remove them ({system.purge} {' '.join(sorted(family)[:3])} …), {LEAVE}",
        )
    run = facts.installed_run
    if (
        run is not None
        and host.driver_run is None
        and (family or (host.driver == "auto" and not host.driver_from))
    ):
        raise CannotPlan(
            f"a driver {run.version} is installed without packages, by NVIDIA's .run installer",
            hint="Have gpunode keep it: "
            f'`driver: {{from: run, version: "{run.version}", …}}`; name a branch to have packages in its place, or remove it '
            f"with `nvidia-uninstall`, {LEAVE}",
        )
    if not family and run is None and facts.library_version is not None and not begun:
        raise CannotPlan(
            f"a driver {facts.library_version} is installed without packages, and not by NVIDIA's .run installer",
            hint=f"Remove its files the way they came, {LEAVE}",
        )
    # A branch is kept, but no package there: a change of branch was cut off half way, and goes on.
    if not family and run is None and "nvidia" in facts.modules and not system.keeps_branch(facts):
        raise CannotPlan(
            f"an nvidia module {facts.modules['nvidia'].version} is loaded, but no package installed it: "
            "a driver container loaded it, or its packages were removed",
            hint=f"Stop what loaded it and unload it (`modprobe -r nvidia`) or reboot, {LEAVE}",
        )


def parts(facts: Facts, names: PackageNames) -> dict[str, Package]:
    """The installed packages of a driver, by NVIDIA's names or an archive's."""
    older = archive_family(facts.packages)
    return {**names.driver_family(facts.packages), **{name: facts.packages[name] for name in older}}


def every_part(facts: Facts, names: PackageNames) -> tuple[str, ...]:
    """The packages of a branch and those beside a driver, without those that keep apt on a branch."""
    beside = (*names.accessories(facts.packages), *names.fabric(facts.packages))
    known = {**parts(facts, names), **{name: facts.packages[name] for name in beside}}
    theirs = names.from_nvidia(known)
    ours = [name for name, p in known.items() if name in theirs or branch_of(p.version) or named_branch(name)]
    return tuple(sorted(set(ours) - set(names.pins(ours))))
