"""Why a host could not be reached: the same codes, messages and hints for both SSH clients.

ssh ends with 255 whatever happened, so its words are all there is to read; they are read here and nowhere else.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from gpunode.errors import NoConnection

SEEN = 400  # characters of what ssh printed, where no cause is known


def unsupported(message: str, *, otherwise: str) -> NoConnection:
    """The refusal of what only ssh itself can do; `otherwise` is the way without."""
    return NoConnection(message, hint=f"Set `connection: openssh`. {otherwise}", code="unsupported")


def jump_failed(jump: str, error: NoConnection) -> NoConnection:
    """The failure of a jump host, for a host behind it."""
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


_SCAN = "Compare its fingerprint with the host's own key, then connect once with `{by_hand}`"
_TRY = "Try `{by_hand}`"

# By code. The first that matches counts: what explains a later line comes before it. Texts of OpenSSH 7.4 to 10.
CAUSES: Mapping[str, Cause] = MappingProxyType({
    "host-key-changed": Cause(
        "its host key changed: {place} now shows {kind} {shown}, known is {known} ({file}, line {line})",
        "If it was reinstalled, remove the old key with `ssh-keygen -f {file} -R '{name}'` and run again; if not, this may be "
        "an attack.",
        r"REMOTE HOST IDENTIFICATION HAS CHANGED!(?s:.*?)fingerprint for the (?P<kind>\S+) key sent by the remote host is\s+"
        r"(?P<shown>\S+?)\.?\s(?s:.*?)Offending \S+ key in (?P<file>[^\n]+):(?P<line>\d+)(?s:.*?)Host key for (?P<name>\S+) has changed",
    ),
    "host-key-revoked": Cause(
        "{place}: its host key is revoked",
        "This may be an attack. If not, give the host a new key.",
        r"REVOKED HOST KEY DETECTED|Host key \S+ \S+ revoked by file|is marked as revoked",
    ),
    "host-certificate-refused": Cause(
        "{place}: its host certificate is not valid: {why}",
        "Have its certificate signed again, or add the host's own key to a known_hosts file.",
        r"Certificate invalid: (?P<why>[^\n]+)",
    ),
    "host-key-unknown": Cause(
        "{place}: its {kind} host key is in no known_hosts file",
        f"{_SCAN}.",
        r"No (?P<kind>\S+) host key is known for (?P<name>\S+) and you have requested strict checking",
    ),
    "host-key-refused": Cause(
        "{place}: ssh does not accept its host key",
        f"{_SCAN}.",
        r"Host key verification failed",
    ),
    "algorithms": Cause(
        "{place}: {why}",
        "Allow one of them for this host in ssh's configuration, or update its sshd.",
        r"Unable to negotiate with [^:]+: (?P<why>no matching [^\n]+)",
    ),
    "key-permissions": Cause(
        "ssh does not use the key {file}: others may read it",
        "Run `chmod 600 {file}`.",
        r"Permissions \d+ for '(?P<file>[^']+)' are too open",
    ),
    "agent-refused": Cause(
        "{place}: the key {key} could not sign: {why}",
        f"Unlock or touch the key. {_TRY}.",
        r"signing failed for (?P<key>[^\n]+?)(?: from agent)?: (?P<why>[^\n]+)(?s:.*)Permission denied",
    ),
    "key-unusable": Cause(
        "{file} is no readable private key: {why}",
        "Set `ssh.key`, or IdentityFile in ssh's configuration, to the private key.",
        r'Load key "(?P<file>[^"]+)": (?P<why>[^\n]+)(?s:.*)Permission denied',
    ),
    "too-many-keys": Cause(
        "authentication failed: {place} disconnected after too many keys",
        "Set IdentitiesOnly and IdentityFile for this host in ssh's configuration.",
        r"Too many authentication failures",
    ),
    "permission-denied": Cause(
        "authentication failed: {place} {accepts}{note}",
        f"{_TRY}; check user, key and the host's authorized_keys.{{advice}}",
        r"Permission denied(?: \((?P<methods>[^)]*)\))?",
    ),
    "name-unknown": Cause(
        "{name} cannot be resolved",
        "Check `address`, or DNS.",
        r"Could not resolve hostname (?P<name>[^:]+):",
    ),
    "jump-refused": Cause(
        "the jump host does not forward to {place}: {why}",
        "Check AllowTcpForwarding and PermitOpen of its sshd.",
        r"open failed: (?P<why>administratively prohibited[^\n]*)",
    ),
    "connection-refused": Cause(
        "{place} refused the connection",
        "Check the port, and that sshd runs there.",
        r"(?:port \d+|connect failed): Connection refused",
    ),
    "no-route": Cause(
        "{place}: {why}",
        "Check `address`, and that the host is up; or set `ssh.jump`.",
        r"(?:port \d+|connect failed): (?P<why>No route to host|Network is unreachable)",
    ),
    "handshake-timeout": Cause(
        "{place} accepted the connection, but no SSH session was ready within {timeout:g} s",
        "Check that sshd listens there and that the host is not overloaded, or raise `ssh.timeout`.",
        r"timed out during banner exchange|(?:kex_exchange_identification|ssh_exchange_identification): .*timed out",
    ),
    "timeout": Cause(
        "{place} did not answer within {timeout:g} s",
        "Check address, firewall and that the host is up.",
        r"(?:port \d+|connect failed): (?:Connection|Operation) timed out",
    ),
    "bind-address": Cause(
        "ssh cannot use the BindAddress of its configuration for {place}",
        "Correct BindAddress or BindInterface for this host.",
        r"bind \S+: (?P<why>Cannot assign requested address)|(?:getaddrinfo|BindAddress)[^\n]*: (?P<other>[^\n]+)",
    ),
    "connection-dropped": Cause(
        "{place} closed the connection before the login{why}",
        "Check sshd's log there; MaxStartups or a firewall may drop connections.",
        r"(?:Connection (?:closed|reset) by|kex_exchange_identification|ssh_exchange_identification|Broken pipe"
        r"|banner exchange|Received disconnect|Disconnected from)[^\n]*",
        passes=True,
    ),
    "key-encrypted": Cause(
        "the private key {file} is encrypted, and no agent has it",
        "Add it to an agent with `ssh-add`.",
    ),
    "key-missing": Cause("cannot read {file}: no such file", "Check `ssh.key`."),
    "login-timeout": Cause(
        "{place}: the login did not end within {limit:g} s",
        f"{_TRY}; a key may wait to be touched, or a ProxyCommand may hang.",
    ),
    "proxy-failed": Cause(
        "the ProxyCommand `{proxy}` did not reach {place}{why}",
        "Run it by hand, or correct it in ssh's configuration.",
    ),
    "ssh-failed": Cause("{place}: {why}", "Try `{by_hand} -v`."),
})  # fmt: skip


def failure(code: str, way: Way, **fields: object) -> NoConnection:
    """The failure with this code, in words."""
    cause = CAUSES[code]
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
    for code, cause in CAUSES.items():
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
    hint = "Check MaxSessions of its sshd, and what it allows this user."
    return NoConnection(f"the host runs no command: {match['why']}", hint=hint, code="session-refused")


def fingerprint(kind: str, blob: bytes) -> str:
    """A key as OpenSSH prints it: `TYPE SHA256:…`."""
    return f"{kind} SHA256:{base64.b64encode(hashlib.sha256(blob).digest()).decode().rstrip('=')}"


def _known_fingerprint(file: Path, line: int) -> str:
    """The fingerprint of a line of a known_hosts file."""
    try:
        text = file.read_text(errors="replace").splitlines()[line - 1]
        kind, key = re.findall(r"(\S+)\s+(AAAA\S+)", text)[0]
        return fingerprint(kind, base64.b64decode(key))
    except (OSError, IndexError, ValueError):
        return "another"
