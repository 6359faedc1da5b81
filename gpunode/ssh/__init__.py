"""SSH connections: keys, agent, known_hosts, ssh config, jump hosts. The only room that imports paramiko.

One TCP connection per host per run. Everything that costs time per file (private keys, known_hosts, ssh config)
is read once and shared by the fleet; so is the connection to a jump host.
"""

from __future__ import annotations

import getpass
import random
import re
import socket
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import paramiko
from paramiko.pkey import UnknownKeyType

from gpunode.model import Host, Ssh
from gpunode.ssh.channel import SshConnection
from gpunode.ssh.known_hosts import HostKeys, KnownHosts
from gpunode.ssh.trouble import JumpFailed, NoKey, explain, may_pass

__all__ = ["Dialer"]

# sshd drops connections at random from the 11th unauthenticated one on (MaxStartups 10:30:100), and a fleet
# behind one jump host arrives at one sshd.
HANDSHAKES_PER_JUMP_HOST = 8
TRIES = 3
KEEPALIVE_SECONDS = 10
GONE_SECONDS = 30
# paramiko prefers CTR; GCM halves the cost of sending an image.
CIPHERS = ("aes128-gcm@openssh.com", "aes256-gcm@openssh.com", "aes256-ctr", "aes128-ctr")


class _Transport(paramiko.Transport):
    _preferred_ciphers = CIPHERS


class Dialer:
    """Connects to hosts, sharing what is the same for all of them. Thread-safe."""

    def __init__(self, config: Path | None = None) -> None:
        config = config or Path("~/.ssh/config").expanduser()
        self._config = paramiko.SSHConfig.from_path(str(config)) if config.exists() else paramiko.SSHConfig()
        self._lock = threading.Lock()
        self._known_hosts: dict[Path, KnownHosts] = {}
        self._keys: dict[str, paramiko.PKey | None] = {}
        self._jumps: dict[str, tuple[threading.Lock, threading.Semaphore, list[paramiko.SSHClient]]] = {}

    def connect(self, host: Host) -> SshConnection:
        """Open a connection. Raises Unreachable with the cause; tries again only what may pass by itself."""
        for attempt in range(1, TRIES + 1):
            try:
                return SshConnection(host, self._open(host.name, self._resolve(host.ssh)))
            except (paramiko.SSHException, OSError, EOFError) as error:
                if attempt == TRIES or not may_pass(error):
                    raise explain(host, self._resolve(host.ssh), error) from error
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
            port=ssh.port or int(entry.get("port", 22)),
            user=ssh.user or entry.get("user") or getpass.getuser(),
            key=ssh.key or identity,
            known_hosts=known_hosts,
            jump=None if jump in (None, "none") else jump,
            host_key_check=ssh.host_key_check,
            timeout=ssh.timeout,
        )

    def _open(self, name: str, ssh: Ssh) -> paramiko.SSHClient:
        if ssh.jump is None:
            sock: Any = socket.create_connection((ssh.address, ssh.port or 22), timeout=ssh.timeout)
            # paramiko does not set it, and Nagle with delayed ACK costs 40 ms per round trip on a LAN.
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            # A host that vanishes sends nothing: what is not acknowledged for so long means that it is gone.
            if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, GONE_SECONDS * 1000)
            return self._handshake(ssh, sock)
        with self._lock:
            lock, gate, clients = self._jumps.setdefault(
                ssh.jump, (threading.Lock(), threading.Semaphore(HANDSHAKES_PER_JUMP_HOST), [])
            )
        with lock:
            transport = clients[-1].get_transport() if clients else None
            if transport is None or not transport.is_active():
                try:
                    clients.append(self._open(name, self._resolve(_jump(ssh))))
                except (paramiko.SSHException, OSError, EOFError) as error:
                    raise JumpFailed(ssh.jump, error) from error
                transport = clients[-1].get_transport()
        with gate:
            assert transport is not None
            channel = transport.open_channel(
                "direct-tcpip", (ssh.address, ssh.port or 22), ("127.0.0.1", 0), timeout=ssh.timeout
            )
            return self._handshake(ssh, channel)

    def _handshake(self, ssh: Ssh, sock: Any) -> paramiko.SSHClient:
        path = Path(ssh.known_hosts or "~/.ssh/known_hosts").expanduser()
        client = paramiko.SSHClient()
        # One parsed table for the whole fleet: parsing 1,000 lines takes 0.2 s.
        known = client._system_host_keys = self._known(path)  # type: ignore[attr-defined]
        client.set_missing_host_key_policy(HostKeys(ssh, path, known, self._lock))
        key = None
        try:
            key = self._key(ssh.key) if ssh.key else None
            client.connect(
                ssh.address,
                port=ssh.port or 22,
                username=ssh.user,
                pkey=key,
                sock=sock,
                timeout=ssh.timeout,
                banner_timeout=max(60, ssh.timeout),
                auth_timeout=max(60, ssh.timeout),
                look_for_keys=ssh.key is None,
                allow_agent=True,  # after a named key
                transport_factory=_Transport,  # type: ignore[arg-type]
            )
        except BaseException as error:
            client.close()
            sock.close()
            turned_away = isinstance(error, paramiko.AuthenticationException)
            nothing_to_show = "No authentication methods" in str(error)
            if (turned_away or nothing_to_show) and ssh.key and key is None:
                raise paramiko.PasswordRequiredException(ssh.key) from error
            raise
        transport = client.get_transport()
        assert transport is not None
        transport.set_keepalive(KEEPALIVE_SECONDS)
        return client

    def _known(self, path: Path) -> KnownHosts:
        with self._lock:
            if path not in self._known_hosts:
                self._known_hosts[path] = KnownHosts(str(path) if path.exists() else None)
            return self._known_hosts[path]

    def _key(self, path: str) -> paramiko.PKey | None:
        """The private key; None for an encrypted one, which an agent may hold."""
        with self._lock:
            if path not in self._keys:
                try:
                    self._keys[path] = paramiko.PKey.from_path(Path(path).expanduser())
                except TypeError:  # cryptography's answer to a passphrase that it was not given
                    self._keys[path] = None
                except (ValueError, UnknownKeyType) as error:
                    raise NoKey(path) from error
            return self._keys[path]


def _jump(ssh: Ssh) -> Ssh:
    """The jump host `[user@]host[:port]` of a host, reached with the host's key; an IPv6 address is in brackets."""
    user, _, place = (ssh.jump or "").rpartition("@")
    match = re.fullmatch(
        r"\[(?P<six>[^]]+)\](?::(?P<sixport>\d+))?|(?P<name>[^:]+)(?::(?P<port>\d+))?", place
    )
    if match is None:
        raise JumpFailed(ssh.jump or "", ValueError("it is not [user@]host[:port]"))
    port = match["sixport"] or match["port"]
    return replace(
        ssh,
        address=match["six"] or match["name"],
        port=int(port) if port else None,
        user=user or None,
        jump="none",
    )
