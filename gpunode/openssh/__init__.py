"""`connection: openssh`: hosts are reached by the system's ssh, with all that its configuration can do.

One master connection a host, which its commands share; hosts behind a jump host share the one to it. Everything about
keys and host keys is ssh's own work: gpunode only sets what the inventory sets, and never makes a check weaker.
"""

from __future__ import annotations

import contextlib
import math
import os
import random
import shlex
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from gpunode.child import Child
from gpunode.errors import Unreachable
from gpunode.model import Host, Ssh
from gpunode.openssh import resolve
from gpunode.openssh.failures import Failure, Way, diagnose
from gpunode.openssh.master import LOGIN_SECONDS, Master, NotOpened
from gpunode.openssh.resolve import Options, Unresolved

__all__ = ["Connection", "Dialer"]

TRIES = 3
# sshd drops connections at random from the 11th unauthenticated one on (MaxStartups 10:30:100), and a fleet
# behind one jump host or proxy arrives at one sshd.
HANDSHAKES = 8
# ssh binds a socket beside its name, with a suffix, and the kernel allows 104 bytes (macOS) or 108.
SOCKET_BYTES = 80
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


class Remote(Child):
    """A command on the host."""

    def end(self) -> tuple[int | None, str]:
        """Exit status and standard error; None for 255, by which ssh says that the connection broke."""
        status, printed = super().end()
        return (None if status == 255 else status), printed


class Connection:
    """A host with its master connection, which is opened again if it has ended between two commands."""

    def __init__(self, master: Master, again: Callable[[], Master]) -> None:
        self._master, self._again = master, again
        self._lock = threading.Lock()
        self._remote: Remote | None = None
        self._closed = False

    def start(
        self, command: str, stdin: Iterable[bytes], heard: Callable[[bytes], None] | None = None
    ) -> Remote:
        if not self._closed and not self._master.alive():
            self._master.close()
            self._master = self._again()
        pipe = subprocess.PIPE
        with self._lock:
            process = subprocess.Popen(
                [*self._master.words("-T"), command],
                stdin=pipe,
                stdout=pipe,
                stderr=pipe,
                start_new_session=True,
            )
            self._remote = Remote(process, stdin, heard)
            if self._closed:  # while it was opened again
                self._end()
        return self._remote

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._end()

    def _end(self) -> None:
        if self._remote is not None:
            self._remote.close()
        self._master.close()


class Dialer:
    """Connects to hosts by ssh. Thread-safe.

    `proven`: a password may be sent, so every host key must already be known.
    """

    def __init__(self, config: Path | None = None, *, proven: bool = False) -> None:
        self._file, self._proven = config, proven
        self._program = shutil.which("ssh")
        self._lock = threading.Lock()
        self._folder: Path | None = None
        self._count = 0
        self._options: dict[Ssh, Options] = {}
        self._gate = threading.Semaphore(HANDSHAKES)
        self._jumps: dict[Ssh, _Jump] = {}

    def connect(self, host: Host) -> Connection:
        """Open a connection. Raises Unreachable with the cause; retries only errors that may pass."""

        def master() -> Master:
            return self._dial(host)

        return Connection(master(), master)

    def close(self) -> None:
        """Close the connections to jump hosts, and remove the sockets' folder."""
        for jump in self._jumps.values():
            if jump.master is not None:
                jump.master.close()
        with self._lock:
            if self._folder is not None:
                shutil.rmtree(self._folder, ignore_errors=True)
                self._folder = None

    def _dial(self, host: Host) -> Master:
        for attempt in range(1, TRIES + 1):
            try:
                return self._open(host.ssh)
            except _Failed as failed:
                failure = failed.failure
                if attempt == TRIES or not failure.passes:
                    raise Unreachable(
                        host.name, failure.message, hint=failure.hint, code=failure.code
                    ) from failed
            except Unresolved as error:
                raise Unreachable(host.name, str(error), hint=error.hint, code=error.code) from error
            time.sleep(attempt * random.uniform(0.2, 0.6))  # noqa: S311 - jitter
        raise AssertionError("unreachable: the loop returns or raises")

    def _open(self, ssh: Ssh, behind: tuple[Ssh, ...] = ()) -> Master:
        if self._program is None:
            raise Unresolved(
                "`connection: openssh` needs ssh, which is not installed here",
                hint="Install OpenSSH's client (`openssh-client`, `openssh-clients`), or set `connection: ssh`.",
            )
        if ssh.key is not None and not any(map(Path.exists, _halves(ssh.key))):
            raise Unresolved(
                f"cannot read {ssh.key}: no such file", hint="Check `ssh.key`.", code="key-missing"
            )
        options = self._resolved(ssh)
        set_here = [*resolve.words(ssh, self._file), *_key(ssh)]
        known = _known_hosts(ssh, options, self._proven)
        one = partial(resolve.one, options)
        way = Way(
            f"{one('user')}@{one('hostname', ssh.address)}:{one('port', '22')}",
            shlex.join(["ssh", *set_here, *(known if ssh.known_hosts else ()), ssh.address]),
            ssh.timeout,
            ssh.key,
            one("proxycommand"),
        )
        words = [*set_here, *known, *_checks(ssh, options, self._proven), *BARE, *GONE]
        words += ["-o", f"ConnectTimeout={math.ceil(ssh.timeout)}"]
        jump = None if ssh.jump == "none" else one("proxyjump")
        if jump:
            # The first of ssh's ProxyJump and ProxyCommand counts.
            words = ["-o", f"ProxyCommand={self._jump(ssh, jump, behind).proxy()}", *words]
        limit = ssh.timeout + LOGIN_SECONDS
        with self._gate if jump or way.proxy else contextlib.nullcontext():
            try:
                return Master.open(self._program, self._place(), words, ssh.address, limit)
            except NotOpened as error:
                raise _Failed(_late(way, limit) if error.late else diagnose(str(error), way)) from error

    def _jump(self, ssh: Ssh, jump: str, behind: tuple[Ssh, ...]) -> Master:
        """The shared master of a jump host; the jump hosts `behind` it wait for it."""
        hop = resolve.hop(ssh, jump)
        if hop in behind:
            raise Unresolved(
                f"the jump hosts lead in a circle, at {jump}",
                hint="Correct ProxyJump in ssh's configuration.",
            )
        with self._lock:
            shared = self._jumps.setdefault(hop, _Jump())
        with shared.lock:
            if shared.master is None or not shared.master.alive():
                if time.monotonic() < shared.down_until:
                    assert shared.failure is not None
                    raise _Failed(shared.failure)
                try:
                    shared.master = self._open(hop, (*behind, hop))
                except _Failed as failed:
                    one = failed.failure
                    shared.failure = replace(one, message=f"jump host {jump}: {one.message}")
                    if not one.passes:  # the other hosts behind it need not wait, too
                        shared.down_until = time.monotonic() + ssh.timeout
                    raise _Failed(shared.failure) from failed
            return shared.master

    def _resolved(self, ssh: Ssh) -> Options:
        assert self._program is not None
        if ssh not in self._options:
            self._options[ssh] = resolve.ask(self._program, ssh, self._file)
        return self._options[ssh]

    def _place(self) -> Path:
        """A new socket's path, in a folder of this user alone."""
        with self._lock:
            if self._folder is None:
                usual = os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()
                short = len(usual) < SOCKET_BYTES - len("/gpunode-12345678/1234") and Path(usual).is_dir()
                self._folder = Path(tempfile.mkdtemp(prefix="gpunode-", dir=usual if short else "/tmp"))  # noqa: S108
            self._count += 1
            return self._folder / str(self._count)


@dataclass
class _Jump:
    """A jump host's shared master, and why there is none."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    master: Master | None = None
    failure: Failure | None = None
    down_until: float = 0.0


class _Failed(Exception):
    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


def _late(way: Way, limit: float) -> Failure:
    return Failure(
        "login-timeout",
        f"{way.place}: the login did not end within {limit:g} s",
        f"Try `{way.by_hand}`; a key may wait to be touched, or a ProxyCommand may hang.",
    )


def _key(ssh: Ssh) -> list[str]:
    return ["-i", str(Path(ssh.key).expanduser())] if ssh.key else []


def _halves(key: str) -> tuple[Path, Path]:
    """A private key and its public half, which is enough where an agent has the other."""
    path = Path(key).expanduser()
    return path, path.with_name(f"{path.name}.pub")


def _known_hosts(ssh: Ssh, options: Options, proven: bool) -> list[str]:
    """The option that names the user's known_hosts files; ssh writes a new key to the first."""
    files = [_quoted(Path(ssh.known_hosts).expanduser())] if ssh.known_hosts else []
    if ssh.host_key_check == "off" and not proven:
        configured = resolve.one(options, "userknownhostsfile")
        files = ["/dev/null", *(files or [configured] if configured else [])]
    return ["-o", f"UserKnownHostsFile={' '.join(files)}"] if files else []


def _quoted(path: Path) -> str:
    """A path as one word of a list of files, which has tokens."""
    text = str(path).replace("%", "%%")
    return f'"{text}"' if " " in text else text


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
