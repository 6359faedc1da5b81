"""subprocess's Popen and run for Python programs that are forked instead of started: a start costs more than most tests.

What a process of its own proves (imports, the console script, a bare host's shell) stays in tests of its own.
"""

import atexit
import contextlib
import functools
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from gpunode.sim.forkserver import NUMBER, ForkServer
from gpunode.sim.host import sshd

CHECKOUT = Path(__file__).parents[1]
# All that a command of gpunode can import, and what each would make anew: the tree of commands, templates, regular expressions.
GPUNODE = """
import functools, gc, importlib, pkgutil
import kubernetes.client, kubernetes.config, paramiko, jsonschema, tomlkit
import gpunode, gpunode.cli, gpunode.sim.server
for package in ("cli", "report", "commands", "engine", "links", "host", "cluster", "sim"):
    package = importlib.import_module(f"gpunode.{package}")
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        if not module.name.endswith("__main__") and ".stand_ins" not in module.name and not module.name.endswith((".server", ".inside")):
            importlib.import_module(module.name)

import typer.main
from gpunode.agent.values import Shape
from gpunode.cluster.objects import manifests
from gpunode.planning import templates
typer.main.get_command_from_info = functools.cache(typer.main.get_command_from_info)
typer.main.get_command(gpunode.cli.app)
for environment in (manifests._environment(), templates._environment()):
    for name in environment.list_templates():
        environment.get_template(name)
for shape in [each for each in gc.get_objects() if isinstance(each, Shape)]:
    shape.match
"""


# Demos, too, have forks in place of servers that load the same for each of them.
DEMOS = """
from gpunode.sim.host import sshd
from gpunode.sim.node import container
from tests import forks

for module in (sshd, container):
    module.fork_server = functools.partial(forks.Forked, module.fork_server())
"""


class Forked(ForkServer):
    """A fork of a server, with all that this has loaded.

    Processes may share that one: they only send it requests that are short enough to arrive in one piece.
    """

    def __init__(self, loaded: ForkServer) -> None:
        self._socket, theirs = socket.socketpair()
        with theirs, open(os.devnull, "r+b") as null:
            self._process = loaded.start(
                ["-c", "import socket, __main__; __main__.serve(socket.socket(fileno=0))"],
                environment={"PATH": os.environ["PATH"]},
                folder=CHECKOUT,
                streams=[theirs.fileno(), null.fileno(), 2],
            )
        self._lock = threading.Lock()
        self._socket.sendall(NUMBER.pack(0))


@functools.cache
def gpunode() -> ForkServer:
    """The server that others are forked from: one for all processes that run tests."""
    environment = {**os.environ, "PYTHONPATH": str(CHECKOUT)}
    return ended_at_exit(ForkServer(GPUNODE + DEMOS, flags=(), environment=environment))


@functools.cache
def _gpunode() -> ForkServer:
    return ended_at_exit(Forked(gpunode()))


@functools.cache
def agents() -> ForkServer:
    return ended_at_exit(sshd.fork_server())


@functools.cache
def _agents() -> ForkServer:
    return ended_at_exit(Forked(agents()))


def ended_at_exit(server: ForkServer) -> ForkServer:
    atexit.register(server.close)
    return server


class Popen(subprocess.Popen[Any]):
    """Forks `python3 -m MODULE …` or `-c PROGRAM …`, with gpunode imported, or the agent in `/bin/sh -c SCRIPT gpunode PROGRAM`.

    `server`: another one that forks the former.
    """

    def __init__(self, args: Sequence[str], *, server: ForkServer | None = None, **options: Any) -> None:
        self._server = server
        super().__init__(args, **options)

    def _execute_child(self, args: Sequence[str], *rest: Any) -> None:
        """In place of fork and exec; the order of the arguments is that of Python 3.10 to 3.14."""
        inherited, folder, environment, session = rest[3], rest[4], rest[5], rest[20]
        ends = [
            (rest[9], rest[10]),
            (rest[12], rest[11]),
            (rest[14], rest[13]),
        ]  # ours of a stream, its other end
        environment = os.environ if environment is None else environment
        server, words = self._server or _gpunode(), args[1:]
        if args[0] == "/bin/sh":
            program = sshd.bootstrap(args[2])
            assert program, args
            server, words = _agents(), ("-c", program)
            environment = {**environment, **sshd.LOCALE}
        else:
            assert (args[0], args[1]) in {(sys.executable, "-m"), (sys.executable, "-c")}, args
        self._fork = server.start(
            words,
            environment=environment,
            folder=Path(folder or os.getcwd()),
            streams=[*(number if end == -1 else end for number, (end, _) in enumerate(ends)), *inherited],
            session=session,
        )
        self.pid = self._fork.pid
        null = getattr(self, "_devnull", None)
        for end in {end for end, other in ends if other != -1 and end != null} | ({null} - {None}):
            os.close(end)
        self._closed_child_pipe_fds = True

    def _internal_poll(self, *_: Any, **__: Any) -> int | None:
        if self.returncode is None:
            self.returncode = self._fork.poll()
        return self.returncode

    def _wait(self, timeout: float | None) -> int:
        if self.returncode is None:
            self.returncode = self._fork.wait(timeout)
        return self.returncode


def run(words: Sequence[str], *, capture_output: bool = False, check: bool = False, **options: Any) -> Any:
    """subprocess.run of a Popen of this module."""
    if capture_output:
        options |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with Popen(words, **options) as process:
        out, err = process.communicate()
    done = subprocess.CompletedProcess(words, process.returncode, out, err)
    if check:
        done.check_returncode()
    return done


CLIENT = """#!{python} -IS
import json, os, socket, sys
with socket.socket(socket.AF_UNIX) as door:
    door.connect({door!r})
    request = json.dumps([sys.argv[1:], dict(os.environ), os.getcwd()]).encode()
    socket.send_fds(door, [b"!"], [0, 1, 2])
    door.sendall(request)
    door.shutdown(socket.SHUT_WR)
    sys.exit(int(door.recv(16)))
"""


@contextlib.contextmanager
def program(folder: Path, *words: str) -> Iterator[Path]:
    """A program `gpunode` in a folder for $PATH: it forks `python3 -m WORDS` with its own arguments."""
    door = folder / "door"
    client = folder / "gpunode"
    client.write_text(CLIENT.format(python=sys.executable, door=str(door)))
    client.chmod(0o755)
    with socket.socket(socket.AF_UNIX) as reporter:
        reporter.bind(str(door))
        reporter.listen()
        threading.Thread(target=_answer, args=(reporter, words), daemon=True).start()
        yield folder
        reporter.shutdown(socket.SHUT_RDWR)


def _answer(reporter: socket.socket, words: Sequence[str]) -> None:
    """One client after the other: a page's commands run one by one."""
    with contextlib.suppress(OSError):
        while True:
            client, _ = reporter.accept()
            with client:
                _, streams, _, _ = socket.recv_fds(client, 1, 3)
                with client.makefile("rb") as sent:
                    arguments, environment, folder = json.load(sent)
                fork = _gpunode().start(
                    ["-m", *words, *arguments], environment=environment, folder=Path(folder), streams=streams
                )
                for stream in streams:
                    os.close(stream)
                client.sendall(str(fork.wait() % 256).encode())
