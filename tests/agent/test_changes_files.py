"""The agent changes files: wholly or not at all, only what was planned on, and remembers what was there."""

import fcntl
import os
import stat
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpunode.agent import files
from gpunode.model import RemoveFile, WriteFile
from tests.agent.conftest import Host, wait_until
from tests.agent.guarded import kill

DAEMON = "/etc/docker/daemon.json"


def left_over(host: Host) -> list[str]:
    return [str(path) for path in host.path("/etc").rglob("*gpunode*")]


def test_a_new_file_gets_its_folders_and_mode(host: Host):
    """Text arrives byte for byte, whatever the host's locale."""
    text = "# naïve ☃\nGATES=\"a b\"\r\n'$x'\n"
    messages = host.apply(WriteFile("/etc/a/b/c.conf", text, "why", mode=0o640))
    assert [message["type"] for message in messages] == ["start", "done", "end"]
    assert messages[-1]["ok"]
    path = host.path("/etc/a/b/c.conf")
    assert path.read_bytes().decode() == text
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert left_over(host) == []


def test_an_existing_file_keeps_its_owner_mode_and_labels(host: Host):
    """The file keeps its mode, owner and extended attributes."""
    owner = (1234, 4321) if os.geteuid() == 0 else (os.getuid(), os.getgid())  # only root gives files away
    path = host.write(DAEMON, "{}", mode=0o600)
    os.chown(path, *owner)
    os.setxattr(path, "user.label", b"x")
    host.apply(WriteFile(DAEMON, '{"a": 1}', "why", before="{}", mode=0o644))
    status = path.stat()
    assert (status.st_uid, status.st_gid, stat.S_IMODE(status.st_mode)) == (*owner, 0o600)
    assert os.getxattr(path, "user.label") == b"x"
    assert path.read_text() == '{"a": 1}'


def test_a_file_is_written_where_python_has_no_extended_attributes(monkeypatch, tmp_path):
    """As on a Mac, where simulated hosts may be."""
    monkeypatch.delattr(os, "listxattr", raising=False)
    path = tmp_path / "daemon.json"
    path.write_text("{}")
    files.put(str(path), b"[]", 0o644, None, "run")
    assert path.read_text() == "[]"


@pytest.mark.parametrize("target", ["../real/daemon.json", "/etc/real/daemon.json"])
def test_a_symbolic_link_stays_one(host: Host, target: str):
    """The real file is written, and a link with an absolute target does not lead out of the host's root."""
    real = host.write("/etc/real/daemon.json", "{}")
    host.path("/etc/docker").mkdir()
    host.path(DAEMON).symlink_to(target)
    host.apply(WriteFile(DAEMON, '{"a": 1}', "why", before="{}"))
    assert os.readlink(host.path(DAEMON)) == target
    assert real.read_text() == '{"a": 1}'


@pytest.mark.parametrize(
    ("before", "now", "words"),
    [("{}", '{"mine": 1}', "has other contents now"), ("{}", None, "is gone"), (None, "{}", "exists now")],
)
def test_a_file_that_is_not_what_was_planned_on_is_left_alone(
    host: Host, before: str | None, now: str | None, words: str
):
    """It was edited between the plan and its acceptance."""
    if now is not None:
        host.write(DAEMON, now)
    failed = host.fail(WriteFile(DAEMON, '{"a": 1}', "why", before=before))
    assert failed["code"] == "changed-underneath"
    assert words in failed["error"]
    assert DAEMON in failed["error"]
    assert (host.read(DAEMON) if now is not None else None) == now


def test_a_file_that_is_right_already_is_not_touched(host: Host):
    """An apply that was killed after this change can be done again."""
    path = host.write(DAEMON, '{"a": 1}')
    os.utime(path, (1000, 1000))
    _, done, _ = host.apply(WriteFile(DAEMON, '{"a": 1}', "why", before="{}"))
    assert done["detail"] == {"unchanged": True}
    assert path.stat().st_mtime == 1000


def test_docker_checks_a_file_before_it_takes_the_name(host: Host):
    """What dockerd rejects never gets there; its words name the real path."""
    host.write(DAEMON, "{}")
    host.program(
        "dockerd", 'echo "unable to configure the Docker daemon with file $3: unknown: foo" >&2; exit 1'
    )
    failed = host.fail(WriteFile(DAEMON, '{"foo": 1}', "why", before="{}", check="docker"))
    assert failed["code"] == "check-failed"
    assert failed["error"].endswith(f"unable to configure the Docker daemon with file {DAEMON}: unknown: foo")
    assert host.read(DAEMON) == "{}"
    assert left_over(host) == []
    assert "--validate --config-file" in host.calls()[0]


def test_a_file_of_a_killed_apply_that_has_not_taken_its_place_goes_with_the_next(host: Host):
    host.write(DAEMON, "{}")
    waits = 'until [ -e "$GPUNODE_ROOT/state/go" ]; do sleep 0.02; done'
    host.program("dockerd", f'touch "$GPUNODE_ROOT/state/begun"\n{waits}\n')
    host.start(host.job(WriteFile(DAEMON, '{"a": 1}', "why", before="{}", check="docker")))
    wait_until(host.path("/state/begun").exists)
    kill(host)
    assert left_over(host) != []
    assert host.apply(WriteFile("/etc/x", "x", "why"))[-1]["ok"]
    assert (host.read(DAEMON), left_over(host)) == ("{}", [])


def test_an_old_docker_is_spared_what_it_cannot_check(host: Host):
    """dockerd before 23.0 has no --validate; the file must be JSON all the same."""
    host.program("dockerd", 'echo "unknown flag: --validate" >&2; exit 125')
    assert host.apply(WriteFile(DAEMON, "{}", "why", check="docker"))[-1]["ok"]
    failed = host.fail(WriteFile(DAEMON, "{,}", "why", before="{}", check="docker"))
    assert failed["code"] == "check-failed"
    assert "would not be JSON" in failed["error"]


def test_containerd_checks_a_file_before_it_takes_the_name(host: Host):
    """With the same configuration reader that the daemon uses."""
    path = "/etc/containerd/config.toml"
    host.program(
        "containerd", 'grep -q broken "$2" && { echo "containerd: $2: toml: line 1" >&2; exit 1; }; exit 0'
    )
    assert host.apply(WriteFile(path, "version = 3\n", "why", check="containerd"))[-1]["ok"]
    failed = host.fail(WriteFile(path, "broken", "why", before="version = 3\n", check="containerd"))
    assert failed["detail"] == [f"containerd: {path}: toml: line 1"]
    assert host.read(path) == "version = 3\n"


def test_what_was_there_is_kept_for_root_only(host: Host):
    """Backups may hold what the original's mode protected."""
    host.write(DAEMON, "{}", mode=0o600)
    host.apply(WriteFile(DAEMON, '{"a": 1}', "why", before="{}"), RemoveFile("/etc/none", "x", "why"))
    record = host.path("/var/lib/gpunode/runs/run1")
    assert stat.S_IMODE(record.stat().st_mode) == 0o700
    assert (record / "files/0").read_text() == "{}"
    assert not host.path("/run/gpunode/run1").exists()


def test_a_file_is_removed_only_when_it_is_the_one_planned_on(host: Host):
    """And one that is gone already is no failure."""
    path = "/etc/apt/sources.list.d/nvidia-docker.list"
    host.write(path, "deb x\n")
    assert host.fail(RemoveFile(path, "deb y\n", "why"))["code"] == "changed-underneath"
    assert host.path(path).exists()
    assert host.apply(RemoveFile(path, "deb x\n", "why"), RemoveFile(path, "deb x\n", "why"))[-1]["ok"]
    assert not host.path(path).exists()


def test_a_folder_goes_with_its_last_file(host: Host):
    """Where the change says so; one with anything else in it stays."""
    for name in ("a", "b", "theirs"):
        host.write(f"/etc/own/{name}", "x")
    host.apply(RemoveFile("/etc/own/a", "x", "why", folder=True))
    assert host.path("/etc/own").is_dir()
    host.apply(RemoveFile("/etc/own/theirs", "x", "why"), RemoveFile("/etc/own/b", "x", "why"))
    assert host.path("/etc/own").is_dir()
    host.write("/etc/own/a", "x")
    assert host.apply(RemoveFile("/etc/own/a", "x", "why", folder=True))[-1]["ok"]
    assert not host.path("/etc/own").exists()


def test_the_first_failure_ends_it(host: Host):
    """Later changes may rest on the one that failed."""
    host.write(DAEMON, "{}")
    messages = host.apply(
        WriteFile("/etc/first", "1", "why"),
        WriteFile(DAEMON, "x", "why", before="other"),
        WriteFile("/etc/third", "3", "why"),
    )
    assert [(message["type"], message.get("n")) for message in messages] == [
        ("start", 0),
        ("done", 0),
        ("start", 1),
        ("failed", 1),
        ("end", None),
    ]
    assert host.read("/etc/first") == "1"
    assert not host.path("/etc/third").exists()


@contextmanager
def small(host: Host, folder: str, size: str) -> Iterator[Path]:
    """A folder of the host that is a file system of that size; skips the test where none can be mounted."""
    path = host.path(folder)
    path.mkdir(parents=True)
    if os.system(f"mount -t tmpfs -o size={size} none {path}") != 0:
        pytest.skip("this machine does not let tests mount a file system")
    try:
        yield path
    finally:
        os.system(f"umount -l {path}")  # the agent may not have ended yet


def test_a_full_disk_is_reported_as_such_and_leaves_no_half_file(host: Host):
    """No room for the new file: the old one stays."""
    with small(host, "/etc/small", "64k") as folder:
        host.write("/etc/small/a.conf", "before")
        failed = host.fail(WriteFile("/etc/small/a.conf", "x" * 200_000, "why", before="before"))
        assert (failed["code"], failed["error"][:11]) == ("disk-full", "/etc/small:")
        assert os.listdir(folder) == ["a.conf"]
        assert host.read("/etc/small/a.conf") == "before"


@pytest.mark.parametrize(
    ("folder", "size"),
    [("/var/lib/gpunode", "4k"), ("/var/lib/gpunode", "8k"), ("/run/gpunode", "4k"), ("/run/gpunode", "16k")],
)
def test_the_file_system_that_is_full_is_named(host: Host, folder: str, size: str):
    """Not the one of the file that the change is about, nor the source of a copy."""
    host.write("/etc/a.conf", "before" * 2_000)
    with small(host, folder, size):
        failed = host.fail(WriteFile("/etc/a.conf", "after", "why", before="before" * 2_000))
        assert failed["code"] == "disk-full"
        assert failed["error"].startswith(f"{folder}/")
        assert host.read("/etc/a.conf") == "before" * 2_000


def test_a_folder_that_cannot_be_made_is_named(host: Host):
    """An operating system's error becomes a sentence with the host's own path."""
    host.write("/etc/a", "a file")
    failed = host.fail(WriteFile("/etc/a/b", "x", "why"))
    assert failed["code"] == "os-error"
    assert failed["error"].startswith("/etc/a")


def test_an_immutable_file_is_named(host: Host):
    """`chattr +i`: not even root writes it; the file is as it was."""
    path = host.write("/etc/docker/daemon.json", "{}")
    flags = struct.pack("l", 0x10)
    with path.open("rb") as file:
        try:
            fcntl.ioctl(file, 0x40086602, flags)  # FS_IOC_SETFLAGS
        except OSError as error:
            pytest.skip(f"no attributes here: {error}")
    try:
        failed = host.fail(WriteFile("/etc/docker/daemon.json", "{ }", "why", before="{}"))
        assert (failed["code"], failed["error"][:40]) == (
            "immutable",
            "/etc/docker/daemon.json is immutable: a ",
        )
        assert path.read_text() == "{}"
    finally:
        with path.open("rb") as file:
            fcntl.ioctl(file, 0x40086602, struct.pack("l", 0))
