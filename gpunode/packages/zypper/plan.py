"""zypper: SLES and openSUSE Leap.

Repositories are files as dnf's, in another folder. Locks keep the driver's other ways away; libzypp has them in one file, a
stanza each.
"""

import re
from collections.abc import Iterator

from gpunode.errors import CannotPlan
from gpunode.model import Change, Desired, DriverSpec, Facts, Source, Watch
from gpunode.packages.dnf import plan as dnf
from gpunode.packages.names import PackageNames, PackageSystem
from gpunode.packages.releases import prebuilt
from gpunode.packages.zypper import on_host
from gpunode.planning import files
from gpunode.planning.templates import template

NAMES = PackageNames("zypper")
LOCKS = "/etc/zypp/locks"
REPOSITORY = "/etc/zypp/repos.d/gpunode-driver.repo"
TRANSACTIONAL = "/usr/sbin/transactional-update"
WATCH = Watch(
    files=(dnf.ZYPPERS, dnf.KEYS, LOCKS, TRANSACTIONAL, dnf.OSTREE),
    packages=("*nvidia*", "cuda-drivers*", "libnvsdm*", "kernel-*-devel", "dkms"),
)


def plan_sources(facts: Facts, desired: Desired) -> tuple[Change, ...]:
    if desired.driver is None and not desired.toolkit:
        return ()
    if files.exists(facts, TRANSACTIONAL) or files.exists(facts, dnf.OSTREE):
        raise CannotPlan(
            f"{facts.os.pretty}: its /usr changes by `transactional-update` only, which gpunode does not use",
            hint="Install driver and toolkit so (`transactional-update pkg install …`, reboot) and set `driver: none` and "
            "`toolkit: none`.",
        )
    return tuple(change for source in desired.sources for change in _source(facts, source))


def keeps_branch(facts: Facts) -> bool:
    return files.exists(facts, REPOSITORY)


def plan_branch(facts: Facts, driver: DriverSpec) -> tuple[Change, ...]:
    """Locks on the packages of other ways to a driver; the user's stay, and one on what is wished is refused."""
    before = files.text(facts, LOCKS) or ""
    present = locked_names(before)
    names = [spec.name for spec in (*driver.modules, *driver.packages)]
    ours = {name for row in prebuilt(facts.os, facts.kernel) for name in row.locks}
    after = before
    for name in names:  # locked for another way, before this one was wished
        after = after.replace(_stanza(name), "") if name in ours else after
    in_the_way = [name for name in names if name in locked_names(after) and name not in facts.packages]
    if in_the_way:
        raise CannotPlan(
            f"{LOCKS} keeps {', '.join(in_the_way)} away, which the driver needs",
            hint=f"Remove it on the host (`zypper removelock {' '.join(in_the_way)}`), then run again.",
        )
    after += "".join(_stanza(name) for name in driver.locks if name not in present)
    if after == before:
        return ()
    why = f"keeps other modules than {driver.modules[0].name} away: two of them exclude each other"
    return files.write(facts, LOCKS, after, why)


def locked_names(text: str) -> tuple[str, ...]:
    return tuple(re.findall(r"^solvable_name:\s*(\S+)", text, re.MULTILINE))


def _stanza(name: str) -> str:
    return f"\ntype: package\nmatch_type: glob\ncase_sensitive: on\nsolvable_name: {name}\n"


def _source(facts: Facts, source: Source) -> Iterator[Change]:
    what = source.name.removeprefix("gpunode-")
    yield from dnf.write_key(facts, source)
    text = template(
        "etc/zypp/repos.d/gpunode.repo",
        id=source.name,
        words=f"gpunode {what}",
        uri=source.uri,
        key=dnf.key_path(source),
    )
    yield from files.write(
        facts, f"/etc/zypp/repos.d/{source.name}.repo", text, f"where {what} packages come from"
    )


SYSTEM = PackageSystem(  # without notes: zypper takes what a key signed that has expired since
    NAMES,
    WATCH,
    rpm=True,
    purge="zypper remove",
    reinstall="zypper install --force",
    hints=on_host.HINTS,
    place=dnf.place,
    offers=dnf.offers,
    driver_sources=dnf.driver_sources,
    plan_sources=plan_sources,
    keeps_branch=keeps_branch,
    plan_branch=plan_branch,
)
