"""What `ssh -G` says of a host: Include, Match, tokens and canonical names are evaluated by ssh itself."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from gpunode.errors import NoConnection
from gpunode.local import files as localfile
from gpunode.model import Ssh

ANSWERS_SECONDS = 30.0  # `Match exec` runs commands

Options = Mapping[str, Sequence[str]]


def words(ssh: Ssh, file: Path | None) -> list[str]:
    """The options of an ssh command for what the inventory sets. `file`: the one configuration file, as with -F."""
    found = []
    if file is not None:
        found += ["-F", str(file) if localfile.exists(file) else "none"]
    found += ["-l", ssh.user] if ssh.user else []
    found += ["-p", str(ssh.port)] if ssh.port else []
    return [*found, "-o", f"ProxyJump={ssh.jump}"] if ssh.jump else found


def ask(program: str, ssh: Ssh, file: Path | None) -> Options:
    """A host's options, by names in lower case. Raises NoConnection."""
    try:
        done = subprocess.run(
            [program, "-G", *words(ssh, file), "--", ssh.address],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=ANSWERS_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise NoConnection(
            f"`ssh -G {ssh.address}` did not end within {ANSWERS_SECONDS:.0f} s",
            hint="Run it by hand; a `Match exec` may hang.",
        ) from error
    if done.returncode:
        remarks = [line for line in done.stderr.splitlines() if not line.startswith("Pseudo-terminal")]
        raise NoConnection(
            f"ssh cannot read its configuration for {ssh.address}: {' '.join(remarks) or 'no message'}",
            hint=f"Try `ssh -G {ssh.address}`.",
        )
    options: dict[str, list[str]] = {}
    for line in done.stdout.splitlines():
        name, _, value = line.partition(" ")
        options.setdefault(name.lower(), []).append(value)
    return options


def one(options: Options, name: str, default: str = "") -> str:
    """An option's only value; `none` is the default."""
    values = options.get(name, ())
    return values[0] if values and values[0].lower() != "none" else default


def hop(ssh: Ssh, jumps: str) -> Ssh:
    """The last jump host of a chain `[user@]host[:port],…`, with the host's key; an IPv6 address is in brackets.

    It is reached through the jump hosts before it. Raises NoConnection.
    """
    before, _, jump = jumps.rpartition(",")
    user, _, place = jump.rpartition("@")
    match = re.fullmatch(
        r"\[(?P<six>[^]]+)\](?::(?P<sixport>\d+))?|(?P<name>[^:]+)(?::(?P<port>\d+))?", place
    )
    if match is None:
        raise NoConnection(f"jump host {jump}: it is not [user@]host[:port]", hint="Correct `ssh.jump`.")
    port = match["sixport"] or match["port"]
    return replace(
        ssh,
        address=match["six"] or match["name"],
        port=int(port) if port else None,
        user=user or None,
        jump=before or None,
    )
