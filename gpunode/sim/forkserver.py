"""Starts Python programs without starting Python each time: most of what a probe, a command or a small pod costs.

`python3 FLAGS forkserver.py` is a process that has loaded what its programs import, and forks. A fork is like a new
`python3 FLAGS -c PROGRAM` or `-m MODULE`; a source that was compiled before is not compiled again. What a fork starts as
`python3 -I -S FILE` is one, too, and so are a host's programs that gpunode/sim/host/run.py has. It uses the standard library only, and
one thread.
"""

import atexit
import builtins
import contextlib
import functools
import gc
import io
import json
import os
import runpy
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NoReturn

NUMBER = struct.Struct("!i")
ISOLATED = ("-I", "-S")
RUN = "import sys; from gpunode.sim.host import run; sys.exit(run.main(sys.argv[1], sys.argv[2:]))"


class ForkServer:
    """The process, as its parent uses it. Thread-safe."""

    def __init__(
        self, load: str, flags: Sequence[str] = ISOLATED, environment: Mapping[str, str] | None = None
    ) -> None:
        """`load` is a program that imports what forks need; `environment` is where Python finds its flags and locale."""
        self._socket, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, *flags, __file__],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                env=environment,
            )
        self._lock = threading.Lock()
        text = load.encode()
        self._socket.sendall(NUMBER.pack(len(text)) + text)

    def start(
        self,
        arguments: Sequence[str],
        *,
        environment: Mapping[str, str],
        folder: Path,
        streams: Sequence[int],
        session: bool = False,
    ) -> "Fork":
        """Run `python3 WORDS`, where WORDS are `-c PROGRAM` or `-m MODULE ARGUMENT…`, with these three streams, and with what
        follows them open under other numbers.

        The caller closes its ends of the streams. Raises OSError if the server is gone.
        """
        answer, status = os.pipe()
        request = json.dumps([[*arguments], dict(environment), str(folder), session]).encode()
        request = NUMBER.pack(len(request)) + request
        try:
            with self._lock:
                sent = socket.send_fds(self._socket, [request], [*streams, status])
                self._socket.sendall(request[sent:])
        except OSError:
            os.close(answer)
            raise
        finally:
            os.close(status)
        return Fork(answer)

    def close(self) -> None:
        """End it. Programs that it has started run on, and count as killed."""
        self._socket.close()
        self._process.wait()


class Fork:
    """A running program. Its server, not this process, is its parent."""

    def __init__(self, pipe: int) -> None:
        self._pipe = pipe
        number = os.read(pipe, NUMBER.size)
        if len(number) < NUMBER.size:
            os.close(pipe)
            raise ChildProcessError("the fork server has ended")
        self.pid: int = NUMBER.unpack(number)[0]
        self.returncode: int | None = None
        self._reading = threading.Lock()

    def poll(self) -> int | None:
        """Its exit status once it has ended, negative for a signal."""
        with self._reading:
            if self.returncode is None and self._has_ended(0):
                self._read()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its exit status, negative for a signal. Raises subprocess.TimeoutExpired."""
        with self._reading:
            if self.returncode is None:
                if not self._has_ended(timeout):
                    raise subprocess.TimeoutExpired(str(self.pid), timeout or 0)
                self._read()
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _has_ended(self, seconds: float | None) -> bool:
        poll = select.poll()  # select.select refuses file descriptors above 1023
        poll.register(self._pipe, select.POLLIN)
        return bool(poll.poll(None if seconds is None else seconds * 1000))

    def _read(self) -> None:
        status = os.read(self._pipe, NUMBER.size)
        os.close(self._pipe)
        self.returncode = NUMBER.unpack(status)[0] if status else -signal.SIGKILL


class Piped:
    """A program with a pipe at each stream: the part of subprocess.Popen that an SSH server needs."""

    def __init__(
        self, server: ForkServer, arguments: Sequence[str], environment: Mapping[str, str], folder: Path
    ) -> None:
        pipes = [os.pipe() for _ in range(3)]
        (stdin, to), (out, stdout), (err, stderr) = pipes
        try:
            self._fork = server.start(
                arguments, environment=environment, folder=folder, streams=(stdin, stdout, stderr)
            )
        except OSError:
            for end in (to, out, err):
                os.close(end)
            raise
        finally:
            for end in (stdin, stdout, stderr):
                os.close(end)
        self.stdin: IO[bytes] = os.fdopen(to, "wb")
        self.stdout: IO[bytes] = os.fdopen(out, "rb")
        self.stderr: IO[bytes] = os.fdopen(err, "rb")
        self.wait = self._fork.wait


# --- In the process itself -----------------------------------------------------------------------------------


def serve(requests: socket.socket) -> None:
    """Fork for every request, until the input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    load = _message(requests, requests.recv(NUMBER.size))
    if load is None:
        return
    if not sys.flags.isolated:
        sys.path[0] = str(Path.cwd())  # not this file's folder
    builtins.compile = functools.cache(compile)  # type: ignore[assignment]
    loaded: dict[str, Any] = {"__name__": "load"}
    exec(compile(load, "load.py", "exec"), loaded)  # noqa: S102
    assert threading.active_count() == 1, "what forks have to import starts threads"
    if sys.flags.isolated:
        subprocess.Popen = _Popen(subprocess.Popen, loaded.get("PROGRAMS", {}))  # type: ignore[misc, assignment]
    gc.collect()
    gc.freeze()  # forks share these objects for longer
    children: dict[int, int] = {}  # pid -> the pipe for its exit status
    ended, wakes = socket.socketpair()
    wakes.setblocking(False)
    signal.set_wakeup_fd(wakes.fileno(), warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    while True:
        ready, _, _ = select.select([requests, ended], [], [])
        if ended in ready:
            ended.recv(4096)
            _report_ends(children)
        if requests not in ready:
            continue
        head, ends, _, _ = socket.recv_fds(requests, NUMBER.size, 8)
        text = _message(requests, head)
        if text is None:
            return
        status = ends.pop()
        pid = os.fork()
        if pid == 0:
            for end in (requests, ended, wakes):
                end.close()
            for number in (status, *children.values()):
                os.close(number)
            arguments, environment, folder, session = json.loads(text)
            _run(arguments, environment, folder, session, ends)
        os.write(status, NUMBER.pack(pid))
        children[pid] = status
        for number in ends:
            os.close(number)


class _Popen:
    """subprocess.Popen that forks `python3 -I -S FILE …` in a session of its own without streams, as the agent starts an apply, and
    forks the programs of a host: `programs` are the modules that they need, by name."""

    def __init__(self, usual: Callable[..., Any], programs: Mapping[str, Any]) -> None:
        self._usual = usual
        self._programs = programs
        self._modules, self._finders = set(sys.modules), [*sys.meta_path]

    def __call__(self, command: Sequence[str], **options: Any) -> Any:
        if command[:3] == [sys.executable, *ISOLATED] and options.get("start_new_session"):
            if os.fork() == 0:
                os.closerange(3, 256)
                self._forget_agent()
                null = [os.open(os.devnull, os.O_RDWR) for _ in range(3)]
                _run([*command[3:]], {**os.environ}, str(Path.cwd()), True, null)
            return None
        if name := self._find_program(options.get("executable") or command[0], command[1:]):
            become = functools.partial(self._become, name, command[1:], options)
            options["preexec_fn"] = become  # the last that subprocess calls in its fork: it does not return
        return self._usual(command, **options)

    def _find_program(self, path: str, arguments: Sequence[str]) -> str | None:
        try:
            script = Path(path).read_text("utf-8")
        except (OSError, ValueError):
            return None
        run = self._programs.get("gpunode.sim.host.run")
        name: str | None = run and run.find_program(script, arguments)
        return name

    def _become(self, name: str, arguments: Sequence[str], options: Mapping[str, Any]) -> NoReturn:
        first = 3
        for number in (*sorted(options.get("pass_fds", ())), 256):
            os.closerange(first, number)  # subprocess waits for the end of its own pipe
            first = number + 1
        self._forget_agent()
        sys.modules.update(self._programs)
        streams = [os.dup(number) for number in range(3)]
        environment = {**(options.get("env") or os.environ)}
        _run(["-c", RUN, name, *arguments], environment, str(Path.cwd()), False, streams)

    def _forget_agent(self) -> None:
        atexit._clear()
        sys.meta_path[:], sys.excepthook = self._finders, sys.__excepthook__
        for name in sys.modules.keys() - self._modules:
            del sys.modules[name]


def _report_ends(children: dict[int, int]) -> None:
    """Write the exit statuses of the children that have ended."""
    while children:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            return
        pipe = children.pop(pid)
        with contextlib.suppress(BrokenPipeError):
            os.write(pipe, NUMBER.pack(os.waitstatus_to_exitcode(status)))
        os.close(pipe)


def _message(requests: socket.socket, head: bytes) -> bytes | None:
    """A message that follows its length; None at the end of the input."""
    if len(head) < NUMBER.size:
        return None
    (left,) = NUMBER.unpack(head)
    text = b""
    while len(text) < left:
        more = requests.recv(left - len(text))
        if not more:
            return None
        text += more
    return text


def _open_streams(unbuffered: bool) -> None:
    """sys.stdin, stdout and stderr, as Python makes them at its start."""
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        old = getattr(sys, name)
        stream = open(number, mode, encoding=old.encoding, errors=old.errors, closefd=False)  # noqa: SIM115
        if number == 2 or (number == 1 and unbuffered):
            assert isinstance(stream, io.TextIOWrapper)
            stream.reconfigure(line_buffering=True)
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def _run(
    arguments: list[str], environment: dict[str, str], folder: str, session: bool, streams: list[int]
) -> NoReturn:
    """Be `python3 WORDS`, started in `folder`; `streams` are its three, and what it inherits."""
    status = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        # as a terminal starts a program, though the server may be a background job's
        for usual in (signal.SIGCHLD, signal.SIGHUP, signal.SIGTERM):
            signal.signal(usual, signal.SIG_DFL)
        if session:
            os.setsid()
        for number, stream in enumerate(streams[:3]):
            os.dup2(stream, number)
            os.close(stream)
        os.environ.clear()
        os.environ.update(environment)
        os.chdir(folder)
        if not sys.flags.isolated:
            sys.path[0] = folder
        _open_streams("PYTHONUNBUFFERED" in environment)
        if arguments[0] == "-c":
            sys.argv = ["-c", *arguments[2:]]
            exec(arguments[1], {"__name__": "__main__"})  # noqa: S102
        elif arguments[0] != "-m":
            sys.argv, text = arguments, Path(arguments[0]).read_bytes()
            # By the name under which it was compiled before the fork: the file's own differs from host to host.
            code = compile(text, "agent.py", "exec").replace(co_filename=arguments[0])
            exec(code, {"__name__": "__main__"})  # noqa: S102
        else:
            sys.argv = ["-m", *arguments[2:]]
            runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
    except BaseException:  # noqa: BLE001 (as the interpreter does)
        sys.excepthook(*sys.exc_info())
    try:
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(status & 0xFF)


if __name__ == "__main__":
    serve(socket.socket(fileno=0))
