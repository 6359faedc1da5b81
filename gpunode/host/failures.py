"""Why a host could not be reached: the same codes, messages and hints for both SSH clients.

ssh ends with 255 whatever happened, so its words are all there is to read; they are read here and nowhere else.
"""

import base64
import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gpunode.errors import NoConnection
from gpunode.once import Once
from gpunode.planning.tables import table

SEEN = 400  # characters of what ssh printed, where no cause is known


def unsupported(message: str, *, otherwise: str) -> NoConnection:
    """The refusal of what only ssh itself can do; `otherwise` is the way without."""
    return NoConnection(message, hint=f"Set `connection: openssh`. {otherwise}", code="unsupported")


def jump_failed(jump: str, error: NoConnection) -> NoConnection:
    what, code = f"jump host {jump}: {error.message}", error.problem.code
    return NoConnection(what, hint=error.hint, code=code, passes=error.passes)


@dataclass(frozen=True, slots=True)
class Way:
    """How a host is reached, for messages: USER@ADDRESS:PORT, the command to try by hand, and what proxies it."""

    place: str
    by_hand: str
    timeout: float
    key: str | None = None  # the inventory's
    proxy: str = ""  # the ProxyCommand of ssh's configuration


@dataclass(frozen=True, slots=True)
class Cause:
    """Message and hint have the names of a Way, and what was found, in braces. `pattern`: of what ssh prints about it."""

    message: str
    hint: str
    pattern: str = "(?!)"
    passes: bool = False


@Once
def causes() -> Mapping[str, Cause]:
    """All of `failures.yaml` by code, in its order."""
    return {code: Cause(**row) for code, row in table(__package__, "failures.yaml").items()}


def failure(code: str, way: Way, **fields: object) -> NoConnection:
    cause = causes()[code]
    accepts = (
        f"does not accept the key {way.key}" if way.key else "accepts no key of this machine or its agent"
    )
    values = {
        "place": way.place, "by_hand": way.by_hand, "timeout": way.timeout, "proxy": way.proxy, "accepts": accepts,
        "why": "", "note": "", "advice": "", **fields,
    }  # fmt: skip
    what, hint = cause.message.format(**values), cause.hint.format(**values)
    return NoConnection(what, hint=hint, code=code, passes=cause.passes)


def diagnose(printed: str, way: Way) -> NoConnection:
    """The failure that ssh's standard error is about."""
    for code, cause in causes().items():
        match = re.search(cause.pattern, printed)
        if match is None:
            continue
        if code == "connection-dropped" and way.proxy:
            # What the proxy itself printed comes before ssh's line about the closed connection.
            lines = [
                line for line in printed.splitlines() if line.strip() and not re.search(cause.pattern, line)
            ]
            return failure("proxy-failed", way, why=f": {' '.join(lines)[-SEEN:]}" if lines else "")
        fields = {name: value or "nothing" for name, value in match.groupdict().items()}
        if code == "host-key-changed":
            fields["known"] = _known_fingerprint(Path(match["file"]), int(match["line"]))
        if code == "permission-denied":
            fields["note"] = f"; it allows {fields['methods']}"
            fields["advice"] = " An encrypted key has to be in an agent (`ssh-add`)."
        return failure(code, way, **fields)
    return failure("ssh-failed", way, why=" ".join(printed.split())[-SEEN:] or "ssh printed nothing")


def no_session(printed: str) -> NoConnection | None:
    """The failure if the host refused to run a command on an open connection; None if that was not the cause."""
    match = re.search(r"session request failed: (?P<why>[^\r\n]+)", printed)
    if match is None:
        return None
    hint = "Check MaxSessions of its sshd, and the limits of this user."
    return NoConnection(f"the host runs no command: {match['why']}", hint=hint, code="session-refused")


def fingerprint(kind: str, blob: bytes) -> str:
    """A key as OpenSSH prints it: `TYPE SHA256:…`."""
    return f"{kind} SHA256:{base64.b64encode(hashlib.sha256(blob).digest()).decode().rstrip('=')}"


def _known_fingerprint(file: Path, line: int) -> str:
    try:
        text = file.read_text(errors="replace").splitlines()[line - 1]
        kind, key = re.findall(r"(\S+)\s+(AAAA\S+)", text)[0]
        return fingerprint(kind, base64.b64decode(key))
    except (OSError, IndexError, ValueError):
        return "another"
