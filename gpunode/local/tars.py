"""Tar archives from untrusted places: each header is bounded, and no member leads out of its archive.

Python's tarfile keeps a header's records in memory, however long they are, recurses from header to header, and searches records in
quadratic time. This reads what images have: POSIX pax and GNU headers, files and links; sparse files are refused, as containerd does.
"""

from __future__ import annotations

import bz2
import errno
import gzip
import io
import lzma
import os
import posixpath
import re
import stat
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

from gpunode.errors import DamagedArchive

BLOCK = 512  # bytes
CHUNK = 1 << 20  # bytes
RECORDS = 1 << 20  # bytes of one header's records, as Go's archive/tar bounds them
# Bytes of all names, with what keeping one costs: half a million files of a usual image have 150 MB
NAMES = 256 << 20
EACH = 200  # bytes
PATH = 4096  # characters, as a kernel has it
LARGEST = 1 << 50  # bytes of a file
LINKS = 40  # that a kernel follows
REGULAR, HARD, SYMBOLIC, CONTIGUOUS = b"0", b"1", b"2", b"7"
EMPTY = (HARD, SYMBOLIC, b"3", b"4", b"5", b"6")  # have no content, whatever size they name
PAX, PAX_FOR_ALL, LONG_NAME, LONG_LINK, SPARSE = b"x", b"g", b"L", b"K", b"S"
BROKEN = (EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile)


@dataclass(frozen=True, slots=True)
class Member:
    """A member: its name, what it links to ("": it is no link), and where its content is."""

    name: str
    link: str
    kind: bytes
    offset: int
    size: int


class Archive:
    """A file's members by normalized name."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._members = {posixpath.normpath(member.name): member for member in members(file)}
        if not self._members:
            raise DamagedArchive("it is empty")

    def __contains__(self, name: str) -> bool:
        return name in self._members

    def open(self, name: str) -> IO[bytes]:
        """A member's content; links are followed within the archive. Raises KeyError without such a file."""
        place = posixpath.normpath(name)
        for _ in range(LINKS):
            member = self._members[place]
            if member.kind == SYMBOLIC:
                place = posixpath.normpath(posixpath.join(posixpath.dirname(place), member.link))
            elif member.kind == HARD:
                place = posixpath.normpath(member.link)
            elif member.kind == REGULAR:
                return io.BufferedReader(_Part(self._file, member))
            else:
                break
        raise KeyError(name)


@contextmanager
def open_archive(path: Path) -> Iterator[Archive]:
    """The archive at `path`, compressed by gzip, bzip2 or xz or not. Raises DamagedArchive, and OSError where it cannot be opened."""
    with regular(path) as raw:
        magic = raw.read(6)
        raw.seek(0)
        plain: IO[bytes] = raw
        if magic.startswith(b"\x1f\x8b"):
            plain = cast("IO[bytes]", gzip.GzipFile(fileobj=raw))
        elif magic.startswith(b"BZh"):
            plain = cast("IO[bytes]", bz2.BZ2File(raw))
        elif magic.startswith(b"\xfd7zXZ\0"):
            plain = cast("IO[bytes]", lzma.LZMAFile(raw))  # noqa: SIM115 - raw is closed
        yield Archive(plain)


def regular(path: Path) -> IO[bytes]:
    """The file at `path`, open for reading. Raises OSError, also for what is no regular file: a pipe or a device may never end."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # a pipe is opened at once
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return os.fdopen(descriptor, "rb")
    os.close(descriptor)
    raise OSError(errno.EINVAL, "it is no regular file")


def members(stream: IO[bytes]) -> Iterator[Member]:
    """The members of a stream in their order; contents are skipped. Raises DamagedArchive."""
    at, room = 0, NAMES
    shared: dict[str, str] = {}
    own: dict[str, str] = {}
    while header := _block(stream):
        at += BLOCK
        kind, size = header[156:157], _number(header[124:136])
        if kind in (PAX, b"X", PAX_FOR_ALL, LONG_NAME, LONG_LINK):
            if size > RECORDS:
                raise DamagedArchive(f"a header has {size} bytes; {RECORDS} is the maximum")
            padded = -(-size // BLOCK) * BLOCK
            data = read(stream, padded)[:size]
            at += padded
            if kind in (LONG_NAME, LONG_LINK):
                own["path" if kind == LONG_NAME else "linkpath"] = _text(data)
            else:
                (shared if kind == PAX_FOR_ALL else own).update(_records(data))
            continue
        records, own = shared | own, {}
        if kind == SPARSE or any(key.startswith("GNU.sparse.") for key in records):
            raise DamagedArchive("it has a sparse file, which no image has")
        name = records.get("path") or _name(header)
        if kind == b"\0":  # as before POSIX
            kind = b"5" if name.endswith("/") else REGULAR
        elif kind == CONTIGUOUS:
            kind = REGULAR
        size = 0 if kind in EMPTY else _decimal(records["size"]) if "size" in records else size
        link = records.get("linkpath") or _text(header[157:257]) if kind in (HARD, SYMBOLIC) else ""
        if max(len(name), len(link)) > PATH:
            raise DamagedArchive(f"a name has more than {PATH} characters")
        room -= len(name) + len(link) + EACH
        if room < 0:
            raise DamagedArchive("it has more names than any image")
        yield Member(name, link, kind, at, size)
        padded = -(-size // BLOCK) * BLOCK
        skip(stream, padded)
        at += padded


def _block(stream: IO[bytes]) -> bytes:
    """The next header; b"" at the archive's end."""
    header = read(stream, BLOCK, end=True)
    if not header.strip(b"\0"):
        return b""
    sums = (sum(header) - sum(header[148:156]) + 8 * 0x20, _number(header[148:156]))
    if sums[0] != sums[1]:
        raise DamagedArchive("it is no tar archive")
    return header


def read(stream: IO[bytes], size: int, *, end: bool = False) -> bytes:
    """Exactly so many bytes; with `end` also none."""
    content = bytearray()
    try:
        while len(content) < size and (data := stream.read(min(size - len(content), CHUNK))):
            content += data
    except BROKEN as error:
        raise DamagedArchive(f"it was cut off or is damaged ({error})") from None
    if len(content) < size and not (end and not content):
        raise DamagedArchive("it was cut off")
    return bytes(content)


def skip(stream: IO[bytes], size: int) -> None:
    try:
        if size and stream.seekable():
            stream.seek(size - 1, io.SEEK_CUR)
            size = 1
    except BROKEN as error:
        raise DamagedArchive(f"it was cut off or is damaged ({error})") from None
    while size:
        size -= len(read(stream, min(size, CHUNK)))


def _number(field: bytes) -> int:
    """A number of a header: octal, or, as GNU writes long ones, its bytes."""
    text = field.partition(b"\0")[0].strip(b" ")
    octal = re.fullmatch(rb"[0-7]*", text)
    if octal is None and field[0] != 0x80:
        raise DamagedArchive("it is no tar archive")
    return _check_size(int(text or b"0", 8) if octal else int.from_bytes(field[1:], "big"))


def _decimal(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,20}", text):
        raise DamagedArchive(f"a file has the size {text!r:.40}")
    return _check_size(int(text))


def _check_size(size: int) -> int:
    if size > LARGEST:
        raise DamagedArchive(f"a file has {size} bytes")
    return size


def _records(data: bytes) -> dict[str, str]:
    """The records of a pax header that this module reads."""
    records, at = dict[str, str](), 0
    while at < len(data) and data[at]:
        space = data.find(b" ", at, at + 12)
        length = int(data[at:space]) if space > 0 and data[at:space].isdigit() else 0
        record = data[space + 1 : at + length]
        if length <= 0 or at + length > len(data) or not record.endswith(b"\n"):
            raise DamagedArchive("a header has no records")
        key, _, value = record[:-1].partition(b"=")
        if key in (b"path", b"linkpath", b"size") or key.startswith(b"GNU.sparse."):
            records[_text(key)] = _text(value)
        at += length
    return records


def _name(header: bytes) -> str:
    """The name in the header itself; the prefix is POSIX's, where GNU has other fields."""
    name, prefix = _text(header[:100]), _text(header[345:500]) if header[257:263] == b"ustar\0" else ""
    return f"{prefix}/{name}" if prefix else name


def _text(data: bytes) -> str:
    return data.partition(b"\0")[0].decode("utf-8", "surrogateescape")


class _Part(io.RawIOBase):
    """A member's content, read from its archive's file."""

    def __init__(self, file: IO[bytes], member: Member) -> None:
        self._file, self._at, self._end = file, member.offset, member.offset + member.size

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self._file.seek(self._at)
        data = self._file.read(min(len(buffer), self._end - self._at))
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)
