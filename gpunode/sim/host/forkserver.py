"""Runs gpunode's agent on simulated hosts without starting Python each time, which is half the cost of a probe.

`python3 -I -S forkserver.py` is a process that has loaded the agent's imports, and forks. A fork runs the bootstrap that
came over SSH, which reads the agent from its standard input, as on any host; but a source that was compiled before is
not compiled again. It uses the standard library only, and one thread: a fork is like a new `python3 -I -S -c BOOTSTRAP`.
"""

from __future__ import annotations

import builtins
import functools
import gc
import json
import os
import shlex
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import IO, NoReturn

LOCALE = {"LC_ALL": "C"}  # of the agent; Python reads it at its own start
LENGTH = struct.Struct("!I")


def bootstrap(command: str) -> str | None:
    """The program in `exec /bin/sh -c 'SCRIPT' gpunode 'PROGRAM'`, as gpunode starts its agent; None in other commands.

    Every simulated host has what the script looks for: python3, and sudo without a password.
    """
    try:
        words = shlex.split(command)
    except ValueError:
        return None
    agent = words[:3] == ["exec", "/bin/sh", "-c"] and words[4:5] == ["gpunode"] and len(words) == 6
    return words[5] if agent else None


class ForkServer:
    """The process, as its parent uses it. Thread-safe."""

    def __init__(self, agent: bytes) -> None:
        """`agent` is the program that hosts get."""
        self._socket, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", __file__],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                env=LOCALE,
            )
        self._lock = threading.Lock()
        self._socket.sendall(LENGTH.pack(len(agent)) + agent)

    def start(self, program: str, environment: Mapping[str, str], folder: Path) -> Fork:
        """Run a program as `LC_ALL=C python3 -I -S -c` does. Raises OSError if the process is gone."""
        pipes = [os.pipe() for _ in range(4)]
        (stdin, to), (out, stdout), (err, stderr), (said, status) = pipes
        request = json.dumps([program, {**environment, **LOCALE}, str(folder)]).encode()
        try:
            with self._lock:
                socket.send_fds(self._socket, [LENGTH.pack(len(request))], [stdin, stdout, stderr, status])
                self._socket.sendall(request)
        except OSError:
            for end in (to, out, err, said):
                os.close(end)
            raise
        finally:
            for end in (stdin, stdout, stderr, status):
                os.close(end)
        return Fork(to, out, err, said)

    def close(self) -> None:
        """End it. Programs that it has started run on."""
        self._socket.close()
        self._process.wait()


class Fork:
    """A running program, with the part of subprocess.Popen that is needed."""

    def __init__(self, stdin: int, stdout: int, stderr: int, status: int) -> None:
        self.stdin: IO[bytes] = os.fdopen(stdin, "wb")
        self.stdout: IO[bytes] = os.fdopen(stdout, "rb")
        self.stderr: IO[bytes] = os.fdopen(stderr, "rb")
        self._result = os.fdopen(status, "rb")
        self._status: int | None = None

    def wait(self) -> int:
        """Wait for its exit status; -9 if it was killed."""
        if self._status is None:
            with self._result:
                result = self._result.read()
            self._status = result[0] if result else -signal.SIGKILL
        return self._status


# --- In the process itself -----------------------------------------------------------------------------------


def serve(requests: socket.socket) -> None:
    """Fork for every request, until the input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # forks are not waited for: they send their status themselves
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    agent = _message(requests, requests.recv(LENGTH.size))
    if agent is None:
        return
    _load(agent)
    gc.freeze()  # forks share these objects for longer
    while True:
        head, ends, _, _ = socket.recv_fds(requests, LENGTH.size, 4)
        text = _message(requests, head)
        if text is None:
            return
        program, environment, folder = json.loads(text)
        if os.fork() == 0:
            requests.close()
            _run(program, environment, folder, ends)
        for end in ends:
            os.close(end)


def _message(requests: socket.socket, head: bytes) -> bytes | None:
    """A message that follows its length; None at the end of the input."""
    if len(head) < LENGTH.size:
        return None
    (left,) = LENGTH.unpack(head)
    text = b""
    while len(text) < left:
        more = requests.recv(left - len(text))
        if not more:
            return None
        text += more
    return text


def _load(agent: bytes) -> None:
    """Load the agent's imports and compile its modules, then remove its own modules again."""
    builtins.compile = functools.cache(compile)  # type: ignore[assignment]
    finders, known = list(sys.meta_path), set(sys.modules)
    exec(compile(agent, "agent.py", "exec"), {"__name__": "agent"})  # noqa: S102
    sys.meta_path[:], sys.excepthook = finders, sys.__excepthook__
    for name in set(sys.modules) - known:
        if name.partition(".")[0] == "gpunode":
            del sys.modules[name]


def _run(program: str, environment: dict[str, str], folder: str, ends: list[int]) -> NoReturn:
    """Be `python3 -I -S -c PROGRAM`, started in `folder`; `ends` are its streams and the pipe for its exit status."""
    status = 1
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for number, end in enumerate(ends[:3]):
            os.dup2(end, number)
            os.close(end)
        os.set_inheritable(ends[3], False)
        os.environ.clear()
        os.environ.update(environment)
        os.chdir(folder)
        sys.argv = ["-c"]
        exec(program, {"__name__": "__main__"})  # noqa: S102
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
    except BaseException:  # noqa: BLE001 (as the interpreter does)
        sys.excepthook(*sys.exc_info())
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os.write(ends[3], bytes([status & 0xFF]))
        os._exit(status & 0xFF)


if __name__ == "__main__":
    serve(socket.socket(fileno=0))
