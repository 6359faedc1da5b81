"""`python -m tests.sim.operators SETTINGS COMMAND…`: gpunode as its user starts it, with faults of the user's machine.

A unit that it restarts has to stay up for a moment only. SETTINGS is JSON. `die`: [host, state], the process is killed (-9) as soon as the run's record has this. `then`: [host, state,
hook], a hook that is called there. `after`: [where, count], it is killed at its so-manieth step (a question to a host or to
the API, a line of its record), counted from its start or from its record's begin. `values`: constants for this process, as waits that a test does not sit out. `before`: a function by its full name; it is
killed before its first call. `asked`: a file that gets a line for each request to the API.
"""

import fcntl
import importlib
import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from gpunode.agent.record import LIVE
from gpunode.sim.host.state import DOWN, State
from gpunode.sim.process import Demo
from tests import forks, jsonlines

from .clusters import Client

# The waits that tests do not sit out: a dead operator's Lease, a restarted unit that must stay up; a host that is gone.
SHORT = {
    "gpunode.cluster.lease.SECONDS": 2,
    "gpunode.cluster.lease.RENEW": 0.5,
    "gpunode.cluster.lease.RETRY": 0.2,
}
GONE = {"gpunode.engine.converge.RECONNECT_SECONDS": 1.0, "gpunode.engine.converge.CONFIRM_SECONDS": 2.0}
SETTLE = 0.4
ENDLESS = 400  # seconds, of a machine that others use too
HELD: list[Any] = []  # open files, for as long as this process lives


@contextmanager
def under_way(demo: Demo, command: list[str], **more: Any) -> Iterator[subprocess.Popen[str]]:
    """A command in the demo's folder, its output in a file there; it ends with the block, whatever a test makes of it."""
    with (demo.folder / "out").open("w") as out:
        process = forks.Popen(
            command,
            cwd=demo.folder,
            stdout=out,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
            **more,
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def begin(demo: Demo, *words: str, **settings: Any) -> AbstractContextManager[subprocess.Popen[str]]:
    """A run under way, as JSON lines; its output is in the demo's folder."""
    settings["values"] = {**SHORT, **settings.get("values", {})}
    return under_way(demo, command(*words, "--json", **settings))


def command(*words: str, **settings: Any) -> list[str]:
    """The command line of a gpunode with these settings."""
    return [sys.executable, "-m", "tests.sim.operators", json.dumps(settings), *words]


def gpunode(folder: Path, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A command to its end, started in a folder."""
    return forks.run(
        command(*words),
        cwd=folder,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        env={**os.environ, **environment},
    )


def worked(done: subprocess.CompletedProcess[str]) -> subprocess.CompletedProcess[str]:
    """The command, which must have ended with status 0; what it printed is the failure's message."""
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def run(demo: Demo, *words: str, **settings: Any) -> tuple[int, list[dict[str, Any]]]:
    """A run to its end: the exit code, or less than 0 for the signal that ended it; its JSON lines."""
    with begin(demo, *words, **settings) as going:
        try:
            return going.wait(ENDLESS), lines(demo)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"after {ENDLESS} s it goes on: {last_words(demo)}") from None


def output(demo: Demo) -> str:
    return (demo.folder / "out").read_text()


def last_words(demo: Demo) -> str:
    return output(demo)[-2000:]


def lines(demo: Demo) -> list[dict[str, Any]]:
    return jsonlines.parse("\n".join(line for line in output(demo).splitlines() if line.startswith("{")))


def of_kind(done: subprocess.CompletedProcess[str], kind: str) -> list[dict[str, Any]]:
    """The JSON lines of one kind that a command has printed."""
    return [line for line in jsonlines.parse(done.stdout) if line["type"] == kind]


KILLS = """\
#!/bin/sh
case $1 in
-r) exec "$GPUNODE_SIM_PYTHON" -I "$GPUNODE_SIM_RUN" modprobe "$@" ;;
esac
/bin/rm "$0"
kill -9 $PPID
"""


def kill_at_load(state: State) -> Path:
    """The apply that loads the host's next module is killed (-9) there; the program that does so, until it has."""
    program = state.folder / "bin/modprobe"
    program.write_text(KILLS)
    program.chmod(0o755)
    return program


# --- in the operator's process ---


def locked(state: State) -> None:
    """Another apply runs on the host."""
    path = state.root / LIVE.lstrip("/") / "lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    file = path.open("a")
    fcntl.flock(file, fcntl.LOCK_EX)
    file.truncate(0)
    file.write(json.dumps({"run": "x", "by": "ada@ws", "since": 0, "pid": os.getpid(), "started": 0}))
    file.flush()
    HELD.append(file)


def gone(state: State) -> None:
    """The host is off until `back`."""
    with state.change() as now:
        now.down_until = float("inf")
    (state.folder / DOWN).touch()


def back(state: State) -> None:
    with state.change() as now:
        now.down_until = 0.0
    (state.folder / DOWN).unlink(missing_ok=True)


def unapplicable(state: State) -> None:
    """Another user has edited the file that is to be written."""
    (state.root / "etc/docker/daemon.json").write_text('{"log-driver": "local"}\n')


def stuck(state: State) -> None:
    """The host does not come back from its reboot."""
    with state.change() as now:
        now.faults["stays-down"] = "1"


def unregistered(state: State) -> None:
    """An administrator deletes the host's node."""
    code, answer = Client(Path("kubeconfig")).ask("DELETE", f"/api/v1/nodes/{state.folder.name}")
    assert code == 200, answer


def headless(state: State) -> None:
    """An etcd on the host is not Ready any more."""
    name = f"etcd-{state.folder.name}"
    meta = {"name": name, "namespace": "kube-system", "labels": {"tier": "control-plane"}}
    spec = {"nodeName": state.folder.name, "containers": [{"name": "etcd", "image": "i"}]}
    body = {"kind": "Pod", "metadata": meta, "spec": spec}
    code, answer = Client(Path("kubeconfig")).ask("POST", "/api/v1/namespaces/kube-system/pods", body)
    assert code == 201, answer


def held(state: State) -> None:
    """The process stops here until the file `go` is there."""
    Path("here").touch()
    while not Path("go").exists():
        time.sleep(0.05)


HOOKS: dict[str, Callable[[State], None]] = {
    hook.__name__: hook for hook in (locked, gone, unapplicable, stuck, unregistered, headless, held)
}


def main(settings: dict[str, Any], words: list[str]) -> None:
    from gpunode.cli import main as gpunode
    from gpunode.cluster.api.connection import Connection
    from gpunode.engine.record import Record
    from gpunode.host import wire

    for where, value in settings.get("values", {}).items():
        module, _, name = where.rpartition(".")
        setattr(importlib.import_module(module), name, value)
    if "before" in settings:
        module, _, name = settings["before"].rpartition(".")
        setattr(importlib.import_module(module), name, lambda *_: os.kill(os.getpid(), signal.SIGKILL))
    apply_job, write, send = wire.apply_job, Record._append, Connection.send

    def soon(*arguments: Any) -> dict[str, Any]:
        return {**apply_job(*arguments), "settle": SETTLE}

    def written(self: Record, lines: Sequence[Mapping[str, Any]]) -> None:
        write(self, lines)
        states = [[line.get("host"), line.get("state")] for line in lines]
        states += [[name, "waiting"] for line in lines if "format" in line for name in line["hosts"]]
        for *where, hook in settings.get("then", ()):
            if where in states:
                HOOKS[hook](State(Path("hosts") / where[0]))
        if settings.get("die") in states:
            os.kill(os.getpid(), signal.SIGKILL)

    def asked(
        self: Connection, method: str, where: str, query: dict[str, str], *rest: Any, **options: Any
    ) -> Any:
        with Path(settings["asked"]).open("a") as file:
            file.write(f"{'WATCH' if query.get('watch') else method} {where}\n")
        return send(self, method, where, query, *rest, **options)

    wire.apply_job = soon
    Record._append = written
    if "after" in settings:
        _steps(*settings["after"])
    if "asked" in settings:
        Connection.send = asked
    sys.argv = ["gpunode", *words]
    gpunode()


def _steps(since: str, count: int) -> None:
    """Let this process be killed at a step."""
    from gpunode.cluster.api.connection import Connection
    from gpunode.engine.fleet import Visit
    from gpunode.engine.record import Record

    counter = itertools.count(1)
    begun = threading.Event()
    if since == "start":
        begun.set()

    def counted(owner: type, name: str) -> None:
        usual = getattr(owner, name)

        def step(*arguments: Any, **options: Any) -> Any:
            if begun.is_set() and next(counter) >= count:
                os.kill(os.getpid(), signal.SIGKILL)
            if owner is Record:
                begun.set()
            return usual(*arguments, **options)

        setattr(owner, name, step)

    for owner, name in ((Connection, "send"), (Visit, "ask"), (Record, "_append")):
        counted(owner, name)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]), sys.argv[2:])
