"""How paramiko reaches a host and checks its key: from the inventory and ssh's configuration."""

import getpass
import os
import pwd
import re
import shutil
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Literal

import paramiko

from gpunode.errors import NoConnection
from gpunode.host import ssh_options
from gpunode.host.failures import unsupported
from gpunode.host.ssh_options import Options
from gpunode.local import files as localfile
from gpunode.model import Ssh


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
    # allowed, by paramiko's names of the kinds
    algorithms: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def known_as(self) -> str:
        if self.alias is not None or self.port == 22:
            return (self.alias or self.address).lower()
        return f"[{self.address.lower()}]:{self.port}"

    @property
    def place(self) -> str:
        return f"{self.user}@{self.address}:{self.port}"

    @property
    def by_hand(self) -> str:
        port = "" if self.port == 22 else f"-p {self.port} "
        file = self.known_hosts[0] if self.known_hosts else None
        usual = file is None or file == Path("~/.ssh/known_hosts").expanduser()
        known = "" if usual else f"-o UserKnownHostsFile={file} "
        key = f"-i {self.key} " if self.key else ""
        jump = f"-J {self.jump} " if self.jump else ""
        return f"ssh {known}{key}{jump}{port}{self.user}@{self.address}"


SYSTEM = Path("/etc/ssh/ssh_config")
# Directives that only ssh itself can evaluate.
_NEEDS_SSH = re.compile(r"^[ \t]*(include\b|match\b.*\b(?:exec|tagged|localnetwork|version)\b)", re.I | re.M)
_ALGORITHMS = {
    "ciphers": "ciphers",
    "macs": "macs",
    "kex": "kexalgorithms",
    "keys": "hostkeyalgorithms",
    "pubkeys": "pubkeyacceptedalgorithms",
}
_FAMILIES = {"inet": socket.AF_INET, "inet6": socket.AF_INET6}


class Config:
    """ssh's configuration: the user's and the system's, or `file` alone, as with `ssh -F`."""

    def __init__(self, file: Path | None) -> None:
        self._file = file
        self._home = pwd.getpwuid(os.getuid()).pw_dir  # ssh's `~`, whatever $HOME is
        self._ssh = shutil.which("ssh")
        self._resolved = ssh_options.Configuration(self._ssh, file) if self._ssh else None

    def target(self, ssh: Ssh, *, proven: bool = False) -> Target:
        """The target for one host. Raises NoConnection for options that gpunode does not support."""
        options = self.options(ssh)
        option = partial(ssh_options.option, options)
        address, port = option("hostname", ssh.address), ssh.port or _number(options, ssh, "Port", 22)
        user = ssh.user or option("user", getpass.getuser())
        jump = None if ssh.jump == "none" else ssh.jump or option("proxyjump") or None
        if option("proxycommand") and ssh.jump is None:
            raise unsupported(
                f"ssh's configuration has a ProxyCommand for {ssh.address}, which gpunode's client does not support",
                otherwise="Or set `ssh.jump` to a jump host, or to `none` if the host can be reached directly.",
            )
        if jump is not None and "," in jump:
            raise unsupported(
                f"{ssh.address} is behind a chain of jump hosts ({jump}), but gpunode's client supports only one",
                otherwise="Or set `ssh.jump` to a host with access to it.",
            )
        if option("bindinterface"):
            raise unsupported(
                f"ssh's configuration has a BindInterface for {ssh.address}, which gpunode's client does not support",
                otherwise="Or set BindAddress for this host.",
            )
        methods = option("preferredauthentications", "publickey").split(",")
        if option("pubkeyauthentication", "yes").lower() in ("no", "false") or "publickey" not in methods:
            raise unsupported(
                f"ssh's configuration allows {ssh.address} no public keys, and gpunode's client supports nothing else",
                otherwise="Or allow publickey for this host.",
            )
        if option("knownhostscommand"):
            raise unsupported(
                f"ssh's configuration has a KnownHostsCommand for {ssh.address}, which gpunode's client does not support",
                otherwise="Or put the host's key into a known_hosts file, and remove the option for this host.",
            )
        tokens = {
            "%": "%", "d": self._home, "h": address, "i": str(os.getuid()), "k": option("hostkeyalias", address),
            "L": socket.gethostname().partition(".")[0], "l": socket.gethostname(), "n": ssh.address,
            "p": str(port), "r": user, "u": getpass.getuser(),
        }  # fmt: skip

        def path(text: str) -> str:
            text = re.sub(r"\$\{(\w+)\}", lambda match: os.environ.get(match[1], match[0]), text)
            text = re.sub(r"%(.)", lambda match: tokens.get(match[1], match[0]), text)
            return self._home + text[1:] if text == "~" or text.startswith("~/") else text

        def files(name: str, default: str) -> tuple[Path, ...]:
            paths = [path(word) for word in " ".join(options.get(name, [default])).split()]
            if any(not word.startswith("/") for word in paths[1:]):
                raise unsupported(
                    f"ssh's configuration has a path with a space in {name} for {ssh.address}",
                    otherwise="Or set `ssh.known_hosts`, or use a path without spaces.",
                )
            return tuple(Path(word) for word in paths if word.lower() != "none")

        known = (localfile.full(ssh.known_hosts),) if ssh.known_hosts else None
        strict = option("stricthostkeychecking").lower() in ("yes", "true") and ssh.host_key_check != "off"
        agent = options.get("identityagent", ["SSH_AUTH_SOCK"])[0]
        if re.fullmatch(r"\$\w+", agent):
            agent = os.environ.get(agent[1:], "none")
        revoked = option("revokedhostkeys")
        return Target(
            address=address,
            port=port,
            user=user,
            jump=jump,
            timeout=ssh.timeout,
            key=ssh.key,
            identities=tuple(
                Path(path(file)) for file in options.get("identityfile", _DEFAULTS) if file.lower() != "none"
            ),
            identities_only=option("identitiesonly") in ("yes", "true"),
            agent=None if agent == "SSH_AUTH_SOCK" else path(agent) if agent.lower() != "none" else "",
            family=_FAMILIES.get(option("addressfamily"), socket.AF_UNSPEC),
            source=option("bindaddress"),
            rsa_bits=_number(options, ssh, "RequiredRSASize", 0),
            unused=tuple(name for name in ("CertificateFile", "PKCS11Provider") if option(name.lower())),
            check="strict" if strict else ssh.host_key_check,
            proven=proven,
            alias=option("hostkeyalias") or None,
            known_hosts=known or files("userknownhostsfile", "~/.ssh/known_hosts ~/.ssh/known_hosts2"),
            global_known_hosts=files(
                "globalknownhostsfile", "/etc/ssh/ssh_known_hosts /etc/ssh/ssh_known_hosts2"
            ),
            revoked=Path(path(revoked)) if revoked else None,
            check_ip=option("checkhostip") in ("yes", "true"),
            hash_names=option("hashknownhosts") in ("yes", "true"),
            algorithms={
                kind: tuple(option(name).split(","))
                for kind, name in _ALGORITHMS.items()
                if self._ssh and option(name)
            },
        )

    def options(self, ssh: Ssh) -> Options:
        """The options for one host, by names in lower case. Raises NoConnection."""
        return self._resolved.options(ssh) if self._resolved else self._read(ssh)

    def _text(self, file: Path) -> str:
        try:
            return localfile.text(file)
        except FileNotFoundError:
            return ""
        except OSError as error:
            raise NoConnection(
                f"{file} cannot be read: {error.strerror}", hint="Fix ssh's configuration."
            ) from error

    def _read(self, ssh: Ssh) -> Options:
        """The options from the configuration files, without ssh."""
        config = paramiko.SSHConfig()
        usual = (Path(self._home, ".ssh/config"), SYSTEM)
        for file in [self._file] if self._file is not None else usual:
            text = self._text(file)
            if (match := _NEEDS_SSH.search(text)) is not None:
                raise NoConnection(
                    f"{file} has `{match[0].strip()}`, which only ssh can evaluate, and ssh is not installed here",
                    hint="Install OpenSSH's client (`openssh-client`, `openssh-clients`).",
                )
            try:
                config.parse(text.splitlines(keepends=True))
            except (paramiko.ConfigParseError, ValueError) as error:
                raise NoConnection(
                    f"{file} cannot be read: {error}", hint="Install OpenSSH's client."
                ) from error
        entry = config.lookup(ssh.address)
        return {name: value if isinstance(value, list) else [value] for name, value in entry.items()}


def _number(options: Options, ssh: Ssh, name: str, default: int) -> int:
    """A number of ssh's configuration, as ssh takes it."""
    value = ssh_options.option(options, name.lower(), str(default))
    if not re.fullmatch(r"[0-9]{1,5}", value) or int(value) > 65535:
        raise NoConnection(
            f"ssh's configuration has `{name} {value}` for {ssh.address}, which is no number up to 65535",
            hint="Fix ssh's configuration.",
        )
    return int(value)


_DEFAULTS = tuple(f"~/.ssh/id_{kind}" for kind in ("rsa", "ecdsa", "ecdsa_sk", "ed25519", "ed25519_sk"))
