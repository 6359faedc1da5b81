"""What paramiko raises, read into the failures that both SSH clients have."""

from __future__ import annotations

import errno
import socket

import paramiko

from gpunode.errors import NoConnection, Unreachable
from gpunode.host import failures
from gpunode.host.failures import Way, failure
from gpunode.host.ssh.config import Target
from gpunode.model import Host

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
    return isinstance(error, EOFError) or any(words in str(error) for words in PASSING)


def explain(host: Host, target: Target | None, error: Exception) -> Unreachable:
    """The error for a failed connection. `target` is None if ssh's configuration could not be read."""
    found = _failure(target, error)
    return Unreachable(host.name, found.message, hint=found.hint, code=found.problem.code)


def jump_failed(target: Target, error: Exception) -> NoConnection:
    """No connection to the jump host of `target`."""
    found = error
    if not isinstance(found, NoConnection):
        hint = f"Try it with `ssh -J {target.jump} {target.user}@{target.address}`."
        code = _failure(target, error).problem.code
        found = NoConnection(str(error), hint=hint, code=code, passes=may_pass(error))
    return failures.jump_failed(str(target.jump), found)


def _failure(target: Target | None, error: Exception) -> NoConnection:
    text = str(error) or type(error).__name__
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
