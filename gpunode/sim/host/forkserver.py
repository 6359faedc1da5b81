"""Runs gpunode's agent on simulated hosts without a new Python each time: half the cost of a probe is its start.

`python3 -I -S forkserver.py AGENT` is a process that has loaded what the agent in the file AGENT imports, and forks.
A fork runs the bootstrap that came over SSH, which reads the agent from its standard input, as on any host; only that
a source which is AGENT's, byte for byte, is not compiled again. The standard library only, and one thread: what a
fork sees is what a new `python3 -I -S -c BOOTSTRAP` would see.
"""

from __future__ import annotations

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
from collections.abc import Callable, Mapping
from pathlib import Path
from types import CodeType
from typing import IO, Any, NoReturn

LOCALE = {"LC_ALL": "C"}  # that the agent is started in; what Python makes of it, it does at its own start
LENGTH = struct.Struct("!I")


def bootstrap(command: str) -> str | None:
    """The program in `exec /bin/sh -c 'SCRIPT' gpunode 'PROGRAM'`, as gpunode starts its agent; None in other commands.

    What the script looks for is on every simulated host: python3, and a sudo that asks nothing.
    """
    try:
        words = shlex.split(command)
    except ValueError:
        return None
    agent = words[:3] == ["exec", "/bin/sh", "-c"] and words[4:5] == ["gpunode"] and len(words) == 6
    return words[5] if agent else None


class ForkServer:
    """The process, from this one. Thread-safe."""

    def __init__(self, agent: Path) -> None:
        self._socket, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", __file__, str(agent)],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                env=LOCALE,
            )
        self._lock = threading.Lock()

    def start(self, program: str, environment: Mapping[str, str], folder: Path) -> Fork:
        """Run a program as `LC_ALL=C python3 -I -S -c` does. OSError when the process is gone."""
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
        """End it. Programs that it has started go on to their ends."""
        self._socket.close()
        self._process.wait()


class Fork:
    """A program that was started: as much of subprocess.Popen as is needed."""

    def __init__(self, stdin: int, stdout: int, stderr: int, status: int) -> None:
        self.stdin: IO[bytes] = os.fdopen(stdin, "wb")
        self.stdout: IO[bytes] = os.fdopen(stdout, "rb")
        self.stderr: IO[bytes] = os.fdopen(stderr, "rb")
        self._said = os.fdopen(status, "rb")
        self._status: int | None = None

    def wait(self) -> int:
        """Its exit status, once it has ended; -9 when it was killed."""
        if self._status is None:
            with self._said:
                said = self._said.read()
            self._status = said[0] if said else -signal.SIGKILL
        return self._status


# --- In the process itself -----------------------------------------------------------------------------------


def serve(requests: socket.socket, agent: bytes) -> None:
    """Fork for every request, until there will be no more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for forks: they tell their status themselves
    code = compile(agent, "agent.py", "exec")
    exec(code, {"__name__": "agent"})  # noqa: S102 (loads what it imports, and compiles its regular expressions)
    gc.freeze()  # forks share these objects for longer
    while True:
        head, ends, _, _ = socket.recv_fds(requests, LENGTH.size, 4)
        if len(head) < LENGTH.size:
            return
        (left,) = LENGTH.unpack(head)
        text = b""
        while len(text) < left:
            more = requests.recv(left - len(text))
            if not more:
                return  # it died while it asked
            text += more
        program, environment, folder = json.loads(text)
        if os.fork() == 0:
            requests.close()
            known = _known(agent, code)
            _run(program, environment, folder, ends, known)
        for end in ends:
            os.close(end)


def _known(agent: bytes, code: CodeType) -> Callable[..., Any]:
    """In the place of `compile`."""
    return lambda source, *more: code if source == agent else compile(source, *more)


def _run(
    program: str, environment: dict[str, str], folder: str, ends: list[int], known: Callable[..., Any]
) -> NoReturn:
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
        exec(program, {"__name__": "__main__", "compile": known})  # noqa: S102
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
    serve(socket.socket(fileno=0), Path(sys.argv[1]).read_bytes())
