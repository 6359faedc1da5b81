"""The measurements of one GPU by kernels: each takes a budget of seconds and adapts its size to the GPU's speed.

Sizes grow until a launch takes long enough to be timed, so that slow GPUs end in time and fast ones are filled.
"""

import ctypes
import statistics
import time
from array import array
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from ctypes import c_uint, c_uint64, c_void_p
from dataclasses import dataclass
from typing import Any

from gpunode.deviceplugin.cuda import MULTIPROCESSOR_THREADS, MULTIPROCESSORS, Cuda, CudaError

from .kernels import CHAINS, COPIED, PTX, RESULTS, STARTS, STEPS, THREADS, TURN, UNIT

MIB = 1 << 20
REST = 512 * MIB  # of the free memory that is never taken
COPY = 1024 * MIB  # bytes of each of the two buffers whose copy is timed
PINNED = 128 * MIB  # of the host's memory, which a container may have little of
CHUNK = 512 * MIB  # of the memory whose pattern is checked
SHORT = 0.005  # seconds that a launch or a copy should take at least
PASS = 6  # seconds of a pass over the memory, in which any real GPU can do all of its own
BATCH = 0.04  # seconds between two readings of the GPU's clock
TURN_SECONDS = 0.15  # of one launch of `compute`: a GPU that also drives a display must not stand still
SEEDS = (0x5555AAAA3333CCCC, 0xFF00FF0000FF00FF, 0x0F0F33335555F00F, 0)
WRONG = 0xFF  # bytes that a result has before it is computed

Figures = dict[str, Any]


class NotMeasured(Exception):
    """A figure cannot be measured here; the message says why."""


@dataclass(frozen=True, slots=True)
class Kernels:
    fill: c_void_p
    check: c_void_p
    copy: c_void_p
    compute: c_void_p


class Bench:
    """One GPU, with its kernels compiled. For one thread; `device` is CUDA's."""

    def __init__(self, cuda: Cuda, device: int) -> None:
        self.cuda, self.device = cuda, device
        self._kernels = Kernels(*cuda.kernels(PTX, *Kernels.__dataclass_fields__))

    def transfers(self, seconds: float) -> Figures:
        """GB/s from pinned memory of the host to the GPU, and back."""
        cuda, size = self.cuda, MIB
        with ExitStack() as stack:
            host = self._pinned(stack)
            gpu = stack.enter_context(cuda.allocated(PINNED))

            def send() -> None:
                cuda.send(gpu, host, size)

            while size < PINNED and cuda.timed(send) < SHORT:
                size *= 2
            there = self._rate(seconds / 2, size, send)
            back = self._rate(seconds / 2, size, lambda: cuda.fetch(host, gpu, size))
        return {"to_device_gbps": round(there, 3), "from_device_gbps": round(back, 3)}

    def bandwidth(self, seconds: float) -> Figures:
        """GB/s of the GPU's memory, read and written by a copy, and the number of words that were not copied right."""
        cuda = self.cuda
        most = min(COPY, self._spare() // 2)
        with ExitStack() as stack:
            counter = stack.enter_context(self._counter())
            to, most = self._piece(stack, most)
            source, most = self._piece(stack, most)
            most = most // COPIED * COPIED
            size = min(MIB, most)

            def copy() -> None:
                cuda.launch(self._kernels.copy, size // COPIED, THREADS, c_uint64(to), c_uint64(source))

            while size < most and self._waited(copy) < SHORT:
                size = min(size * 4, most)
            self._fill(source, size, SEEDS[0])
            self._fill(to, size, ~SEEDS[0])
            rate = self._rate(seconds, 2 * size, copy)
            self._check(to, size, SEEDS[0], counter, base=source)
            return {"memory_gbps": round(rate, 3), "memory_errors": self._count(counter)}

    def pattern(self, seconds: float, passes: int) -> Figures:
        """MiB of memory whose every word was written and read back, and the number of words that were wrong.

        All of it is written before any of it is read, so that two addresses of one cell show. Each pass does so with a pattern
        and with its inverse.
        """
        spare = self._spare()
        with ExitStack() as stack:
            counter = stack.enter_context(self._counter())
            first, most = self._piece(stack, min(CHUNK, spare))
            size = min(MIB, most)

            def both() -> None:
                self._fill(first, size, SEEDS[0])
                self._check(first, size, SEEDS[0], counter)

            while (took := self._waited(both)) < SHORT and size < most:
                size = min(size * 4, most)
            # a pass takes two parts of its time; the third is for what turns out slower
            tested = min(spare, max(MIB, int(size / took * min(seconds, PASS) / 3) // UNIT * UNIT))
            chunks = [(first, min(most, tested)), *self._pieces(stack, tested - most)]
            end = time.monotonic() + seconds
            for number in range(passes):
                began = time.monotonic()
                for seed in (SEEDS[number % len(SEEDS)], ~SEEDS[number % len(SEEDS)]):
                    for at, length in chunks:
                        self._fill(at, length, seed)
                    for at, length in chunks:
                        self._check(at, length, seed, counter)
                    self.cuda.synchronize()
                if 2 * time.monotonic() - began > end:
                    break
            wrong = self._count(counter)
            # A check that looks at nothing finds nothing: by another pattern, every word must be wrong.
            at, length = chunks[0]
            self._check(at, length, ~seed, counter)
            blind = abs(self._count(counter) - wrong - 2 * length // UNIT)
            tested = sum(length for _, length in chunks)
            return {"memory_tested_mib": tested // MIB, "memory_errors": wrong + blind}

    def compute(self, seconds: float) -> Figures:
        """TFLOPS of float32 FMA, and the number of results that were wrong. A FMA is two operations."""
        cuda = self.cuda
        full = cuda.attribute(self.device, MULTIPROCESSORS) * max(
            1, cuda.attribute(self.device, MULTIPROCESSOR_THREADS) // THREADS
        )
        wrong, blocks, rounds = 0, 1, 2
        rates: list[float] = []
        with ExitStack() as stack:
            out = stack.enter_context(cuda.allocated(full * THREADS * CHAINS * 4))
            words = array("I", (*STARTS, *(start ^ end for start, end in zip(STARTS, RESULTS, strict=True))))
            table = stack.enter_context(cuda.allocated(len(words) * 4))
            cuda.put(table, words.buffer_info()[0], len(words) * 4)

            def run() -> None:
                cuda.launch(
                    self._kernels.compute,
                    blocks,
                    THREADS,
                    c_uint64(out),
                    c_uint64(table),
                    c_uint(rounds),
                )

            end = time.monotonic() + seconds
            while not rates or time.monotonic() < end:
                cuda.clear(out, WRONG, blocks * THREADS * CHAINS * 4)
                began = time.monotonic()
                took = cuda.timed(run)
                waited = time.monotonic() - began
                wrong += self._differ(out, blocks, rounds)
                if blocks < full and waited < TURN_SECONDS / 4:
                    blocks = min(blocks * 4, full)
                elif waited < TURN_SECONDS / 2:
                    rounds *= 2
                else:
                    rates.append(blocks * THREADS * CHAINS * STEPS * rounds * 2 / took / 1e12)
        late = rates[len(rates) // 2 :]  # when it is warm
        return {"compute_tflops": round(statistics.fmean(late), 3), "compute_errors": wrong}

    def _differ(self, out: int, blocks: int, rounds: int) -> int:
        """How many results of `compute` are not what they should be."""
        lanes = len(RESULTS)
        turns = rounds * (STEPS // TURN) & 0xFFFFFFFF
        right = array(
            "I",
            (RESULTS[(lane + chain) % lanes] ^ turns for lane in range(lanes) for chain in range(CHAINS)),
        )
        size = blocks * THREADS * CHAINS * 4
        results = ctypes.create_string_buffer(size)
        self.cuda.get(ctypes.addressof(results), out, size)
        wanted = right.tobytes() * (blocks * THREADS // lanes)
        if results.raw == wanted:
            return 0
        pairs = zip(array("I", results.raw), array("I", wanted), strict=True)
        return sum(word != other for word, other in pairs)

    def _spare(self) -> int:
        """Bytes that may be taken now. Raises NotMeasured."""
        free, _ = self.cuda.free_memory()
        spare = (free - REST) // MIB * MIB
        if spare < 4 * MIB:
            raise NotMeasured(f"only {free // MIB} MiB of the GPU's memory are free, and 512 MiB stay free")
        return spare

    def _pinned(self, stack: ExitStack) -> int:
        try:
            return stack.enter_context(self.cuda.pinned(PINNED))
        except CudaError as error:
            raise NotMeasured(f"the host gives no {PINNED // MIB} MiB of pinned memory: {error}") from None

    def _piece(self, stack: ExitStack, size: int) -> tuple[int, int]:
        """Memory of so many bytes, or of less: MPS has limits that the driver does not show. Raises NotMeasured."""
        for piece in self._pieces(stack, size, size):
            return piece
        raise NotMeasured(f"the driver allocates not even {MIB >> 20} MiB, though it reports more as free")

    def _pieces(self, stack: ExitStack, size: int, piece: int = CHUNK) -> Iterator[tuple[int, int]]:
        """Memory of so many bytes in pieces, or as much as there is: addresses and lengths."""
        while size > 0 and piece >= MIB:
            piece = min(piece, size)
            try:
                at = stack.enter_context(self.cuda.allocated(piece))
            except CudaError as error:
                if error.code != 2:  # CUDA_ERROR_OUT_OF_MEMORY
                    raise
                piece = piece // 2 // COPIED * COPIED
                continue
            yield at, piece
            size -= piece

    @contextmanager
    def _counter(self) -> Iterator[int]:
        with self.cuda.allocated(8) as counter:
            self.cuda.clear(counter, 0, 8)
            yield counter

    def _count(self, counter: int) -> int:
        value = c_uint64()
        self.cuda.get(ctypes.addressof(value), counter, 8)
        return value.value

    def _fill(self, at: int, size: int, seed: int) -> None:
        self._over(
            self._kernels.fill, size, c_uint64(at), c_uint64(at), c_uint64(size // UNIT), c_uint64(seed)
        )

    def _check(self, at: int, size: int, seed: int, counter: int, base: int | None = None) -> None:
        values = (at, at if base is None else base, size // UNIT, seed, counter)
        self._over(self._kernels.check, size, *map(c_uint64, values))

    def _over(self, kernel: c_void_p, size: int, *values: c_uint64) -> None:
        self.cuda.launch(kernel, -(-size // (UNIT * THREADS)), THREADS, *values)

    def _waited(self, work: Callable[[], None]) -> float:
        """Seconds of this process until what `work` starts is done: they count against a budget, not the GPU's own."""
        began = time.monotonic()
        work()
        self.cuda.synchronize()
        return max(time.monotonic() - began, 1e-9)

    def _rate(self, seconds: float, size: int, work: Callable[[], None]) -> float:
        """GB/s, the median over `seconds`, of `work` that moves `size` bytes."""
        times = max(1, int(BATCH / self._waited(work)))
        rates: list[float] = []
        end = time.monotonic() + seconds

        def batch() -> None:
            for _ in range(times):
                work()

        while not rates or time.monotonic() < end:
            rates.append(times * size / self.cuda.timed(batch) / 1e9)
        return statistics.median(rates)
