"""gRPC over Unix sockets, as far as kubelet and device plugin use it: unary calls, and streams of answers. On asyncio.

In place of the library grpcio, whose 17 MiB are most of a plugin's memory and of its start. Messages are bytes here.
"""

import asyncio
import enum
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Container, Mapping
from contextlib import aclosing
from pathlib import Path
from urllib.parse import quote, unquote

from .hpack import Header, encode
from .http2 import NO_ERROR, REFUSED_STREAM, Connection, Stream

log = logging.getLogger(__name__)

LONGEST = 4 * 1024 * 1024  # bytes of a message, as gRPC's own default
UNITS = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}  # of grpc-timeout
PRINTABLE = "".join(map(chr, range(0x20, 0x7F))).replace("%", "")  # what grpc-message has as it is


class Code(enum.IntEnum):
    """gRPC's status codes."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


class RpcError(Exception):
    """A call that failed, or that a handler fails."""

    def __init__(self, code: Code, details: str) -> None:
        super().__init__(details)
        self.code = code
        self.details = details


Unary = Callable[[bytes], Awaitable[bytes]]
Streaming = Callable[[bytes], AsyncGenerator[bytes, None]]

_HEADERS = encode([(b":status", b"200"), (b"content-type", b"application/grpc")])
_DONE = encode([(b"grpc-status", b"0")])


class Message:
    """One message of at most `longest` bytes, put together from a stream's data."""

    def __init__(self, longest: int) -> None:
        self._longest = longest
        self._body = bytearray()

    def add(self, data: bytes) -> None:
        """Raises RpcError for a message that is too long, or compressed."""
        self._body += data
        if len(self._body) < 5:
            return
        size = int.from_bytes(self._body[1:5], "big")
        if max(size, len(self._body) - 5) > self._longest:
            raise RpcError(
                Code.RESOURCE_EXHAUSTED, f"a message of {size} bytes is larger than {self._longest}"
            )
        if self._body[0]:
            raise RpcError(Code.UNIMPLEMENTED, "messages must not be compressed")

    def whole(self) -> bytes:
        """Raises RpcError unless it is exactly one."""
        if len(self._body) < 5 or len(self._body) - 5 != int.from_bytes(self._body[1:5], "big"):
            raise RpcError(Code.INTERNAL, "not one whole message")
        return bytes(self._body[5:])


def _frame_message(message: bytes) -> bytes:
    return b"\0" + len(message).to_bytes(4, "big") + message


class Server:
    """Serves methods, by their paths, on a Unix socket. Handlers raise RpcError to fail a call; cancelled ones have been given up.

    `at_once`: paths of unary methods whose handlers never wait; they run without a task.
    """

    def __init__(
        self,
        unary: Mapping[str, Unary],
        streaming: Mapping[str, Streaming],
        longest: int = LONGEST,
        at_once: Container[str] = (),
    ) -> None:
        self.unary, self.streaming, self.longest, self.at_once = unary, streaming, longest, at_once
        self._connections: set[Connection] = set()
        self._stopped = False

    async def start(self, path: Path) -> None:
        """Listen. Raises OSError."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_unix_server(self._new_connection, str(path), start_serving=False)
        try:
            await self._server.start_serving()
        except asyncio.CancelledError:
            self._server.close()
            path.unlink(missing_ok=True)
            raise

    async def stop(self, grace: float) -> None:
        """Take no more calls, and end those that are still open after so many seconds."""
        self._stopped = True
        # A connection that asyncio has accepted, but not made, would stay open: a closed Server of Python 3.11 fails it.
        for listening in self._server.sockets:
            asyncio.get_running_loop().remove_reader(listening.fileno())
        await asyncio.sleep(0)
        self._server.close()
        for connection in self._connections:
            connection.goaway()
        end = asyncio.get_running_loop().time() + grace
        while any(connection.streams for connection in self._connections):
            left = end - asyncio.get_running_loop().time()
            if left <= 0:
                break
            await asyncio.sleep(min(left, 0.01))
        for connection in list(self._connections):
            connection.transport.close()

    def _new_connection(self) -> Connection:
        def accept(stream: Stream) -> None:
            _Call(self, connection, stream)

        def join() -> None:
            if self._stopped:  # asyncio had accepted it before the server stopped, and makes it only now
                connection.transport.close()
            else:
                self._connections.add(connection)

        connection = Connection(accept, lambda: self._connections.discard(connection), join)
        return connection


class _Call:
    def __init__(self, server: Server, connection: Connection, stream: Stream) -> None:
        self._server, self._connection, self._stream = server, connection, stream
        self._path = ""
        self._request = Message(server.longest)
        self._answered = False  # headers are sent
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        stream.on_headers, stream.on_data = self._headers, self._data
        stream.on_end, stream.on_reset = self._end, self._reset

    def _headers(self, headers: list[Header]) -> None:
        if self._path:
            return  # trailers
        fields = dict(headers)
        self._path = fields.get(b":path", b"?").decode("latin-1")
        if not fields.get(b"content-type", b"").startswith(b"application/grpc"):
            self._stream.headers(encode([(b":status", b"415")]), end=True)
            self._stream.reset(NO_ERROR)
            return
        seconds = _seconds(fields.get(b"grpc-timeout", b"").decode("latin-1"))
        if seconds is not None:
            late = RpcError(Code.DEADLINE_EXCEEDED, "Deadline Exceeded")
            self._timer = asyncio.get_running_loop().call_later(seconds, self._fail, late)

    def _data(self, data: bytes) -> None:
        try:
            self._request.add(data)
        except RpcError as error:
            self._fail(error)

    def _end(self) -> None:
        try:
            request = self._request.whole()
        except RpcError as error:
            self._fail(error)
            return
        run = self._run(request)
        if self._path not in self._server.at_once:
            self._task = asyncio.ensure_future(run)
            return
        try:
            run.send(None)
        except StopIteration:
            return  # answered, in one write with what else the connection has to send
        raise RuntimeError(f"{self._path} waits")

    async def _run(self, request: bytes) -> None:
        try:
            if (unary := self._server.unary.get(self._path)) is not None:
                self._answer(await unary(request), _DONE)
            elif (streaming := self._server.streaming.get(self._path)) is not None:
                async with aclosing(streaming(request)) as answers:
                    async for answer in answers:
                        self._answer(answer)
                        await self._stream.sent.wait()
                self._finish(Code.OK)
            else:
                self._finish(Code.UNIMPLEMENTED, f"unknown method {self._path}")
        except RpcError as error:
            self._finish(error.code, error.details)
        except Exception as error:
            log.exception("a call of %s failed", self._path)
            self._finish(Code.UNKNOWN, f"{type(error).__name__}: {error}")

    def _answer(self, message: bytes, last: bytes | None = None) -> None:
        with self._connection.together():
            if not self._answered:
                self._answered = True
                self._stream.headers(_HEADERS)
            self._stream.data(_frame_message(message), last)
        if last is not None:
            self._stop_timer()

    def _finish(self, code: Code, details: str = "") -> None:
        self._stop_timer()
        status = encode(
            [(b"grpc-status", b"%d" % code), (b"grpc-message", quote(details, safe=PRINTABLE).encode())]
        )
        if self._answered:
            self._stream.data(b"", status)
        else:
            self._stream.headers(_HEADERS + status, end=True)

    def _fail(self, error: RpcError) -> None:
        """End the call, whatever its handler does and however much of the request is still to come."""
        if self._task is not None:
            self._task.cancel()
        if self._stream.number not in self._connection.streams:
            return
        with self._connection.together():
            self._stream.waiting.clear()  # a message that is not whole is not ended
            self._finish(error.code, error.details)
            if self._stream.number in self._connection.streams:
                self._stream.reset(NO_ERROR)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _reset(self, _code: int) -> None:
        self._stop_timer()
        if self._task is not None:
            self._task.cancel()


def _seconds(timeout: str) -> float | None:
    """The value of grpc-timeout; None for none, or one that is no such value."""
    if timeout[:-1].isdecimal() and timeout[-1:] in UNITS:
        return int(timeout[:-1]) * UNITS[timeout[-1:]]
    return None


async def call(socket: Path, method: str, request: bytes, *, seconds: float, longest: int = LONGEST) -> bytes:
    """The answer of a unary call, by a connection of its own, within so many seconds. Raises RpcError."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[bytes] = loop.create_future()
    # It may be too late to be awaited
    done.add_done_callback(lambda done: done.cancelled() or done.exception())
    answer, status = Message(longest), dict[bytes, bytes]()

    def fail(code: Code, details: str) -> None:
        if not done.done():
            done.set_exception(RpcError(code, details))

    def on_data(data: bytes) -> None:
        try:
            answer.add(data)
        except RpcError as error:
            fail(error.code, error.details)

    def on_end() -> None:
        if status.get(b":status") != b"200":
            fail(Code.UNKNOWN, f"HTTP status {status.get(b':status', b'?').decode('latin-1')}")
            return
        number = status.get(b"grpc-status", b"").decode("latin-1")
        code = Code(int(number)) if number.isdecimal() and int(number) in set(Code) else Code.UNKNOWN
        if code is not Code.OK:
            fail(code, unquote(status.get(b"grpc-message", b"").decode("latin-1")))
            return
        try:
            whole = answer.whole()
        except RpcError as error:
            fail(error.code, error.details)
            return
        if not done.done():
            done.set_result(whole)

    def on_reset(code: int) -> None:
        if code == REFUSED_STREAM or connection.closing:
            fail(Code.UNAVAILABLE, "the server goes away")
        else:
            fail(Code.INTERNAL, f"the server ended the call: {code}")

    connection = Connection(None, lambda: fail(Code.UNAVAILABLE, "the connection was closed"))
    timer = loop.call_later(seconds, fail, Code.DEADLINE_EXCEEDED, "Deadline Exceeded")
    try:
        await loop.create_unix_connection(lambda: connection, str(socket))
    except OSError as error:
        timer.cancel()
        raise RpcError(Code.UNAVAILABLE, f"{error.strerror or error}: {socket}") from None
    try:
        stream = connection.open()
        stream.on_headers, stream.on_data = status.update, on_data
        stream.on_end, stream.on_reset = on_end, on_reset
        headers = [
            (b":method", b"POST"),
            (b":scheme", b"http"),
            (b":path", method.encode()),
            (b":authority", b"localhost"),
            (b"te", b"trailers"),
            (b"content-type", b"application/grpc"),
            (b"grpc-timeout", b"%dm" % (seconds * 1000)),
        ]
        with connection.together():
            stream.headers(encode(headers))
            stream.data(_frame_message(request), b"")
        return await done
    finally:
        timer.cancel()
        connection.transport.close()
