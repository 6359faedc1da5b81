"""`connection: openssh`: hosts are reached by the system's ssh, with all that its configuration can do.

One master connection a host, which its commands share; hosts behind a jump host share the one to it. Everything about
keys and host keys is ssh's own work: gpunode only sets what the inventory sets, and never makes a check weaker.
"""

import contextlib
import os
import random
import selectors
import shlex
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from gpunode.errors import NoConnection, Unreachable
from gpunode.host import ssh_options
from gpunode.host.failures import Way, diagnose, failure, jump_failed, no_session
from gpunode.host.ssh_options import Options
from gpunode.local import streams
from gpunode.local.child import Child
from gpunode.model import Host, Ssh

LOGIN_SECONDS = 60.0  # beside the host's own timeout: keys may have to be touched
# A master that was not closed ends by itself, as where gpunode was killed; one that ended while gpunode waited for
# work or an answer is started again.
IDLE = "10m"
EXITS_SECONDS = 5.0
POLL_SECONDS = 0.5
NOBODY = "gpunode"  # ssh wants a host's name, which a client of a master does not use


@dataclass(frozen=True, slots=True)
class NotOpened:
    """What ssh printed where it could not connect. `late`: it did not end in time."""

    printed: str
    late: bool


@dataclass(frozen=True, slots=True)
class Master:
    program: str
    socket: Path

    @classmethod
    def open(
        cls, program: str, place: Path, options: Sequence[str], address: str, timeout: float
    ) -> "Master | NotOpened":
        """Log in. The process goes on in the background, apart from the terminal and its Ctrl-C."""
        command = [
            program,
            "-M",
            "-N",
            "-f",
            "-T",
            "-S",
            _escape(place),
            "-o",
            f"ControlPersist={IDLE}",
            *options,
        ]
        process = subprocess.Popen(
            [*command, "--", address],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        with process:
            try:
                printed, late = _wait_for_master(process, timeout)
            finally:
                if process.poll() is None:
                    process.kill()
        if process.returncode:
            return NotOpened(printed, late)
        return cls(program, place)

    def alive(self) -> bool:
        with socket.socket(socket.AF_UNIX) as probe:
            try:
                probe.connect(str(self.socket))
            except OSError:
                return False
        return True

    def command(self, *options: str) -> list[str]:
        """The ssh command with these options through this master, never by a connection of its own."""
        client = [self.program, "-F", "none", "-S", _escape(self.socket), "-o", "ProxyCommand=false"]
        return [*client, "-o", "LogLevel=ERROR", *options, NOBODY]

    def proxy(self) -> str:
        """A ProxyCommand that reaches other hosts through this one."""
        return f"{shlex.join(self.command('-W')[:-1]).replace('%', '%%')} '[%h]:%p' {NOBODY}"

    def connected(self) -> bool:
        """True if it answers: one whose connection broke does not, though it may accept for a moment more."""
        return self._asked("check")

    def close(self) -> None:
        if not self.socket.exists():
            return
        self._asked("exit")
        self.socket.unlink(missing_ok=True)  # of a master that was killed

    def _asked(self, what: str) -> bool:
        """Whether it did as ssh's control command asks."""
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            done = subprocess.run(
                self.command("-O", what),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=EXITS_SECONDS,
                check=False,
                start_new_session=True,
            )
            return done.returncode == 0
        return False


def _escape(path: Path) -> str:
    """A path as ssh's ControlPath, in which % begins a token."""
    return str(path).replace("%", "%%")


def _wait_for_master(process: subprocess.Popen[bytes], timeout: float) -> tuple[str, bool]:
    """What it prints until it goes to the background, ends or prints too much; True if it takes too long."""
    assert process.stderr is not None
    printed = streams.Errors()
    end = time.monotonic() + timeout
    with selectors.DefaultSelector() as ready:
        ready.register(process.stderr, selectors.EVENT_READ)
        while (left := end - time.monotonic()) > 0:
            if ready.select(min(left, POLL_SECONDS)):
                chunk = os.read(process.stderr.fileno(), 65536)
                if not chunk or not printed.add(chunk):
                    break
            # Masters before OpenSSH 8.5 keep it open.
            elif process.poll() is not None and not ready.select(0):
                break
    late = left <= 0
    if not late:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(EXITS_SECONDS)
    return printed.text(), late


class Remote(Child):
    host = ""
    master: Master | None = None

    def end(self) -> tuple[int | None, str]:
        """Exit status and standard error; None where the connection broke: ssh ends with 255 then, as the command may, too.

        Raises Unreachable if the host did not start the command.
        """
        status, printed = super().end()
        failure = no_session(printed) if status == 255 else None
        if failure is not None:
            raise Unreachable(self.host, failure.message, hint=failure.hint, code=failure.problem.code)
        lost = status == 255 and not (self.master and self.master.connected())
        return (None if lost else status), printed


class Connection:
    """A host with its master connection, which is opened again if it has ended between two commands."""

    def __init__(self, host: str, master: Master, reopen: Callable[[], Master]) -> None:
        self._host, self._master, self._reopen = host, master, reopen
        self._lock = threading.Lock()
        self._remote: Remote | None = None
        self._closed = False

    def start(
        self, command: str, stdin: Iterable[bytes], heard: Callable[[bytes], None] | None = None
    ) -> Remote:
        if not self._closed and not self._master.alive():
            self._master.close()
            self._master = self._reopen()
        pipe = subprocess.PIPE
        with self._lock:
            process = subprocess.Popen(
                [*self._master.command("-T"), command],
                stdin=pipe,
                stdout=pipe,
                stderr=pipe,
                start_new_session=True,
            )
            self._remote = Remote(process, stdin, heard)
            self._remote.host, self._remote.master = self._host, self._master
            if self._closed:  # while it was opened again
                self._end()
        return self._remote

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._end()

    def _end(self) -> None:
        if self._remote is not None:
            self._remote.give_up()
        self._master.close()  # which holds the command's pipes, too
        if self._remote is not None:
            self._remote.close()


TRIES = 3
# sshd drops connections at random from the 11th unauthenticated one on (MaxStartups 10:30:100), and a fleet
# behind one jump host or proxy arrives at one sshd.
HANDSHAKES = 8
# ssh binds a socket beside its name, with a suffix, and the kernel allows 104 bytes (macOS) or 108.
SOCKET_BYTES = 80


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
        self._masters: list[Master] = []
        self._options: dict[Ssh, Options] = {}
        self._configuration = ssh_options.Configuration(self._program, config) if self._program else None
        self._gate = threading.Semaphore(HANDSHAKES)
        self._jumps: dict[Ssh, _Jump] = {}

    def connect(self, host: Host) -> Connection:
        """Open a connection. Raises Unreachable with the cause; retries only errors that may pass."""

        def master() -> Master:
            return self._dial(host)

        return Connection(host.name, master(), master)

    def close(self) -> None:
        """Close what is still open, jump hosts last, and remove the sockets' folder."""
        for master in reversed(self._masters):
            master.close()
        with self._lock:
            if self._folder is not None:
                shutil.rmtree(self._folder, ignore_errors=True)
                self._folder = None

    def _dial(self, host: Host) -> Master:
        for attempt in range(1, TRIES + 1):
            try:
                return self._open(host.ssh)
            except NoConnection as error:
                if attempt == TRIES or not error.passes:
                    raise Unreachable(
                        host.name, error.message, hint=error.hint, code=error.problem.code
                    ) from error
            time.sleep(attempt * random.uniform(0.2, 0.6))  # noqa: S311 - jitter
        raise AssertionError("unreachable: the loop returns or raises")

    def _open(self, ssh: Ssh, behind: tuple[Ssh, ...] = ()) -> Master:
        if self._program is None:
            raise NoConnection(
                "`connection: openssh` needs ssh, which is not installed here",
                hint="Install OpenSSH's client (`openssh-client`, `openssh-clients`), or set `connection: ssh`.",
            )
        if ssh.key is not None and not any(map(Path.exists, ssh_options.key_files(ssh.key))):
            raise NoConnection(
                f"cannot read {ssh.key}: no such file", hint="Check `ssh.key`.", code="key-missing"
            )
        resolved = self._resolved(ssh)
        option = partial(ssh_options.option, resolved)
        way = Way(
            f"{option('user')}@{option('hostname', ssh.address)}:{option('port', '22')}",
            shlex.join(["ssh", *ssh_options.options_by_hand(ssh, self._file), ssh.address]),
            ssh.timeout,
            ssh.key,
            option("proxycommand"),
        )
        arguments = ssh_options.master_options(ssh, resolved, self._file, self._proven)
        jump = None if ssh.jump == "none" else option("proxyjump")
        if jump:
            # The first of ssh's ProxyJump and ProxyCommand counts.
            proxy = self._jump(ssh, jump, behind).proxy()
            arguments = ["-o", f"ProxyCommand={proxy}", "-o", "ProxyUseFdpass=no", *arguments]
        limit = ssh.timeout + LOGIN_SECONDS
        with self._gate if jump or way.proxy else contextlib.nullcontext():
            master = Master.open(self._program, self._place(), arguments, ssh.address, limit)
        if isinstance(master, NotOpened):
            raise failure("login-timeout", way, limit=limit) if master.late else diagnose(master.printed, way)
        self._masters.append(master)
        return master

    def _jump(self, ssh: Ssh, jump: str, behind: tuple[Ssh, ...]) -> Master:
        """The shared master of a jump host; the jump hosts `behind` it wait for it."""
        hop = ssh_options.jump_host(ssh, jump)
        if hop in behind:
            raise NoConnection(
                f"the jump hosts lead in a circle, at {jump}",
                hint="Correct ProxyJump in ssh's configuration.",
            )
        with self._lock:
            shared = self._jumps.setdefault(hop, _Jump())
        with shared.lock:
            if shared.master is None or not shared.master.alive():
                if time.monotonic() < shared.down_until:
                    assert shared.failure is not None
                    raise jump_failed(jump, shared.failure)
                try:
                    shared.master = self._open(hop, (*behind, hop))
                except NoConnection as error:
                    shared.failure = error
                    if not error.passes:  # the other hosts behind it need not wait, too
                        shared.down_until = time.monotonic() + ssh.timeout
                    raise jump_failed(jump, error) from error
            return shared.master

    def _resolved(self, ssh: Ssh) -> Options:
        assert self._configuration is not None
        if ssh not in self._options:
            self._options[ssh] = self._configuration.options(ssh)
        return self._options[ssh]

    def _place(self) -> Path:
        """A new socket's path, in a folder of this user alone."""
        with self._lock:
            if self._folder is None:
                usual = os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()
                short = len(usual) < SOCKET_BYTES - len("/gpunode-12345678/1234")
                # After `su` it is another user's.
                fits = short and os.access(usual, os.W_OK | os.X_OK)
                self._folder = Path(tempfile.mkdtemp(prefix="gpunode-", dir=usual if fits else "/tmp"))  # noqa: S108
            self._count += 1
            return self._folder / str(self._count)


@dataclass
class _Jump:
    """A jump host's shared master, and why there is none."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    master: Master | None = None
    failure: NoConnection | None = None
    down_until: float = 0.0
