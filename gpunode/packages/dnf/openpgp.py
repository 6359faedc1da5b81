"""Fingerprints of OpenPGP keys (RFC 4880)."""

from __future__ import annotations

import base64
import binascii
import hashlib
import re


def fingerprint(armoured: str) -> str:
    """A public key's, in upper case. Raises ValueError with the reason for what is no version 4 key."""
    block = re.search(r"-----BEGIN PGP PUBLIC KEY BLOCK-----(.*?)-----END", armoured, re.DOTALL)
    if block is None:
        raise ValueError("no armoured public key")
    lines = [line.strip() for line in block[1].strip().splitlines()]
    text = [line for line in lines if ":" not in line and not line.startswith("=")]  # headers, checksum
    try:
        data = base64.b64decode("".join(text), validate=True)
        start, length = _body(data)
    except (binascii.Error, IndexError) as error:
        raise ValueError("the armour is damaged") from error
    body = data[start : start + length]
    if len(body) != length or body[:1] != b"\x04":
        raise ValueError("no version 4 key")
    return hashlib.sha1(b"\x99" + length.to_bytes(2, "big") + body).hexdigest().upper()  # noqa: S324 (as the RFC has it)


def _body(data: bytes) -> tuple[int, int]:
    """Where the first packet's body begins, and its length; it must be a public key (tag 6)."""
    tag, first = data[0], data[1]
    if tag & 0xC0 == 0xC0:
        kind = tag & 0x3F
        start, length = (2, first) if first < 192 else (3, ((first - 192) << 8) + data[2] + 192)
    else:
        kind, size = (tag >> 2) & 0xF, 1 << (tag & 3)
        start, length = 1 + size, int.from_bytes(data[1 : 1 + size], "big")
    if kind != 6:
        raise ValueError("no public key")
    return start, length
