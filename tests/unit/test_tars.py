"""Archives from untrusted places: what tarfile writes is read alike, and what is made to harm is refused."""

from __future__ import annotations

import gzip
import io
import tarfile
import time
import tracemalloc

import pytest

from gpunode.errors import DamagedArchive
from gpunode.local import tars

LONG = "d/" * 200 + "file"


def header(name: str, kind: bytes = b"0", size: int = 0, **fields: str) -> bytes:
    """A header as tarfile writes it."""
    member = tarfile.TarInfo(name)
    member.type, member.size = kind, size
    for key, value in fields.items():
        setattr(member, key, value)
    return member.tobuf(tarfile.GNU_FORMAT)


def extended(kind: bytes, data: bytes) -> bytes:
    return header("x", kind, len(data)) + data + bytes(-len(data) % 512)


def forged(field: slice, value: bytes) -> bytes:
    """A header with another field and the sum that fits."""
    made = bytearray(header("a"))
    made[field] = value
    made[148:156] = b" " * 8
    made[148:156] = b"%06o\0 " % sum(made)
    return bytes(made)


@pytest.mark.parametrize("format", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_members_are_those_that_tarfile_wrote(format: int) -> None:
    """In each format: long names, links, folders, contents and where they are."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=format) as made:
        for name, kind, link in (
            ("a", tarfile.REGTYPE, ""), ("folder", tarfile.DIRTYPE, ""), ("soft", tarfile.SYMTYPE, "../a"),
            ("hard", tarfile.LNKTYPE, "a"), ("d/" * 70 + "file", tarfile.REGTYPE, ""),
            *([(LONG, tarfile.SYMTYPE, LONG), ("é", tarfile.REGTYPE, "")] if format != tarfile.USTAR_FORMAT else []),
        ):  # fmt: skip
            member = tarfile.TarInfo(name)
            member.type, member.linkname, member.size = kind, link, 700 if kind == tarfile.REGTYPE else 0
            made.addfile(member, io.BytesIO(name.encode()[:1] * 700))
    with tarfile.open(fileobj=io.BytesIO(out.getvalue())) as made:
        expected = [(entry.name, entry.linkname, entry.offset_data, entry.size) for entry in made]
    out.seek(0)
    entries = [(entry.name.rstrip("/"), entry.link, entry.offset, entry.size) for entry in tars.members(out)]
    assert entries == expected


BAD = {
    "pax header": (extended(b"x", bytes(2 << 20)), "a header has 2097152 bytes"),
    "pax header for all": (extended(b"g", bytes(2 << 20)), "a header has"),
    "long name": (extended(b"L", b"a" * (2 << 20)), "a header has"),
    "long link": (extended(b"K", b"a" * (2 << 20)), "a header has"),
    "long path": (extended(b"L", b"a/" * 3000) + header("a"), "a name has more than 4096"),
    "size below zero": (forged(slice(124, 136), b"\xff" * 12), "no tar archive"),
    "size without end": (forged(slice(124, 136), b"\x80" + b"\xff" * 11), "a file has"),
    "pax size below zero": (extended(b"x", b"11 size=-9\n") + header("a"), "the size '-9'"),
    "pax without records": (extended(b"x", b"9999999 a=b\n") + header("a"), "no records"),
    "pax digits": (extended(b"x", b"1" * 600_000) + header("a"), "no records"),
    "sparse": (header("a", b"S"), "a sparse file"),
    "pax sparse": (extended(b"x", b"22 GNU.sparse.major=1\n") + header("a"), "a sparse file"),
    "wrong sum": (b"\1" + header("a")[1:], "no tar archive"),
    "cut off": (header("a", size=5000) + b"x", "cut off"),
    "cut off in a header": (header("a")[:100], "cut off"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_is_made_to_harm_costs_little(case: str) -> None:
    """Little memory, little time."""
    data, words = BAD[case]
    start = time.process_time()
    tracemalloc.start()
    try:
        with pytest.raises(DamagedArchive, match=words):
            for _ in tars.members(io.BytesIO(data)):
                pass
        assert tracemalloc.get_traced_memory()[1] < 10 << 20
    finally:
        tracemalloc.stop()
    assert time.process_time() - start < 60


def test_names_without_end_are_refused(monkeypatch) -> None:
    """A layer of empty files, whose headers compress to nothing."""
    monkeypatch.setattr(tars, "NAMES", 10_000)
    with pytest.raises(DamagedArchive, match="more names than any image"):
        list(tars.members(io.BytesIO(header("a") * 100)))


def test_headers_without_end_are_read_without_recursion() -> None:
    """tarfile recurses at each."""
    data = extended(b"x", b"12 path=abc\n") * 5000 + header("a") + bytes(1024)
    assert [member.name for member in tars.members(io.BytesIO(data))] == ["abc"]


def test_links_are_followed_within_the_archive(tmp_path) -> None:
    """As `docker save` linked equal layers; not in circles, and to nothing outside."""
    links = {
        "1/layer.tar": "../2/layer.tar",
        "round": "round",
        "out": "/etc/passwd",
        "up": "../../etc/passwd",
    }
    data = header("2/layer.tar", size=3) + b"abc" + bytes(509)
    data += b"".join(header(name, b"2", linkname=link) for name, link in links.items())
    data += header("hard", b"1", linkname="2/layer.tar") + header("pipe", b"6") + bytes(1024)
    for path, content in (("plain", data), ("compressed", gzip.compress(data))):
        (tmp_path / path).write_bytes(content)
        with tars.open_archive(tmp_path / path) as archive:
            assert archive.open("./1/layer.tar").read() == archive.open("hard").read() == b"abc"
            for name in ("round", "out", "up", "pipe", "none"):
                with pytest.raises(KeyError):
                    archive.open(name)
