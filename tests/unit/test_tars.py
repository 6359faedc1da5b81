"""An image's archive: which file a name leads to."""

import gzip
import io
import tarfile

import pytest

from gpunode.local import tars


def test_links_are_followed_within_the_archive(tmp_path):
    """As `docker save` linked equal layers; not in circles, and to nothing outside."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as made:
        for name, kind, link in (
            ("2/layer.tar", tarfile.REGTYPE, ""),
            ("1/layer.tar", tarfile.SYMTYPE, "../2/layer.tar"),
            ("round", tarfile.SYMTYPE, "round"),
            ("out", tarfile.SYMTYPE, "/etc/passwd"),
            ("up", tarfile.SYMTYPE, "../../etc/passwd"),
            ("hard", tarfile.LNKTYPE, "2/layer.tar"),
            ("pipe", tarfile.FIFOTYPE, ""),
        ):
            member = tarfile.TarInfo(name)
            member.type, member.linkname, member.size = kind, link, 0 if link or name == "pipe" else 3
            made.addfile(member, io.BytesIO(b"abc"))
    for path, content in (("plain", out.getvalue()), ("compressed", gzip.compress(out.getvalue()))):
        (tmp_path / path).write_bytes(content)
        with tars.open_archive(tmp_path / path) as archive:
            assert archive.open("./1/layer.tar").read() == archive.open("hard").read() == b"abc"
            for name in ("round", "out", "up", "pipe", "none"):
                with pytest.raises(KeyError):
                    archive.open(name)


def test_an_archive_without_all_of_its_headers_is_damaged(tmp_path):
    """Python's tarfile takes the first that is cut off, or wrong, for the archive's end; others end it with errors of any type, or late."""
    first, second, endless = (tarfile.TarInfo(name) for name in ("first", "second", "endless"))
    endless.pax_headers = {"size": "9" * 30}
    whole = first.tobuf() + second.tobuf()
    digits, nested, huge = (tarfile.TarInfo("header") for _ in range(3))
    digits.type = nested.type = huge.type = tarfile.XHDTYPE
    digits.size, huge.size = 600_000, 1 << 80
    minutes = digits.tobuf() + b"9" * digits.size + b"\0" * 64
    for damaged in (
        whole[:-100],
        whole[:600] + b"?" + whole[601:],
        endless.tobuf(tarfile.PAX_FORMAT),
        *(part + whole for part in (minutes, nested.tobuf() * 3000, huge.tobuf(tarfile.GNU_FORMAT))),
    ):
        (tmp_path / "tar").write_bytes(damaged)
        with pytest.raises(tars.BROKEN), tars.open_archive(tmp_path / "tar"):
            pass
