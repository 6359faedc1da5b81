"""Why a host cannot be reached: messages with hints."""

from __future__ import annotations

import errno
import socket

import paramiko

from gpunode.errors import Unreachable
from gpunode.model import Host
from gpunode.ssh.target import Target


class SshRefusal(paramiko.SSHException):
    """Connecting would be unsafe, or needs something gpunode does not support; `hint` is the fix."""

    def __init__(self, message: str, *, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


class JumpFailed(paramiko.SSHException):
    """No connection to the jump host."""

    def __init__(self, jump: str, error: Exception) -> None:
        super().__init__(f"jump host {jump}: {error}")
        self.error = error


class NotAccepted(paramiko.AuthenticationException):
    """The host accepted no key; `note` names keys and options that were not used."""

    def __init__(self, note: str = "") -> None:
        super().__init__("authentication failed")
        self.note = note


def may_pass(error: Exception) -> bool:
    """True for errors of an overloaded sshd or a network failure; a wrong key or host key never passes."""
    if isinstance(error, (paramiko.AuthenticationException, SshRefusal)):
        return False
    if isinstance(error, JumpFailed) and not may_pass(error.error):
        return False
    text = str(error)
    # the last two: the jump host's connection has just been lost
    passing = ("banner", "reset by peer", "session not active", "Unable to open channel")
    return isinstance(error, (ConnectionResetError, EOFError)) or any(words in text for words in passing)


def explain(host: Host, target: Target | None, error: Exception) -> Unreachable:
    """The error for a failed connection. `target` is None if ssh's configuration could not be read."""
    message, hint = _message(target, error)
    return Unreachable(host.name, message, hint=hint)


def _message(target: Target | None, error: Exception) -> tuple[str, str]:
    if isinstance(error, SshRefusal):
        return str(error), error.hint
    if isinstance(error, JumpFailed) and isinstance(error.error, SshRefusal):
        return str(error), error.error.hint
    if target is None:
        return str(error) or type(error).__name__, "Check ssh's configuration."
    where = target.place
    if isinstance(error, JumpFailed):
        return str(error), f"Try it with `ssh -J {target.jump} {target.user}@{target.address}`."
    if isinstance(error, paramiko.PasswordRequiredException):
        return (
            f"the private key {error} is encrypted, and no agent has it",
            "Add it to an agent with `ssh-add`.",
        )
    if isinstance(error, paramiko.AuthenticationException):
        note = error.note if isinstance(error, NotAccepted) else ""
        key = (
            f"does not accept the key {target.key}"
            if target.key
            else "accepts no key of this machine or its agent"
        )
        return (
            f"authentication failed: {where} {key}{note}",
            f"Try `{target.by_hand}`; check user, key and the host's authorized_keys.",
        )
    if isinstance(error, socket.gaierror):
        return f"{target.address} cannot be resolved", "Check `address`, or DNS."
    if isinstance(error, TimeoutError):
        return (
            f"{where} did not answer within {target.timeout:g} s",
            "Check address, firewall and that the host is up.",
        )
    if "No existing session" in str(error):  # paramiko's message for a handshake that timed out
        return (
            f"{where} accepted the connection, but no SSH session was ready within {target.timeout:g} s",
            "Check that sshd listens there and that the host is not overloaded, or raise `ssh.timeout`.",
        )
    if isinstance(error, ConnectionRefusedError):
        return f"{where} refused the connection", "Check the port, and that sshd runs there."
    if isinstance(error, FileNotFoundError):
        return f"cannot read {error.filename}: no such file", "Check `ssh.key`."
    if isinstance(error, OSError) and error.errno in (errno.EHOSTUNREACH, errno.ENETUNREACH):
        return f"{where}: {error.strerror}", "Check `address`, and that the host is up; or set `ssh.jump`."
    return f"{where}: {error or type(error).__name__}", "Try it with `ssh -v`."
