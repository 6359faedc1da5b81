"""A host in a folder: the agent runs as a real process below it, with small programs in place of the host's own."""

import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from gpunode.host import answers, bootstrap, wire
from gpunode.model import Change, Facts, Watch
from gpunode.packages import hint_of
from gpunode.sim.process import end_apply
from tests import forks

DAEMON = "/etc/docker/daemon.json"
DOCKER = "docker.service"
# What a unit does when it is started: it lives while its file is good, and has another process each time.
START = (
    f'state=active; grep -q bad "$GPUNODE_ROOT{DAEMON}" && state=failed\n'
    'printf "LoadState=loaded\\nActiveState=$state\\nSubState=x\\nMainPID=$$\\n" > "$units/$2"\n'
    "[ $state = active ]\n"
)
PROGRAMS = Path(__file__).parent / "programs"
REAL = ("sh", "cat", "grep", "sleep", "tr", "mkdir", "touch", "rm", "true", "id", "ln")


class Host:
    """A host's root folder and its programs."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "root"
        self.bin = folder / "bin"
        for path in ("run", "etc", "state/units", "state/apt", "proc/sys/kernel/random", "var/lib"):
            (self.root / path).mkdir(parents=True)
        self.write("/proc/sys/kernel/hostname", "gpu-07\n")
        self.write("/proc/sys/kernel/osrelease", "6.1.0-13-amd64\n")
        self.write("/proc/sys/kernel/random/boot_id", "2f0f\n")
        self.write("/proc/uptime", "86400.25 1000.00\n")
        self.write("/state/packages", "")
        self.bin.mkdir()
        for name in REAL:
            program = shutil.which(name)
            assert program, name
            (self.bin / name).symlink_to(program)
        (self.bin / "python3").symlink_to("/usr/bin/python3")
        self.program("systemctl", (PROGRAMS / "systemctl").read_text())
        self.jobs = 0
        self.started: list[subprocess.Popen[bytes]] = []
        self.environment = {"PATH": str(self.bin), "GPUNODE_ROOT": str(self.root)}

    def program(self, name: str, script: str) -> None:
        """A program on the host; every call of it is recorded in `calls`."""
        record = f'echo "{name} $*" >> "$GPUNODE_ROOT/state/calls"\n'
        body = script.removeprefix("#!/bin/sh\n")
        path = self.bin / name
        path.write_text(f"#!/bin/sh\n{record}{body}")
        path.chmod(0o755)

    def apt(self, packages: str = "", **steps: str) -> None:
        """apt-get and dpkg-query; `steps` are sh scripts for `update`, `dry` and `install`."""
        for name in ("apt-get", "dpkg-query"):
            self.program(name, (PROGRAMS / name).read_text())
        self.program("dpkg", "echo amd64")
        self.program("apt-mark", "")
        self.write("/state/packages", packages)
        for step, script in steps.items():
            self.write(f"/state/apt/{step}", script)

    def unit(self, name: str, start: str = "", **properties: object) -> None:
        """A running unit; `start` is what happens when it is (re)started (`$units` is the folder of the units)."""
        shown = {
            "LoadState": "loaded",
            "ActiveState": "active",
            "SubState": "running",
            "MainPID": 4711,
            **properties,
        }
        self.write(f"/state/units/{name}", "".join(f"{key}={value}\n" for key, value in shown.items()))
        if start:
            self.write(f"/state/units/{name}.start", start)

    def calls(self) -> list[str]:
        path = self.root / "state/calls"
        return path.read_text().splitlines() if path.exists() else []

    def path(self, path: str) -> Path:
        return self.root / path.lstrip("/")

    def write(self, path: str, content: str | bytes, mode: int = 0o644) -> Path:
        real = self.path(path)
        real.parent.mkdir(parents=True, exist_ok=True)
        real.write_bytes(content.encode() if isinstance(content, str) else content)
        real.chmod(mode)
        return real

    def read(self, path: str) -> str:
        return self.path(path).read_text()

    def start(self, job: Mapping[str, Any], payload: bytes = b"") -> subprocess.Popen[bytes]:
        process = forks.Popen(
            ["/bin/sh", "-c", bootstrap.command(sudo=False, password=False)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=self.environment,
        )
        assert process.stdin
        process.stdin.write(wire.encode(job) + payload)
        process.stdin.close()
        process.stdin = None  # communicate() would flush it
        self.started.append(process)
        return process

    def ask(self, job: Mapping[str, Any], payload: bytes = b"") -> list[dict[str, Any]]:
        """The agent's messages; they must be complete, without other output."""
        out, errors = self.start(job, payload).communicate()
        messages, complete = collect(out.splitlines(keepends=True), job["nonce"])
        assert complete, errors
        assert errors == b""
        return messages

    def probe(self, **watch: Any) -> dict[str, Any]:
        (message,) = self.ask(wire.probe_job(Watch(**watch)))
        assert message["type"] == "facts"
        return dict(message["facts"])

    def facts(self, **watch: Any) -> Facts:
        return answers.parse_facts(self.probe(**watch))

    def job(self, *changes: Change, watch: Watch | None = None, **extra: Any) -> dict[str, Any]:
        """An apply that does not wait long for anything."""
        self.jobs += 1
        job = wire.apply_job(f"run{self.jobs}", "anna@desk", changes, watch)
        return {**job, "settle": 0.1, "apt_wait": 0.5, **extra}

    def apply(self, *changes: Change, payload: bytes = b"") -> list[dict[str, Any]]:
        return self.ask(self.job(*changes), payload)

    def fail(self, *changes: Change, payload: bytes = b"") -> dict[str, Any]:
        """Apply what must fail; the `failed` message."""
        *_, failed, end = self.apply(*changes, payload=payload)
        assert end == {"type": "end", "ok": False}
        assert failed["type"] == "failed"
        assert hint_of(failed["code"])
        return failed

    def end(self) -> None:
        """Kill what a test left behind."""
        for process in self.started:
            process.kill()
            process.wait()
            for pipe in (process.stdout, process.stderr):
                if pipe:
                    pipe.close()
        end_apply(self.root)
        self.write("/state/go", "")  # programs that wait for it have sessions of their own


def collect(lines: Any, nonce: str) -> tuple[list[dict[str, Any]], bool]:
    """All messages, and whether they came to their end."""
    messages: list[dict[str, Any]] = []
    decoding = wire.decode(lines, nonce, [])
    while True:
        try:
            messages.append(next(decoding))
        except StopIteration as stop:
            return messages, bool(stop.value)


def wait_until(condition: Callable[[], object], seconds: float = 60) -> None:
    """Wait for a condition; fail when it does not come."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


@pytest.fixture
def host(tmp_path) -> Iterator[Host]:
    """A bare host."""
    made = Host(tmp_path)
    yield made
    made.end()


@pytest.fixture
def docker(host: Host) -> Host:
    """A host with docker that runs, and an apt-get that goes on until the file `go` is there."""
    host.unit(DOCKER, START)
    host.write(DAEMON, "{}")
    host.program("journalctl", "")
    host.path("/run/systemd/system").mkdir(parents=True)
    host.apt(
        install='> "$GPUNODE_ROOT/state/begun"\nuntil [ -e "$GPUNODE_ROOT/state/go" ]; do sleep 0.02; done\n'
    )
    return host
