"""Why a host cannot be reached, in words, with the next thing to do."""

from __future__ import annotations

import errno
import socket

import paramiko

from gpunode.errors import Unreachable
from gpunode.model import Host, Ssh
from gpunode.ssh.known_hosts import fingerprint


class JumpFailed(paramiko.SSHException):
    """The jump host on the way could not be used."""

    def __init__(self, jump: str, error: Exception) -> None:
        super().__init__(f"jump host {jump}: {error}")


class NoKey(paramiko.SSHException):
    """The file that should hold a private key holds none."""

    def __init__(self, path: str) -> None:
        super().__init__(f"{path} is no private key that can be read")


def may_pass(error: Exception) -> bool:
    """True for what an overloaded sshd or a network hiccup does; a wrong key or host key never passes."""
    if isinstance(error, (paramiko.AuthenticationException, paramiko.BadHostKeyException)):
        return False
    text = str(error)
    # the last two: of a jump host's connection that was lost just now
    passing = ("banner", "reset by peer", "session not active", "Unable to open channel")
    return isinstance(error, (ConnectionResetError, EOFError)) or any(words in text for words in passing)


def explain(host: Host, ssh: Ssh, error: Exception) -> Unreachable:
    """The error for a failed try to connect; `ssh` is what the inventory and the ssh configuration came to."""
    message, hint = _words(ssh, error)
    return Unreachable(host.name, message, hint=hint)


def _words(ssh: Ssh, error: Exception) -> tuple[str, str]:
    where = f"{ssh.user}@{ssh.address}:{ssh.port}"
    if isinstance(error, JumpFailed):
        return str(error), f"Try it with `ssh -J {ssh.jump} {ssh.user}@{ssh.address}`."
    if isinstance(error, NoKey):
        return str(error), "Check `ssh.key`: it is the private key, in OpenSSH's or PEM format."
    if isinstance(error, paramiko.BadHostKeyException):
        file = f"-f {ssh.known_hosts} " if ssh.known_hosts else ""
        name = ssh.address if ssh.port == 22 else f"'[{ssh.address}]:{ssh.port}'"
        return (
            f"its host key changed: {where} now shows {fingerprint(error.key)}, known is "
            f"{fingerprint(error.expected_key)}",
            f"If it was reinstalled, remove the old key with `ssh-keygen {file}-R {name}` and run again; if not, "
            "somebody may be in between.",
        )
    if isinstance(error, paramiko.PasswordRequiredException):
        return (
            f"the private key {ssh.key} is encrypted, and no agent has it",
            "Load it into an agent with `ssh-add`.",
        )
    if isinstance(error, paramiko.AuthenticationException):
        identity = f"-i {ssh.key} " if ssh.key else ""
        key = (
            f"does not accept the key {ssh.key}" if ssh.key else "accepts no key of this machine or its agent"
        )
        return (
            f"authentication failed: {where} {key}",
            f"Try `ssh {identity}-p {ssh.port} {ssh.user}@{ssh.address}`; check user, key and the host's "
            "authorized_keys.",
        )
    if isinstance(error, socket.gaierror):
        return f"{ssh.address} is not a known name", "Check `address`, or DNS."
    if isinstance(error, TimeoutError):
        return (
            f"{where} did not answer within {ssh.timeout:g} s",
            "Check address, firewall and that the host is up.",
        )
    if "No existing session" in str(error):  # paramiko's word for a handshake that did not end in time
        return (
            f"{where} took the connection, and no SSH session was made within {ssh.timeout:g} s",
            "Check that sshd listens there and that the host is not overloaded; `ssh.timeout` gives it longer.",
        )
    if isinstance(error, ConnectionRefusedError):
        return f"{where} refused the connection", "Check the port, and that sshd runs there."
    if isinstance(error, FileNotFoundError):
        return f"cannot read {error.filename}: no such file", "Check `ssh.key`."
    if isinstance(error, OSError) and error.errno in (errno.EHOSTUNREACH, errno.ENETUNREACH):
        return f"{where}: {error.strerror}", "Check `address`, and that the host is up; or set `ssh.jump`."
    if "is not in" in str(error):
        return (
            f"{where}: {error}",
            f"Compare it with the host's own and add it: ssh-keyscan -p {ssh.port} {ssh.address}",
        )
    return f"{where}: {error or type(error).__name__}", "Try it with `ssh -v`."
