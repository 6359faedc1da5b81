"""The keys that sign repositories, as planners judge them: whose they are, and until when they are good."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping

from gpunode.errors import CannotPlan
from gpunode.model import Change, Desired, Facts, Source
from gpunode.packages import openpgp, releases, repositories
from gpunode.planning.versions import is_installed

PURPOSES: Mapping[str, repositories.Purpose] = {"gpunode-driver": "driver", "gpunode-toolkit": "toolkit"}


def check_key(facts: Facts, source: Source) -> None:
    """Refuse another key than NVIDIA's for NVIDIA's own repository, and than the one whose fingerprint the user has given. A
    mirror's key is its owner's."""
    purpose, given = signer_of(facts, source), source.fingerprint
    known = repositories.key_fingerprint(facts.os, source.uri) if purpose else None
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
    if purpose is None or known is None or repositories.is_trusted(found, known, (given,)):
        return
    if len(found) == repositories.WHOLE and found.endswith(known):
        end = f"only that NVIDIA's ends with {known}, and another key can be made to end so"
        raise CannotPlan(
            f"{name} has the fingerprint {found}; gpunode knows {end if known else f'none for {source.uri}'}",
            hint="Compare all 40 digits with a source of your own. If they are the same, write them beside `key`: "
            f"`fingerprint: {found}`.",
        )
    verb = "ends with" if 0 < len(known) < repositories.WHOLE else "is"
    raise CannotPlan(
        f"{name} is not the key of {source.uri}: its fingerprint is {found}, NVIDIA's {verb} {known or 'not known'}",
        hint=f"Take {repositories.repository_key(_family(facts), purpose)}. If NVIDIA has changed its key, use a newer gpunode.",
    )


def signer_of(facts: Facts, source: Source) -> repositories.Purpose | None:
    """Which of NVIDIA's repositories the source is signed like: by its address where that is NVIDIA's own, else by its use."""
    purpose = PURPOSES.get(source.name)
    return purpose and (repositories.owner(_family(facts), source.uri) or purpose)


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
    signer, family = signer_of(facts, source), _family(facts)
    ends = openpgp.expires(source.key)
    if signer is None or repositories.signed_packages(family, signer):
        return ""
    if ends is None or facts.time < ends:
        return ""
    day = time.strftime("%Y-%m-%d", time.gmtime(ends))
    return f"`repositories.{PURPOSES[source.name]}.key` expired on {day}"


def _has_all(facts: Facts, desired: Desired, source: Source) -> bool:
    """Whether all of NVIDIA's packages that come from this source are installed. One source may have both kinds."""
    wish, names = desired.driver, [source.name for source in desired.sources]
    specs = desired.toolkit if source.name == "gpunode-toolkit" or "gpunode-toolkit" not in names else ()
    if source.name == "gpunode-driver" and wish is not None:
        driver = (*wish.pin, *wish.modules, *wish.packages, *wish.fabric, *wish.subnet)
        specs += tuple(spec for spec in driver if spec.origin == "nvidia")
    return all(is_installed(facts.packages, spec) for spec in specs)


def armoured(source: Source) -> str:
    """The key's text as a file has it."""
    return source.key if source.key.endswith("\n") else f"{source.key}\n"


def _family(facts: Facts) -> str:
    release = releases.release(facts.os)
    return release.family if release else "dnf"
