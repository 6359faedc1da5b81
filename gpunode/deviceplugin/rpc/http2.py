"""Connections of HTTP/2 (RFC 9113) as gRPC uses them, for either end: frames, streams and flow control. No TLS, no push, no priorities.

Received data is taken without a bound on a stream, and its messages are bounded above (`rpc`): windows as large as they may be.
"""

import asyncio
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from .hpack import Decoder, Header, Malformed

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
ACK = END_STREAM = 0x1
END_HEADERS, PADDED, WITH_PRIORITY = 0x4, 0x8, 0x20
NO_ERROR, PROTOCOL_ERROR, FLOW_CONTROL_ERROR, STREAM_CLOSED, FRAME_SIZE_ERROR = 0, 1, 3, 5, 6
REFUSED_STREAM, CANCEL, COMPRESSION_ERROR, CALM = 7, 8, 9, 11
MAX_STREAMS, INITIAL_WINDOW, MAX_FRAME = 3, 4, 5  # settings

FRAME = 16384  # bytes of a frame's content, as long as SETTINGS say nothing else
WINDOW = 65535  # bytes, the same
LARGEST = 2**31 - 1
STREAMS = 100  # that a peer may open at a time
BLOCK = 65536  # bytes of headers
UNREAD = 16 * 1024 * 1024  # bytes that wait for a peer that only sends


class Broken(Exception):
    """The peer breaks the protocol: the connection ends."""

    def __init__(self, code: int, why: str) -> None:
        super().__init__(why)
        self.code = code


class Stream:
    """One call. Whoever uses the connection sets the callbacks of those that it opens or is given."""

    def __init__(self, connection: "Connection", number: int, window: int) -> None:
        self.number = number
        self.on_headers: Callable[[list[Header]], None] = lambda _: None
        self.on_data: Callable[[bytes], None] = lambda _: None
        self.on_end: Callable[[], None] = lambda: None  # the peer sends no more
        # It is gone, by the peer or with the connection
        self.on_reset: Callable[[int], None] = lambda _: None
        self.window = window  # bytes that may be sent
        self.waiting = bytearray()  # data that the windows do not allow yet
        self.last: bytes | None = None  # the trailers' block that follows it; b"": none, but the end
        self.sent = asyncio.Event()  # nothing is waiting
        self.over = [False, False]  # ours, theirs
        self._connection = connection

    def headers(self, block: bytes, *, end: bool = False) -> None:
        """Send headers, which `end` makes the last."""
        self._connection.send(HEADERS, END_HEADERS | (END_STREAM if end else 0), self.number, block)
        if end:
            self._connection.half_close(self, 0)

    def data(self, data: bytes, last: bytes | None = None) -> None:
        """Send data, then the trailers that `last` has (b"": none), with which the stream ends."""
        self.waiting += data
        self.last = last
        self.sent.clear()
        self._connection.pump(self)

    def reset(self, code: int) -> None:
        """End it at once, in both directions."""
        self._connection.forget(self)
        self._connection.send(RST_STREAM, 0, self.number, struct.pack(">I", code))


class Connection(asyncio.Protocol):
    """One end of a connection. `accept`: called with each stream that the peer opens; None: this end is the client."""

    transport: asyncio.Transport

    def __init__(
        self,
        accept: Callable[[Stream], None] | None,
        lost: Callable[[], None] = lambda: None,
        made: Callable[[], None] = lambda: None,
    ) -> None:
        self.streams: dict[int, Stream] = {}
        self.closing = False  # no more streams are taken, or can be opened
        self._accept, self._lost, self._made = accept, lost, made
        self._preface = b"" if accept is None else PREFACE
        self._buffer = bytearray()
        self._decoder = Decoder()
        self._newest = 0  # stream of the peer
        self._own = -1  # stream of this end
        # stream, flags and start of headers that are not whole
        self._block: tuple[int, int, bytearray] | None = None
        self._window = WINDOW  # bytes that may be sent on all streams
        self._initial = WINDOW  # of a stream, as the peer has it
        self._frame = FRAME
        self._taken = 0  # bytes received since the last update of the connection's window
        self._paused = self._broken = False
        self._out: list[bytes] | None = None  # frames that go together

    # asyncio's callbacks

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        settings = struct.pack(">HIHI", MAX_STREAMS, STREAMS, INITIAL_WINDOW, LARGEST)
        transport.write(
            (PREFACE if self._accept is None else b"")
            + frame(SETTINGS, 0, 0, settings)
            + frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", LARGEST - WINDOW))
        )
        self._made()

    def connection_lost(self, _error: Exception | None) -> None:
        self.closing = True
        for stream in list(self.streams.values()):
            self.forget(stream)
            stream.on_reset(CANCEL)
        self._lost()

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self._pump_all()

    def data_received(self, data: bytes) -> None:
        if self._broken:
            return
        self._buffer += data
        with self.together():
            try:
                self._frames()
            except (Broken, Malformed) as error:
                code = error.code if isinstance(error, Broken) else COMPRESSION_ERROR
                self.goaway(code, str(error).encode())
                self._broken = True
        if self._broken:
            self.transport.close()
        if self.transport.get_write_buffer_size() > UNREAD:
            self.transport.abort()

    # what is sent

    @contextmanager
    def together(self) -> Iterator[None]:
        """What is sent within goes as one."""
        outer, self._out = self._out, []
        try:
            yield
        finally:
            out, self._out = self._out, outer
            if out:
                self._write(b"".join(out))

    def open(self) -> Stream:
        """A new stream of this end."""
        self._own += 2
        stream = self.streams[self._own] = Stream(self, self._own, self._initial)
        return stream

    def goaway(self, code: int = NO_ERROR, why: bytes = b"") -> None:
        """Take no more streams; those that are open go on."""
        self.closing = True
        self.send(GOAWAY, 0, 0, struct.pack(">II", self._newest, code) + why)

    def send(self, kind: int, flags: int, stream: int, content: bytes) -> None:
        self._write(frame(kind, flags, stream, content))

    def _write(self, data: bytes) -> None:
        if self._out is not None:
            self._out.append(data)
        elif not self.transport.is_closing():
            self.transport.write(data)

    def pump(self, stream: Stream) -> None:
        """Send what the windows allow of a stream's data."""
        while stream.waiting and not self._paused:
            size = min(len(stream.waiting), stream.window, self._window, self._frame)
            if size <= 0:
                return
            end = stream.last == b"" and size == len(stream.waiting)
            self.send(DATA, END_STREAM if end else 0, stream.number, bytes(stream.waiting[:size]))
            del stream.waiting[:size]
            stream.window -= size
            self._window -= size
            if end:
                stream.last = None
                self.half_close(stream, 0)
        if stream.waiting:
            return
        stream.sent.set()
        if stream.last is not None:
            block, stream.last = stream.last, None
            stream.headers(block, end=True)

    def _pump_all(self) -> None:
        for stream in list(self.streams.values()):
            self.pump(stream)

    def half_close(self, stream: Stream, end: int) -> None:
        """One end (0: ours, 1: theirs) sends no more; a stream is over with both."""
        stream.over[end] = True
        if all(stream.over):
            self.streams.pop(stream.number, None)

    def forget(self, stream: Stream) -> None:
        """Nothing more is sent on it."""
        self.streams.pop(stream.number, None)
        stream.waiting.clear()
        stream.last = None
        stream.sent.set()

    # what is received

    def _frames(self) -> None:
        buffer, at = self._buffer, 0
        if self._preface:
            if not buffer.startswith(self._preface[: len(buffer)]):
                raise Broken(PROTOCOL_ERROR, "this is no HTTP/2")
            if len(buffer) < len(self._preface):
                return
            at, self._preface = len(self._preface), b""
        while len(buffer) - at >= 9:
            size = int.from_bytes(buffer[at : at + 3], "big")
            if size > FRAME:
                raise Broken(FRAME_SIZE_ERROR, "a frame is too large")
            if len(buffer) - at < 9 + size:
                break
            kind, flags = buffer[at + 3], buffer[at + 4]
            number = int.from_bytes(buffer[at + 5 : at + 9], "big") & LARGEST
            content = bytes(buffer[at + 9 : at + 9 + size])
            at += 9 + size
            if self._block is not None and (kind != CONTINUATION or number != self._block[0]):
                raise Broken(PROTOCOL_ERROR, "headers are not continued")
            if kind < len(self._TAKE):
                self._TAKE[kind](self, flags, number, content)
        del buffer[:at]

    def _stream(self, number: int) -> Stream | None:
        """The stream; None for one that is over. Raises Broken for one that nobody has opened."""
        stream = self.streams.get(number)
        ours = number % 2 == (self._accept is None)
        if stream is None and (not number or number > (self._own if ours else self._newest)):
            raise Broken(PROTOCOL_ERROR, "a frame for a stream that is not open")
        return stream

    def _data(self, flags: int, number: int, content: bytes) -> None:
        stream = self._stream(number)
        self._taken += len(content)
        if self._taken > LARGEST // 2:
            self.send(WINDOW_UPDATE, 0, 0, struct.pack(">I", self._taken))
            self._taken = 0
        data = _strip_padding(flags, content)
        if stream is None:
            return
        if stream.over[1]:
            raise Broken(STREAM_CLOSED, "data after the end of a stream")
        stream.on_data(data)
        if flags & END_STREAM:
            self._end_of_peer(stream)

    def _end_of_peer(self, stream: Stream) -> None:
        self.half_close(stream, 1)
        stream.on_end()

    def _headers(self, flags: int, number: int, content: bytes) -> None:
        block = _strip_padding(flags, content)
        if flags & WITH_PRIORITY:
            if len(block) < 5:
                raise Broken(FRAME_SIZE_ERROR, "no room for a priority")
            block = block[5:]
        self._block = (number, flags, bytearray())
        self._continuation(flags, number, block)

    def _continuation(self, flags: int, number: int, content: bytes) -> None:
        if self._block is None:
            raise Broken(PROTOCOL_ERROR, "headers without a beginning")
        _, first, block = self._block
        block += content
        if len(block) > BLOCK:
            raise Broken(CALM, "headers are too long")
        if not flags & END_HEADERS:
            return
        self._block = None
        # Also of a stream that is refused: the tables are the connection's
        headers = self._decoder.decode(bytes(block))
        stream = self.streams.get(number)
        if stream is None:
            stream = self._open_for_peer(number)
        elif stream.over[1]:
            raise Broken(STREAM_CLOSED, "headers after the end of a stream")
        if stream is None:
            return
        stream.on_headers(headers)
        if first & END_STREAM and number in self.streams:
            self._end_of_peer(stream)

    def _open_for_peer(self, number: int) -> Stream | None:
        """The stream that the peer opens; None for one that is over, or refused."""
        if self._accept is None or not number % 2:
            self._stream(number)
            return None
        if number <= self._newest:
            return None
        self._newest = number
        if self.closing or len(self.streams) >= STREAMS:
            self.send(RST_STREAM, 0, number, struct.pack(">I", REFUSED_STREAM))
            return None
        stream = self.streams[number] = Stream(self, number, self._initial)
        self._accept(stream)
        return stream

    def _priority(self, _flags: int, number: int, content: bytes) -> None:
        if len(content) != 5 or not number:
            raise Broken(FRAME_SIZE_ERROR if number else PROTOCOL_ERROR, "no priority")

    def _rst_stream(self, _flags: int, number: int, content: bytes) -> None:
        (code,) = _numbers(content, ">I")
        stream = self._stream(number)
        if stream is not None:
            self.forget(stream)
            stream.on_reset(code)

    def _settings(self, flags: int, number: int, content: bytes) -> None:
        if number or (content and flags & ACK):
            raise Broken(FRAME_SIZE_ERROR if content and flags & ACK else PROTOCOL_ERROR, "no settings")
        if flags & ACK:
            return
        if len(content) % 6:
            raise Broken(FRAME_SIZE_ERROR, "no settings")
        for key, value in struct.iter_unpack(">HI", content):
            if key == INITIAL_WINDOW:
                if value > LARGEST:
                    raise Broken(FLOW_CONTROL_ERROR, "a window is too large")
                for stream in self.streams.values():
                    stream.window += value - self._initial
                self._initial = value
            elif key == MAX_FRAME:
                if not FRAME <= value < 1 << 24:
                    raise Broken(PROTOCOL_ERROR, "no size of a frame")
                self._frame = value
        self.send(SETTINGS, ACK, 0, b"")
        self._pump_all()

    def _push(self, _flags: int, _number: int, _content: bytes) -> None:
        raise Broken(PROTOCOL_ERROR, "nothing may be pushed")

    def _ping(self, flags: int, number: int, content: bytes) -> None:
        if number or len(content) != 8:
            raise Broken(PROTOCOL_ERROR if number else FRAME_SIZE_ERROR, "no ping")
        if not flags & ACK:
            self.send(PING, ACK, 0, content)

    def _goaway(self, _flags: int, number: int, content: bytes) -> None:
        if number:
            raise Broken(PROTOCOL_ERROR, "a stream cannot go away")
        (last,) = _numbers(content[:4], ">I")
        self.closing = True
        for stream in list(self.streams.values()):
            if self._accept is None and stream.number > last & LARGEST:
                self.forget(stream)
                stream.on_reset(REFUSED_STREAM)

    def _window_update(self, _flags: int, number: int, content: bytes) -> None:
        more = _numbers(content, ">I")[0] & LARGEST
        stream = self._stream(number) if number else None
        if not number:
            self._window += more
        elif stream is not None:
            stream.window += more
        if not more or self._window > LARGEST:
            raise Broken(FLOW_CONTROL_ERROR if more else PROTOCOL_ERROR, "no size of a window")
        if stream is not None and stream.window > LARGEST:
            self.forget(stream)
            self.send(RST_STREAM, 0, number, struct.pack(">I", FLOW_CONTROL_ERROR))
            stream.on_reset(FLOW_CONTROL_ERROR)
        elif stream is not None:
            self.pump(stream)
        elif not number:
            self._pump_all()

    _TAKE = (
        _data, _headers, _priority, _rst_stream, _settings, _push, _ping, _goaway, _window_update, _continuation,
    )  # fmt: skip


def frame(kind: int, flags: int, stream: int, content: bytes) -> bytes:
    return struct.pack(">IBI", len(content) << 8 | kind, flags, stream) + content


def _numbers(content: bytes, form: str) -> tuple[int, ...]:
    try:
        return struct.unpack(form, content)
    except struct.error:
        raise Broken(FRAME_SIZE_ERROR, "a frame has another size") from None


def _strip_padding(flags: int, content: bytes) -> bytes:
    if not flags & PADDED:
        return content
    if not content or content[0] >= len(content):
        raise Broken(PROTOCOL_ERROR, "more padding than content")
    return content[1 : len(content) - content[0]]
