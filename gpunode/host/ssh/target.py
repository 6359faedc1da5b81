"""How to reach a host and check its key, from the inventory and ssh's configuration."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal


@dataclass(frozen=True, slots=True)
class Target:
    """One host, or one jump host, as `ssh` would reach it."""

    address: str
    port: int
    user: str
    jump: str | None = None
    timeout: float = 15.0
    key: str | None = None  # the inventory's; ssh's configuration names `identities`
    identities: tuple[Path, ...] = ()
    identities_only: bool = False
    agent: str | None = None  # its socket; None: the environment's; "": no agent
    family: int = socket.AF_UNSPEC
    source: str = ""  # this machine's address to connect from
    rsa_bits: int = 0  # shorter RSA keys prove nothing
    unused: tuple[str, ...] = ()  # login options that gpunode's client does not support
    check: Literal["strict", "accept-new", "off"] = "accept-new"
    proven: bool = False  # a password may be sent: the host key must be known
    alias: str | None = None
    known_hosts: tuple[Path, ...] = ()  # the first is written to
    global_known_hosts: tuple[Path, ...] = ()
    revoked: Path | None = None
    check_ip: bool = False
    hash_names: bool = False
    algorithms: Mapping[str, tuple[str, ...]] = field(
        default_factory=dict
    )  # allowed, by paramiko's names of the kinds

    @property
    def known_as(self) -> str:
        """Its name in known_hosts."""
        if self.alias is not None or self.port == 22:
            return (self.alias or self.address).lower()
        return f"[{self.address.lower()}]:{self.port}"

    @property
    def place(self) -> str:
        return f"{self.user}@{self.address}:{self.port}"

    @property
    def by_hand(self) -> str:
        """The ssh command to try by hand."""
        port = "" if self.port == 22 else f"-p {self.port} "
        file = self.known_hosts[0] if self.known_hosts else None
        usual = file is None or file == Path("~/.ssh/known_hosts").expanduser()
        known = "" if usual else f"-o UserKnownHostsFile={file} "
        key = f"-i {self.key} " if self.key else ""
        jump = f"-J {self.jump} " if self.jump else ""
        return f"ssh {known}{key}{jump}{port}{self.user}@{self.address}"
