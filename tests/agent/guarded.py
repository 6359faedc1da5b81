"""A docker whose file is guarded, and ways to interrupt an apply during its change."""

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys

from gpunode.model import Change, Packages, PackageSpec, Service, WriteFile
from tests.agent.conftest import DAEMON, DOCKER, START, Host, wait_until

RECORD = "/var/lib/gpunode/runs/run1"
BOOT_UNIT = "/etc/systemd/system/gpunode-restore.service"
RESTART = f"systemctl restart {DOCKER}"
WAITS = Packages("it takes its time", install=(PackageSpec("slow"),))
GUARDED = Service(DOCKER, "why", restart=True, guards=(DAEMON,))


def write(text: str, before: str | None = "{}", path: str = DAEMON) -> WriteFile:
    return WriteFile(path, text, "why", before=before)


def worker(host: Host) -> int:
    return int(json.loads(host.read("/run/gpunode/lock"))["pid"])


def kill(host: Host) -> None:
    """Returns when the killed process is gone: until then it holds the host's lock."""
    os.kill(worker(host), signal.SIGKILL)
    host.write("/state/go", "")
    wait_until(lambda: not is_locked(host))


def is_locked(host: Host) -> bool:
    with host.path("/run/gpunode/lock").open() as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def killed_before_the_restart(host: Host, *writes: Change) -> None:
    """A run that wrote its files and was killed before it restarted what reads them."""
    host.start(host.job(*(writes or [write('{"a": 1}')]), WAITS, GUARDED))
    wait_until(host.path("/state/begun").exists)
    kill(host)


def killed_after_the_restart(host: Host) -> None:
    """A run that was killed while it watched whether the unit stays up."""
    host.start(host.job(write('{"a": 1}'), GUARDED, settle=30))
    wait_until(lambda: RESTART in host.calls())
    kill(host)
    guard = json.loads(host.read(f"{RECORD}/guard.json"))
    host.write(f"{RECORD}/guard.json", json.dumps({**guard, "settle": 0.1}))


def goes_down(host: Host) -> None:
    """What is in memory is gone, and another boot begins with no unit started yet."""
    shutil.rmtree(host.path("/run/gpunode"))
    host.write("/proc/sys/kernel/random/boot_id", "another\n")
    host.unit(DOCKER, START, ActiveState="inactive", MainPID=0)


def as_unit(host: Host, verb: str) -> subprocess.CompletedProcess[str]:
    """What systemd runs: the timer (`restore`), or the unit at boot (`boot`)."""
    command = [sys.executable, "-I", "-S", host.path(RECORD) / "agent.py", verb, "run1"]
    return subprocess.run(command, env=host.environment, check=True, capture_output=True, text=True)


def told(messages: list[dict[str, object]]) -> str:
    return "\n".join(str(message.get("text", "")) for message in messages)
