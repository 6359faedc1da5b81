"""Gates: commands of the operator's machine that decide whether a batch may begin."""

import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from gpunode.agent.redaction import redact
from gpunode.engine.member import Member
from gpunode.engine.record import Record
from gpunode.engine.reporter import Reporter
from gpunode.errors import Problem
from gpunode.model import Event, GateCommand, Inventory

CLOSED = "gate"  # code: a gate did not let its batch begin
TAIL = 4096  # bytes of output that are read
LINES = 5
SHELL = "/bin/sh"


@dataclass(frozen=True, slots=True)
class Result:
    """How a gate ended. `status`: its exit status, None where it did not end in time. `output`: its last lines."""

    status: int | None
    seconds: float
    output: str

    @property
    def text(self) -> str:
        """`exited with 3`."""
        if self.status is None:
            return f"did not end within {self.seconds:.0f} s"
        return f"exited with {self.status}" if self.status >= 0 else f"was ended by signal {-self.status}"


def show(inventory: Inventory, reporter: Reporter) -> None:
    """Show the gates; runs none."""
    rows = [(gate.command, gate.timeout, "before each batch, on this machine") for gate in inventory.gates]
    reporter.rows("gate", ("gate", "timeout", "when"), rows)


def run_gates(
    inventory: Inventory,
    members: Sequence[Member],
    batch: tuple[int, int],
    record: Record,
    reporter: Reporter,
) -> str:
    """Run the gates in order for a batch, (its number, of how many). Returns why it may not begin; "" if it may."""
    hosts = [member.host.name for member in members]
    folder = Path(inventory.path).absolute().parent
    variables = {
        "GPUNODE_HOSTS": " ".join(hosts),
        "GPUNODE_NODES": " ".join(member.node.name for member in members if member.node),
        "GPUNODE_BATCH": str(batch[0]),
        "GPUNODE_BATCHES": str(batch[1]),
        "GPUNODE_INVENTORY": str(folder / Path(inventory.path).name),
        "GPUNODE_RUN": record.id,
    }
    for gate in inventory.gates:
        reporter.event(Event("stage", None, f"gate before batch {batch[0]} of {batch[1]}: {gate.command}"))
        result = run(gate, variables, folder)
        seen = {
            "gate": redact(gate.command),
            "hosts": hosts,
            "status": result.status,
            "seconds": round(result.seconds, 3),
            "output": result.output,
        }
        record.gate(seen)
        reporter.event(Event("gate", None, result.text, seen))
        if result.status != 0:
            why = f"gate `{gate.command}` {result.text}"
            reporter.problem(Problem("", f"{why}, before batch {batch[0]} of {batch[1]}\n{result.output}"))
            return why
    return ""


def run(gate: GateCommand, variables: Mapping[str, str], folder: Path) -> Result:
    """Run one in `folder`, by the shell, in a process group of its own: Ctrl-C is gpunode's, and nothing of it is left."""
    start = time.monotonic()
    with tempfile.TemporaryFile() as output:
        try:
            process = subprocess.Popen(
                [SHELL, "-c", gate.command],
                cwd=folder,
                env={**os.environ, **variables},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:  # no shell, or more hosts than an environment holds
            return Result(126, 0.0, f"it could not be started: {error.strerror}")
        status: int | None = None
        try:
            with suppress(subprocess.TimeoutExpired):
                status = process.wait(gate.timeout)
        finally:
            _end(process)
        return Result(status, time.monotonic() - start, _tail(output))


def _end(process: subprocess.Popen[bytes]) -> None:
    """End what is left of its group: also what it put into the background."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _tail(output: IO[bytes]) -> str:
    size = output.seek(0, os.SEEK_END)
    output.seek(max(0, size - TAIL))
    text = redact(output.read().decode("utf-8", "replace"))
    return "\n".join([line.rstrip() for line in text.splitlines() if line.strip()][-LINES:])
