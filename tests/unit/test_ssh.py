"""SSH connections against a real SSH server on loopback."""

import contextlib
import errno
import os
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import paramiko
import pytest

from gpunode.engine.session import Dialer
from gpunode.errors import AgentFailed, Unreachable
from gpunode.host import bootstrap, openssh, reach, ssh
from gpunode.model import Host, Ssh
from tests.ssh_agent import Agent
from tests.sshd import Sshd, serve


@pytest.fixture
def sshd(tmp_path) -> Iterator[Sshd]:
    with serve(tmp_path) as server:
        yield server


@pytest.fixture(params=[ssh.Dialer, openssh.Dialer], ids=["ssh", "openssh"])
def dialer(tmp_path, request) -> Iterator[Dialer]:
    """Both ways to connect keep the same promises."""
    if request.param is openssh.Dialer and shutil.which("ssh") is None:
        pytest.skip("OpenSSH's client is not installed")
    dialer = request.param(tmp_path / "no-ssh-config")
    yield dialer
    dialer.close()


def says_in(connection: reach.Connection) -> bool:
    """Whether a command of the host runs there."""
    remote = connection.start("echo in", [])
    lines = list(remote.lines())
    remote.end()
    return lines == [b"in\n"]


@pytest.fixture
def jump(sshd: Sshd, tmp_path) -> Iterator[Sshd]:
    """A jump host with the key of the host behind it."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "id_ed25519").write_bytes(sshd.key.read_bytes())
    with serve(outside, jump=True) as server:
        sshd.known_hosts.write_text(sshd.known_hosts.read_text() + server.known_hosts.read_text())
        yield server


def test_a_command_gets_its_input_and_gives_output_errors_and_status(sshd: Sshd, dialer: Dialer):
    """What a program reads, writes and ends with crosses the connection whole."""
    connection = dialer.connect(sshd.host())
    remote = connection.start("cat; echo trouble >&2; exit 3", [b"one\n", b"two"])

    assert list(remote.lines()) == [b"one\n", b"two"]
    assert remote.end() == (3, "trouble\n")
    connection.close()


def test_a_large_input_arrives_unchanged(sshd: Sshd, dialer: Dialer):
    """Images are sent in chunks beside reading the answer."""
    connection = dialer.connect(sshd.host())
    remote = connection.start("wc -c", [b"x" * 262144] * 16)

    assert list(remote.lines()) == [b"4194304\n"]
    assert remote.end() == (0, "")
    connection.close()


def test_a_lost_connection_has_no_exit_status(sshd: Sshd, dialer: Dialer):
    """A connection that goes away in the middle is told from a program that ended."""
    connection = dialer.connect(sshd.host())
    remote = connection.start("echo begun; sleep 60", [])
    lines = remote.lines()

    assert next(lines) == b"begun\n"
    sshd.cut()
    assert list(lines) == []
    assert remote.end()[0] is None


def test_a_connection_that_was_lost_between_two_commands_is_opened_again(sshd: Sshd, dialer: Dialer):
    """As over the wait of half an hour for a job's end."""
    connection = dialer.connect(sshd.host())
    assert connection.start("exit 3", []).end()[0] == 3
    sshd.cut()
    end = time.monotonic() + 60
    again = False
    while not again:  # OpenSSH's master may accept for a moment more
        assert time.monotonic() < end, "it stays lost"
        with contextlib.suppress(Unreachable):
            again = says_in(connection)
    connection.close()


def test_commands_share_the_connection_that_replaces_one_whose_end_was_not_read_yet(
    sshd: Sshd, tmp_path, monkeypatch
):
    """The thread that reads it may be late on a loaded machine; the commands have not begun."""
    connection = ssh.Dialer(tmp_path / "no-ssh-config").connect(sshd.host())
    lost, open_session = connection._transport, paramiko.Transport.open_session
    both = threading.Barrier(2)

    def broken(transport: paramiko.Transport, **options: float) -> paramiko.Channel:
        if transport is lost:
            both.wait(60)
            raise EOFError
        return open_session(transport, **options)

    monkeypatch.setattr(paramiko.Transport, "open_session", broken)
    with ThreadPoolExecutor(2) as pool:
        assert all(pool.map(says_in, [connection, connection]))
    assert sshd.connections == 2
    assert not lost.is_active()
    connection.close()


def test_a_channel_that_a_live_host_refuses_opens_no_other_connection(sshd: Sshd, tmp_path, monkeypatch):
    """Its sshd allows no more sessions: a connection more would get past its limit."""
    connection = ssh.Dialer(tmp_path / "no-ssh-config").connect(sshd.host())

    def refused(transport: paramiko.Transport, **options: float) -> paramiko.Channel:
        raise paramiko.ChannelException(4, "Resource shortage")

    monkeypatch.setattr(paramiko.Transport, "open_session", refused)
    with pytest.raises(Unreachable, match="Resource shortage"):
        connection.start("exit 0", [])
    assert sshd.connections == 1
    connection.close()


def test_a_connection_that_is_closed_while_it_is_opened_again_stays_closed(sshd: Sshd, tmp_path):
    """A watchdog bites once: a command that began after it could hang for good."""
    transports = []

    def reach(host: Host) -> paramiko.Transport:
        if transports:
            connection.close()
        transports.append(ssh.Dialer(tmp_path / "no-ssh-config")._reach(host))
        return transports[-1]

    connection = ssh.SshConnection(sshd.host(), reach)
    transports[0].close()
    with pytest.raises(Unreachable):
        connection.start("exit 0", [])
    assert not transports[1].is_active()


def test_a_wrong_key_is_named_with_its_user(sshd: Sshd, dialer: Dialer, tmp_path):
    """Authentication that fails says who tried with what, and is not tried again."""
    with pytest.raises(
        Unreachable, match=r"authentication failed: nobody@127\.0\.0\.1:\d+ does not accept the key"
    ):
        dialer.connect(sshd.host(user="nobody"))

    assert sshd.connections == 1


def test_a_changed_host_key_is_refused_with_both_fingerprints(sshd: Sshd, dialer: Dialer, tmp_path):
    """A host that shows another key than the known one may be somebody else."""
    other = tmp_path / "other"
    other.mkdir()
    with serve(other) as stranger:
        entry = f"[127.0.0.1]:{sshd.port} {stranger.host_key.get_name()} {stranger.host_key.get_base64()}\n"
    (tmp_path / "known").write_text(entry)

    with pytest.raises(Unreachable, match="its host key changed") as caught:
        dialer.connect(sshd.host(known_hosts=str(tmp_path / "known")))

    assert caught.value.message.count("SHA256:") == 2
    assert "ssh-keygen -f" in caught.value.hint


def test_an_unknown_host_key_is_refused_when_strict(sshd: Sshd, dialer: Dialer, tmp_path):
    """`strict` connects to nobody whose key is not known."""
    with pytest.raises(Unreachable, match=r"is not in|is in no known_hosts file"):
        dialer.connect(sshd.host(known_hosts=str(tmp_path / "empty")))

    assert not (tmp_path / "empty").exists()


def test_a_new_host_key_is_added_and_what_was_there_is_kept(sshd: Sshd, dialer: Dialer, tmp_path):
    """`accept-new` appends one line to known_hosts; comments and other entries stay."""
    known = tmp_path / "mine"
    end = "" if isinstance(dialer, ssh.Dialer) else "\n"  # OpenSSH 9.2 continues a last line without one
    known.write_text(
        "# my hosts\nold ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIFaRC59QcFk0VV134Dce5mS/EQ0Z/leYhwg3TEI1YVDw"
        + end
    )

    dialer.connect(sshd.host(known_hosts=str(known), host_key_check="accept-new")).close()

    lines = known.read_text().splitlines()
    assert lines[0] == "# my hosts"
    assert lines[1].startswith("old ssh-ed25519")
    assert lines[2] == f"[127.0.0.1]:{sshd.port} ssh-ed25519 {sshd.host_key.get_base64()}"


@pytest.mark.parametrize(
    "line",
    [
        "gpu-01 ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIE",  # not whole
        "gpu-01 ssh-ed25519 not-base64!",
        "gpu-01 ecdsa-sha2-nistp256 AAAA",
        "gpu-01 ssh-rsa AAAAB3NzaC1yc2E=",
        "gpu-01 ssh-ed25519 AAAAC3NzaC1lZDI1NTE5",
        "gpu-01",
        "@cert-authority *.example.org ssh-ed25519 AAAA",
        "caf\udce9 ssh-ed25519 AAAA",
    ],
)
def test_a_line_of_known_hosts_that_cannot_be_used_is_left_out_as_by_ssh(
    sshd: Sshd, dialer: Dialer, tmp_path, line: str
):
    """The host that the next line names is known all the same, whatever white space is in that."""
    known = tmp_path / "known"
    names, *key = sshd.known_hosts.read_text().split()
    text = f"{line}\n  {names} \t {'  '.join(key)}\n"
    known.write_bytes(text.encode(errors="surrogateescape"))
    dialer.connect(sshd.host(known_hosts=str(known))).close()


@pytest.mark.parametrize("check", ["strict", "accept-new"])
def test_a_revoked_host_key_proves_nothing(sshd: Sshd, dialer: Dialer, tmp_path, check: str):
    """Though another line of known_hosts still names it, and whatever host the mark names; nor is it taken as new."""
    known = tmp_path / "known"
    names, *key = sshd.known_hosts.read_text().split()
    known.write_text(f"{names} {' '.join(key)}\n@revoked * {' '.join(key)}\n")
    with pytest.raises(Unreachable, match=f"is revoked in {known}|its host key is revoked"):
        dialer.connect(sshd.host(known_hosts=str(known), host_key_check=check))


def test_a_new_host_key_is_known_from_then_on(sshd: Sshd, dialer: Dialer, tmp_path):
    """A run connects again after a reboot: one line a host, and another key than the one just seen is refused."""
    known = tmp_path / "mine"
    host = sshd.host(known_hosts=str(known), host_key_check="accept-new")
    for _ in range(2):
        dialer.connect(host).close()
    assert len(known.read_text().splitlines()) == 1

    other = tmp_path / "other"
    other.mkdir()
    with serve(other) as stranger:
        sshd.host_key = stranger.host_key
        with pytest.raises(Unreachable, match="its host key changed"):
            dialer.connect(host)


@pytest.mark.parametrize("text", ["no key at all\n", "-----BEGIN OPENSSH PRIVATE KEY-----\nxx\n"])
def test_a_file_that_is_no_private_key_is_named(sshd: Sshd, dialer: Dialer, tmp_path, text: str):
    """One host's wrong `ssh.key` is that host's trouble, not the end of the run."""
    key = tmp_path / "key"
    key.write_text(text)
    key.chmod(0o600)

    with pytest.raises(Unreachable, match=f"{key} is no readable private key") as caught:
        dialer.connect(sshd.host(key=str(key)))
    assert "ssh.key" in caught.value.hint


def test_an_encrypted_key_is_used_when_an_agent_has_it(sshd: Sshd, dialer: Dialer, tmp_path, monkeypatch):
    """gpunode asks for no passphrase: without the agent it says what to do, and with it that is enough."""
    if shutil.which("ssh-agent") is None:
        pytest.skip("ssh-agent is not installed")
    key = tmp_path / "locked"
    key.write_bytes(sshd.key.read_bytes())
    key.chmod(0o600)
    subprocess.run(["ssh-keygen", "-q", "-p", "-N", "secret", "-f", key], check=True)
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    host = sshd.host(key=str(key))
    with pytest.raises(Unreachable, match=f"{key} is encrypted, and no agent has it|the key {key}") as caught:
        dialer.connect(host)
    assert "ssh-add" in caught.value.hint

    with Agent(tmp_path / "agent", [sshd.key], monkeypatch):
        dialer.connect(host).close()


def test_a_jump_host_that_went_away_is_reached_again(sshd: Sshd, dialer: Dialer, jump: Sshd):
    """Its connection is shared by the fleet and made anew when it is lost, so that applies can be followed."""
    host = sshd.host(jump=f"ops@127.0.0.1:{jump.port}")
    for _ in range(2):
        connection = dialer.connect(host)
        assert says_in(connection)
        connection.close()
        jump.cut()
    assert jump.connections >= 2


def test_a_silent_host_behind_a_jump_host_is_given_up(sshd: Sshd, dialer: Dialer, jump: Sshd, monkeypatch):
    """Closing the connection ends the reading, and the jump host goes on serving the others."""
    monkeypatch.setattr(bootstrap, "command", lambda *_: "sleep 60")
    host = sshd.host(jump=f"ops@127.0.0.1:{jump.port}")
    other, silent = dialer.connect(host), dialer.connect(host)
    with pytest.raises(Unreachable, match="gave no answer"):
        list(reach.talk(host, silent, {"op": "probe", "nonce": "n"}, silence=0.5))
    assert says_in(other)
    other.close()


def test_a_port_nobody_listens_on_is_said_so(sshd: Sshd, dialer: Dialer):
    """Refused is told from no answer."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]

    with pytest.raises(Unreachable, match="refused the connection"):
        dialer.connect(sshd.host(port=port))


def test_a_host_that_takes_connections_and_says_nothing_is_given_up_on(sshd: Sshd, dialer: Dialer):
    """After `ssh.timeout`, and in words that name what was waited for."""
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        pytest.raises(
            Unreachable, match=r"accepted the connection, but no SSH session was ready within 0\.3 s"
        ),
    ):
        dialer.connect(sshd.host(port=silent.getsockname()[1], timeout=0.3))


@pytest.mark.parametrize("name", ["host.invalid", "gpu..01", "x" * 64])
def test_a_name_that_does_not_resolve_is_said_so(dialer: Dialer, sshd: Sshd, name: str):
    """Before any port or firewall is suspected; also one that Python does not even look up."""
    with pytest.raises(Unreachable, match="cannot be resolved"):
        dialer.connect(sshd.host(address=name))


def test_a_private_key_that_is_missing_is_named(sshd: Sshd, dialer: Dialer):
    """The path is in the message."""
    with pytest.raises(Unreachable, match="cannot read /no/such/key: no such file"):
        dialer.connect(sshd.host(key="/no/such/key"))


def test_a_connection_reset_at_first_is_tried_again(sshd: Sshd, dialer: Dialer):
    """An overloaded sshd drops connections before its banner; the next try gets in."""
    front = socket.create_server(("127.0.0.1", 0))
    port = front.getsockname()[1]
    turned_away = []

    def relay() -> None:
        first, _ = front.accept()
        turned_away.append(first.getpeername())
        first.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
        first.close()
        client, _ = front.accept()
        server = socket.create_connection(("127.0.0.1", sshd.port))

        def pump(source: socket.socket, sink: socket.socket) -> None:
            with contextlib.suppress(OSError):  # either side may close first
                while data := source.recv(65536):
                    sink.sendall(data)
                sink.shutdown(socket.SHUT_WR)

        threads = [threading.Thread(target=pump, args=pair) for pair in ((client, server), (server, client))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        client.close()
        server.close()

    thread = threading.Thread(target=relay)
    thread.start()
    host = sshd.host(
        port=port, host_key_check="accept-new", known_hosts=str(sshd.known_hosts.with_name("kh"))
    )
    connection = dialer.connect(host)
    assert says_in(connection)
    assert len(turned_away) == 1
    connection.close()
    thread.join(timeout=60)
    front.close()


def test_what_the_inventory_leaves_open_comes_from_the_ssh_config(sshd: Sshd, tmp_path):
    """HostName, Port, User, IdentityFile and UserKnownHostsFile are honoured, as ssh does."""
    config = tmp_path / "config"
    config.write_text(
        f"Host gpu-*\n  HostName 127.0.0.1\n  Port {sshd.port}\n  User ops\n"
        f"  IdentityFile {sshd.key}\n  UserKnownHostsFile {sshd.known_hosts}\n"
    )
    host = sshd.host()
    host = replace(
        host, ssh=replace(host.ssh, address="gpu-01", port=None, user=None, key=None, known_hosts=None)
    )
    dialer = ssh.Dialer(config)
    connection = dialer.connect(host)
    assert says_in(connection)
    connection.close()
    dialer.close()


def test_an_exec_that_is_never_answered_is_given_up(sshd: Sshd, dialer: Dialer, monkeypatch):
    """An sshd that hangs after the login would hold the whole run."""
    over = threading.Event()
    monkeypatch.setattr("tests.sshd._Server.check_channel_exec_request", lambda *_: over.wait(30))
    host = sshd.host()
    connection = dialer.connect(host)
    with pytest.raises(Unreachable, match="gave no answer"):
        list(reach.talk(host, connection, {"op": "probe", "nonce": "n"}, silence=0.3))
    over.set()


@pytest.mark.parametrize(
    ("command", "named"), [("yes >&2", "1 MiB on standard error"), ("yes", "1 MiB of other")]
)
def test_a_flood_over_ssh_is_given_up(sshd: Sshd, dialer: Dialer, monkeypatch, command: str, named: str):
    """By name, and the connection with it."""
    monkeypatch.setattr(bootstrap, "command", lambda *_: command)
    host = sshd.host()
    with pytest.raises(AgentFailed, match=named):
        list(reach.talk(host, dialer.connect(host), {"op": "probe", "nonce": "n"}))


@pytest.mark.parametrize("number", [errno.ECONNRESET, errno.ENOTCONN])
def test_a_reset_is_tried_again_however_it_is_seen(number: int):
    """Linux reports one that came before the first question about the socket as ENOTCONN."""
    error = OSError(number, os.strerror(number))
    assert ssh.may_pass(error)
    assert "Errno" not in str(ssh.explain(Host("gpu-1", Ssh("gpu-1")), None, error))
    assert not ssh.may_pass(OSError(errno.ECONNREFUSED, "refused"))
