"""Logs in with the user's keys, from files and agent, in ssh's order."""

import base64
import os
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import paramiko
from cryptography.exceptions import UnsupportedAlgorithm
from paramiko.agent import AgentKey, AgentSSH
from paramiko.pkey import UnknownKeyType

from gpunode.errors import NoConnection
from gpunode.host.failures import unsupported
from gpunode.host.ssh.config import Target
from gpunode.local import files as localfile

AGENT_SECONDS = 30.0
FIDO = "gpunode's client cannot use FIDO keys (sk-…)"


@dataclass(frozen=True, slots=True)
class Identity:
    """An identity file: its public key, None if unknown, and its private key, None if unreadable."""

    path: Path
    public: bytes | None = None
    private: paramiko.PKey | None = None
    encrypted: bool = False
    exposed: bool = False  # others may read it: ssh does not use it

    @property
    def fido(self) -> bool:
        return _is_fido(self.public or b"")


class Keys:
    """The keys of a run, each file read once. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._read: dict[Path, Identity | None] = {}

    def login(self, transport: paramiko.Transport, target: Target) -> None:
        """Offer keys until the host accepts one. Raises AuthenticationException, or NoConnection without a usable key."""
        if target.key is not None:
            named = self._identity(Path(target.key).expanduser(), named=True)
            identities = [named] if named else []
        else:
            candidates = [self._identity(path) for path in target.identities]
            identities = [identity for identity in candidates if identity is not None]
        agent = _Agent(os.environ.get("SSH_AUTH_SOCK", "") if target.agent is None else target.agent)
        try:
            offered = list(_order(identities, agent, target))
            tried = 0
            for key in offered:
                tried += 1
                if _accepts(transport, target, key):
                    return
                if not transport.is_active():  # sshd disconnects after MaxAuthTries
                    break
        finally:
            agent.close()
        locked = next(
            (
                identity
                for identity in identities
                if identity.encrypted and identity.public not in agent.blobs
            ),
            None,
        )
        if locked is not None and (target.key or not offered):
            raise paramiko.PasswordRequiredException(str(target.key or locked.path))
        exposed = next((identity.path for identity in identities if identity.exposed), None)
        if exposed is not None:
            raise NoConnection(
                f"{target.place}: the key {exposed} is not used: others may read it",
                hint=f"Run `chmod 600 {exposed}`.",
                code="key-permissions",
            )
        fido = any(identity.fido for identity in identities) or any(map(_is_fido, agent.blobs))
        if fido and not offered:
            raise unsupported(
                f"{target.place}: {FIDO}, and there is no other key",
                otherwise="Or create a key without a FIDO token, and set `ssh.key` to it.",
            )
        unused = [
            *([FIDO] if fido else []),
            *(f"gpunode's client does not use {name}" for name in target.unused),
        ]
        if tried < len(offered):
            unused.append(
                f"the host disconnected after {tried} of {len(offered)} keys: set `ssh.key` or IdentitiesOnly"
            )
        raise paramiko.AuthenticationException(f" ({'; '.join(unused)})" if unused else "")

    def _identity(self, path: Path, *, named: bool = False) -> Identity | None:
        with self._lock:
            if path not in self._read:
                try:
                    self._read[path] = _read_identity(path)
                except OSError:  # a folder, or a file of another user: ssh skips it
                    if named:
                        raise
                    self._read[path] = None
            identity = self._read[path]
        if named and identity is None:
            raise FileNotFoundError(2, "No such file", str(path))
        if (
            named
            and identity is not None
            and identity.public is None
            and not (identity.encrypted or identity.exposed)
        ):
            raise NoConnection(
                f"{path} is no readable private key",
                hint="Set `ssh.key` to the private key, in OpenSSH or PEM format.",
                code="key-unusable",
            )
        return identity


def _order(identities: list[Identity], agent: "_Agent", target: Target) -> Iterator[paramiko.PKey]:
    """ssh's order: agent keys that match files, other agent keys, files. A key set by `ssh.key` comes first."""
    files = {identity.public: identity for identity in identities if identity.public}
    held = {key.blob: key for key in agent.get_keys() if not _is_fido(key.blob)}
    first = [held[blob] for blob in files if blob in held]
    rest = [] if target.identities_only else [key for blob, key in held.items() if blob not in files]
    own = [
        identity.private
        for identity in identities
        if identity.private is not None and identity.public not in held
    ]
    own = [key for key in own if key.get_name() != "ssh-rsa" or key.get_bits() >= target.rsa_bits]
    yield from [*first, *own, *rest] if target.key else [*first, *rest, *own]


def _accepts(transport: paramiko.Transport, target: Target, key: paramiko.PKey) -> bool:
    try:
        more = transport.auth_publickey(target.user, key)
    except paramiko.BadAuthenticationType:
        raise
    except paramiko.AuthenticationException:
        return False
    except paramiko.SSHException:  # the agent refuses to sign with it
        if not transport.is_active():
            raise
        return False
    if more:
        raise unsupported(
            f"{target.place} requires {' or '.join(more)} besides the key, but gpunode's client supports keys only",
            otherwise="Or allow this user to log in with a key alone, or set another `ssh.user`.",
        )
    return True


class _Agent(AgentSSH):
    """The agent at a socket; no keys if nothing listens there."""

    def __init__(self, place: str) -> None:
        super().__init__()
        if place:
            connection = socket.socket(socket.AF_UNIX)
            connection.settimeout(AGENT_SECONDS)
            try:
                connection.connect(place)
                self._connect(connection)  # type: ignore[attr-defined]
            except (OSError, paramiko.SSHException):
                connection.close()
        self.blobs = {key.blob for key in self.get_keys()}

    def get_keys(self) -> tuple[AgentKey, ...]:
        return super().get_keys()

    def close(self) -> None:
        self._close()  # type: ignore[attr-defined]


def _read_identity(path: Path) -> Identity | None:
    """The identity of a file, or of its .pub file; None if both are missing."""
    beside = path.with_name(f"{path.name}.pub")
    try:
        data = localfile.read(path)
    except FileNotFoundError:
        public = _read_public(beside)
        return Identity(path, public) if public else None
    if public := _read_public(path):
        return Identity(path, public)
    public = _public_of_private(data) or _read_public(beside)
    status = path.stat()
    if status.st_uid == os.getuid() and status.st_mode & 0o077:
        return Identity(path, public, exposed=True)
    if _is_fido(public or b""):
        return Identity(path, public)
    try:
        private = paramiko.PKey.from_path(path)
    except TypeError:  # cryptography raises it without a passphrase
        return Identity(path, public, encrypted=True)
    except (ValueError, UnknownKeyType):
        return Identity(path, public)
    except UnsupportedAlgorithm:  # encrypted with a cipher that cryptography does not support
        return Identity(path, public, encrypted=True)
    return Identity(path, private.asbytes(), private)


def _read_public(path: Path) -> bytes | None:
    """The key of a public key file: `TYPE BASE64 comment`."""
    try:
        fields = localfile.read(path).split(None, 2)
        blob = base64.b64decode(fields[1], validate=True)
    except (OSError, ValueError, IndexError):
        return None
    return blob if blob[4:].startswith(fields[0]) else None


def _public_of_private(data: bytes) -> bytes | None:
    """The public key at the start of a private key in OpenSSH's format, encrypted or not; None in other formats."""
    try:
        body = base64.b64decode(b"".join(data.strip().splitlines()[1:-1]))
        magic = b"openssh-key-v1\0"
        if not body.startswith(magic):
            return None
        message = paramiko.Message(body[len(magic) :])
        for _ in ("cipher", "derivation", "its options"):
            message.get_binary()
        return message.get_binary() if message.get_int() else None
    except (ValueError, IndexError):
        return None


def _is_fido(blob: bytes) -> bool:
    return blob[4:].startswith((b"sk-", b"webauthn-sk-"))
