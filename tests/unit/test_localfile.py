"""Files that a user names."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from gpunode.local import files as localfile


@pytest.fixture(autouse=True)
def _soon(monkeypatch) -> None:
    monkeypatch.setattr(localfile, "PATIENCE", 0.2, raising=False)


@contextmanager
def written(path: Path, *, again: bool) -> Iterator[None]:
    """A pipe that has a writer, which may write again and again."""
    done = threading.Event()
    os.mkfifo(path)
    file = os.open(path, os.O_RDWR)

    def write() -> None:
        while not done.wait(0.01):
            with suppress(BlockingIOError):
                os.write(file, b"a")

    writer = threading.Thread(target=write)
    if again:
        writer.start()
    yield
    done.set()
    if again:
        writer.join()
    os.close(file)


@pytest.mark.timeout(20)
@pytest.mark.parametrize("again", [False, True], ids=["silent", "drips"])
def test_a_pipe_without_an_end_is_given_up(tmp_path, again: bool):
    with (
        written(tmp_path / "pipe", again=again),
        pytest.raises(OSError, match="a pipe without an end within"),
    ):
        localfile.read(tmp_path / "pipe")


@pytest.mark.timeout(20)
def test_a_file_that_waits_for_more_is_refused(monkeypatch, tmp_path):
    """/proc/kmsg is a regular file by its type."""
    (tmp_path / "kmsg").write_bytes(b"")

    def waits(file: int, size: int) -> bytes:
        raise BlockingIOError

    monkeypatch.setattr(localfile.os, "read", waits)
    with pytest.raises(OSError, match="it has no end"):
        localfile.read(tmp_path / "kmsg")


@pytest.mark.timeout(20)
def test_a_device_is_no_file_and_null_is_empty():
    """ssh's configuration names /dev/null for a list that is not kept."""
    main, other = os.openpty()
    for device in (os.ttyname(other), "/dev/zero"):
        with pytest.raises(OSError, match="it is a device"):
            localfile.read(Path(device))
    os.close(main)
    os.close(other)
    assert localfile.read(Path("/dev/null")) == b""


def test_what_a_shell_pipes_is_read_to_its_end(tmp_path):
    """Also where it comes late and is larger than a pipe."""
    code = "import sys; from pathlib import Path; from gpunode.local import files as localfile; print(len(localfile.read(Path(sys.argv[1]))))"
    read = f"'{sys.executable}' -c '{code}'"
    script = f"{read} <(sleep 0.1; head -c 200000 /dev/zero); head -c 70000 /dev/zero | {read} /dev/stdin; {read} /dev/stdin </dev/null"
    result = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
    assert result.stdout.split() == ["200000", "70000", "0"]
