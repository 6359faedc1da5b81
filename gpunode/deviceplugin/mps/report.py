"""What the process of the MPS control daemons and the plugin know of each other: paths below the MPS root, and the daemons'
report, one line of JSON on a Unix socket, repeated at every change.

Paths are the same on the host, here, and in clients' containers.
"""

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from gpunode.contract.offer import ClientLimits, Unit
from gpunode.contract.status import Reason

from ..state import NodeState


def pipe_path(root: str, gpu: str) -> Path:
    """CUDA_MPS_PIPE_DIRECTORY of a GPU's control daemon and of its clients."""
    return Path(root) / gpu / "pipe"


def log_path(root: str, gpu: str) -> Path:
    """CUDA_MPS_LOG_DIRECTORY of a GPU's control daemon."""
    return Path(root) / gpu / "log"


def mode_path(root: str, gpu: str) -> Path:
    """The file with the GPU's previous compute mode."""
    return Path(root) / gpu / "compute-mode"


def shm_path(root: str) -> Path:
    """The directory that daemons and clients mount as /dev/shm."""
    return Path(root) / "shm"


def status_path(root: str) -> Path:
    """The socket that serves the daemons' state."""
    return Path(root) / "status.sock"


@dataclass(frozen=True, slots=True)
class DaemonState:
    """One GPU's control daemon: its desired limits, and why it cannot be used now (None: it can)."""

    limits: ClientLimits
    why: str | None


Report = Mapping[str, DaemonState]  # by the GPU's UUID


def encode(report: Report) -> bytes:
    """The report as one line, newline included."""
    states = {gpu: {**asdict(state.limits), "why": state.why} for gpu, state in report.items()}
    return json.dumps(states).encode() + b"\n"


def decode(line: bytes) -> Report:
    """The report in a line of `encode`. Raises ValueError for any other line."""
    try:
        return {
            gpu: DaemonState(ClientLimits(state["memory"], state["threads"]), state["why"])
            for gpu, state in json.loads(line).items()
        }
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"not a report of MPS control daemons: {error!r}") from None


def why_not(report: Report, gpu: str, limits: ClientLimits) -> Reason | None:
    """Why a client of this GPU cannot be served with these limits now; None: it can."""
    state = report.get(gpu)
    if state is None:
        return Reason("mps-starting", "no MPS control daemon runs for this GPU yet")
    if state.why is not None:
        return Reason("mps-daemon", f"MPS control daemon: {state.why}")
    if state.limits != limits:
        message = "the MPS control daemon has other limits than the configuration, and will be restarted"
        return Reason("mps-limits", message)
    return None


class ReportServer:
    """The last report and the connected listeners. A listener notices the end of this process by its connection."""

    def __init__(self) -> None:
        self._line = encode({})
        self._listeners: set[asyncio.StreamWriter] = set()

    def publish(self, report: Report) -> None:
        """Send the report to all listeners if it has changed."""
        line = encode(report)
        if line != self._line:
            self._line = line
            for listener in self._listeners:
                listener.write(line)

    @contextlib.asynccontextmanager
    async def open(self, path: Path) -> AsyncIterator[None]:
        """Listen at `path`; replaces the socket of an earlier process."""
        server = await asyncio.start_unix_server(self._serve, path, start_serving=False)
        try:
            await server.start_serving()
            yield
        finally:
            server.close()
            for listener in self._listeners:
                listener.close()
            path.unlink(missing_ok=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(self._line)
        self._listeners.add(writer)
        try:
            with contextlib.suppress(OSError):
                await reader.read()  # listeners send nothing: this ends with the connection
        finally:
            self._listeners.discard(writer)
            writer.close()


log = logging.getLogger(__name__)

RETRY = 1.0  # seconds between two connection attempts
LONGEST = 1024 * 1024  # bytes of a report
ABSENT = Reason("mps-absent", "the process of the MPS control daemons does not run on this node")


class Follower:
    """Follows the reports on the socket at `path` and excludes devices that cannot be served. `run` never ends."""

    def __init__(self, path: Path, state: NodeState) -> None:
        self._path = path
        self._state = state
        self._report: Report | None = None
        self._excluded: Mapping[str, Reason] = {}

    def exclude(self, offers: Mapping[str, Sequence[Unit]]) -> None:
        """Exclude the devices of these units that cannot be served now. Call it before they are offered."""
        excluded = {
            unit.device.uuid: why
            for units in offers.values()
            for unit in units
            if unit.mps is not None
            and (why := ABSENT if self._report is None else why_not(self._report, unit.device.uuid, unit.mps))
        }
        for gpu, why in excluded.items():
            if self._excluded.get(gpu) != why:
                log.warning("not offered: %s", why, extra={"device": gpu})
        for gpu in self._excluded.keys() - excluded.keys():
            log.info("its MPS control daemon is ready", extra={"device": gpu})
        self._excluded = excluded
        self._state.exclude("MPS", excluded)

    async def run(self) -> None:
        """Follow the reports across restarts of the other process."""
        while True:
            try:
                reader, writer = await asyncio.open_unix_connection(self._path, limit=LONGEST)
                try:
                    while line := await reader.readline():
                        self._take(decode(line))
                finally:
                    writer.close()
            except OSError:
                pass  # no process listens, or it ended
            except ValueError as error:  # a process of another version, which will be replaced
                log.warning("%s", error)
            self._take(None)
            await asyncio.sleep(RETRY)

    def _take(self, report: Report | None) -> None:
        self._report = report
        self.exclude(self._state.offers)
