"""The MPS control daemons, one for each GPU that the configuration shares by MPS: starts them, sets their limits, probes and
restarts them.

The behaviour of nvidia-cuda-mps-control is from its manual page, and was tested with the program of driver 535.
"""

import asyncio
import contextlib
import logging
import os
import signal
import time
from collections.abc import Callable, Mapping

from gpunode.contract.config import Config
from gpunode.contract.offer import VOLTA, CannotOffer, ClientLimits, Device, offers

from ..gpus import Handles, describe, explain
from ..threads import Calls, wait_at_most
from .modes import ComputeModes, InUse, ModeError
from .report import DaemonState, ReportServer, log_path, pipe_path

log = logging.getLogger(__name__)

PROGRAM = "nvidia-cuda-mps-control"
ALREADY = "already running"  # its output, before it ends, when another daemon has its pipes
START = 20.0  # seconds until it answers
ANSWER = 10.0  # seconds for one answer
QUIT = 5  # seconds that clients have to end
LOOK = 2.0  # seconds between two checks whether the GPU is still used without MPS
LONGEST = 60.0  # seconds between two starts
STEADY = 60.0  # seconds after which a start counts as successful


class DaemonFailed(Exception):
    """The daemon cannot be used; the message has the reason."""


class Daemon:
    """Runs the control daemon of one GPU. At every change, calls `report` with why it cannot be used (None: it can)."""

    def __init__(
        self,
        gpu: str,
        limits: ClientLimits,
        root: str,
        modes: ComputeModes,
        report: Callable[[str | None], None],
        interval: float,
    ) -> None:
        self.gpu = gpu
        self.limits = limits
        self._root = root
        self._modes = modes
        self._report = report
        self._interval = interval
        self._process: asyncio.subprocess.Process | None = None
        self._reading: asyncio.Task[None] | None = None
        self._words = ""  # its last ones
        self._spoken = asyncio.Event()
        self._fields = {"gpu": gpu}

    async def run(self) -> None:
        """Keep it running until cancelled; then end it and restore the GPU's compute mode."""
        pause = 1.0
        try:
            while True:
                began = time.monotonic()
                try:
                    await self._start()
                    self._report(None)
                    await self._until_failure()
                except (DaemonFailed, ModeError, OSError) as failure:
                    log.error("%s; restarting in %.0f s", failure, pause, extra=self._fields)  # noqa: TRY400
                    self._report(str(failure))
                await self._kill()
                pause = 1.0 if time.monotonic() - began > STEADY else pause
                await asyncio.sleep(pause)
                pause = min(pause * 2, LONGEST)
        finally:
            await self._end()

    async def _start(self) -> None:
        for path in (pipe_path(self._root, self.gpu), log_path(self._root, self.gpu)):
            path.mkdir(parents=True, exist_ok=True)
        await self._until_exclusive()
        try:
            # As a child in the foreground, for its end and its output. In a separate session, so that the servers it
            # starts can be ended with it.
            self._process = await asyncio.create_subprocess_exec(
                PROGRAM,
                "-f",
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                env=self._environment(),
                start_new_session=True,
            )
        except FileNotFoundError:
            raise DaemonFailed(
                f"no {PROGRAM} in the container of the control daemons: install the driver's package with it on the "
                "host (nvidia-driver-cuda, nvidia-compute-utils, nvidia-cuda-mps), then delete the pod of gpunode-mps"
            ) from None
        except OSError as error:
            raise DaemonFailed(f"cannot start {PROGRAM}: {error.strerror}") from None
        self._spoken.clear()
        self._reading = asyncio.create_task(self._read(self._process))
        await self._until_it_answers(self._process, time.monotonic() + START)
        await self._limit()
        log.info(
            "MPS control daemon ready",
            extra={
                **self._fields,
                "memory_mib": self.limits.memory,
                "threads_percent": self.limits.threads,
                "pid": self._process.pid,
            },
        )

    async def _until_exclusive(self) -> None:
        """Wait until no process uses the GPU without MPS, then make it exclusive."""
        reported = ""
        while True:
            try:
                return await self._modes.exclusive(self.gpu)
            except InUse as others:
                if str(others) != reported:
                    reported = str(others)
                    log.info("waiting: %s", reported, extra=self._fields)
                    self._report(reported)
            await asyncio.sleep(LOOK)

    def _environment(self) -> Mapping[str, str]:
        return {
            **os.environ,
            "CUDA_MPS_PIPE_DIRECTORY": str(pipe_path(self._root, self.gpu)),
            "CUDA_MPS_LOG_DIRECTORY": str(log_path(self._root, self.gpu)),
            "CUDA_VISIBLE_DEVICES": self.gpu,  # the only device of its servers, and so their device 0
        }

    async def _until_it_answers(self, process: asyncio.subprocess.Process, deadline: float) -> None:
        # Wait for its own first output: another daemon that has the pipes would answer instead.
        await wait_at_most(ANSWER, self._spoken.wait())
        if ALREADY in self._words:
            await process.wait()
        while True:
            self._check_alive()
            try:
                await self.ask("get_default_active_thread_percentage")
                return
            except DaemonFailed:
                if time.monotonic() > deadline:
                    raise
            await asyncio.sleep(0.1)

    async def _limit(self) -> None:
        """Set the limits of all servers that it will start, and read them back."""
        await self.ask(f"set_default_active_thread_percentage {self.limits.threads}")
        await self._check_threads()
        if self.limits.memory is not None:
            await self.ask(f"set_default_device_pinned_mem_limit 0 {self.limits.memory}M")
            if not await self.ask("get_default_device_pinned_mem_limit 0"):  # it answers in whole G
                raise DaemonFailed(f"it does not take the memory limit {self.limits.memory}M")

    async def _check_threads(self) -> None:
        answer = await self.ask("get_default_active_thread_percentage")
        with contextlib.suppress(ValueError):
            if float(answer) == self.limits.threads:
                return
        raise DaemonFailed(f"its thread percentage is {answer!r} instead of {self.limits.threads}")

    async def _until_failure(self) -> None:
        """Raises DaemonFailed once it has ended, does not answer or has lost its limits."""
        assert self._process
        while True:
            await wait_at_most(self._interval, self._process.wait())
            self._check_alive()
            await self._check_threads()

    def _check_alive(self) -> None:
        assert self._process
        status = self._process.returncode
        if status is not None:
            last = f": {self._words}" if status >= 0 and self._words else ""
            how = f"by signal {-status}" if status < 0 else f"with status {status}"
            raise DaemonFailed(f"it has ended {how}{last}")

    async def ask(self, command: str) -> str:
        """The daemon's answer to a command. Raises DaemonFailed for no answer or an unknown command."""
        process = await asyncio.create_subprocess_exec(
            PROGRAM,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env=self._environment(),
        )
        asking = asyncio.ensure_future(process.communicate(f"{command}\n".encode()))
        try:
            await asyncio.wait((asking,), timeout=ANSWER)
        finally:
            if not asking.done():
                # It may have ended by now; that error would take the place of a cancellation.
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await asyncio.wait((asking,))
        answer = asking.result()[0].decode(errors="replace").strip()
        if process.returncode == -signal.SIGKILL:
            raise DaemonFailed(f"it does not answer {command!r} within {ANSWER:.0f} s")
        if process.returncode or answer.startswith("Unknown command"):
            raise DaemonFailed(f"{command!r}: {answer or f'status {process.returncode}'}")
        return answer

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout
        async for line in process.stdout:
            self._words = line.decode(errors="replace").strip()
            self._spoken.set()
            log.debug("%s", self._words, extra=self._fields)
        self._spoken.set()  # or it has ended without output

    async def _kill(self) -> None:
        """Kill it with all servers that it has started."""
        if self._process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        await self._process.wait()
        if self._reading:
            self._reading.cancel()
        self._process = None

    async def _end(self) -> None:
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(DaemonFailed, OSError):
                await self.ask(f"quit -t {QUIT}")
        await self._kill()
        try:
            await self._modes.restore(self.gpu)
        except ModeError as error:
            log.error("%s", error, extra=self._fields)  # noqa: TRY400
        log.info("MPS control daemon ended", extra=self._fields)


RESCAN = 60.0  # seconds between two scans for GPUs
DEADLINE = 10.0  # seconds for one NVML call


class Supervisor:
    """The daemons of this node. They continue between two calls of `run`; `stop` ends them."""

    def __init__(self, handles: Handles, root: str, modes: ComputeModes, report_server: ReportServer) -> None:
        self._handles = handles
        self._nvml = handles.nvml
        self._calls = Calls()
        self._root = root
        self._modes = modes
        self._report_server = report_server
        self._daemons: dict[str, tuple[Daemon, asyncio.Task[None]]] = {}
        self._ending: set[asyncio.Task[None]] = set()  # of daemons that are no longer needed
        self._states: dict[str, DaemonState] = {}
        self._known: dict[int, tuple[Device, ...]] = {}  # by the GPU's index
        self._problems: dict[int, str] = {}  # likewise; already logged

    async def run(self, config: Config) -> None:
        """Apply this configuration until cancelled. Daemons that it does not change are not disturbed."""
        while True:
            try:
                wanted = await self._read_limits(config)
            except (asyncio.TimeoutError, self._nvml.NVMLError) as error:
                # Running daemons stay: their GPUs may still answer.
                log.error("cannot list the GPUs: %s", explain(error) or "NVML does not answer")  # noqa: TRY400
            except CannotOffer as error:
                log.error("no MPS control daemon runs: %s", error)  # noqa: TRY400
                await self._apply({}, config.health_interval)
            else:
                await self._apply(wanted, config.health_interval)
            await asyncio.sleep(RESCAN)

    async def stop(self) -> None:
        """End all daemons, and restore their GPUs' compute mode."""
        await self._apply({}, 0.0)

    async def _read_limits(self, config: Config) -> Mapping[str, ClientLimits]:
        """ClientLimits by the UUID of each GPU that is shared by MPS. Raises NVMLError, TimeoutError, CannotOffer."""
        number = await self._calls.within(DEADLINE, self._nvml.nvmlDeviceGetCount)
        described = await asyncio.gather(*(self._describe(index) for index in range(number)))
        devices = [device for group in described for device in group]
        units = [
            unit for group in offers(devices, config.mig_strategy, config.shares).values() for unit in group
        ]
        for device in {unit.device.uuid: unit.device for unit in units if unit.mps}.values():
            if (
                device.capability is not None
                and device.capability < VOLTA
                and device.uuid not in self._daemons
            ):
                log.warning(
                    "this GPU is older than the Volta generation: MPS does not enforce limits there, and keeps "
                    "no client from another's memory",
                    extra={"gpu": device.uuid, "product": device.name},
                )
        return {unit.device.uuid: unit.mps for unit in units if unit.mps}

    async def _describe(self, index: int) -> tuple[Device, ...]:
        """The GPU and its MIG devices; the last known ones while NVML does not answer about it."""
        try:
            described = await self._calls.within(DEADLINE, describe, self._handles, index)
            self._known[index] = described.devices
            self._problems.pop(index, None)
        except (asyncio.TimeoutError, self._nvml.NVMLError) as error:
            why = explain(error) or "NVML does not answer"
            if self._problems.get(index) != why:
                log.error("GPU %d: %s", index, why)  # noqa: TRY400
            self._problems[index] = why
        return self._known.get(index, ())

    async def _apply(self, wanted: Mapping[str, ClientLimits], interval: float) -> None:
        for gpu in [gpu for gpu, (daemon, _) in self._daemons.items() if wanted.get(gpu) != daemon.limits]:
            _, task = self._daemons.pop(gpu)
            task.cancel()
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)
            self._states.pop(gpu)
        # first: no client may connect to a daemon that is about to end
        self._report_server.publish(self._states)
        if self._ending:  # including those of an earlier, cancelled call
            # Not gather, which would cancel them once more: they end in order
            await asyncio.wait(self._ending)
        for gpu in self._modes.unrestored() - wanted.keys():  # of an earlier process, which was killed
            try:
                await self._modes.restore(gpu)
            except ModeError as error:
                log.error("%s", error, extra={"gpu": gpu})  # noqa: TRY400
        for gpu, limits in wanted.items():
            if gpu not in self._daemons:
                self._states[gpu] = DaemonState(limits, "it is being started")
                daemon = Daemon(gpu, limits, self._root, self._modes, self._reporter(gpu, limits), interval)
                self._daemons[gpu] = daemon, asyncio.create_task(daemon.run(), name=f"MPS {gpu}")
        self._report_server.publish(self._states)

    def _reporter(self, gpu: str, limits: ClientLimits) -> Callable[[str | None], None]:
        def report(why: str | None) -> None:
            self._states[gpu] = DaemonState(limits, why)
            self._report_server.publish(self._states)

        return report
