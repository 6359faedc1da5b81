"""The keys that sign repositories: their fingerprints, whose they are, and until when they are good."""

import base64
import binascii
import hashlib
import re
import time
from collections.abc import Collection, Iterable, Iterator, Mapping

from gpunode.errors import CannotPlan
from gpunode.model import Change, Desired, Facts, Source
from gpunode.packages import releases, repositories
from gpunode.planning.versions import is_installed

PURPOSES: Mapping[str, repositories.Purpose] = {"gpunode-driver": "driver", "gpunode-toolkit": "toolkit"}


def check_key(facts: Facts, source: Source) -> None:
    """Refuse another key than NVIDIA's for NVIDIA's own repository, and than the one whose fingerprint the user has given. A
    mirror's key is its owner's."""
    purpose, trusted = signer_of(facts, source), source.fingerprint
    known = repositories.key_fingerprint(facts.os, source.uri) if purpose else None
    if known is None and not trusted:
        return
    try:
        actual = fingerprint(source.key)
    except ValueError as error:
        actual = f"none: {error}"
    name = f"`repositories.{source.name.removeprefix('gpunode-')}.key`"
    if trusted and actual != trusted:
        raise CannotPlan(
            f"{name} is another key than its `fingerprint` names: its own is {actual}",
            hint=f"Bring the key with the fingerprint {trusted}, or correct `fingerprint`.",
        )
    if purpose is None or known is None or repositories.is_trusted(actual, known, (trusted,)):
        return
    if len(actual) == repositories.WHOLE and actual.endswith(known):
        end = f"only that NVIDIA's ends with {known}. A forged key can end so, too"
        raise CannotPlan(
            f"{name} has the fingerprint {actual}; gpunode knows {end if known else f'none for {source.uri}'}",
            hint="Compare all 40 digits with a source of your own. If they are the same, write them beside `key`: "
            f"`fingerprint: {actual}`.",
        )
    verb = "ends with" if 0 < len(known) < repositories.WHOLE else "is"
    raise CannotPlan(
        f"{name} is not the key of {source.uri}: its fingerprint is {actual}, NVIDIA's {verb} {known or 'not known'}",
        hint=f"Take {repositories.repository_key(releases.family(facts.os), purpose)}. If NVIDIA has changed its key, use a newer gpunode.",
    )


def signer_of(facts: Facts, source: Source) -> repositories.Purpose | None:
    """Which of NVIDIA's repositories the source is signed like: by its address where that is NVIDIA's own, else by its use."""
    purpose = PURPOSES.get(source.name)
    return purpose and (repositories.owner(releases.family(facts.os), source.uri) or purpose)


def check_expiry(facts: Facts, desired: Desired, source: Source, changes: Collection[Change]) -> None:
    """Refuse an expired key if the host needs its repository: for `changes` of its source, or for packages."""
    expired = _expiry_problem(facts, source)
    if expired and (changes or not _has_all(facts, desired, source)):
        raise CannotPlan(
            f"{expired}: nothing that it signs is trusted",
            hint=f"Download the key again from where {source.uri} has it: keys are extended. If the host's clock is wrong, set it.",
        )


def expiry_notes(facts: Facts, sources: Iterable[Source]) -> tuple[str, ...]:
    """A note on each expired key. It does not affect what a host has already."""
    expired = (_expiry_problem(facts, source) for source in sources)
    return tuple(f"{note}: the next installation with it needs a renewed key." for note in expired if note)


def _expiry_problem(facts: Facts, source: Source) -> str:
    """When the key expired by the host's clock, if it signs a repository's metadata, which is trusted no more then; else "".
    Packages are, if they were signed before."""
    signer, family = signer_of(facts, source), releases.family(facts.os)
    ends = expiry_time(source.key)
    if signer is None or repositories.signed_packages(family, signer):
        return ""
    if ends is None or facts.time < ends:
        return ""
    day = time.strftime("%Y-%m-%d", time.gmtime(ends))
    return f"`repositories.{PURPOSES[source.name]}.key` expired on {day}"


def _has_all(facts: Facts, desired: Desired, source: Source) -> bool:
    """Whether all of NVIDIA's packages that come from this source are installed. One source may have both kinds."""
    driver, names = desired.driver, [source.name for source in desired.sources]
    specs = desired.toolkit if source.name == "gpunode-toolkit" or "gpunode-toolkit" not in names else ()
    if source.name == "gpunode-driver" and driver is not None:
        specs += tuple(spec for spec in driver.specs if spec.origin == "nvidia")
    return all(is_installed(facts.packages, spec) for spec in specs)


def key_text(source: Source) -> str:
    """The key's text as a file has it."""
    return source.key if source.key.endswith("\n") else f"{source.key}\n"


# --- OpenPGP (RFC 4880) -------------------------------------------------------------------------------------

OWN = (0x10, 0x11, 0x12, 0x13, 0x1F)  # types of signatures by which a key speaks of itself
ISSUER = 16  # the type of the subpacket with a key's id, the end of its fingerprint
ISSUERS = (ISSUER, 33)  # and with its version and fingerprint (RFC 9580)
BEGIN = "-----BEGIN "
# Of lines without spaces around them. Strict: gpg, rpm and apt skip different things in what is not as it should be.
BLOCK = re.compile(
    r"^-----BEGIN PGP PUBLIC KEY BLOCK-----\n(?:[^:\n]+:.*\n)*\n+((?:[A-Za-z0-9+/]+=*\n)+)(?:=[A-Za-z0-9+/]{4}\n)?\n*"
    r"-----END PGP PUBLIC KEY BLOCK-----$",
    re.MULTILINE,
)
SIGNATURE, KEY, NAME, PICTURE, SUBKEY = 2, 6, 13, 17, 14  # tags of packets


def fingerprint(armoured: str) -> str:
    """That of the only public key in the text, in upper case; whoever trusts the text trusts no other key.

    Raises ValueError with the reason for what is no version 4 key, or more than one.
    """
    packets = _packets_of(armoured)
    keys = [body for tag, body in packets if tag == KEY]
    if not keys or packets[0][0] != KEY:
        raise ValueError("no public key")
    if any(body[:1] != b"\x04" for body in keys):
        raise ValueError("no version 4 key")
    if len(keys) > 1:
        raise ValueError(f"{len(keys)} keys, expected one: {', '.join(map(_fingerprint, keys))}")
    others = {tag for tag, _ in packets} - {SIGNATURE, KEY, NAME, PICTURE, SUBKEY}
    if others:
        raise ValueError(f"more than a public key: packets of type {', '.join(map(str, sorted(others)))}")
    return _fingerprint(keys[0])


def expiry_time(armoured: str) -> int | None:
    """When the key expires by its newest signature of its own, in seconds since 1970; None where it does not, or cannot be read."""
    try:
        packets = _packets_of(armoured)
        key = next(body for tag, body in packets if tag == KEY)
        created, owner = int.from_bytes(key[1:5], "big"), bytes.fromhex(_fingerprint(key))
        own = [
            _times(body)
            for tag, body in packets
            if tag == SIGNATURE and body[:1] == b"\x04" and body[1] in OWN and _is_by(owner, body)
        ]
    except (ValueError, IndexError, StopIteration):
        return None
    _, lives = max(own, default=(0, 0))
    return created + lives if lives else None


def _is_by(owner: bytes, signature: bytes) -> bool:
    """Whether no issuer that the signature names is another key than this fingerprint's."""
    unhashed = 6 + int.from_bytes(signature[4:6], "big")
    named = (*_subpackets(signature, 4), *_subpackets(signature, unhashed))
    return all(
        owner.endswith(value if kind == ISSUER else value[1:]) for kind, value in named if kind in ISSUERS
    )


def _times(signature: bytes) -> tuple[int, int]:
    """When a signature was made, and for how long from its making on it lets the key live; 0 for ever."""
    times = {kind: int.from_bytes(value, "big") for kind, value in _subpackets(signature, 4)}
    return times.get(2, 0), times.get(9, 0)


def _subpackets(signature: bytes, at: int) -> Iterator[tuple[int, bytes]]:
    """Type and value of each in the area whose two bytes of length are there."""
    end = at + 2 + int.from_bytes(signature[at : at + 2], "big")
    at += 2
    while at < end:
        first = signature[at]
        if first < 192:
            size, start = first, at + 1
        elif first < 255:
            size, start = ((first - 192) << 8) + signature[at + 1] + 192, at + 2
        else:
            size, start = int.from_bytes(signature[at + 1 : at + 5], "big"), at + 5
        yield signature[start] & 0x7F, signature[start + 1 : start + size]
        at = start + size


def _packets_of(armoured: str) -> list[tuple[int, bytes]]:
    blocks = armoured.count(BEGIN)
    if not blocks:
        raise ValueError("no armoured public key")
    if blocks > 1:
        raise ValueError(f"{blocks} armoured blocks; expected one, with one key")
    block = BLOCK.search("\n".join(line.strip() for line in armoured.split("\n")))
    if block is None or not armoured.isascii():
        raise ValueError("the armour of a public key is damaged")
    try:
        return list(_packets(base64.b64decode(block[1].replace("\n", ""), validate=True)))
    except (binascii.Error, IndexError) as error:
        raise ValueError("the armour is damaged") from error


def _fingerprint(key: bytes) -> str:
    return hashlib.sha1(b"\x99" + len(key).to_bytes(2, "big") + key).hexdigest().upper()  # noqa: S324 (as the RFC has it)


def _packets(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Tag and body of each. Raises ValueError for what no key has: a length that is unknown, or goes beyond the end."""
    while data:
        tag, start, length = _head(data)
        if len(data) < start + length:
            raise ValueError("the key is cut off")
        yield tag, data[start : start + length]
        data = data[start + length :]


def _head(data: bytes) -> tuple[int, int, int]:
    """The first packet's tag, where its body begins, and its length."""
    kind, first = data[0], data[1]
    if kind & 0xC0 == 0xC0:
        if first < 192:
            return kind & 0x3F, 2, first
        if first < 224:
            return kind & 0x3F, 3, ((first - 192) << 8) + data[2] + 192
        size, start = 4, 2
    else:
        size, start = 1 << (kind & 3), 1
    if not kind & 0x80 or size == 8 or (start == 2 and first != 255):
        raise ValueError("no key: a packet of unknown length")
    tag = kind & 0x3F if start == 2 else (kind >> 2) & 0xF
    return tag, start + size, int.from_bytes(data[start : start + size], "big")
