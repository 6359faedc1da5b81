"""ssh's configuration of a host by `ssh -G`, what gpunode adds to it, and the hosts that it knows by name."""

import errno
import glob
import math
import os
import re
import shlex
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from gpunode.errors import NoConnection
from gpunode.local import files as localfile
from gpunode.model import Ssh

CHATTER = ("Pseudo-terminal", "debug1: ", "OpenSSH_")  # what begins a line that is no remark
ANSWERS_SECONDS = 30.0  # `Match exec` runs commands

Options = Mapping[str, Sequence[str]]


def inventory_options(ssh: Ssh, file: Path | None) -> list[str]:
    """The options of an ssh command for what the inventory sets. `file`: the one configuration file, as with -F."""
    arguments = []
    if file is not None:
        arguments += ["-F", str(file) if localfile.exists(file) else "none"]
    arguments += ["-l", ssh.user] if ssh.user else []
    arguments += ["-p", str(ssh.port)] if ssh.port else []
    return [*arguments, "-o", f"ProxyJump={ssh.jump}"] if ssh.jump else arguments


class Configuration:
    """ssh's configuration, by `ssh -G`: asked once for all hosts that it cannot tell apart. Thread-safe."""

    def __init__(self, program: str, file: Path | None) -> None:
        self._program, self._file = program, file
        self._lock = threading.Lock()
        self._alike: dict[
            Ssh, Options | None
        ] = {}  # by host without its address; None: each host is asked for

    def options(self, ssh: Ssh) -> Options:
        """A host's options, by names in lower case. Raises NoConnection."""
        if not NAME.fullmatch(ssh.address):
            return self._ask(ssh)[0]
        every = replace(ssh, address="")
        with self._lock:
            if every not in self._alike:
                self._alike[every] = None
                options, files = self._ask(ssh)
                if self._treats_alike(files) and options.get("hostname") == [ssh.address]:
                    self._alike[every] = options
                return options
        known = self._alike[every]
        if known is None:
            return self._ask(ssh)[0]
        return {**known, "host": [ssh.address], "hostname": [ssh.address]}

    def _treats_alike(self, files: Sequence[Path]) -> bool:
        """True if nothing in these files depends on a host's name."""
        usual = (
            [self._file] if self._file else [Path("~/.ssh/config").expanduser(), Path("/etc/ssh/ssh_config")]
        )
        if not files and any(map(localfile.exists, usual)):
            return False  # this ssh does not name what it reads
        try:
            return all(PLAIN.fullmatch(line) for path in files for line in localfile.text(path).split("\n"))
        except OSError:
            return False

    def _ask(self, ssh: Ssh) -> tuple[Options, list[Path]]:
        return _resolve(self._program, ssh, self._file)


# A name of which ssh changes nothing, and lines that mean the same for every host.
NAME = re.compile(r"[a-z0-9][a-z0-9.-]*")
PLAIN = re.compile(
    r"(?i)[ \t]*(?:#.*|host(?:name)?[ \t=]+\*[ \t]*|(?!host(?:name)?\b|match\b|canonical)[a-z0-9]+[ \t=][^%\0-\b\n-\x1f]*)?\r?"
)


def _resolve(program: str, ssh: Ssh, file: Path | None) -> tuple[Options, list[Path]]:
    """A host's options, and the files that ssh read for them."""
    try:
        done = subprocess.run(
            [program, "-G", "-v", *inventory_options(ssh, file), "--", ssh.address],
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
        remarks = [line for line in done.stderr.splitlines() if not line.startswith(CHATTER)]
        raise NoConnection(
            f"ssh cannot read its configuration for {ssh.address}: {' '.join(remarks) or 'no message'}",
            hint=f"Try `ssh -G {ssh.address}`.",
        )
    options: dict[str, list[str]] = {}
    for line in done.stdout.splitlines():
        name, _, value = line.partition(" ")
        options.setdefault(name.lower(), []).append(value)
    return options, [
        Path(name) for name in re.findall(r"(?m)^debug1: Reading configuration data (.+)$", done.stderr)
    ]


def option(options: Options, name: str, default: str = "") -> str:
    """An option's only value; `none` is the default."""
    values = options.get(name, ())
    return values[0] if values and values[0].lower() != "none" else default


def jump_host(ssh: Ssh, jumps: str) -> Ssh:
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


def master_options(ssh: Ssh, options: Options, file: Path | None, proven: bool) -> list[str]:
    """Those of a master connection; `options` are what ssh's configuration says without them."""
    arguments = [
        *_discard_new_keys(ssh, options, proven),
        *options_by_hand(ssh, file),
        *_check_keys(ssh, options, proven),
        *BARE,
        *GONE,
    ]
    return [*arguments, "-o", f"ConnectTimeout={math.ceil(ssh.timeout)}"]


def options_by_hand(ssh: Ssh, file: Path | None) -> list[str]:
    """Those that a user gives who tries it by hand: what the inventory sets."""
    arguments = inventory_options(ssh, file)
    arguments += ["-i", str(Path(ssh.key).expanduser())] if ssh.key else []
    return [*arguments, "-o", f"UserKnownHostsFile={_known_hosts(ssh)}"] if ssh.known_hosts else arguments


def key_files(key: str) -> tuple[Path, Path]:
    """A private key and its public half, which is enough where an agent has the other."""
    path = Path(key).expanduser()
    return path, path.with_name(f"{path.name}.pub")


def _known_hosts(ssh: Ssh) -> str:
    """The inventory's file as one word of a list of files, which has tokens."""
    text = str(Path(ssh.known_hosts or "").expanduser()).replace("%", "%%")
    return f'"{text}"' if " " in text else text


def _discard_new_keys(ssh: Ssh, options: Options, proven: bool) -> list[str]:
    """With `host_key_check: off` new keys go nowhere: ssh writes them to the first of its files."""
    if ssh.host_key_check != "off" or proven:
        return []
    files = _known_hosts(ssh) if ssh.known_hosts else option(options, "userknownhostsfile")
    return ["-o", f"UserKnownHostsFile=/dev/null {files}"]


def _check_keys(ssh: Ssh, options: Options, proven: bool) -> list[str]:
    """The options about host keys: as strict as the inventory, ssh's configuration and a password ask for."""
    configured = option(options, "stricthostkeychecking").lower() in ("yes", "true")
    asks = _asks()
    strict = proven or asks or ssh.host_key_check == "strict" or (configured and ssh.host_key_check != "off")
    settings = [
        f"StrictHostKeyChecking={'yes' if strict else 'accept-new'}",
        "NoHostAuthenticationForLocalhost=no",
    ]
    settings += ["VerifyHostKeyDNS=no"] if proven else []
    settings += [] if asks else ["BatchMode=yes"]
    return [word for setting in settings for word in ("-o", setting)]


def _asks() -> bool:
    """True if ssh asks the user in windows, for passphrases, PINs and its own passwords.

    Without windows it asks nothing: on the terminal is the live view, and 64 hosts would ask at once.
    """
    return bool(os.environ.get("SSH_ASKPASS")) and os.environ.get("SSH_ASKPASS_REQUIRE") in (
        "force",
        "prefer",
    )


DEEPEST = 16  # as ssh's own limit of nested Includes
LINE = re.compile(r"\s*(\w+)\s*(?:=\s*|\s)(.*)")


def aliases(file: Path) -> tuple[str, ...]:
    """The names of `Host` lines in the order of the file and its Includes, without patterns, and without accounts of code
    hosting (`User git`). Raises OSError where the file itself cannot be read."""
    hosts: dict[str, bool] = {}
    names: list[str] = []
    for keyword, values in _directives(localfile.text(file), file.parent, DEEPEST):
        if keyword in ("host", "match"):
            names = [value for value in values if keyword == "host" and not set(value) & set("*?!")]
            hosts |= {name: hosts.get(name, True) for name in names}
        elif keyword == "user" and values == ["git"]:
            hosts |= dict.fromkeys(names, False)
    return tuple(name for name, kept in hosts.items() if kept)


def jump_hosts(file: Path) -> frozenset[str]:
    """The jump hosts of the file and its Includes, by name. Raises OSError where the file itself cannot be read."""
    text = localfile.text(file)
    ways = [
        values[0]
        for keyword, values in _directives(text, file.parent, DEEPEST)
        if keyword == "proxyjump" and values
    ]
    places = (hop.rpartition("@")[2] for way in ways for hop in way.removeprefix("ssh://").split(","))
    return frozenset(place.partition(":")[0] for place in places)


def _directives(text: str, folder: Path, depth: int) -> Iterator[tuple[str, list[str]]]:
    for line in text.splitlines():
        parts = LINE.fullmatch(line)
        if parts is None or line.lstrip().startswith("#"):
            continue
        try:
            values = shlex.split(parts[2], comments=True)
        except ValueError:  # an open quote, which ssh reports
            continue
        keyword = parts[1].lower()
        if keyword != "include":
            yield keyword, values
            continue
        for pattern in (value for value in values if "\0" not in value):
            included = folder / localfile.full(pattern)
            for path in map(Path, sorted(glob.glob(str(included)))):  # noqa: PTH207 - Path.glob raises for some of ssh's patterns
                if not depth:
                    raise OSError(errno.ELOOP, f"its Includes go deeper than {DEEPEST}", str(path))
                if localfile.is_file(path):
                    yield from _directives(localfile.text(path), folder, depth - 1)
