"""Tar archives of images. What is none, or was cut off, raises an error of BROKEN."""

import errno
import os
import posixpath
import re
import stat
import tarfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from gzip import BadGzipFile
from lzma import LZMAError
from pathlib import Path
from tarfile import BLOCKSIZE
from typing import IO

EXTENSIONS = b"xgXLK"  # types of headers that hold what their next one has no room for
LARGEST = 1 << 20  # bytes of one, as for Go's archive/tar (maxSpecialFileSize)
DIGITS = re.compile(rb"\d{256}")  # more than the name of a file has

BROKEN = (tarfile.TarError, EOFError, zlib.error, LZMAError, BadGzipFile)


class _Member(tarfile.TarInfo):
    """A member without a header that takes Python long: before 3.11.10 and 3.12.6 a run of digits costs its square (CVE-2024-6232)."""

    @classmethod
    def fromtarfile(cls, tarfile: tarfile.TarFile) -> "_Member":
        file = tarfile.fileobj
        assert file
        start = file.tell()
        block = file.read(BLOCKSIZE)
        if block[156:157] in EXTENSIONS:
            size = cls.frombuf(block, "utf-8", "surrogateescape").size
            if not 0 <= size <= LARGEST or DIGITS.search(file.read(size)):
                raise ValueError(f"a header of {size} bytes, or a number without end")
        file.seek(start)
        return super().fromtarfile(tarfile)


class Archive:
    """A file's members by normalized name. Raises ReadError unless all of their headers are whole."""

    def __init__(self, file: IO[bytes]) -> None:
        try:
            self._tar = tar = tarfile.open(fileobj=file, tarinfo=_Member)  # noqa: SIM115 - its file is the caller's
            self.members = {posixpath.normpath(member.name): member for member in tar}
        except (ValueError, RecursionError) as error:  # an impossible size; header after header
            raise tarfile.ReadError(str(error)) from error
        assert tar.fileobj
        tar.fileobj.seek(tar.offset)
        if tar.fileobj.read(BLOCKSIZE).strip(b"\0"):  # tarfile takes a damaged header for the end
            raise tarfile.ReadError("it goes on where it should end")

    def __contains__(self, name: str) -> bool:
        return name in self.members

    def open(self, name: str) -> IO[bytes]:
        """A member's content; links are followed within the archive. Raises KeyError without such a file."""
        try:
            content = self._tar.extractfile(self.members[posixpath.normpath(name)])
        except RecursionError:  # links in a circle
            content = None
        if content is None:
            raise KeyError(name)
        return content


@contextmanager
def open_archive(path: Path) -> Iterator[Archive]:
    """The archive at `path`, compressed by gzip, bzip2 or xz or not. Raises OSError where it cannot be opened."""
    with regular(path) as raw:
        yield Archive(raw)


def regular(path: Path) -> IO[bytes]:
    """The file at `path`, open for reading. Raises OSError, also for what is no regular file: a pipe or a device may never end."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # a pipe is opened at once
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return os.fdopen(descriptor, "rb")
    os.close(descriptor)
    raise OSError(errno.EINVAL, "it is no regular file")
