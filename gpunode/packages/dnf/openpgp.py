"""OpenPGP keys (RFC 4880): their fingerprints, and when they expire."""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Iterator

OWN = (0x10, 0x11, 0x12, 0x13, 0x1F)  # types of signatures by which a key speaks of itself
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


def expires(armoured: str) -> int | None:
    """When the key expires by its newest signature of its own, in seconds since 1970; None where it does not, or cannot be read."""
    try:
        packets = _packets_of(armoured)
        created = next(int.from_bytes(body[1:5], "big") for tag, body in packets if tag == KEY)
        own = [
            _times(body)
            for tag, body in packets
            if tag == SIGNATURE and body[:1] == b"\x04" and body[1] in OWN
        ]
    except (ValueError, IndexError, StopIteration):
        return None
    _, lives = max(own, default=(0, 0))
    return created + lives if lives else None


def _times(signature: bytes) -> tuple[int, int]:
    """When a signature was made, and for how long from its making on it lets the key live; 0 for ever."""
    end = 6 + int.from_bytes(signature[4:6], "big")
    at, made, lives = 6, 0, 0
    while at < end:
        first = signature[at]
        if first < 192:
            size, start = first, at + 1
        elif first < 255:
            size, start = ((first - 192) << 8) + signature[at + 1] + 192, at + 2
        else:
            size, start = int.from_bytes(signature[at + 1 : at + 5], "big"), at + 5
        kind, value = signature[start] & 0x7F, int.from_bytes(signature[start + 1 : start + size], "big")
        made, lives = (value, lives) if kind == 2 else (made, value) if kind == 9 else (made, lives)
        at = start + size
    return made, lives


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
