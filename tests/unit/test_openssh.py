"""What is particular to `connection: openssh`: masters, their sockets, and what ssh prints."""

import os
import re
import shutil
import socket
import stat
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from gpunode.errors import Unreachable
from gpunode.host import openssh
from gpunode.host.failures import Way, causes, diagnose
from gpunode.host.openssh import Master, NotOpened
from gpunode.model import Host, Ssh
from tests import tables
from tests.sshd import Sshd, serve

WAY = Way("ops@10.0.0.7:2222", "ssh gpu-01", 15.0)


@tables.rows("outputs-of-ssh")
def test_what_ssh_prints_becomes_a_code_with_a_next_step(code: str, named: str, printed: str):
    """Only what may pass is tried again."""
    failure = diagnose(printed, WAY)
    assert failure.problem.code == code
    assert named in failure.message
    assert failure.hint
    assert failure.passes == (code == "connection-dropped")


def test_a_changed_key_names_both_fingerprints_and_the_line(tmp_path):
    """The old one is read from the line that ssh names."""
    known = tmp_path / "known hosts"
    known.write_text(
        "# mine\n[h]:2222 ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIFaRC59QcFk0VV134Dce5mS/EQ0Z/leYhwg3TEI1YVDw\n"
    )
    printed = (
        "@@@@@@@@@@@\r\n@    WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!     @\r\n@@@@@@@@@@@\r\n"
        "IT IS POSSIBLE THAT SOMEONE IS DOING SOMETHING NASTY!\r\n"
        "The fingerprint for the ED25519 key sent by the remote host is\nSHA256:s+2JBzK0.\r\n"
        f"Please contact your system administrator.\r\nAdd correct host key in {known} to get rid of this message.\r\n"
        f"Offending ED25519 key in {known}:2\r\n  remove with:\r\n"
        "Host key for [h]:2222 has changed and you have requested strict checking.\r\nHost key verification failed.\r\n"
    )
    failure = diagnose(printed, WAY)
    assert failure.problem.code == "host-key-changed"
    assert "now shows ED25519 SHA256:s+2JBzK0, known is ssh-ed25519 SHA256:" in failure.message
    assert f"({known}, line 2)" in failure.message
    assert "-R '[h]:2222'" in failure.hint


def test_a_proxy_that_fails_is_quoted():
    """Its own words are the cause, ssh's only say that the connection closed."""
    way = replace(WAY, proxy="cloud tunnel %h")
    failure = diagnose("ERROR: not logged in\nConnection closed by UNKNOWN port 65535\r\n", way)
    assert failure.problem.code == "proxy-failed"
    assert "`cloud tunnel %h` did not reach ops@10.0.0.7:2222: ERROR: not logged in" in failure.message
    assert (
        diagnose("ops@10.0.0.7: Permission denied (publickey).\r\n", way).problem.code == "permission-denied"
    )


def test_every_code_is_documented():
    """Those of both clients, in docs/failures.md; and no other."""
    root = Path(__file__).parents[2]
    part = (root / "docs/failures.md").read_text().split("## A host that cannot be reached")[1]
    rows = [row.split("|")[1] for row in part.splitlines() if row.startswith("| `")]
    documented = {code for row in rows for code in re.findall(r"`([^`]+)`", row)}
    files = [root / "gpunode/errors.py", *(root / "gpunode/host").rglob("*.py")]
    sources = [path.read_text() for path in files]
    words = {word for text in sources for word in re.findall(r'"([a-z]+(?:-[a-z]+)*)"', text)}
    assert documented <= words | set(causes())
    assert {row["code"] for row in tables.read("outputs-of-ssh")} <= documented
    assert set(causes()) <= documented


needs_ssh = pytest.mark.skipif(shutil.which("ssh") is None, reason="OpenSSH's client is not installed")


@pytest.fixture
def sshd(tmp_path, monkeypatch) -> Iterator[Sshd]:
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    with serve(tmp_path) as server:
        yield server


@pytest.fixture
def dialer(tmp_path) -> Iterator[openssh.Dialer]:
    dialer = openssh.Dialer(tmp_path / "no-ssh-config")
    yield dialer
    dialer.close()


def said(connection: openssh.Connection, command: str) -> list[bytes]:
    remote = connection.start(command, [])
    lines = list(remote.lines())
    assert remote.end()[0] == 0
    return lines


def test_what_ssh_prints_at_its_very_end_is_read(monkeypatch):
    """Also where it ends right after there was nothing to read."""
    monkeypatch.setattr(openssh, "POLL_SECONDS", 0.01)
    words = ["/bin/sh", "-c", "sleep 0.2; echo the cause >&2; exit 255"]
    with subprocess.Popen(words, stderr=subprocess.PIPE) as process:
        monkeypatch.setattr(process, "poll", process.wait)
        assert openssh._wait_for_master(process, 30) == ("the cause\n", False)


@needs_ssh
def test_commands_share_one_login(sshd: Sshd, dialer: openssh.Dialer):
    """However many they are."""
    connection = dialer.connect(sshd.host())
    for _ in range(3):
        assert said(connection, "echo in") == [b"in\n"]
    assert sshd.connections == 1
    connection.close()


@needs_ssh
@pytest.mark.parametrize("end", ["the network", "the master"])
def test_a_master_that_ended_between_two_commands_is_replaced(sshd: Sshd, dialer: openssh.Dialer, end: str):
    """As where it idled longer than it persists."""
    connection = dialer.connect(sshd.host())
    assert said(connection, "echo in") == [b"in\n"]
    first = connection._master
    sshd.cut() if end == "the network" else first.close()
    while first.alive():
        pass
    assert said(connection, "echo in") == [b"in\n"]
    assert sshd.connections == 2
    connection.close()


@needs_ssh
def test_a_closed_connection_runs_nothing_more(sshd: Sshd, dialer: openssh.Dialer):
    """Nor does a client of a master that is gone connect by itself."""
    connection = dialer.connect(sshd.host())
    connection.close()
    remote = connection.start("echo in", [])
    assert list(remote.lines()) == []
    assert remote.end()[0] is None
    assert (sshd.connections, sshd.execs) == (1, [])


@needs_ssh
def test_sockets_are_private_and_gone_at_the_end(sshd: Sshd, tmp_path, monkeypatch):
    """In a folder of this user; where the usual one has too long a path or is not there, below /tmp."""
    (tmp_path / ("x" * 100)).mkdir()
    for usual in (tmp_path, tmp_path / ("x" * 100), tmp_path / "none"):
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(usual))
        dialer = openssh.Dialer(tmp_path / "no-ssh-config")
        connection = dialer.connect(sshd.host())
        place = connection._master.socket
        assert stat.S_IMODE(place.parent.stat().st_mode) == 0o700
        assert len(os.fsencode(place)) < 90
        connection.close()
        assert not place.exists()
        dialer.close()
        assert not place.parent.exists()


@needs_ssh
def test_a_dialer_that_is_closed_leaves_no_master(sshd: Sshd, tmp_path):
    """Also that of an unclosed connection."""
    dialer = openssh.Dialer(tmp_path / "no-ssh-config")
    opened = dialer.connect(sshd.host())._master
    assert opened.alive()
    dialer.close()
    assert not opened.alive()


@needs_ssh
def test_off_accepts_a_new_key_without_storing_it_and_no_changed_one(sshd: Sshd, tmp_path):
    """Also where the folder's name has a space."""
    known = tmp_path / "my hosts"
    dialer = openssh.Dialer(tmp_path / "no-ssh-config")
    host = sshd.host(host_key_check="off", known_hosts=str(known))
    dialer.connect(host).close()
    assert not known.exists()
    (tmp_path / "other").mkdir()
    with serve(tmp_path / "other") as other:
        key = other.known_hosts.read_text().split()[1:]
    known.write_text(f"[127.0.0.1]:{sshd.port} {' '.join(key)}\n")
    with pytest.raises(Unreachable) as caught:
        dialer.connect(host)
    assert caught.value.problem.code == "host-key-changed"
    dialer.close()


@needs_ssh
def test_a_jump_host_that_is_down_is_asked_once_for_all_behind_it(sshd: Sshd, tmp_path, monkeypatch):
    """Else a fleet waits for it host after host."""
    asked = []
    opened = Master.open

    def counted(*words: object) -> Master | NotOpened:
        asked.append(words)
        return opened(*words)

    monkeypatch.setattr(Master, "open", counted)
    dialer = openssh.Dialer(tmp_path / "no-ssh-config")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    for name in ("gpu-01", "gpu-02"):
        with pytest.raises(Unreachable, match=rf"jump host \[127.0.0.1\]:{port}: .* refused") as caught:
            dialer.connect(sshd.host(name, jump=f"127.0.0.1:{port}"))
        assert (caught.value.host, caught.value.problem.code) == (name, "connection-refused")
    assert len(asked) == 1
    dialer.close()


@needs_ssh
def test_ctrl_c_reaches_no_ssh(sshd: Sshd, dialer: openssh.Dialer, monkeypatch):
    """Once means: finish what has begun."""
    connection = dialer.connect(sshd.host())
    remote = connection.start("read x; echo $x", iter([b"in\n"]))
    assert os.getsid(remote._process.pid) != os.getsid(0)
    assert list(remote.lines()) == [b"in\n"]
    assert remote.end()[0] == 0
    connection.close()


@pytest.fixture
def words(monkeypatch) -> list[str]:
    """The words of the last master that was opened."""
    seen: list[str] = []

    def opened(program: str, place: Path, options: list[str], address: str, timeout: float) -> Master:
        seen[:] = options
        return Master(program, place)

    monkeypatch.setattr(Master, "open", opened)
    monkeypatch.delenv("SSH_ASKPASS", raising=False)
    monkeypatch.delenv("SSH_ASKPASS_REQUIRE", raising=False)
    return seen


@needs_ssh
@pytest.mark.parametrize(
    ("check", "configured", "proven", "askpass", "strict"),
    [
        ("accept-new", "", False, False, "accept-new"),
        ("accept-new", "no", False, False, "accept-new"),
        ("accept-new", "yes", False, False, "yes"),
        ("strict", "no", False, False, "yes"),
        ("off", "yes", False, False, "accept-new"),
        ("off", "no", True, False, "yes"),
        ("accept-new", "no", False, True, "yes"),
    ],
)
def test_a_check_is_never_weaker_than_it_was_set(
    tmp_path,
    words: list[str],
    monkeypatch,
    check: str,
    configured: str,
    proven: bool,
    askpass: bool,
    strict: str,
):
    """By the inventory, by ssh's configuration, or by a password that may be sent; ssh asks only in windows."""
    config = tmp_path / "config"
    config.write_text(f"StrictHostKeyChecking {configured}\n" if configured else "")
    if askpass:
        monkeypatch.setenv("SSH_ASKPASS", "/usr/bin/askpass")
        monkeypatch.setenv("SSH_ASKPASS_REQUIRE", "force")
    dialer = openssh.Dialer(config, proven=proven)
    dialer.connect(Host("node", Ssh("gpu-01", host_key_check=check)))
    dialer.close()
    assert f"StrictHostKeyChecking={strict}" in words
    assert ("BatchMode=yes" in words) is not askpass
    assert ("UserKnownHostsFile=/dev/null" in " ".join(words)) is (check == "off" and not proven)


def test_without_ssh_the_way_out_is_named(tmp_path, monkeypatch):
    """Before any host is contacted."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Unreachable, match="not installed here") as caught:
        openssh.Dialer().connect(Host("node", Ssh("gpu-01")))
    assert "connection: ssh" in caught.value.hint


@needs_ssh
def test_jump_hosts_in_a_circle_are_refused(tmp_path, sshd: Sshd):
    """ssh itself would start processes without end."""
    config = tmp_path / "config"
    config.write_text("Host gpu-01\nProxyJump one\nHost one\nProxyJump two\nHost two\nProxyJump one\n")
    dialer = openssh.Dialer(config)
    with pytest.raises(Unreachable, match="in a circle"):
        dialer.connect(Host("node", Ssh("gpu-01")))
    dialer.close()
