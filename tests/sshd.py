"""A small SSH server on loopback for tests: real keys, real exec, one thread a connection."""

import contextlib
import os
import queue
import re
import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import paramiko
import pytest

from gpunode.model import Host, Ssh
from gpunode.sim.host.sshd import carry
from tests.lab import openssh

# OpenSSH's own server: the machine's, or the one that `make test` has unpacked
SSHD = (
    shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin") or openssh.server()
)


def usable(config: Path) -> None:
    """Skip the test if OpenSSH's server cannot start with this configuration: root also needs its user and /run/sshd."""
    done = subprocess.run([str(SSHD), "-t", "-f", str(config)], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"OpenSSH's server does not start here: {done.stderr.strip()}")


def filled(text: str, values: Mapping[str, str]) -> str:
    """The text with these words replaced at once: a random key may well have CA among its letters."""
    return re.sub("|".join(values), lambda word: values[word[0]], text)


@dataclass
class Sshd:
    """The server's address and keys; `execs` counts the commands it was asked to run, `connections` the logins."""

    port: int
    host_key: paramiko.PKey
    key: Path
    known_hosts: Path
    host_keys: list[paramiko.PKey] = field(default_factory=list)  # of other kinds
    connections: int = 0
    execs: list[str] = field(default_factory=list)
    transports: list[paramiko.Transport] = field(default_factory=list)
    destinations: queue.SimpleQueue[tuple[str, int]] = field(default_factory=queue.SimpleQueue)

    def host(self, name: str = "node", **ssh: object) -> Host:
        """A host of the inventory that is this server."""
        options: dict[str, object] = {
            "address": "127.0.0.1",
            "port": self.port,
            "user": "ops",
            "key": str(self.key),
            "known_hosts": str(self.known_hosts),
            "host_key_check": "strict",
        }
        return Host(name, Ssh(**{**options, **ssh}), sudo=False)

    def cut(self) -> None:
        """Drop every connection, as a network does."""
        for transport in self.transports:
            transport.close()


class _Server(paramiko.ServerInterface):
    def __init__(self, sshd: Sshd, key: paramiko.PKey) -> None:
        self._sshd, self._key = sshd, key

    def check_channel_request(self, kind: str, chanid: int) -> int:
        return paramiko.OPEN_SUCCEEDED  # type: ignore[attr-defined]

    def check_auth_publickey(self, username: str, key: paramiko.PKey) -> int:
        good = username == "ops" and key.asbytes() == self._key.asbytes()
        return paramiko.AUTH_SUCCESSFUL if good else paramiko.AUTH_FAILED  # type: ignore[attr-defined]

    def get_allowed_auths(self, username: str) -> str:
        return "publickey"

    def check_channel_direct_tcpip_request(
        self, chanid: int, origin: object, destination: tuple[str, int]
    ) -> int:
        self._sshd.destinations.put(destination)
        return paramiko.OPEN_SUCCEEDED  # type: ignore[attr-defined]

    def check_channel_exec_request(self, channel: paramiko.Channel, command: bytes) -> bool:
        self._sshd.execs.append(command.decode())
        threading.Thread(target=_exec, args=(channel, command.decode()), daemon=True).start()
        return True


def _exec(channel: paramiko.Channel, command: str) -> None:
    pipe = subprocess.PIPE
    carry(channel, subprocess.Popen(["/bin/sh", "-c", command], stdin=pipe, stdout=pipe, stderr=pipe))


def _forward(sshd: Sshd, transport: paramiko.Transport) -> None:
    """What a jump host does: connect the channels that are opened through it to where they are to go."""
    while transport.is_active():
        channel = transport.accept(0.1)
        if channel is None or sshd.destinations.empty():
            continue
        target = socket.create_connection(sshd.destinations.get())
        for source, sink in ((channel, target), (target, channel)):
            threading.Thread(target=_pump, args=(source, sink), daemon=True).start()


def _pump(source: socket.socket | paramiko.Channel, sink: socket.socket | paramiko.Channel) -> None:
    with contextlib.suppress(OSError, EOFError):
        while data := source.recv(32768):
            sink.sendall(data)
    for end in (source, sink):
        with contextlib.suppress(OSError, EOFError):  # cut already
            end.close()


@contextlib.contextmanager
def serve(folder: Path, *, jump: bool = False) -> Iterator[Sshd]:
    """Serve until the block ends; known_hosts and keys, where they are not there yet, are made in `folder`.

    `jump`: go on to other servers instead of running commands.
    """
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    keys = []
    for name in ("host_key", "id_ed25519"):
        path = folder / name
        if not path.exists():
            path.write_bytes(
                Ed25519PrivateKey.generate().private_bytes(
                    Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()
                )
            )
        path.chmod(0o600)
        keys.append(paramiko.Ed25519Key.from_private_key_file(str(path)))
    host_key, user_key = keys
    reporter = socket.create_server(("127.0.0.1", 0))
    port = reporter.getsockname()[1]
    known_hosts = folder / "known_hosts"
    known_hosts.write_text(f"[127.0.0.1]:{port} {host_key.get_name()} {host_key.get_base64()}\n")
    sshd = Sshd(port, host_key, folder / "id_ed25519", known_hosts)

    def accept() -> None:
        while True:
            try:
                client, _ = reporter.accept()
            except OSError:
                return
            transport = paramiko.Transport(client)
            for host_key in (sshd.host_key, *sshd.host_keys):
                transport.add_server_key(host_key)
            sshd.transports.append(transport)
            sshd.connections += 1
            with contextlib.suppress(paramiko.SSHException, EOFError, OSError):
                transport.start_server(server=_Server(sshd, user_key))
                if jump:
                    threading.Thread(target=_forward, args=(sshd, transport), daemon=True).start()

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    try:
        yield sshd
    finally:
        reporter.shutdown(socket.SHUT_RDWR)
        reporter.close()
        sshd.cut()
        thread.join(timeout=60)
