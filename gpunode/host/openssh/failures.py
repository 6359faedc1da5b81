"""Why ssh could not connect, from what it prints.

ssh ends with 255 whatever happened, so its words are all there is to read; they are read here and nowhere else.
"""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

from gpunode.errors import NoConnection

SEEN = 400  # characters of what ssh printed, where no cause is known


@dataclass(frozen=True, slots=True)
class Way:
    """How a host is reached, for messages: USER@ADDRESS:PORT, the command to try by hand, and what proxies it."""

    place: str
    by_hand: str
    timeout: float
    key: str | None = None  # the inventory's
    proxy: str = ""  # the ProxyCommand of ssh's configuration


@dataclass(frozen=True, slots=True)
class _Cause:
    code: str
    pattern: str
    message: str  # with the names of the pattern's groups and of Way
    hint: str
    passes: bool = False


_SCAN = "Compare its fingerprint with the host's own key, then connect once with `{by_hand}`"
_TRY = "Try `{by_hand}`"

# The first that matches counts: what explains a later line comes before it. Texts of OpenSSH 7.4 to 10.
_CAUSES = (
    _Cause(
        "host-key-changed",
        r"REMOTE HOST IDENTIFICATION HAS CHANGED!(?s:.*?)fingerprint for the (?P<kind>\S+) key sent by the remote host is\s+"
        r"(?P<shown>\S+?)\.?\s(?s:.*?)Offending \S+ key in (?P<file>[^\n]+):(?P<line>\d+)(?s:.*?)Host key for (?P<name>\S+) has changed",
        "its host key changed: {place} now shows {kind} {shown}, known is {known} ({file}, line {line})",
        "If it was reinstalled, remove the old key with `ssh-keygen -f {file} -R '{name}'` and run again; if not, this may be "
        "an attack.",
    ),
    _Cause(
        "host-key-revoked",
        r"REVOKED HOST KEY DETECTED|Host key \S+ \S+ revoked by file|is marked as revoked",
        "{place}: its host key is revoked",
        "This may be an attack. If not, give the host a new key.",
    ),
    _Cause(
        "host-certificate-refused",
        r"Certificate invalid: (?P<why>[^\n]+)",
        "{place}: its host certificate is not valid: {why}",
        "Have its certificate signed again, or add the host's own key to a known_hosts file.",
    ),
    _Cause(
        "host-key-unknown",
        r"No (?P<kind>\S+) host key is known for (?P<name>\S+) and you have requested strict checking",
        "{place}: its {kind} host key is in no known_hosts file",
        f"{_SCAN}.",
    ),
    _Cause(
        "host-key-refused",
        r"Host key verification failed",
        "{place}: ssh does not accept its host key",
        f"{_SCAN}.",
    ),
    _Cause(
        "algorithms",
        r"Unable to negotiate with [^:]+: (?P<why>no matching [^\n]+)",
        "{place}: {why}",
        "Allow one of them for this host in ssh's configuration, or update its sshd.",
    ),
    _Cause(
        "key-permissions",
        r"Permissions \d+ for '(?P<file>[^']+)' are too open",
        "ssh does not use the key {file}: others may read it",
        "Run `chmod 600 {file}`.",
    ),
    _Cause(
        "agent-refused",
        r"signing failed for (?P<key>[^\n]+?)(?: from agent)?: (?P<why>[^\n]+)(?s:.*)Permission denied",
        "{place}: the key {key} could not sign: {why}",
        f"Unlock or touch the key. {_TRY}.",
    ),
    _Cause(
        "key-unusable",
        r'Load key "(?P<file>[^"]+)": (?P<why>[^\n]+)(?s:.*)Permission denied',
        "{file} is no readable private key: {why}",
        "Set `ssh.key`, or IdentityFile in ssh's configuration, to the private key.",
    ),
    _Cause(
        "too-many-keys",
        r"Too many authentication failures",
        "authentication failed: {place} disconnected after too many keys",
        "Set IdentitiesOnly and IdentityFile for this host in ssh's configuration.",
    ),
    _Cause(
        "permission-denied",
        r"Permission denied(?: \((?P<methods>[^)]*)\))?",
        "authentication failed: {place} {accepts}; it allows {methods}",
        f"{_TRY}; check user, key and the host's authorized_keys. An encrypted key has to be in an agent (`ssh-add`).",
    ),
    _Cause(
        "name-unknown",
        r"Could not resolve hostname (?P<name>[^:]+):",
        "{name} cannot be resolved",
        "Check `address`, or DNS.",
    ),
    _Cause(
        "jump-refused",
        r"open failed: (?P<why>administratively prohibited[^\n]*)",
        "the jump host does not forward to {place}: {why}",
        "Check AllowTcpForwarding and PermitOpen of its sshd.",
    ),
    _Cause(
        "connection-refused",
        r"(?:port \d+|connect failed): Connection refused",
        "{place} refused the connection",
        "Check the port, and that sshd runs there.",
    ),
    _Cause(
        "no-route",
        r"(?:port \d+|connect failed): (?P<why>No route to host|Network is unreachable)",
        "{place}: {why}",
        "Check `address`, and that the host is up; or set `ssh.jump`.",
    ),
    _Cause(
        "handshake-timeout",
        r"timed out during banner exchange|(?:kex_exchange_identification|ssh_exchange_identification): .*timed out",
        "{place} accepted the connection, but no SSH session was ready within {timeout:g} s",
        "Check that sshd listens there and that the host is not overloaded, or raise `ssh.timeout`.",
    ),
    _Cause(
        "timeout",
        r"(?:port \d+|connect failed): (?:Connection|Operation) timed out",
        "{place} did not answer within {timeout:g} s",
        "Check address, firewall and that the host is up.",
    ),
    _Cause(
        "bind-address",
        r"bind \S+: (?P<why>Cannot assign requested address)|(?:getaddrinfo|BindAddress)[^\n]*: (?P<other>[^\n]+)",
        "ssh cannot use the BindAddress of its configuration for {place}",
        "Correct BindAddress or BindInterface for this host.",
    ),
    _Cause(
        "connection-dropped",
        r"(?:Connection (?:closed|reset) by|kex_exchange_identification|ssh_exchange_identification|Broken pipe"
        r"|banner exchange|Received disconnect|Disconnected from)[^\n]*",
        "{place} closed the connection before the login",
        "Check sshd's log there; MaxStartups or a firewall may drop connections.",
        passes=True,
    ),
)  # fmt: skip


def diagnose(printed: str, way: Way) -> NoConnection:
    """The failure that ssh's standard error is about."""
    accepts = (
        f"does not accept the key {way.key}" if way.key else "accepts no key of this machine or its agent"
    )
    values = {"place": way.place, "by_hand": way.by_hand, "timeout": way.timeout, "accepts": accepts}
    for cause in _CAUSES:
        match = re.search(cause.pattern, printed)
        if match is None:
            continue
        if cause.code == "connection-dropped" and way.proxy:
            return _proxy_failed(printed, way)
        values |= {name: value or "nothing" for name, value in match.groupdict().items()}
        if cause.code == "host-key-changed":
            values["known"] = _known(Path(match["file"]), int(match["line"]))
        return NoConnection(
            cause.message.format(**values),
            hint=cause.hint.format(**values),
            code=cause.code,
            passes=cause.passes,
        )
    what = " ".join(printed.split())[-SEEN:] or "ssh printed nothing"
    return NoConnection(f"{way.place}: {what}", hint=f"Try `{way.by_hand} -v`.", code="ssh-failed")


def no_session(printed: str) -> NoConnection | None:
    """The failure if the host refused to run a command on an open connection; None if that was not the cause."""
    match = re.search(r"session request failed: (?P<why>[^\r\n]+)", printed)
    if match is None:
        return None
    hint = "Check MaxSessions of its sshd, and what it allows this user."
    return NoConnection(f"the host runs no command: {match['why']}", hint=hint, code="session-refused")


def _known(file: Path, line: int) -> str:
    """The fingerprint of a line of a known_hosts file."""
    try:
        kind, key = re.findall(r"(\S+)\s+(AAAA\S+)", file.read_text(errors="replace").splitlines()[line - 1])[
            0
        ]
        digest = hashlib.sha256(base64.b64decode(key)).digest()
    except (OSError, IndexError, ValueError):
        return "another"
    return f"{kind} SHA256:{base64.b64encode(digest).decode().rstrip('=')}"


def _proxy_failed(printed: str, way: Way) -> NoConnection:
    """What the proxy itself printed comes before ssh's line about the closed connection."""
    own = [line for line in printed.splitlines() if line.strip() and not re.search(_CAUSES[-1].pattern, line)]
    why = f": {' '.join(own)[-SEEN:]}" if own else ""
    return NoConnection(
        f"the ProxyCommand `{way.proxy}` did not reach {way.place}{why}",
        hint="Run it by hand, or correct it in ssh's configuration.",
        code="proxy-failed",
    )
