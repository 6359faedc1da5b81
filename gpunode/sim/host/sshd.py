"""The SSH servers of the simulated hosts, all in one process: real keys, real commands, a port for each on loopback.

gpunode's agent is recognised in the command that starts it, and forked instead.
"""

import contextlib
import fcntl
import io
import selectors
import shlex
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import IO, TypeAlias

import paramiko
import tomlkit
import yaml
from paramiko.common import AUTH_FAILED, AUTH_SUCCESSFUL, OPEN_SUCCEEDED

import gpunode
from gpunode.host.bootstrap import program
from gpunode.sim.forkserver import ForkServer, Piped
from gpunode.sim.host import hosts
from gpunode.sim.host.state import DOWN, State

CHUNK = 32768
PATIENCE = 5.0


Process: TypeAlias = "subprocess.Popen[bytes] | Piped"  # with a pipe at each stream
LOCALE = {"LC_ALL": "C"}  # of the agent; Python reads it at its own start
# Load hosts' programs, and the agent's imports, modules and regular expressions; then remove what a new Python does not have.
LOAD = """
import gc, importlib, sys
path = [*sys.path]
sys.path[:0] = {paths!r}
import tomlkit, yaml
from gpunode.sim.host import run
for name, _ in run.PROGRAMS.values():
    importlib.import_module("gpunode.sim.host." + name)
named = [name for name in sys.modules if name.partition(".")[0] in {{"gpunode", "tomlkit", "yaml", "_yaml"}}]
PROGRAMS = {{name: sys.modules.pop(name) for name in named}}
sys.path[:] = path
finders, known = list(sys.meta_path), set(sys.modules)
agent = {{"__name__": "agent"}}
exec(compile({agent!r}, "agent.py", "exec"), agent)
for name in agent["SOURCES"]:
    __import__(name)
for each in gc.get_objects():
    if type(each).__name__ == "Shape":
        each.match
sys.meta_path[:], sys.excepthook = finders, sys.__excepthook__
for name in set(sys.modules) - known:
    if name.partition(".")[0] == "gpunode":
        del sys.modules[name]
"""
BACKLOG = 128
BASH = shutil.which("bash")
NO_BASH = "echo 'simulated host: commands need bash, which this computer does not have' >&2; exit 127"


def carry(channel: paramiko.Channel, process: Process) -> None:
    """Copy both output streams and the input of a process; returns when it has ended and its output is sent."""
    assert process.stdin
    assert process.stdout
    assert process.stderr
    stdin, stdout, stderr = process.stdin, process.stdout, process.stderr

    def feed() -> None:
        with contextlib.suppress(EOFError, paramiko.SSHException):
            while data := channel.recv(CHUNK):
                with contextlib.suppress(OSError):  # the command may have ended without reading all
                    stdin.write(data)
                    stdin.flush()
        with contextlib.suppress(OSError):
            stdin.close()

    def drain() -> None:
        with contextlib.suppress(OSError, EOFError):
            while data := stderr.read1(CHUNK):  # type: ignore[attr-defined]
                channel.sendall_stderr(data)

    threads = [threading.Thread(target=feed, daemon=True), threading.Thread(target=drain, daemon=True)]
    for thread in threads:
        thread.start()
    with contextlib.suppress(OSError, EOFError, paramiko.SSHException):
        while data := stdout.read1(CHUNK):  # type: ignore[attr-defined]
            channel.sendall(data)
        threads[1].join()
        status = process.wait()
        if status >= 0:
            channel.send_exit_status(status)
        # The client ends its input after it has seen that the command began. If a quick command closed the
        # channel before that, it would look refused.
        threads[0].join(timeout=PATIENCE)
    with contextlib.suppress(OSError, EOFError):
        channel.close()
    stdout.close()
    process.wait()
    for thread in threads:
        thread.join(timeout=PATIENCE)
    stderr.close()


def fork_server() -> ForkServer:
    """A server whose forks are like a new `python3 -I -S`, where the agent's bootstrap compiles nothing again, and forks programs."""
    paths = [str(Path(each.__file__ or "").parents[1]) for each in (gpunode, tomlkit, yaml)]
    return ForkServer(LOAD.format(agent=program().encode(), paths=paths), environment=LOCALE)


def bootstrap(command: str) -> str | None:
    """The program in `exec /bin/sh -c 'SCRIPT' gpunode 'PROGRAM'`, as gpunode starts its agent; None in other commands.

    Every simulated host has what the script looks for: python3, and sudo without a password.
    """
    try:
        arguments = shlex.split(command)
    except ValueError:
        return None
    agent = (
        arguments[:3] == ["exec", "/bin/sh", "-c"] and arguments[4:5] == ["gpunode"] and len(arguments) == 6
    )
    return arguments[5] if agent else None


def new_key() -> tuple[paramiko.Ed25519Key, str]:
    """A fresh key and its private half in OpenSSH's format."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    text = (
        Ed25519PrivateKey.generate()
        .private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
        .decode()
    )
    return paramiko.Ed25519Key.from_private_key(io.StringIO(text)), text


class Server:
    """Serves hosts until it is closed. `user_key` opens all of them, for any user. `lock`: a file that is locked while anything is
    connected."""

    def __init__(
        self, states: Iterable[State], user_key: paramiko.PKey, lock: IO[bytes] | None = None
    ) -> None:
        self._lock = lock
        self._selector = selectors.DefaultSelector()
        self._forks = fork_server()
        self._user_key = user_key
        self._doors: dict[str, _Door] = {}
        for state in states:
            self.add(state)
        self._closing = False
        self._thread = threading.Thread(target=self._accept, name="sshd", daemon=True)
        self._thread.start()

    def add(self, state: State) -> None:
        door = _Door(state, self._user_key, self._forks)
        self._doors = {**self._doors, state.folder.name: door}  # its own thread may be reading the old one
        self._selector.register(door.listener, selectors.EVENT_READ, door)

    def port(self, host: str) -> int:
        return self._doors[host].port

    def known_hosts(self) -> str:
        """The hosts' keys, in the format of ~/.ssh/known_hosts."""
        lines = (
            f"[127.0.0.1]:{door.port} {door.key.get_name()} {door.key.get_base64()}\n"
            for door in self._doors.values()
        )
        return "".join(lines)

    def cut(self, host: str) -> None:
        """Drop a host's connections, as a network does."""
        self._doors[host].cut()

    def execs(self, host: str) -> int:
        return self._doors[host].execs

    def close(self) -> None:
        """Drop all connections and stop listening."""
        self._closing = True
        self._thread.join()
        self._selector.close()
        for door in self._doors.values():
            door.listener.close()
            door.cut()
        self._forks.close()

    def _accept(self) -> None:
        while not self._closing:
            self._reboots()
            if self._lock:
                used = any(door.is_connected for door in self._doors.values())
                fcntl.flock(self._lock, fcntl.LOCK_EX if used else fcntl.LOCK_UN)
            for key, _ in self._selector.select(timeout=0.1):
                door: _Door = key.data
                with contextlib.suppress(OSError):
                    door.open(door.listener.accept()[0])

    def _reboots(self) -> None:
        """While a host reboots it accepts no connection, but keeps its port."""
        for door in self._doors.values():
            if not door.down.exists():
                door.up_at = None
                continue
            if door.up_at is None:
                door.cut()
                door.up_at = door.state.wait().down_until
            elif time.time() > door.up_at:
                door.up_at = None
                door.down.unlink(missing_ok=True)


class _Door:
    """One host's SSH server."""

    def __init__(self, state: State, user_key: paramiko.PKey, forks: ForkServer) -> None:
        self.state, self.user_key, self.forks = state, user_key, forks
        self.key, _ = new_key()
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=BACKLOG)
        self.port: int = self.listener.getsockname()[1]
        machine = state.machine()
        self.environment = hosts.environment(state, machine)
        self.visit = hosts.user_environment(state, machine)
        self.execs = 0
        self.down = state.folder / DOWN
        self.up_at: float | None = None  # when it is up again, while it reboots
        self._transports: list[paramiko.Transport] = []

    def open(self, client: socket.socket) -> None:
        if self.down.exists() or "unreachable" in self.state.now().faults:
            client.close()
            return
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        transport = paramiko.Transport(client)
        transport.add_server_key(self.key)
        self._transports = [
            *(transport for transport in self._transports if transport.is_active()),
            transport,
        ]
        # With an event, start_server does not wait for the handshake.
        transport.start_server(event=threading.Event(), server=_Login(self))

    def start(self, command: str) -> Process:
        """Start a command with the host's programs, in its root folder. Raises OSError.

        A user's command runs in a restricted bash: a redirection to /etc would write to this computer's.
        """
        program = bootstrap(command)
        if program is not None:
            environment = {**self.environment, **LOCALE}
            return Piped(self.forks, ("-c", program), environment, self.state.root)
        pipe = subprocess.PIPE
        # The last word is the prefix of bash's error messages.
        place = f"simulated host, its files are in {self.state.root}, edit them there"
        shell = [BASH, "-r", "-c", command, place] if BASH else ["/bin/sh", "-c", NO_BASH]
        return subprocess.Popen(
            shell, stdin=pipe, stdout=pipe, stderr=pipe, env=self.visit, cwd=self.state.root
        )

    @property
    def is_connected(self) -> bool:
        return any(transport.is_active() for transport in self._transports)

    def cut(self) -> None:
        for transport in self._transports:
            transport.close()


class _Login(paramiko.ServerInterface):
    """One connection: publickey for any user, commands, no forwarding."""

    def __init__(self, door: _Door) -> None:
        self._door = door

    def check_channel_request(self, kind: str, chanid: int) -> int:  # noqa: ARG002
        return OPEN_SUCCEEDED

    def check_auth_publickey(self, username: str, key: paramiko.PKey) -> int:  # noqa: ARG002
        good = key.asbytes() == self._door.user_key.asbytes()
        return AUTH_SUCCESSFUL if good else AUTH_FAILED

    def get_allowed_auths(self, username: str) -> str:  # noqa: ARG002
        return "publickey"

    def check_channel_exec_request(self, channel: paramiko.Channel, command: bytes) -> bool:
        self._door.execs += 1
        threading.Thread(target=_run, args=(channel, command.decode(), self._door), daemon=True).start()
        return True


def _run(channel: paramiko.Channel, command: str, door: _Door) -> None:
    slow = door.state.now().faults.get("slow")  # a file that it waits for
    while slow and not Path(slow).exists():
        time.sleep(0.05)
    try:
        process = door.start(command)
    except OSError:  # the host's folder is being removed
        channel.close()
        return
    carry(channel, process)


def write_key(path: Path, text: str) -> None:
    """Write a private key's file, readable by its owner only."""
    path.touch(mode=0o600)
    path.write_text(text, encoding="utf-8")
