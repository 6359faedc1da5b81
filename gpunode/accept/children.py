"""Children that measure a GPU each: all at once, their transfers one after the other, none waited for longer than its stages may take."""

import json
import os
import selectors
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import IO, Any

GRACE = 20  # seconds beyond what a stage is to take
DIES = 2  # seconds for a killed process, which may hang in the driver


@dataclass(eq=False)
class Child:
    """One child, and what it has reported: its figures, `error` (as of `measurements.Failure`) and, at its end, `done`. `deadline` is
    None while it waits for the bus."""

    uuid: str
    process: subprocess.Popen[bytes]
    stdin: IO[bytes]
    stdout: IO[bytes]
    deadline: float | None
    began: float
    stage: str = "start"
    rest: bytes = b""
    seconds: float = 0
    report: dict[str, Any] = field(default_factory=dict)
    ended: bool = False


class Children:
    """`say`: progress, one line each. `grace`: seconds beyond what a child says that its stage takes."""

    def __init__(
        self,
        say: Callable[[str], None],
        grace: float = GRACE,
        environment: Mapping[str, str] = os.environ,
    ) -> None:
        self._say, self._grace, self._environment = say, grace, environment
        self._selector = selectors.DefaultSelector()
        self._waiting: list[Child] = []
        self._bus: Child | None = None

    def run(self, commands: Mapping[str, Sequence[str]]) -> dict[str, Child]:
        """Start a command for each device, by its UUID, and return when all have ended, by themselves or not."""
        children = {uuid: self._start(uuid, command) for uuid, command in commands.items()}
        running = set(children.values())
        while running:
            soonest = min((child.deadline for child in running if child.deadline), default=None)
            timeout = None if soonest is None else max(0, soonest - time.monotonic())
            for event, _ in self._selector.select(timeout):
                self._read(event.data, event.fileobj)
            now = time.monotonic()
            for child in running:
                if not child.ended and child.deadline is not None and now > child.deadline:
                    self._hangs(child)
            running = {child for child in running if not child.ended}
            self._grant()
        self._selector.close()
        return children

    def _start(self, uuid: str, command: Sequence[str]) -> Child:
        environment = {**self._environment, "CUDA_VISIBLE_DEVICES": uuid}
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)
        assert process.stdout
        assert process.stdin
        now = time.monotonic()
        child = Child(uuid, process, process.stdin, process.stdout, now + self._grace, now)
        self._selector.register(process.stdout, selectors.EVENT_READ, child)
        return child

    def _read(self, child: Child, stream: Any) -> None:
        data = stream.read1(1 << 16)
        if not data:
            self._end(child)
            with suppress(subprocess.TimeoutExpired):
                child.process.wait(DIES)  # it may hang while it leaves the GPU
            if not child.report.get("done"):
                code = child.process.returncode or 0
                how = f"signal {-code}" if code < 0 else f"status {code}"
                self._failed(child, "driver", f"its process ended with {how}, in: {child.stage}")
            return
        *lines, child.rest = (child.rest + data).split(b"\n")
        for line in lines:
            self._take(child, json.loads(line))

    def _take(self, child: Child, line: dict[str, Any]) -> None:
        if "stage" in line:
            child.stage = line["stage"]
            child.deadline = time.monotonic() + self._grace + line["seconds"]
            self._say(f"{child.uuid}: {child.stage}")
        elif "wants" in line:
            child.deadline = None
            self._waiting.append(child)
        elif "leaves" in line:
            self._release(child)
        else:
            child.report |= line

    def _grant(self) -> None:
        if self._bus is None and self._waiting:
            self._bus = child = self._waiting.pop(0)
            child.deadline = time.monotonic() + self._grace
            with suppress(OSError):  # it has died: its output ends
                child.stdin.write(b"go\n")
                child.stdin.flush()

    def _release(self, child: Child) -> None:
        if self._bus is child:
            self._bus = None

    def _hangs(self, child: Child) -> None:
        child.process.kill()
        try:
            child.process.wait(DIES)
        except subprocess.TimeoutExpired:
            self._say(f"{child.uuid}: process {child.process.pid} cannot be killed: it hangs in the driver")
        waited = time.monotonic() - child.began
        self._failed(
            child, "hangs", f"no answer within its time in: {child.stage} ({waited:.0f} s after the start)"
        )
        self._end(child)

    def _failed(self, child: Child, code: str, text: str) -> None:
        child.report["error"] = child.report.get("error") or {"code": code, "text": text}

    def _end(self, child: Child) -> None:
        child.ended, child.seconds = True, time.monotonic() - child.began
        self._release(child)
        if child in self._waiting:
            self._waiting.remove(child)
        self._selector.unregister(child.stdout)
        child.stdout.close()
        with suppress(OSError):
            child.stdin.close()
