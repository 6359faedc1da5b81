"""A command that runs as a child process: its input, its lines and its end."""

import contextlib
import os
import selectors
import subprocess
import threading
from collections.abc import Callable, Iterable, Iterator

from gpunode.local import streams

CHUNK = 256 * 1024
HANGS_SECONDS = 2.0  # a killed command has ended by then, or hangs


class Child:
    """A `reach.Remote` that is a process of this machine; it has three pipes."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        stdin: Iterable[bytes],
        heard: Callable[[bytes], None] | None,
    ) -> None:
        self._process = process
        self._errors = streams.Errors()
        self._pipe: tuple[int, ...] = os.pipe()  # wakes the reader
        self._lock, self._ending = threading.Lock(), threading.Lock()
        self._given_up = self._reading = False
        self._ended: tuple[int | None, str] | None = None
        self._threads = [
            threading.Thread(target=self._feed, args=(stdin,), daemon=True),
            threading.Thread(target=self._drain, args=(heard,), daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def _feed(self, stdin: Iterable[bytes]) -> None:
        assert self._process.stdin is not None
        # A command that ends early breaks the pipe; its status says why.
        with contextlib.suppress(BrokenPipeError), self._process.stdin as pipe:
            for chunk in stdin:
                pipe.write(chunk)
                pipe.flush()

    def _drain(self, heard: Callable[[bytes], None] | None) -> None:
        assert self._process.stderr is not None
        with self._process.stderr as pipe:
            while chunk := os.read(pipe.fileno(), CHUNK):
                if not self._errors.add(chunk):
                    self.give_up()
                    return
                if heard is not None:
                    heard(chunk)

    def lines(self) -> Iterator[bytes]:
        """Lines of standard output; ends early after `close`. Raises Flood."""
        with self._lock:
            if self._ended is not None:
                return
            self._reading = True
        try:
            yield from streams.lines(self._chunks())
        finally:
            self._reading = False
        self._errors.check()

    def _chunks(self) -> Iterator[bytes]:
        assert self._process.stdout is not None
        out = self._process.stdout.fileno()
        with selectors.DefaultSelector() as ready:
            ready.register(out, selectors.EVENT_READ)
            ready.register(self._pipe[0], selectors.EVENT_READ)
            while [key.fd for key, _ in ready.select()] == [out] and (chunk := os.read(out, CHUNK)):
                yield chunk

    def end(self) -> tuple[int | None, str]:
        """Exit status and standard error; after `close` the status is None and a hanging process is left alone."""
        return self._finish()

    def _finish(self) -> tuple[int | None, str]:
        with self._ending:
            ended = self._ended or self._wait()
            with self._lock:
                self._ended = ended
        return ended

    def close(self) -> None:
        """Stop reading and waiting, and kill the command if that is possible."""
        self.give_up()
        with self._lock:
            idle = not self._reading
        if idle:  # else the reader ends it
            self._finish()

    def _wait(self) -> tuple[int | None, str]:
        status = None
        while status is None and not self._given_up:
            with contextlib.suppress(subprocess.TimeoutExpired):
                status = self._process.wait(1)
        if self._given_up and self._process.stdout is not None:
            self._process.stdout.close()  # what the command has started writes there no more, and ends
        for thread in self._threads:
            thread.join(HANGS_SECONDS if self._given_up else None)
        with self._lock:
            for end in self._pipe:
                os.close(end)
            self._pipe = ()
        if any(thread.is_alive() for thread in self._threads):
            self._process.poll()  # it is killed, but what it has started keeps a stream open
        else:
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        return (None if self._given_up else status), self._errors.text()

    def give_up(self) -> None:
        """Kill the command and wake its reader. It may hang in the kernel, or belong to root."""
        with self._lock:
            if self._pipe and not self._given_up:
                self._given_up = True
                os.write(self._pipe[1], b"x")
                with contextlib.suppress(OSError):
                    self._process.kill()
