"""Why a host cannot be reached: messages with hints."""

from __future__ import annotations

import errno
import socket

import paramiko

from gpunode.errors import NoConnection, Unreachable
from gpunode.host.ssh.target import Target
from gpunode.model import Host


def unsupported(message: str, *, otherwise: str) -> NoConnection:
    """The refusal of what only ssh itself can do; `otherwise` is the way without."""
    return NoConnection(message, hint=f"Set `connection: openssh`. {otherwise}", code="unsupported")


def jump_failed(target: Target, error: Exception) -> NoConnection:
    """No connection to the jump host of `target`."""
    if isinstance(error, NoConnection):
        why, code, hint = error.message, error.problem.code, error.hint
    else:
        why, code = str(error), _message(target, error)[0]
        hint = f"Try it with `ssh -J {target.jump} {target.user}@{target.address}`."
    return NoConnection(f"jump host {target.jump}: {why}", hint=hint, code=code, passes=may_pass(error))


def may_pass(error: Exception) -> bool:
    """True for errors of an overloaded sshd or a network failure; a wrong key or host key never passes."""
    if isinstance(error, NoConnection):
        return error.passes
    if isinstance(error, paramiko.AuthenticationException):
        return False
    text = str(error)
    # the last two: the jump host's connection has just been lost
    passing = ("banner", "reset by peer", "session not active", "Unable to open channel")
    if isinstance(error, OSError) and error.errno in (
        errno.ECONNRESET,
        errno.ENOTCONN,
    ):  # ENOTCONN: reset before we looked
        return True
    return isinstance(error, EOFError) or any(words in text for words in passing)


def explain(host: Host, target: Target | None, error: Exception) -> Unreachable:
    """The error for a failed connection. `target` is None if ssh's configuration could not be read."""
    code, message, hint = _message(target, error)
    return Unreachable(host.name, message, hint=hint, code=code)


def _message(target: Target | None, error: Exception) -> tuple[str, str, str]:
    """The code, the cause and the next step."""
    if isinstance(error, NoConnection):
        return error.problem.code, error.message, error.hint
    if target is None:
        return "configuration", str(error) or type(error).__name__, "Check ssh's configuration."
    where = target.place
    if isinstance(error, paramiko.PasswordRequiredException):
        return (
            "key-encrypted",
            f"the private key {error} is encrypted, and no agent has it",
            "Add it to an agent with `ssh-add`.",
        )
    if isinstance(error, paramiko.AuthenticationException):
        note = str(error) if type(error) is paramiko.AuthenticationException else ""
        key = (
            f"does not accept the key {target.key}"
            if target.key
            else "accepts no key of this machine or its agent"
        )
        return (
            "permission-denied",
            f"authentication failed: {where} {key}{note}",
            f"Try `{target.by_hand}`; check user, key and the host's authorized_keys. If ssh gets in, set `connection: openssh`.",
        )
    if isinstance(error, socket.gaierror):
        return "name-unknown", f"{target.address} cannot be resolved", "Check `address`, or DNS."
    if isinstance(error, TimeoutError):
        return (
            "timeout",
            f"{where} did not answer within {target.timeout:g} s",
            "Check address, firewall and that the host is up.",
        )
    if "No existing session" in str(error):  # paramiko's message for a handshake that timed out
        return (
            "handshake-timeout",
            f"{where} accepted the connection, but no SSH session was ready within {target.timeout:g} s",
            "Check that sshd listens there and that the host is not overloaded, or raise `ssh.timeout`.",
        )
    if isinstance(error, ConnectionRefusedError):
        return (
            "connection-refused",
            f"{where} refused the connection",
            "Check the port, and that sshd runs there.",
        )
    if isinstance(error, OSError) and error.filename:
        missing = isinstance(error, FileNotFoundError)
        why = "no such file" if missing else error.strerror
        return (
            "key-missing" if missing else "key-unusable",
            f"cannot read {error.filename}: {why}",
            "Check `ssh.key`.",
        )
    if isinstance(error, OSError) and error.errno in (errno.EHOSTUNREACH, errno.ENETUNREACH):
        return (
            "no-route",
            f"{where}: {error.strerror}",
            "Check `address`, and that the host is up; or set `ssh.jump`.",
        )
    if may_pass(error):
        code, hint = (
            "connection-dropped",
            "Check sshd's log there; MaxStartups or a firewall may drop connections.",
        )
        return code, f"{where} closed the connection before the login: {error or type(error).__name__}", hint
    return "ssh-failed", f"{where}: {error or type(error).__name__}", "Try it with `ssh -v`."
