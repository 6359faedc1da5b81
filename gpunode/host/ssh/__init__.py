"""SSH connections by paramiko: keys, agent, known_hosts, jump hosts. The only room that imports it.

One TCP connection a host and run. Private keys, known_hosts files and ssh's configuration are read once a run; hosts share
the connection to a jump host.
"""

import contextlib
import errno
import random
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import paramiko

from gpunode.errors import NoConnection, Unreachable
from gpunode.host import failures, ssh_options
from gpunode.host.failures import Way, failure, unsupported
from gpunode.host.ssh.config import Config, Target
from gpunode.host.ssh.keys import Keys
from gpunode.host.ssh.known_hosts import KnownHosts
from gpunode.local import streams
from gpunode.model import Host, Ssh


class Remote:
    """A running command. Input is sent in a thread of its own, so that neither side waits for the other."""

    def __init__(
        self, channel: paramiko.Channel, stdin: Iterable[bytes], heard: Callable[[bytes], None] | None
    ) -> None:
        self._channel = channel
        self._errors = streams.Errors()
        self._threads = [
            threading.Thread(target=self._feed, args=(stdin,), daemon=True),
            threading.Thread(target=self._drain, args=(heard,), daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def _feed(self, stdin: Iterable[bytes]) -> None:
        # The command may end, or the connection break, before it read everything: end() reports that.
        with contextlib.suppress(OSError, EOFError, paramiko.SSHException):
            for chunk in stdin:
                # sendall copies the rest of bytes at every step, but not of a memoryview.
                self._channel.sendall(memoryview(chunk))  # type: ignore[arg-type]
            self._channel.shutdown_write()

    def _drain(self, heard: Callable[[bytes], None] | None) -> None:
        with contextlib.suppress(OSError, EOFError, paramiko.SSHException):
            while chunk := self._channel.recv_stderr(32768):
                if not self._errors.add(chunk):
                    self._channel.close()  # which ends the reading
                if heard is not None:
                    heard(chunk)

    def lines(self) -> Iterator[bytes]:
        """Lines of standard output; ends early, without an error, if the connection is lost. Raises Flood."""
        yield from streams.lines(self._chunks())
        self._errors.check()

    def _chunks(self) -> Iterator[bytes]:
        with contextlib.suppress(OSError, EOFError, paramiko.SSHException):
            while chunk := self._channel.recv(65536):
                yield chunk

    def end(self) -> tuple[int | None, str]:
        status = self._channel.recv_exit_status()  # -1: the connection broke first
        for thread in self._threads:
            thread.join(timeout=5)
        self._channel.close()
        return (None if status < 0 else status), self._errors.text()


class SshConnection:
    """A connection to one host, which is opened again if it has ended between two commands."""

    def __init__(self, host: Host, reach: Callable[[Host], paramiko.Transport]) -> None:
        self._host, self._reach = host, reach
        self._transport = reach(host)
        self._reopening = threading.Lock()
        self._closed = False

    def start(
        self, command: str, stdin: Iterable[bytes], heard: Callable[[bytes], None] | None = None
    ) -> Remote:
        try:
            channel = self._channel()
            channel.exec_command(command)  # returns when the host answers or the connection closes
        except (paramiko.SSHException, OSError, EOFError) as error:
            raise Unreachable(
                self._host.name, f"the connection broke: {_words(error)}", hint="Run it again."
            ) from error
        return Remote(channel, stdin, heard)

    def _channel(self) -> paramiko.Channel:
        timeout = self._host.ssh.timeout
        transport = self._transport
        try:
            return transport.open_session(timeout=timeout)
        except (paramiko.SSHException, OSError, EOFError) as error:
            # Nothing has begun. EOFError: its reading thread has not seen the end yet.
            if self._closed or (isinstance(error, paramiko.SSHException) and transport.is_active()):
                raise
            transport.close()
        with self._reopening:
            if self._transport is transport:  # else another command has replaced it
                self._transport = self._reach(self._host)
            if self._closed:  # meanwhile: a watchdog bites once
                self._transport.close()
            return self._transport.open_session(timeout=timeout)

    def close(self) -> None:
        self._closed = True
        self._transport.close()


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

    @property
    def preferred_keys(self) -> tuple[str, ...]:
        """Host key algorithms without certificates: paramiko does not check these."""
        return self._filter_algorithm("keys")  # type: ignore[attr-defined, no-any-return]


class Dialer:
    """Connects to hosts; keys, files and jump hosts are shared. Thread-safe.

    `proven`: a password may be sent, so every host key must already be known.
    """

    def __init__(self, config: Path | None = None, *, proven: bool = False) -> None:
        self._config = Config(config)
        self._proven = proven
        self._lock = threading.Lock()
        self._targets: dict[Ssh, Target] = {}
        self._known = KnownHosts()
        self._keys = Keys()
        self._jumps: dict[str, tuple[threading.Lock, threading.Semaphore, list[paramiko.Transport]]] = {}

    def connect(self, host: Host) -> SshConnection:
        """Open a connection. Raises Unreachable with the cause; retries only errors that may pass."""
        return SshConnection(host, self._reach)

    def _reach(self, host: Host) -> paramiko.Transport:
        target = None
        for attempt in range(1, TRIES + 1):
            try:
                target = self._target(host.ssh)
                return self._open(host.ssh, target)
            except (NoConnection, paramiko.SSHException, OSError, EOFError) as error:
                if attempt == TRIES or not may_pass(error):
                    raise explain(host, target, error) from error
                time.sleep(attempt * random.uniform(0.2, 0.6))  # noqa: S311 - jitter
        raise AssertionError("unreachable: the loop returns or raises")

    def close(self) -> None:
        for _, _, transports in self._jumps.values():
            for transport in transports:
                transport.close()

    def _target(self, ssh: Ssh) -> Target:
        if ssh not in self._targets:
            target = self._config.target(ssh, proven=self._proven)
            _disabled_algorithms(target)  # may refuse, before any host is contacted
            self._targets[ssh] = target
        return self._targets[ssh]

    def _open(self, ssh: Ssh, target: Target) -> paramiko.Transport:
        if target.jump is None:
            try:
                sock: Any = _connect_socket(target)
            except UnicodeError as error:
                # No host can have such a name: a..b, or 64 characters without a dot.
                raise socket.gaierror(str(error)) from error
            # paramiko does not set it, and Nagle with delayed ACK costs 40 ms per round trip on a LAN.
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            # A host that vanishes sends no reset: it is gone if it acknowledges nothing for this long.
            if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, GONE_SECONDS * 1000)
            try:
                ip = sock.getpeername()[0]
            except OSError:
                sock.close()
                raise
            return self._handshake(target, sock, ip)
        with self._lock:
            lock, gate, transports = self._jumps.setdefault(
                target.jump, (threading.Lock(), threading.Semaphore(HANDSHAKES_PER_JUMP_HOST), [])
            )
        with lock:
            transport = transports[-1] if transports else None
            if transport is None or not transport.is_active():
                try:
                    way = ssh_options.jump_host(ssh, target.jump)
                    transport = self._open(way, _refuse_jump(self._target(way)))
                except (NoConnection, paramiko.SSHException, OSError, EOFError) as error:
                    raise jump_failed(target, error) from error
                transports.append(transport)
        with gate:
            channel = transport.open_channel(
                "direct-tcpip", (target.address, target.port), ("127.0.0.1", 0), timeout=target.timeout
            )
            return self._handshake(target, channel, None)

    def _handshake(self, target: Target, sock: Any, ip: str | None) -> paramiko.Transport:
        """A session with the host, after its host key is checked and it accepted one of the user's keys."""
        transport = None
        try:
            transport = _Transport(sock, disabled_algorithms=_disabled_algorithms(target))
            known = self._known.kinds(target)
            first = [
                name
                for name in transport.preferred_keys
                if ("ssh-rsa" if name.startswith("rsa-") else name) in known
            ]
            # A host may have several keys: ask for a known one.
            transport._preferred_keys = (  # type: ignore[attr-defined]
                *first,
                *(name for name in transport.preferred_keys if name not in first),
            )
            transport.banner_timeout = transport.auth_timeout = max(60, target.timeout)
            transport.start_client(timeout=target.timeout)
            host_key = transport.get_remote_server_key()
            if host_key.get_name() == "ssh-rsa" and host_key.get_bits() < target.rsa_bits:
                raise NoConnection(
                    f"{target.place}: its RSA host key has {host_key.get_bits()} bits, of {target.rsa_bits} (RequiredRSASize)",
                    hint="Give the host a longer key, or another type.",
                    code="algorithms",
                )
            self._known.check(target, host_key, ip)
            self._keys.login(transport, target)
        except BaseException:
            if transport is not None:
                transport.close()
            with contextlib.suppress(OSError, EOFError):
                sock.close()
            raise
        transport.set_keepalive(KEEPALIVE_SECONDS)
        return transport


def _connect_socket(target: Target) -> socket.socket:
    """A connection to the first of the host's addresses that answers."""
    error: OSError | None = None
    for family, kind, _, _, place in socket.getaddrinfo(
        target.address, target.port, target.family, socket.SOCK_STREAM
    ):
        sock = socket.socket(family, kind)
        try:
            sock.settimeout(target.timeout)
            if target.source:
                sock.bind((target.source, 0))
            sock.connect(place)
            return sock
        except OSError as failed:
            sock.close()
            error = failed
    raise error or OSError(f"{target.address} has no address")


def _disabled_algorithms(target: Target) -> dict[str, list[str]]:
    """Algorithms of paramiko by kind that ssh's configuration does not allow. Raises NoConnection if none is left."""
    disabled = {}
    for kind, allowed in target.algorithms.items():
        usable = getattr(_Transport, f"_preferred_{kind}")
        disabled[kind] = [name for name in usable if name not in allowed]
        if len(disabled[kind]) == len(usable):
            raise unsupported(
                f"ssh's configuration allows {target.address} only {', '.join(allowed)}, and gpunode's client supports none of these",
                otherwise=f"Or allow one of {', '.join(usable)} for this host.",
            )
    return disabled


def _refuse_jump(target: Target) -> Target:
    if target.jump is not None:
        raise unsupported(
            f"ssh's configuration reaches it through {target.jump}, but gpunode's client supports only one jump host",
            otherwise="Or set `ssh.jump` to a host that is reached directly.",
        )
    return target


# The last two: the jump host's connection has just been lost.
PASSING = ("banner", "reset by peer", "session not active", "Unable to open channel")
PASSING_NUMBERS = (errno.ECONNRESET, errno.ENOTCONN)  # ENOTCONN: reset before it was used


def may_pass(error: Exception) -> bool:
    """True for errors of an overloaded sshd or a network failure; a wrong key or host key never passes."""
    if isinstance(error, NoConnection):
        return error.passes
    if isinstance(error, paramiko.AuthenticationException):
        return False
    if isinstance(error, OSError) and error.errno in PASSING_NUMBERS:
        return True
    return isinstance(error, EOFError) or any(phrase in str(error) for phrase in PASSING)


def explain(host: Host, target: Target | None, error: Exception) -> Unreachable:
    """The error for a failed connection. `target` is None if ssh's configuration could not be read."""
    failure = _failure(target, error)
    return Unreachable(host.name, failure.message, hint=failure.hint, code=failure.problem.code)


def jump_failed(target: Target, error: Exception) -> NoConnection:
    """No connection to the jump host of `target`."""
    failure = error
    if not isinstance(failure, NoConnection):
        hint = f"Try it with `ssh -J {target.jump} {target.user}@{target.address}`."
        code = _failure(target, error).problem.code
        failure = NoConnection(_words(error), hint=hint, code=code, passes=may_pass(error))
    return failures.jump_failed(str(target.jump), failure)


def _words(error: Exception) -> str:
    """Its message, of the operating system's without the number."""
    return getattr(error, "strerror", "") or str(error) or type(error).__name__


def _failure(target: Target | None, error: Exception) -> NoConnection:
    text = _words(error)
    if isinstance(error, NoConnection):
        return error
    if target is None:
        return NoConnection(text, hint="Check ssh's configuration.")
    way = Way(target.place, target.by_hand, target.timeout, target.key)
    if isinstance(error, paramiko.PasswordRequiredException):
        return failure("key-encrypted", way, file=text)
    if isinstance(error, paramiko.AuthenticationException):
        note = str(error) if type(error) is paramiko.AuthenticationException else ""
        advice = " If ssh gets in, set `connection: openssh`."
        return failure("permission-denied", way, note=note, advice=advice)
    if isinstance(error, socket.gaierror):
        return failure("name-unknown", way, name=target.address)
    if isinstance(error, TimeoutError):
        return failure("timeout", way)
    if "No existing session" in text:  # paramiko's message for a handshake that timed out
        return failure("handshake-timeout", way)
    if isinstance(error, ConnectionRefusedError):
        return failure("connection-refused", way)
    if isinstance(error, FileNotFoundError) and error.filename:
        return failure("key-missing", way, file=error.filename)
    if isinstance(error, OSError) and error.filename:
        return failure("key-unusable", way, file=error.filename, why=error.strerror)
    if isinstance(error, OSError) and error.errno in (errno.EHOSTUNREACH, errno.ENETUNREACH):
        return failure("no-route", way, why=error.strerror)
    if may_pass(error):
        return failure("connection-dropped", way, why=f": {text}")
    return failure("ssh-failed", way, why=text)
