"""SSH connections: keys, agent, known_hosts, ssh config, jump hosts. The only place that imports paramiko.

One TCP connection per host per run. Everything that costs time per file (private keys, known_hosts, ssh config)
is read once and shared by the fleet; so is the connection to a jump host.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import getpass
import hashlib
import random
import socket
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import paramiko

from gpunode.errors import Unreachable
from gpunode.model import Host, Ssh

# sshd drops connections at random from the 11th unauthenticated one on (MaxStartups 10:30:100), and a fleet
# behind one jump host arrives at one sshd.
HANDSHAKES_PER_JUMP_HOST = 8
TRIES = 3
# paramiko prefers CTR; GCM halves the cost of sending an image.
CIPHERS = ("aes128-gcm@openssh.com", "aes256-gcm@openssh.com", "aes256-ctr", "aes128-ctr")


class _Transport(paramiko.Transport):
    _preferred_ciphers = CIPHERS


class Remote:
    """A command on the other side. `feed` runs beside reading, so that neither side waits for the other."""

    def __init__(self, channel: paramiko.Channel, stdin: Iterable[bytes]) -> None:
        self._channel = channel
        self._errors = bytearray()
        self._threads = [
            threading.Thread(target=self._feed, args=(stdin,), daemon=True),
            threading.Thread(target=self._drain, daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def _feed(self, stdin: Iterable[bytes]) -> None:
        # The command may end, or the connection go away, before it has read everything: end() tells.
        with contextlib.suppress(OSError, EOFError, paramiko.SSHException):
            for chunk in stdin:
                # Of bytes, sendall copies what is left at every step; of a memoryview it does not.
                self._channel.sendall(memoryview(chunk))  # type: ignore[arg-type]
            self._channel.shutdown_write()

    def _drain(self) -> None:
        with contextlib.suppress(OSError, EOFError, paramiko.SSHException):
            while chunk := self._channel.recv_stderr(32768):
                self._errors += chunk

    def lines(self) -> Iterator[bytes]:
        """Standard output by lines; ends early, without an error, when the connection is lost."""
        rest = b""
        with contextlib.suppress(OSError, EOFError, paramiko.SSHException):
            while chunk := self._channel.recv(65536):
                *whole, rest = (rest + chunk).split(b"\n")
                yield from (line + b"\n" for line in whole)
        if rest:
            yield rest

    def end(self) -> tuple[int | None, str]:
        status = self._channel.recv_exit_status()  # -1: the connection went away first
        for thread in self._threads:
            thread.join(timeout=5)
        self._channel.close()
        return (None if status < 0 else status), bytes(self._errors).decode(errors="replace")


class SshConnection:
    """An open connection to one host."""

    def __init__(self, host: Host, client: paramiko.SSHClient) -> None:
        self._host = host
        self._client = client

    def start(self, command: str, stdin: Iterable[bytes]) -> Remote:
        transport = self._client.get_transport()
        try:
            if transport is None:
                raise paramiko.SSHException("not connected")
            channel = transport.open_session(timeout=self._host.ssh.timeout)
            channel.exec_command(command)
        except (paramiko.SSHException, OSError, EOFError) as error:
            raise Unreachable(
                self._host.name, f"the connection broke: {error}", hint="Run it again."
            ) from error
        return Remote(channel, stdin)

    def close(self) -> None:
        self._client.close()


class _HostKeys(paramiko.MissingHostKeyPolicy):
    """A host key that is not in known_hosts: refused, or written down on first sight."""

    def __init__(self, ssh: Ssh, path: Path, lock: threading.Lock) -> None:
        self._ssh, self._path, self._lock = ssh, path, lock

    def missing_host_key(self, _client: paramiko.SSHClient, hostname: str, key: paramiko.PKey) -> None:
        if self._ssh.host_key_check == "strict":
            raise paramiko.SSHException(f"its host key {fingerprint(key)} is not in {self._path}")
        if self._ssh.host_key_check == "off":
            return
        with self._lock:  # appended, never rewritten: other entries and comments are the user's
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            with self._path.open("a+") as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                file.seek(0)
                before = file.read()
                newline = "" if not before or before.endswith("\n") else "\n"
                file.write(f"{newline}{hostname} {key.get_name()} {key.get_base64()}\n")


def fingerprint(key: paramiko.PKey) -> str:
    """A host key as OpenSSH prints it: `SHA256:…`."""
    digest = base64.b64encode(hashlib.sha256(key.asbytes()).digest()).decode().rstrip("=")
    return f"{key.get_name()} SHA256:{digest}"


class Dialer:
    """Connects to hosts, sharing what is the same for all of them. Thread-safe."""

    def __init__(self, config: Path | None = None) -> None:
        config = config or Path("~/.ssh/config").expanduser()
        self._config = paramiko.SSHConfig.from_path(str(config)) if config.exists() else paramiko.SSHConfig()
        self._lock = threading.Lock()
        self._known_hosts: dict[Path, paramiko.HostKeys] = {}
        self._keys: dict[str, paramiko.PKey] = {}
        self._jumps: dict[str, tuple[threading.Lock, threading.Semaphore, list[paramiko.SSHClient]]] = {}

    def connect(self, host: Host) -> SshConnection:
        """Open a connection. Raises Unreachable with the cause; tries again only what may pass by itself."""
        for attempt in range(1, TRIES + 1):
            try:
                return SshConnection(host, self._open(host.name, self._resolve(host.ssh)))
            except (paramiko.SSHException, OSError, EOFError) as error:
                if attempt == TRIES or not _may_pass(error):
                    raise _explain(host, error) from error
                time.sleep(attempt * random.uniform(0.2, 0.6))  # noqa: S311 - jitter
        raise AssertionError("unreachable: the loop returns or raises")

    def close(self) -> None:
        """Close the shared connections to jump hosts."""
        for _, _, clients in self._jumps.values():
            for client in clients:
                client.close()

    def _resolve(self, ssh: Ssh) -> Ssh:
        """What the inventory leaves open comes from ~/.ssh/config, as `ssh` would have it."""
        entry = self._config.lookup(ssh.address)
        jump = ssh.jump or entry.get("proxyjump")
        identity = entry.get("identityfile", [None])[0]
        known_hosts = ssh.known_hosts or entry.get("userknownhostsfile", "~/.ssh/known_hosts").split()[0]
        return Ssh(
            address=entry.get("hostname", ssh.address),
            port=ssh.port if ssh.port != 22 else int(entry.get("port", 22)),
            user=ssh.user or entry.get("user") or getpass.getuser(),
            key=ssh.key or identity,
            known_hosts=known_hosts,
            jump=None if jump in (None, "none") else jump,
            host_key_check=ssh.host_key_check,
            timeout=ssh.timeout,
        )

    def _open(self, name: str, ssh: Ssh) -> paramiko.SSHClient:
        if ssh.jump is None:
            sock: Any = socket.create_connection((ssh.address, ssh.port), timeout=ssh.timeout)
            # paramiko does not set it, and Nagle with delayed ACK costs 40 ms per round trip on a LAN.
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return self._handshake(ssh, sock)
        with self._lock:
            lock, gate, clients = self._jumps.setdefault(
                ssh.jump, (threading.Lock(), threading.Semaphore(HANDSHAKES_PER_JUMP_HOST), [])
            )
        with lock:
            if not clients:
                user, _, address = ssh.jump.rpartition("@")
                address, _, port = address.partition(":")
                first = Ssh(address, int(port or 22), user or None, ssh.key, ssh.known_hosts, None)
                try:
                    clients.append(self._open(name, self._resolve(first)))
                except (paramiko.SSHException, OSError, EOFError) as error:
                    raise _JumpFailed(ssh.jump, error) from error
        with gate:
            transport = clients[0].get_transport()
            if transport is None:
                raise _JumpFailed(ssh.jump, EOFError("the connection is closed"))
            channel = transport.open_channel(
                "direct-tcpip", (ssh.address, ssh.port), ("127.0.0.1", 0), timeout=ssh.timeout
            )
            return self._handshake(ssh, channel)

    def _handshake(self, ssh: Ssh, sock: Any) -> paramiko.SSHClient:
        path = Path(ssh.known_hosts or "~/.ssh/known_hosts").expanduser()
        client = paramiko.SSHClient()
        # One parsed table for the whole fleet: parsing 1,000 lines takes 0.2 s.
        client._system_host_keys = self._known(path)  # type: ignore[attr-defined]
        client.set_missing_host_key_policy(_HostKeys(ssh, path, self._lock))
        try:
            client.connect(
                ssh.address,
                port=ssh.port,
                username=ssh.user,
                pkey=self._key(ssh.key) if ssh.key else None,
                sock=sock,
                timeout=ssh.timeout,
                banner_timeout=max(60, ssh.timeout),
                auth_timeout=max(60, ssh.timeout),
                look_for_keys=ssh.key is None,
                allow_agent=True,  # after a named key
                transport_factory=_Transport,  # type: ignore[arg-type]
            )
        except BaseException:
            client.close()
            sock.close()
            raise
        transport = client.get_transport()
        assert transport is not None
        transport.set_keepalive(30)
        return client

    def _known(self, path: Path) -> paramiko.HostKeys:
        with self._lock:
            if path not in self._known_hosts:
                self._known_hosts[path] = paramiko.HostKeys(str(path) if path.exists() else None)
            return self._known_hosts[path]

    def _key(self, path: str) -> paramiko.PKey:
        with self._lock:
            if path not in self._keys:
                self._keys[path] = paramiko.PKey.from_path(Path(path).expanduser())
            return self._keys[path]


class _JumpFailed(paramiko.SSHException):
    def __init__(self, jump: str, error: Exception) -> None:
        super().__init__(f"jump host {jump}: {error}")


def _may_pass(error: Exception) -> bool:
    """True for what an overloaded sshd or a network hiccup does; a wrong key or host key never passes."""
    if isinstance(error, (paramiko.AuthenticationException, paramiko.BadHostKeyException)):
        return False
    text = str(error)
    return isinstance(error, (ConnectionResetError, EOFError)) or "banner" in text or "reset by peer" in text


def _explain(host: Host, error: Exception) -> Unreachable:
    ssh = host.ssh
    where = f"{ssh.user + '@' if ssh.user else ''}{ssh.address}:{ssh.port}"
    if isinstance(error, paramiko.BadHostKeyException):
        return Unreachable(
            host.name,
            f"its host key changed: {where} now shows {fingerprint(error.key)}, known is "
            f"{fingerprint(error.expected_key)}",
            hint="If it was reinstalled, remove the old key with `ssh-keygen -R` and run again; "
            "if not, somebody may be in between.",
        )
    if isinstance(error, (paramiko.PasswordRequiredException,)):
        return Unreachable(
            host.name,
            f"the private key {ssh.key} is encrypted",
            hint="Load it into an agent with `ssh-add`.",
        )
    if isinstance(error, paramiko.AuthenticationException):
        key = f"the key {ssh.key}" if ssh.key else "no key of this machine or its agent"
        return Unreachable(
            host.name,
            f"authentication failed: {where} does not accept {key}"
            if ssh.key
            else f"authentication failed: {where} accepts {key}",
            hint=f"Try `ssh {'-i ' + ssh.key + ' ' if ssh.key else ''}-p {ssh.port} {where.rpartition(':')[0]}`; "
            "check user, key and the host's authorized_keys.",
        )
    if isinstance(error, TimeoutError):
        return Unreachable(
            host.name,
            f"{where} did not answer within {ssh.timeout:g} s",
            hint="Check address, firewall and that the host is up.",
        )
    if isinstance(error, FileNotFoundError):
        return Unreachable(host.name, f"cannot read {error.filename}: no such file", hint="Check ssh.key.")
    if isinstance(error, ConnectionRefusedError):
        return Unreachable(
            host.name,
            f"{where} refused the connection",
            hint="Check the port, and that sshd runs there.",
        )
    if isinstance(error, socket.gaierror):
        return Unreachable(host.name, f"{ssh.address} is not a known name", hint="Check `address`, or DNS.")
    if "is not in" in str(error):
        return Unreachable(
            host.name,
            f"{where}: {error}",
            hint=f"Compare it with the host's own and add it: ssh-keyscan -p {ssh.port} {ssh.address}",
        )
    return Unreachable(host.name, f"{where}: {error or type(error).__name__}", hint="Try it with `ssh -v`.")
