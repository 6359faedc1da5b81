"""The options that gpunode adds to ssh's configuration of a host."""

from __future__ import annotations

import math
import os
from pathlib import Path

from gpunode.host.openssh import resolve
from gpunode.host.openssh.resolve import Options
from gpunode.model import Ssh

GONE = ("-o", "ServerAliveInterval=10", "-o", "ServerAliveCountMax=3")
# What the configuration may ask for beside the login, and a fleet's tool has no use for.
BARE = tuple(
    word
    for option in (
        "ClearAllForwardings=yes", "ForwardAgent=no", "ForwardX11=no", "Tunnel=no", "RemoteCommand=none",
        "LogLevel=INFO",
    )
    for word in ("-o", option)
)  # fmt: skip


def master(ssh: Ssh, options: Options, file: Path | None, proven: bool) -> list[str]:
    """Those of a master connection; `options` are what ssh's configuration says without them."""
    words = [
        *_discarded(ssh, options, proven),
        *by_hand(ssh, file),
        *_checks(ssh, options, proven),
        *BARE,
        *GONE,
    ]
    return [*words, "-o", f"ConnectTimeout={math.ceil(ssh.timeout)}"]


def by_hand(ssh: Ssh, file: Path | None) -> list[str]:
    """Those that a user gives who tries it by hand: what the inventory sets."""
    words = resolve.words(ssh, file)
    words += ["-i", str(Path(ssh.key).expanduser())] if ssh.key else []
    return [*words, "-o", f"UserKnownHostsFile={_known_hosts(ssh)}"] if ssh.known_hosts else words


def halves(key: str) -> tuple[Path, Path]:
    """A private key and its public half, which is enough where an agent has the other."""
    path = Path(key).expanduser()
    return path, path.with_name(f"{path.name}.pub")


def _known_hosts(ssh: Ssh) -> str:
    """The inventory's file as one word of a list of files, which has tokens."""
    text = str(Path(ssh.known_hosts or "").expanduser()).replace("%", "%%")
    return f'"{text}"' if " " in text else text


def _discarded(ssh: Ssh, options: Options, proven: bool) -> list[str]:
    """With `host_key_check: off` new keys go nowhere: ssh writes them to the first of its files."""
    if ssh.host_key_check != "off" or proven:
        return []
    files = _known_hosts(ssh) if ssh.known_hosts else resolve.one(options, "userknownhostsfile")
    return ["-o", f"UserKnownHostsFile=/dev/null {files}"]


def _checks(ssh: Ssh, options: Options, proven: bool) -> list[str]:
    """The options about host keys: as strict as the inventory, ssh's configuration and a password ask for."""
    configured = resolve.one(options, "stricthostkeychecking").lower() in ("yes", "true")
    asks = _asks()
    strict = proven or asks or ssh.host_key_check == "strict" or (configured and ssh.host_key_check != "off")
    words = [
        f"StrictHostKeyChecking={'yes' if strict else 'accept-new'}",
        "NoHostAuthenticationForLocalhost=no",
    ]
    words += ["VerifyHostKeyDNS=no"] if proven else []
    words += [] if asks else ["BatchMode=yes"]
    return [word for option in words for word in ("-o", option)]


def _asks() -> bool:
    """True if ssh asks the user in windows, for passphrases, PINs and its own passwords.

    Without windows it asks nothing: on the terminal is the live view, and 64 hosts would ask at once.
    """
    return bool(os.environ.get("SSH_ASKPASS")) and os.environ.get("SSH_ASKPASS_REQUIRE") in (
        "force",
        "prefer",
    )
