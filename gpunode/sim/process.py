"""A demo: a folder with hosts, the process that serves them, and how both end."""

import contextlib
import fcntl
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from subprocess import PIPE, Popen
from tempfile import TemporaryFile
from typing import IO, Any

from gpunode.errors import GpunodeError
from gpunode.sim import folder
from gpunode.sim.forkserver import ForkServer
from gpunode.sim.host import hosts
from gpunode.sim.host.machine import Machine

PATIENCE = 5.0
COMMAND = "command.lock"  # held by the gpunode command that the show runs; names its process
PREFIX = "gpunode-demo-"
CONNECTED = "connected.lock"  # held while anything is connected to a host
KEPT = "kept"  # a file with its name, and the folder where its user began it, in the folder of a demo that runs on without its show
# Bytes of the path that demos' folders are in: below it are sockets, whose paths may have 103 (macOS).
LONGEST = 35


def remove(demo: Path) -> None:
    """End the applies and the show's command of a demo, and remove its folder."""
    _end_holder(demo / COMMAND, os.kill)
    for root in demo.glob("hosts/*/root"):
        end_apply(root)
    # A process that ends may still be writing.
    deadline = time.monotonic() + PATIENCE
    while demo.exists() and time.monotonic() < deadline:
        shutil.rmtree(demo, ignore_errors=True)
        time.sleep(0.02)


def end_apply(root: Path) -> None:
    """End the running apply on a host: it has a process group of its own."""
    _end_holder(root / "run/gpunode/lock", os.killpg)


def is_locked(lock: IO[bytes]) -> bool:
    """True if another process holds the lock; if not, this process holds it while the file is open."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False


def _end_holder(path: Path, kill: Callable[[int, int], None]) -> None:
    """End the process that holds a lock and is named in its file."""
    with contextlib.suppress(OSError, ValueError, KeyError), path.open("rb") as lock:
        if is_locked(lock):
            kill(int(json.loads(lock.read())["pid"]), signal.SIGKILL)


def demos_folder() -> Path:
    """The folder of the demos' folders: that of temporary files, or /tmp if its path is too long, as on a Mac."""
    usual = tempfile.gettempdir()
    return Path(usual if len(os.fsencode(usual)) <= LONGEST else "/tmp")  # noqa: S108 (mkdtemp makes the folder)


class Demo:
    """A running demo: hosts and a cluster for gpunode. As a context manager it ends with its block."""

    def __init__(
        self,
        machines: Sequence[Machine],
        groups: Mapping[str, Mapping[str, Any]] | None = None,
        cluster: Mapping[str, Any] | None = None,
        files: Mapping[str, str] | None = None,
    ) -> None:
        self._kept = False
        self.folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=demos_folder()))
        self._lock = (self.folder / "lock").open("w")
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        try:
            hosts.lay_out(self.folder)
            self.states = {machine.name: hosts.create(self.folder, machine) for machine in machines}
            described = folder.group_by_kind(machines) if groups is None else groups
            folder.write_groups(self.folder, described, cluster, files)
            self._server = self._serve()
        except BaseException:
            self._lock.close()
            shutil.rmtree(self.folder, ignore_errors=True)
            raise

    @property
    def inventory(self) -> Path:
        return self.folder / "inventory.yaml"

    def port(self, host: str) -> int:
        """The port of a host's SSH server on loopback."""
        return int(json.loads((self.folder / "demo.json").read_text(encoding="utf-8"))["ports"][host])

    @property
    def metrics(self) -> Mapping[str, str]:
        """The URLs of the device plugins' metrics by host, if they serve any."""
        return folder.metrics_urls(self.folder)

    def __enter__(self) -> "Demo":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End it and remove its folder; a kept one runs on."""
        assert self._server.stdin
        if self._kept:
            self._server.stdin.close()
            self._server.returncode = 0  # it is not waited for
            self._lock.close()
            return
        with contextlib.suppress(BrokenPipeError):
            self._server.stdin.close()
        self._server.wait()
        remove(self.folder)  # the folder exists only if the server was killed
        self._lock.close()

    def run(
        self, forks: ForkServer, arguments: Sequence[str], *, capture: bool, quiet: bool = False
    ) -> tuple[int, str, str]:
        """Run gpunode in the demo's folder. Returns its exit status, its output if captured, its errors if quiet.

        It ends with the demo, even if this process is killed: the server finds it by the lock that it inherits. It has a
        session of its own: only the show handles an interrupt.
        """
        with (
            (self.folder / COMMAND).open("w", encoding="utf-8") as lock,
            TemporaryFile("w+", encoding="utf-8") as output,
            TemporaryFile("w+", encoding="utf-8") as errors,
            Path(os.devnull).open() as nothing,
        ):
            fcntl.flock(lock, fcntl.LOCK_EX)
            streams = (nothing, output if capture else sys.stdout, errors if quiet else sys.stderr, lock)
            process = forks.start(
                ("-m", "gpunode", *arguments),
                environment=os.environ,
                folder=self.folder,
                streams=[stream.fileno() for stream in streams],
                session=True,
            )
            try:
                lock.write(json.dumps({"pid": process.pid}))
                lock.flush()
                code = process.wait()
            except BaseException:
                process.kill()
                raise
            output.seek(0), errors.seek(0)
            return code, output.read(), errors.read()

    def keep(self, name: str) -> None:
        """Let it run on after this process, under a name, until it is stopped (`kept`)."""
        assert self._server.stdin
        (self.folder / KEPT).write_text(f"{name}\n{Path.cwd()}", encoding="utf-8")
        self._server.stdin.write(b"keep\n")
        self._server.stdin.flush()
        self._kept = True

    def _serve(self) -> Popen[bytes]:
        with (self.folder / "server.log").open("wb") as log:
            server = Popen(
                [sys.executable, "-m", "gpunode.sim.server", str(self.folder)],
                stdin=PIPE,
                stdout=PIPE,
                stderr=log,
                pass_fds=(self._lock.fileno(),),
                start_new_session=True,  # an interrupt of the show does not reach it
            )
        assert server.stdout
        try:
            with server.stdout as printed:
                if printed.readline() != b"ready\n":
                    server.wait()
                    text = ""
                    if self.folder.exists():
                        text = (self.folder / "server.log").read_text(errors="replace")
                    raise GpunodeError(
                        f"the simulation did not start: {(text.splitlines() or ['no output'])[-1]}",
                        hint="If that names no cause, please report it with the output of `gpunode --version`.",
                    )
        except BaseException:
            if server.stdin:
                server.stdin.close()
            server.wait()
            raise
        return server
