"""Commands, and the daemons of a lab: started detached, found again by pid file, never taken for a stranger's.

Every process of a lab carries GPUNODE_LAB=<state folder> in its environment, and so do its children: a pid
file that outlived its process is told from a live one, and what a crash left behind is found without any.
"""

import contextlib
import os
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

from .progress import LabError, wait

MARKER = "GPUNODE_LAB"


def run(
    argv: Sequence[str | Path], cwd: Path | None = None, env: dict[str, str] | None = None, text: str = ""
) -> str:
    """Run a command quietly and return its output; a failure shows the end of what it said."""
    command = [str(word) for word in argv]
    done = subprocess.run(command, cwd=cwd, env=env, input=text, capture_output=True, text=True, check=False)
    if done.returncode:
        last = "\n".join((done.stdout + done.stderr).splitlines()[-30:])
        raise LabError(f"{' '.join(command)[:300]} ended with {done.returncode}:\n{last}")
    return done.stdout


def succeeds(argv: Sequence[str | Path]) -> bool:
    """Whether a command, run quietly, ends with 0."""
    return subprocess.run([str(word) for word in argv], capture_output=True, check=False).returncode == 0


def start(state: Path, name: str, argv: Sequence[str | Path]) -> None:
    """Start a daemon of the lab at `state` unless it runs; its output goes to log/<name>.log."""
    if running(state, name):
        return
    (state / "log").mkdir(parents=True, exist_ok=True)
    with log(state, name).open("ab") as output:
        process = subprocess.Popen(
            [str(word) for word in argv],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            cwd="/",
            env={**os.environ, MARKER: str(state)},
        )
    (state / f"{name}.pid").write_text(f"{process.pid}\n")
    # The kernel shows no environment for a moment after exec: until then the process would be taken for a stranger's.
    wait(f"the start of {name}", lambda: _belongs(process.pid, state) or process.poll() is not None)


def log(state: Path, name: str) -> Path:
    return state / "log" / f"{name}.log"


def running(state: Path, name: str) -> bool:
    return _pid(state, name) is not None


def stop(state: Path, name: str, patience: float = 10) -> None:
    """End a daemon: asked first, killed after `patience` seconds."""
    for sign, seconds in ((signal.SIGTERM, patience), (signal.SIGKILL, 60)):
        pid = _pid(state, name)
        if pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, sign)
            with contextlib.suppress(LabError):
                wait(f"the end of {name}", lambda pid=pid: _gone(pid), seconds)
    (state / f"{name}.pid").unlink(missing_ok=True)


def strays(state: Path) -> list[int]:
    """Every live process that belongs to the lab at `state`."""
    return [int(p.name) for p in Path("/proc").glob("[0-9]*") if _belongs(int(p.name), state)]


def _pid(state: Path, name: str) -> int | None:
    try:
        pid = int((state / f"{name}.pid").read_text())
    except (OSError, ValueError):
        return None
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)  # a child of this very process that ended is a zombie until it is read
    return pid if _belongs(pid, state) else None


def _gone(pid: int) -> bool:
    """Whether no thread of it is left: one that is still ending may hold the port that the next one wants."""
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)
    try:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
        return all((task / "stat").read_text().rpartition(")")[2].split()[0] in "ZX" for task in tasks)
    except OSError:
        return not Path(f"/proc/{pid}").exists()


def _belongs(pid: int, state: Path) -> bool:
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes()  # empty for a zombie
    except OSError:
        return False
    return f"{MARKER}={state}".encode() in environment.split(b"\0")
