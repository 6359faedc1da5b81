"""What dnf needs before it installs: NVIDIA's repositories with their keys, EPEL for dkms, the plugin that holds."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator, Mapping

from gpunode import compat
from gpunode.errors import CannotPlan
from gpunode.model import Change, Desired, Facts, PackageSpec, Source
from gpunode.packages.dnf import branch, openpgp
from gpunode.packages.dnf.repos import Repo, repos
from gpunode.planning import files, packaging
from gpunode.planning.templates import template
from gpunode.planning.versions import is_installed

KEYS = "/etc/pki/rpm-gpg/RPM-GPG-KEY-gpunode-*"
OSTREE = "/run/ostree-booted"
PURPOSES: Mapping[str, compat.Purpose] = {"gpunode-driver": "driver", "gpunode-toolkit": "toolkit"}


def offers(facts: Facts, purpose: compat.Purpose) -> bool:
    """Whether one of the host's enabled repositories is NVIDIA's for this."""
    family = _family(facts)
    return any(
        repo.enabled and any(compat.offers(family, purpose, uri) for uri in repo.uris)
        for repo in repos(facts)
    )


def plan(facts: Facts, desired: Desired) -> tuple[Change, ...]:
    """Repositories with their keys."""
    if desired.driver is None and not desired.toolkit:
        return ()
    if facts.files.get(OSTREE) and facts.files[OSTREE].exists:
        raise CannotPlan(
            "the system is an image (ostree, bootc): packages vanish with the next one",
            hint="Build driver and toolkit into the image and set `driver: none` and `toolkit: none`.",
        )
    # A stream has all versions of a branch but only the newest kmod-nvidia-*-dkms (cuda-repo-management/genmodules.py).
    whole = desired.driver is not None and desired.driver.version != "" and _family(facts) == "dnf"
    changes: tuple[Change, ...] = ()
    for source in desired.sources:
        here = tuple(_source(facts, source, hotfixes=whole))
        check_expiry(facts, desired, source, here)
        changes += here
    if desired.driver is not None and desired.driver.brings:
        changes = (*changes, *_without_nvidias(facts))
    wish = desired.driver
    specs = (*desired.toolkit, *((*wish.modules, *wish.packages) if wish else ()))
    if changes or not all(is_installed(facts.packages, spec) for spec in specs):
        _reachable(facts, desired)
    return changes


def plan_tools(facts: Facts, desired: Desired) -> tuple[Change, ...]:
    """EPEL where dkms has to come from there, and the plugin that holds packages."""
    if desired.driver is None and not desired.toolkit:
        return ()
    changes: list[Change] = [*_epel(facts, desired)]
    brings = desired.driver.brings if desired.driver else ""
    if brings and brings not in facts.packages:
        why = "its repository has the distribution's build of the driver"
        changes.append(packaging.change(facts, why, install=(PackageSpec(brings),)))
    family = _family(facts)
    holds = compat.PackageNames(family).holds
    release = compat.release(facts.os)
    if holds not in facts.packages and not (release and release.locks):
        why = f"without this plugin {family} holds no version, and an upgrade by others parts library and module"
        changes.append(packaging.change(facts, why, install=(PackageSpec(holds),)))
    return tuple(changes)


def _family(facts: Facts) -> compat.Family:
    release = compat.release(facts.os)
    return release.family if release else "dnf"


def _reachable(facts: Facts, desired: Desired) -> None:
    """Refuse where the distribution's own repositories are gone and nothing is in their place."""
    alive = [repo for repo in repos(facts) if repo.enabled]
    gone = [repo for repo in alive if any(compat.is_gone(_family(facts), uri) for uri in repo.uris)]
    ours = ("gpunode-driver", "gpunode-toolkit")
    other = [repo for repo in alive if repo not in gone and repo.id not in ours]
    named = any(source.name == "gpunode-system" for source in desired.sources)
    if (
        gone
        and not named
        and all(any("epel" in uri for uri in repo.uris) or _nvidias(facts, repo) for repo in other)
    ):
        raise CannotPlan(
            f"{gone[0].path}: the repositories of {facts.os.pretty} are gone ({gone[0].uris[0]})",
            hint="Name a mirror that still has them in the inventory: `repositories.system`, with uri and key.",
        )


def _nvidias(facts: Facts, repo: Repo) -> bool:
    purposes: tuple[compat.Purpose, ...] = ("driver", "toolkit")
    return any(compat.offers(_family(facts), purpose, uri) for purpose in purposes for uri in repo.uris)


def _without_nvidias(facts: Facts) -> Iterator[Change]:
    """Away with gpunode's repository of NVIDIA's driver: its streams hide what the distribution has."""
    before = files.text(facts, branch.REPOSITORY)
    if before is not None:
        why = "the driver comes from the distribution's own repository"
        yield files.remove(branch.REPOSITORY, before, why)


def _source(facts: Facts, source: Source, *, hotfixes: bool) -> Iterator[Change]:
    """Key and repository. `hotfixes`: packages of the driver that no stream has are seen, too."""
    purpose = PURPOSES.get(source.name)
    check_key(facts, source)
    path = f"/etc/pki/rpm-gpg/RPM-GPG-KEY-{source.name}"
    key = source.key if source.key.endswith("\n") else f"{source.key}\n"
    text = template("etc/pki/rpm-gpg/RPM-GPG-KEY-gpunode", key=key)
    yield from files.write(
        facts, path, text, f"the key that signs {source.uri}; dnf takes it for this repository only"
    )
    signer = _signer(facts, source)
    packages = signer is None or compat.signed_packages(_family(facts), signer)
    text = template(
        "etc/yum.repos.d/gpunode.repo",
        id=source.name,
        words=f"NVIDIA {purpose}" if purpose else "the distribution",
        uri=source.uri,
        packages=int(packages),
        metadata=int(not packages),
        hotfixes=hotfixes and purpose == "driver",
        key=path,
    )
    yield from files.write(
        facts,
        f"/etc/yum.repos.d/{source.name}.repo",
        text,
        f"where {purpose or 'the distribution'} packages come from",
    )


def check_key(facts: Facts, source: Source) -> None:
    """Refuse another key than NVIDIA's for NVIDIA's own repository, and than the one whose fingerprint the user has given. A
    mirror's key is its owner's."""
    purpose, given = _signer(facts, source), source.fingerprint
    known = compat.key_fingerprint(facts.os, source.uri) if purpose else None
    if known is None and not given:
        return
    try:
        found = openpgp.fingerprint(source.key)
    except ValueError as error:
        found = f"none: {error}"
    name = f"`repositories.{source.name.removeprefix('gpunode-')}.key`"
    if given and found != given:
        raise CannotPlan(
            f"{name} is another key than its `fingerprint` names: its own is {found}",
            hint=f"Bring the key with the fingerprint {given}, or correct `fingerprint`.",
        )
    if purpose is None or known is None or compat.is_trusted(found, known, (given,)):
        return
    if len(found) == compat.WHOLE and found.endswith(known):
        end = f"only that NVIDIA's ends with {known}, and another key can be made to end so"
        raise CannotPlan(
            f"{name} has the fingerprint {found}; gpunode knows {end if known else f'none for {source.uri}'}",
            hint="Compare all 40 digits with a source of your own. If they are the same, write them beside `key`: "
            f"`fingerprint: {found}`.",
        )
    verb = "ends with" if 0 < len(known) < compat.WHOLE else "is"
    raise CannotPlan(
        f"{name} is not the key of {source.uri}: its fingerprint is {found}, NVIDIA's {verb} {known or 'not known'}",
        hint=f"Take {compat.repository_key(_family(facts), purpose)}. If NVIDIA has changed its key, use a newer gpunode.",
    )


def _signer(facts: Facts, source: Source) -> compat.Purpose | None:
    """Which of NVIDIA's repositories the source is signed like: by its address where that is NVIDIA's own, else by its use."""
    purpose = PURPOSES.get(source.name)
    return purpose and (compat.owner(_family(facts), source.uri) or purpose)


def check_expiry(facts: Facts, desired: Desired, source: Source, changes: Collection[Change]) -> None:
    """Refuse a key that has expired where the host needs what it signs: for `changes` of its source, or for packages."""
    expired = _expired(facts, source)
    if expired and (changes or not _has_all(facts, desired, source)):
        raise CannotPlan(
            f"{expired}: nothing that it signs is trusted",
            hint=f"Download the key again from where {source.uri} has it: keys are extended. If the host's clock is wrong, set it.",
        )


def expiry_notes(facts: Facts, sources: Iterable[Source]) -> tuple[str, ...]:
    """A note on each expired key. It does not affect what a host has already."""
    expired = (_expired(facts, source) for source in sources)
    return tuple(f"{words}: the next installation with it needs a renewed key." for words in expired if words)


def _expired(facts: Facts, source: Source) -> str:
    """When the key expired by the host's clock, if it signs a repository's metadata, which is trusted no more then; else "".
    Packages are, if they were signed before."""
    signer, family = _signer(facts, source), _family(facts)
    ends = openpgp.expires(source.key)
    if signer is None or compat.signed_packages(family, signer) or family == "zypper":
        return ""
    if ends is None or facts.time < ends:
        return ""
    day = time.strftime("%Y-%m-%d", time.gmtime(ends))
    return f"`repositories.{PURPOSES[source.name]}.key` expired on {day}"


def _has_all(facts: Facts, desired: Desired, source: Source) -> bool:
    """Whether all of NVIDIA's packages that come from this source are installed. One source may have both kinds."""
    wish, names = desired.driver, [one.name for one in desired.sources]
    specs = desired.toolkit if source.name == "gpunode-toolkit" or "gpunode-toolkit" not in names else ()
    if source.name == "gpunode-driver" and wish is not None:
        driver = (*wish.pin, *wish.modules, *wish.packages, *wish.fabric, *wish.subnet)
        specs += tuple(spec for spec in driver if spec.origin == "nvidia")
    return all(is_installed(facts.packages, spec) for spec in specs)


def _epel(facts: Facts, desired: Desired) -> Iterator[Change]:
    """EPEL, where something of it is needed."""
    need = compat.epel(facts.os)
    if desired.driver is None or desired.driver.archive or need is None or need.package in facts.packages:
        return
    package = need.release_package
    there = [repo for repo in repos(facts) if any("epel" in text.lower() for text in (repo.id, *repo.uris))]
    if any(repo.enabled for repo in there):
        return
    if package and not there and package not in facts.packages:
        why = f"its repository has {need.words}"
        yield packaging.change(facts, why, install=(PackageSpec(package),))
        return
    release = facts.os.version.partition(".")[0]
    way = (
        f"`dnf config-manager --set-enabled {there[0].id}`"
        if there
        else f"`dnf install https://dl.fedoraproject.org/pub/epel/epel-release-latest-{release}.noarch.rpm`"
    )
    raise CannotPlan(
        f"{need.words}, is in EPEL, and no enabled repository is EPEL",
        hint=f"On the host: {way}; or install {need.package} from a repository of your own.",
    )
