"""Fingerprints of OpenPGP keys (RFC 4880)."""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Iterator

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
    blocks = armoured.count(BEGIN)
    if not blocks:
        raise ValueError("no armoured public key")
    if blocks > 1:
        raise ValueError(f"{blocks} armoured blocks; expected one, with one key")
    block = BLOCK.search("\n".join(line.strip() for line in armoured.split("\n")))
    if block is None or not armoured.isascii():
        raise ValueError("the armour of a public key is damaged")
    try:
        packets = list(_packets(base64.b64decode(block[1].replace("\n", ""), validate=True)))
    except (binascii.Error, IndexError) as error:
        raise ValueError("the armour is damaged") from error
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
