"""One GPU's MPS control daemon: starts it, sets its limits, probes it periodically, restarts it when it fails.

The behaviour of nvidia-cuda-mps-control is from its manual page, and was tested with the program of driver 535.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import time
from collections.abc import Callable, Mapping

from gpunode.contract.offer import ClientLimits

from ..settings import mps_paths
from .modes import ComputeModes, InUse, ModeError

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
        for path in (mps_paths.pipe(self._root, self.gpu), mps_paths.log(self._root, self.gpu)):
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
            "CUDA_MPS_PIPE_DIRECTORY": str(mps_paths.pipe(self._root, self.gpu)),
            "CUDA_MPS_LOG_DIRECTORY": str(mps_paths.log(self._root, self.gpu)),
            "CUDA_VISIBLE_DEVICES": self.gpu,  # the only device of its servers, and so their device 0
        }

    async def _until_it_answers(self, process: asyncio.subprocess.Process, deadline: float) -> None:
        # Wait for its own first output: another daemon that has the pipes would answer instead.
        spoken = asyncio.ensure_future(self._spoken.wait())
        try:
            await asyncio.wait((spoken,), timeout=ANSWER)
        finally:
            spoken.cancel()
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
            ended = asyncio.ensure_future(self._process.wait())
            try:
                await asyncio.wait((ended,), timeout=self._interval)
            finally:
                ended.cancel()
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
