"""The plan of an undo: a journal and facts as changes, and what is left as it is."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest

from gpunode.engine import undo
from gpunode.model import Change, Entry, Facts, File, Left, Os, RemoveFile, Service, Unit, WriteFile

DOCKER = "docker.service"


def sha(text: str | None) -> str | None:
    return None if text is None else hashlib.sha256(text.encode()).hexdigest()


def file(path: str, was: str | None, wrote: str | None, run: str = "r1", **more: Any) -> Entry:
    return Entry("a", run, path=path, was=sha(was), wrote=sha(wrote), content=was, **more)


def facts(files: dict[str, str | None], **more: Any) -> Facts:
    seen = {
        path: File(path, exists=text is not None, sha256=sha(text), content=text)
        for path, text in files.items()
    }
    units = {DOCKER: Unit(DOCKER, "loaded", "active", "running", "enabled", active_since=1.0)}
    return Facts(1.0, "h", Os("debian", "12", "", "amd64"), "6.1", "b", files=seen, units=units, **more)


def write(path: str, content: str, before: str | None) -> WriteFile:
    return WriteFile(path, content, "as before run r1", before, owner=(0, 0))


def remove(path: str, before: str, *, folder: bool = False) -> RemoveFile:
    return RemoveFile(path, before, "run r1 made it", folder=folder)


def restart(*guards: str) -> Service:
    why = "it reads its configuration at its start"
    return Service(DOCKER, why, restart=True, guards=guards, ends=(), drops="nvidia")


SINCE = "changed since the run"
FILES: list[tuple[list[Entry], dict[str, str | None], list[Change], list[Left]]] = [
    ([file("/a", "1", "2")], {"/a": "2"}, [write("/a", "1", "2")], []),
    ([file("/a", None, "2")], {"/a": "2"}, [remove("/a", "2")], []),
    ([file("/d/a", None, "2", new_folder=True)], {"/d/a": "2"}, [remove("/d/a", "2", folder=True)], []),
    ([file("/a", "1", None)], {"/a": None}, [write("/a", "1", None)], []),
    # As before the run: killed before its change, or undone already.
    ([file("/a", "1", "2")], {"/a": "1"}, [], []),
    ([file("/a", None, "2")], {"/a": None}, [], []),
    # Twice in a run: as before the first; in reverse order.
    ([file("/a", "1", "2"), file("/a", "2", "3")], {"/a": "3"}, [write("/a", "1", "3")], []),
    ([file("/a", "1", "2"), file("/a", "2", "3")], {"/a": "2"}, [write("/a", "1", "2")], []),
    (
        [file("/a", None, "2"), file("/b", None, "3")],
        {"/a": "2", "/b": "3"},
        [remove("/b", "3"), remove("/a", "2")],
        [],
    ),
    # Of other runs nothing is taken back.
    ([file("/a", "1", "2", run="r0"), file("/b", None, "3", run="")], {"/a": "2", "/b": "3"}, [], []),
    # Changed since.
    ([file("/a", "1", "2")], {"/a": "9"}, [], [Left("kept", "/a", SINCE)]),
    ([file("/a", "1", "2")], {"/a": None}, [], [Left("kept", "/a", SINCE)]),
    (
        [file("/a", "1", "2"), file("/a", "2", "3", run="r2")],
        {"/a": "3"},
        [],
        [Left("kept", "/a", f"{SINCE} by run r2: undo that first")],
    ),
    # What nothing restores.
    (
        [Entry("a", "r1", path="/a", was="-> /x", wrote=sha("2"), link="/x")],
        {"/a": "2"},
        [],
        [Left("irreversible", "/a", "it was a link to /x")],
    ),
    (
        [Entry("a", "r1", path="/a", was=sha("1"), wrote=sha("2"), error="not UTF-8")],
        {"/a": "2"},
        [],
        [Left("irreversible", "/a", "its original cannot be read: not UTF-8")],
    ),
    # A unit is restarted once, after the last of its files; not for one that stays, nor while it is stopped.
    (
        [file("/a", "1", "2", unit=DOCKER), file("/b", None, "3"), file("/c", None, "4", unit=DOCKER)],
        {"/a": "2", "/b": "3", "/c": "4"},
        [remove("/c", "4"), remove("/b", "3"), write("/a", "1", "2"), restart("/c", "/a")],
        [],
    ),
    ([file("/a", "1", "2", unit=DOCKER)], {"/a": "9"}, [], [Left("kept", "/a", SINCE)]),
    ([file("/a", "1", "2", unit="x.service")], {"/a": "2"}, [write("/a", "1", "2")], []),
]


@pytest.mark.parametrize(("entries", "seen", "changes", "left"), FILES)
def test_files(
    entries: list[Entry], seen: dict[str, str | None], changes: list[Change], left: list[Left]
) -> None:
    assert undo.plan(entries, "r1", facts(seen)) == (tuple(changes), tuple(left))


def test_the_oldest_entry_of_a_file_is_its_original() -> None:
    entries = [file("/a", "1", "2", run=""), file("/a", "2", "3"), file("/b", None, "1")]
    assert undo.originals(entries) == {"/a": entries[0], "/b": entries[2]}
