"""What dnf needs before it installs: NVIDIA's repositories with their keys, EPEL for dkms, the plugin that holds."""

from __future__ import annotations

from collections.abc import Iterator

from gpunode import compat
from gpunode.model import Change, Desired, Facts, PackageSpec, Source
from gpunode.packages.dnf import openpgp
from gpunode.packages.dnf.branch import NAMES
from gpunode.packages.dnf.repos import repos
from gpunode.planning import CannotPlan, files, packaging
from gpunode.render import template

KEYS = "/etc/pki/rpm-gpg/RPM-GPG-KEY-gpunode-*"
OSTREE = "/run/ostree-booted"


def offers(facts: Facts, purpose: compat.Purpose) -> bool:
    """Whether one of the host's enabled repositories is NVIDIA's for this."""
    return any(
        repo.enabled and any(compat.offers("dnf", purpose, uri) for uri in repo.uris) for repo in repos(facts)
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
    whole = desired.driver is not None and desired.driver.version != ""
    return tuple(change for source in desired.sources for change in _source(facts, source, hotfixes=whole))


def plan_tools(facts: Facts, desired: Desired) -> tuple[Change, ...]:
    """EPEL where dkms has to come from there, and the plugin that holds packages."""
    if desired.driver is None and not desired.toolkit:
        return ()
    changes: list[Change] = [*_epel(facts, desired)]
    if NAMES.holds not in facts.packages:
        why = "without this plugin dnf holds no version, and an upgrade by others parts library and module"
        changes.append(packaging.change(facts, why, install=(PackageSpec(NAMES.holds),)))
    return tuple(changes)


def _source(facts: Facts, source: Source, *, hotfixes: bool) -> Iterator[Change]:
    """Key and repository. `hotfixes`: packages of the driver that no stream has are seen, too."""
    purpose: compat.Purpose = "toolkit" if source.name == "gpunode-toolkit" else "driver"
    _check_key(facts, source, purpose)
    path = f"/etc/pki/rpm-gpg/RPM-GPG-KEY-{source.name}"
    key = source.key if source.key.endswith("\n") else f"{source.key}\n"
    text = template("etc/pki/rpm-gpg/RPM-GPG-KEY-gpunode", key=key)
    yield from files.write(
        facts, path, text, f"the key that signs {source.uri}; dnf takes it for this repository only"
    )
    packages = compat.signed_packages("dnf", purpose)
    text = template(
        "etc/yum.repos.d/gpunode.repo",
        id=source.name,
        words=f"NVIDIA {purpose}",
        uri=source.uri,
        packages=int(packages),
        metadata=int(not packages),
        hotfixes=hotfixes and purpose == "driver",
        key=path,
    )
    yield from files.write(
        facts, f"/etc/yum.repos.d/{source.name}.repo", text, f"where {purpose} packages come from"
    )


def _check_key(facts: Facts, source: Source, purpose: compat.Purpose) -> None:
    """Refuse another key than NVIDIA's for NVIDIA's own repository. A mirror's key is its owner's."""
    wanted = compat.key_fingerprint(purpose, facts.os, source.uri)
    if not wanted:
        return
    try:
        found = openpgp.fingerprint(source.key)
    except ValueError as error:
        found = f"none: {error}"
    if not found.endswith(wanted):
        raise CannotPlan(
            f"`repositories.{purpose}.key` is not the key of {source.uri}: its fingerprint is {found}, NVIDIA's ends "
            f"with {wanted}",
            hint=f"Take {compat.repository_key('dnf', purpose)}. If NVIDIA has changed its key, use a newer gpunode.",
        )


def _epel(facts: Facts, desired: Desired) -> Iterator[Change]:
    """EPEL, where dkms has to come from there."""
    package = compat.epel(facts.os)
    if desired.driver is None or package is None or "dkms" in facts.packages:
        return
    there = [repo for repo in repos(facts) if any("epel" in text.lower() for text in (repo.id, *repo.uris))]
    if any(repo.enabled for repo in there):
        return
    if package and not there and package not in facts.packages:
        why = "its repository has dkms, which builds the kernel module"
        yield packaging.change(facts, why, install=(PackageSpec(package),))
        return
    release = facts.os.version.partition(".")[0]
    way = (
        f"`dnf config-manager --set-enabled {there[0].id}`"
        if there
        else f"`dnf install https://dl.fedoraproject.org/pub/epel/epel-release-latest-{release}.noarch.rpm`"
    )
    raise CannotPlan(
        "dkms, which builds the kernel module, is in EPEL, and no enabled repository is EPEL",
        hint=f"On the host: {way}; or install dkms from a repository of your own.",
    )
