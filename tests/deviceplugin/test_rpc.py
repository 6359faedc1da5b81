"""gRPC between the plugin and kubelets: each end with the other one of the library grpcio, and frame by frame."""

import asyncio
import contextlib
import gc
import random
import socket
import struct
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import grpc
import pytest

from gpunode.contract.offer import Device, Unit
from gpunode.deviceplugin.kubelet import messages
from gpunode.deviceplugin.kubelet.allocate import Grant
from gpunode.deviceplugin.rpc import Code, RpcError, Server, call, hpack, http2
from gpunode.deviceplugin.rpc.hpack import Decoder, Malformed, encode
from gpunode.deviceplugin.rpc.http2 import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    INITIAL_WINDOW,
    PADDED,
    PING,
    PREFACE,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    WITH_PRIORITY,
    frame,
)  # fmt: skip
from gpunode.sim.node import podresources_pb2 as pods
from gpunode.sim.node import v1beta1_pb2 as beta

from . import v1alpha_pb2 as alpha

MIB = 1024 * 1024


class Service:
    """Answers of all kinds, and what became of the calls."""

    def __init__(self) -> None:
        self.ended: list[str] = []
        self.go_on = asyncio.Event()

    async def echo(self, request: bytes) -> bytes:
        return request

    async def refuse(self, request: bytes) -> bytes:
        raise RpcError(Code.INVALID_ARGUMENT, f"nicht möglich: 100 % of {request.decode()}\n…")

    async def fail(self, _request: bytes) -> bytes:
        raise ValueError("a mistake")

    async def wait(self, _request: bytes) -> bytes:
        try:
            await self.go_on.wait()
        except asyncio.CancelledError:
            self.ended.append("wait")
            raise
        return b"at last"

    async def large(self, request: bytes) -> bytes:
        return bytes(int(request))

    async def count(self, request: bytes) -> Any:
        try:
            for number in range(int(request)):
                yield b"%d" % number
            await self.go_on.wait()
        finally:
            self.ended.append("count")


@contextlib.asynccontextmanager
async def serving(folder: Path) -> AsyncIterator[tuple[Service, Path, Server]]:
    service, path = Service(), folder / "server.sock"
    unary = {f"/s/{name}": getattr(service, name) for name in ("echo", "refuse", "fail", "wait", "large")}
    server = Server(unary, {"/s/count": service.count})
    await server.start(path)
    try:
        yield service, path, server
    finally:
        service.go_on.set()
        await server.stop(grace=5)


def channel(path: Path, **options: int) -> Any:
    given = [("grpc.default_authority", "localhost"), ("grpc.use_local_subchannel_pool", 1)]
    return grpc.aio.insecure_channel(
        f"unix:{path}", options=[*given, *((f"grpc.{k}", v) for k, v in options.items())]
    )


async def until(condition: Callable[[], object]) -> None:
    while not condition():
        await asyncio.sleep(0.01)


async def test_grpcs_own_client_is_answered(sockets):
    """Messages, refusals with any text, mistakes, unknown methods, on two connections at once."""
    async with serving(sockets) as (_, path, _), channel(path) as first, channel(path) as other:
        for client in (first, other, first):
            assert await client.unary_unary("/s/echo")(b"") == b""
            assert await client.unary_unary("/s/echo")(b"x" * 100_000) == b"x" * 100_000
        long = channel(path, max_receive_message_length=-1)
        assert len(await long.unary_unary("/s/large")(b"%d" % (6 * MIB))) == 6 * MIB
        await long.close()
        for method, code, details in (
            ("/s/refuse", grpc.StatusCode.INVALID_ARGUMENT, "nicht möglich: 100 % of it\n…"),
            ("/s/fail", grpc.StatusCode.UNKNOWN, "ValueError: a mistake"),
            ("/s/none", grpc.StatusCode.UNIMPLEMENTED, "unknown method /s/none"),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await first.unary_unary(method)(b"it")
            assert (caught.value.code(), caught.value.details()) == (code, details)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await first.unary_unary("/s/echo")(bytes(5 * MIB))
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await first.unary_unary("/s/echo")(bytes(100), compression=grpc.Compression.Gzip)
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
        assert await first.unary_unary("/s/echo")(b"still") == b"still"


async def test_a_stream_ends_with_its_client_and_with_the_server(sockets):
    """A kubelet that cancels, and a plugin that stops: the kubelet gets all messages, and a proper end."""
    async with serving(sockets) as (service, path, _), channel(path) as client:
        stream = client.unary_stream("/s/count")(b"1000")
        assert [await stream.read() for _ in range(1000)] == [b"%d" % number for number in range(1000)]
        stream.cancel()
        await until(lambda: service.ended == ["count"])
        stream = client.unary_stream("/s/count")(b"1")
        assert await stream.read() == b"0"
        service.go_on.set()
        assert await stream.read() is grpc.aio.EOF  # type: ignore[attr-defined]
        assert await stream.code() is grpc.StatusCode.OK


async def test_a_call_ends_at_its_deadline(sockets):
    """Its handler, too."""
    async with serving(sockets) as (service, path, _), channel(path) as client:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await client.unary_unary("/s/wait")(b"", timeout=1)
        assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        await until(lambda: service.ended == ["wait"])
        with pytest.raises(RpcError) as ours:
            await call(path, "/s/wait", b"", seconds=1)
        assert ours.value.code is Code.DEADLINE_EXCEEDED


async def test_a_server_that_stops_lets_calls_end(sockets):
    """A call that goes on is answered; later ones are refused."""
    async with serving(sockets) as (service, path, server), channel(path) as client:
        waiting = asyncio.ensure_future(client.unary_unary("/s/wait")(b""))
        await until(lambda: any(connection.streams for connection in server._connections))
        stopping = asyncio.ensure_future(server.stop(grace=30))
        await asyncio.sleep(0.05)
        service.go_on.set()
        assert await waiting == b"at last"
        await stopping
        with pytest.raises(RpcError) as caught:
            await call(path, "/s/echo", b"", seconds=50)
        assert caught.value.code is Code.UNAVAILABLE


async def test_a_start_that_is_cancelled_leaves_no_socket(sockets):
    path = sockets / "p.sock"

    starting = asyncio.ensure_future(Server({}, {}).start(path))
    while not path.exists():
        await asyncio.sleep(0)
    starting.cancel()
    await asyncio.gather(starting, return_exceptions=True)
    assert starting.cancelled()
    assert not path.exists()
    gc.collect()  # warns of a socket that was not closed


@pytest.mark.parametrize("turns", range(6))
async def test_a_connection_that_comes_as_the_server_stops_is_closed(sockets, turns):
    """Of the loop, after which the server stops: asyncio takes several from a connection's arrival to its protocol."""
    server = Server({}, {})
    await server.start(sockets / "p.sock")
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(sockets / "p.sock"))
        client.setblocking(False)
        for _ in range(turns):
            await asyncio.sleep(0)
        await server.stop(grace=0)
        with contextlib.suppress(ConnectionResetError):
            while await asyncio.wait_for(asyncio.get_running_loop().sock_recv(client, 1024), 10):
                pass


async def test_grpcs_own_server_is_asked(sockets):
    """Answers of 20 MiB in many frames, refusals, deadlines, an end of the server, and none at all."""

    async def large(request, _context):
        return bytes(int(request))

    async def refuse(_request, context):
        await context.abort(grpc.StatusCode.NOT_FOUND, "nicht möglich: 100 %\n…")

    async def wait(_request, _context):
        await asyncio.Event().wait()

    server, path = (
        grpc.aio.server(options=[("grpc.max_send_message_length", -1)]),
        sockets / "theirs.sock",
    )
    handlers = {name: grpc.unary_unary_rpc_method_handler(how) for name, how in
                (("large", large), ("refuse", refuse), ("wait", wait))}  # fmt: skip
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("s", handlers),))
    server.add_insecure_port(f"unix:{path}")
    await server.start()
    assert await call(path, "/s/large", b"0", seconds=30) == b""
    assert await call(path, "/s/large", b"%d" % (20 * MIB), seconds=30, longest=32 * MIB) == bytes(20 * MIB)
    waiting = asyncio.ensure_future(call(path, "/s/wait", b"", seconds=30))
    for method, seconds, code, details in (
        ("/s/refuse", 30, Code.NOT_FOUND, "nicht möglich: 100 %\n…"),
        ("/s/none", 30, Code.UNIMPLEMENTED, "Method not found!"),
        ("/s/wait", 0.1, Code.DEADLINE_EXCEEDED, "Deadline Exceeded"),
        ("/s/large", 30, Code.RESOURCE_EXHAUSTED, "a message of 5242880 bytes is larger than 4194304"),
    ):
        with pytest.raises(RpcError) as caught:
            await call(path, method, b"%d" % (5 * MIB), seconds=seconds)
        assert (caught.value.code, caught.value.details) == (code, details)
    await server.stop(grace=None)
    for asking in (waiting, call(path, "/s/wait", b"", seconds=30)):
        with pytest.raises(RpcError) as caught:
            await asking
        assert caught.value.code is Code.UNAVAILABLE


class Peer:
    """A client, frame by frame."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    def send(self, *frames: bytes) -> None:
        self.writer.write(b"".join(frames))

    async def frames(self, *kinds: int) -> tuple[int, int, int, bytes]:
        """The next frame of one of these kinds: kind, flags, stream, content."""
        while True:
            head = await self.reader.readexactly(9)
            content = await self.reader.readexactly(int.from_bytes(head[:3], "big"))
            if head[3] in kinds:
                return head[3], head[4], int.from_bytes(head[5:], "big"), content


@contextlib.asynccontextmanager
async def peer(path: Path, settings: bytes = b"") -> AsyncIterator[Peer]:
    reader, writer = await asyncio.open_unix_connection(str(path))
    peer = Peer(reader, writer)
    peer.send(PREFACE, frame(SETTINGS, 0, 0, settings))
    yield peer
    writer.close()


def asked(method: str, *more: tuple[bytes, bytes]) -> bytes:
    names = [(b":method", b"POST"), (b":scheme", b"http"), (b":path", method.encode()), (b":authority", b"x")]
    return encode([*names, (b"content-type", b"application/grpc"), *more])


def framed(message: bytes) -> bytes:
    return b"\0" + len(message).to_bytes(4, "big") + message


async def test_headers_and_messages_come_in_any_pieces(sockets):
    """Padded, with a priority, continued, and byte by byte."""
    async with serving(sockets) as (_, path, _), peer(path) as client:
        block, message = asked("/s/echo"), framed(b"hello")
        first = frame(HEADERS, PADDED | WITH_PRIORITY, 1, b"\3" + bytes(4) + b"\x10" + block[:7] + bytes(3))
        client.send(first, frame(CONTINUATION, 0, 1, block[7:9]))
        client.send(frame(CONTINUATION, END_HEADERS, 1, block[9:]))
        for byte in message:
            client.send(frame(DATA, PADDED, 1, bytes((2, byte, 0, 0))))
        for byte in frame(DATA, END_STREAM, 1, b""):
            client.send(bytes((byte,)))
            await client.writer.drain()
            await asyncio.sleep(0)
        assert await client.frames(DATA) == (DATA, 0, 1, message)
        _, flags, _, trailers = await client.frames(HEADERS)
        assert flags & END_STREAM
        assert dict(Decoder().decode(trailers)) == {b"grpc-status": b"0"}


async def test_no_more_is_sent_than_the_windows_allow(sockets):
    """Of a stream, which SETTINGS may change, even below 0, and of the connection."""
    async with (
        serving(sockets) as (_, path, _),
        peer(path, struct.pack(">HI", INITIAL_WINDOW, 10)) as client,
    ):
        client.send(frame(HEADERS, END_HEADERS, 1, asked("/s/large")))
        client.send(frame(DATA, END_STREAM, 1, framed(b"100000")))
        assert len((await client.frames(DATA))[3]) == 10
        client.send(frame(SETTINGS, 0, 0, struct.pack(">HI", INITIAL_WINDOW, 4)))
        client.send(frame(WINDOW_UPDATE, 0, 1, struct.pack(">I", 6)))  # the window is 0
        client.send(frame(PING, 0, 0, b"12345678"))
        assert await client.frames(DATA, PING) == (PING, ACK, 0, b"12345678")
        client.send(frame(WINDOW_UPDATE, 0, 1, struct.pack(">I", 1_000_000)))
        got = 10
        while got < 65535:
            got += len((await client.frames(DATA))[3])
        assert got == 65535
        client.send(frame(PING, 0, 0, b"12345678"))
        assert (await client.frames(DATA, PING))[0] == PING
        client.send(frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", 1_000_000)))
        while got < 100_005:
            got += len((await client.frames(DATA))[3])
        assert (await client.frames(DATA, HEADERS))[0] == HEADERS


async def test_a_call_that_is_reset_is_given_up(sockets):
    """Those beside it are not; and what comes late for it is passed over."""
    async with serving(sockets) as (service, path, _), peer(path) as client:
        client.send(frame(HEADERS, END_HEADERS, 1, asked("/s/wait")), frame(DATA, END_STREAM, 1, framed(b"")))
        client.send(frame(HEADERS, END_HEADERS, 3, asked("/s/echo")))
        client.send(frame(PING, 0, 0, b"12345678"))
        await client.frames(PING)
        client.send(frame(RST_STREAM, 0, 1, bytes(4)), frame(WINDOW_UPDATE, 0, 1, struct.pack(">I", 5)))
        await until(lambda: service.ended == ["wait"])
        client.send(frame(DATA, END_STREAM, 3, framed(b"x")))
        assert (await client.frames(DATA))[2:] == (3, framed(b"x"))


async def test_calls_beyond_the_limit_are_refused(sockets):
    """For another try; the others go on."""
    async with serving(sockets) as (_, path, _), peer(path) as client:
        for number in range(http2.STREAMS + 1):
            client.send(frame(HEADERS, END_HEADERS, 2 * number + 1, asked("/s/wait")))
        refused = struct.pack(">I", http2.REFUSED_STREAM)
        assert (await client.frames(RST_STREAM))[2:] == (2 * http2.STREAMS + 1, refused)


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", http2.PROTOCOL_ERROR),
        (PREFACE + frame(DATA, 0, 1, b"x"), http2.PROTOCOL_ERROR),
        (PREFACE + frame(DATA, 0, 0, b"x"), http2.PROTOCOL_ERROR),
        (PREFACE + frame(CONTINUATION, 0, 1, b""), http2.PROTOCOL_ERROR),
        (PREFACE + frame(HEADERS, 0, 1, b"") + frame(PING, 0, 0, bytes(8)), http2.PROTOCOL_ERROR),
        (PREFACE + frame(HEADERS, END_HEADERS, 1, b"\xff\xff\xff\xff\xff\xff"), http2.COMPRESSION_ERROR),
        (PREFACE + frame(HEADERS, END_HEADERS | PADDED, 1, b"\xff"), http2.PROTOCOL_ERROR),
        (PREFACE + frame(PING, 0, 0, b"short"), http2.FRAME_SIZE_ERROR),
        (PREFACE + frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", 2**31 - 1)), http2.FLOW_CONTROL_ERROR),
        (PREFACE + frame(WINDOW_UPDATE, 0, 0, bytes(4)), http2.PROTOCOL_ERROR),
        (PREFACE + frame(SETTINGS, 0, 0, b"12345"), http2.FRAME_SIZE_ERROR),
        (PREFACE + b"\xff\xff\xff" + bytes(6), http2.FRAME_SIZE_ERROR),
        (PREFACE + frame(HEADERS, 0, 1, b"") + frame(CONTINUATION, 0, 1, bytes(16000)) * 5, http2.CALM),
    ],
)  # fmt: skip
async def test_a_peer_that_breaks_the_protocol_is_told_and_left(sockets, sent, code):
    """With the error's code; the server goes on."""
    async with serving(sockets) as (_, path, server):
        reader, writer = await asyncio.open_unix_connection(str(path))
        writer.write(sent)
        content = (await Peer(reader, writer).frames(GOAWAY))[3]
        assert int.from_bytes(content[4:8], "big") == code
        await until(reader.at_eof) if await reader.read() else None
        writer.close()
        assert await call(path, "/s/echo", b"on", seconds=50) == b"on"
        await until(lambda: not server._connections)


async def test_bytes_of_any_kind_end_a_connection_at_most(sockets):
    """Frames with random changes, and nothing that the server keeps of them."""
    chance = random.Random(5)
    async with serving(sockets) as (service, path, server):
        good = PREFACE + frame(SETTINGS, 0, 0, b"") + frame(HEADERS, END_HEADERS, 1, asked("/s/echo"))
        good += frame(DATA, END_STREAM, 1, framed(b"hello")) + frame(PING, 0, 0, bytes(8))
        for _ in range(300):
            bad = bytearray(good)
            for _ in range(chance.randint(1, 6)):
                bad[chance.randrange(len(PREFACE), len(bad))] = chance.randrange(256)
            reader, writer = await asyncio.open_unix_connection(str(path))
            writer.write(bytes(bad))
            writer.write_eof()
            with contextlib.suppress(ConnectionError):
                await reader.read()
            writer.close()
        service.go_on.set()
        assert await call(path, "/s/echo", b"on", seconds=50) == b"on"
        await until(lambda: not server._connections)


def test_headers_are_those_of_the_standards_examples():
    """RFC 7541, appendix C.4 and C.6: requests and answers in Huffman's code; of the second, entries are evicted."""
    decoder = Decoder()
    for block, last in (
        ("828684418cf1e3c2e5f23a6ba0ab90f4ff", (b":authority", b"www.example.com")),
        ("828684be5886a8eb10649cbf", (b"cache-control", b"no-cache")),
        ("828785bf408825a849e95ba97d7f8925a849e95bb8e8b4bf", (b"custom-key", b"custom-value")),
    ):
        assert decoder.decode(bytes.fromhex(block))[-1] == last
    decoder = Decoder()
    decoder._bound = 256
    answers = [
        decoder.decode(bytes.fromhex(block))
        for block in (
            "488264025885aec3771a4b6196d07abe941054d444a8200595040b8166e082a62d1bff6e919d29ad171863c78f0b97c8e9ae82ae43d3",
            "4883640effc1c0bf",
            "88c16196d07abe941054d444a8200595040b8166e084a62d1bffc05a839bd9ab77ad94e7821dd7f2e6c7b335dfdfcd5b3960d5af27087f3672c1ab270fb5291f9587316065c003ed4ee5b1063d5007",
        )
    ]
    assert answers[1] == [
        (b":status", b"307"), (b"cache-control", b"private"), (b"date", b"Mon, 21 Oct 2013 20:13:21 GMT"),
        (b"location", b"https://www.example.com"),
    ]  # fmt: skip
    assert answers[2][-1] == (
        b"set-cookie",
        b"foo=ASDJKHQKBZXOQWEOPIUAXQWEOIU; max-age=3600; version=1",
    )
    assert decoder._size == 215
    assert sum(2.0 ** -int(bits) for bits in hpack.BITS.split()) == 1  # a whole code


def test_what_is_encoded_is_decoded():
    """Of every length that needs another form."""
    headers = [(b"x" * size, b"y" * size) for size in (1, 126, 127, 128, 254, 255, 300, 20_000)]
    assert Decoder().decode(encode(headers)) == headers


@pytest.mark.parametrize(
    "block", ["80", "ff80808080", "3fe21f", "00", "0005", "00850000000000", "0081ff", "0084ffffffff", "c0"]
)
def test_what_is_no_header_block_is_malformed(block):
    """Entry 0, numbers without an end, a table that is too large, texts that end early or have no code."""
    with pytest.raises(Malformed):
        Decoder().decode(bytes.fromhex(block))


def test_messages_are_those_of_protobuf():
    """Of random texts: what one writes, the other reads."""
    chance = random.Random(7)

    def text() -> str:
        return "".join(chance.choice("aé€/-0") for _ in range(chance.choice((0, 1, 5, 40, 200))))

    def texts() -> list[str]:
        return [text() for _ in range(chance.randint(0, 4))]

    def pairs() -> dict[str, str]:
        return {text(): text() for _ in range(chance.randint(0, 3))}

    for _ in range(300):
        given = Grant(pairs(), list(pairs().items()), list(pairs().items()), pairs(), texts())

        def edits(kind: Any, module: Any, given: Grant = given, **more: Any) -> Any:
            mounts = [module.Mount(container_path=inside, host_path=host) for inside, host in given.mounts]
            nodes = [
                module.DeviceSpec(container_path=inside, host_path=host, permissions="rw")
                for inside, host in given.nodes
            ]
            return kind(envs=given.envs, mounts=mounts, devices=nodes, **more)

        cdi = [beta.CDIDevice(name=name) for name in given.cdi]
        whole = edits(beta.ContainerAllocateResponse, beta, annotations=given.annotations, cdi_devices=cdi)
        answer = beta.AllocateResponse.FromString(messages.allocate_response([given, given]))
        assert list(answer.container_responses) == [whole, whole]
        ours = alpha.AllocateResponse.FromString(messages.allocate_response_1_9(given))
        assert ours == edits(alpha.AllocateResponse, alpha)
        old = alpha.AllocateResponse18.FromString(messages.allocate_response_1_8(given, ["a", "b"]))
        first = edits(alpha.DeviceRuntimeSpec, alpha, ID="a")
        assert list(old.spec) == [first, alpha.DeviceRuntimeSpec(ID="b")]

        version, endpoint, resource = text(), text(), text()
        flags = {
            "pre_start_required": chance.random() < 0.5,
            "get_preferred_allocation_available": chance.random() < 0.5,
        }
        options = messages.options(
            pre_start=flags["pre_start_required"], preferred=flags["get_preferred_allocation_available"]
        )
        assert beta.RegisterRequest.FromString(messages.registration(version, endpoint, resource, options)) == (
            beta.RegisterRequest(version=version, endpoint=endpoint, resource_name=resource, options=beta.DevicePluginOptions(**flags))
        )  # fmt: skip

        name, node = text(), chance.choice((None, 0, 3, 300))
        gpu = Device(uuid="GPU", index="0", name="", gpu="GPU", bus="", memory=None, numa=node, nodes=())
        listed = beta.ListAndWatchResponse.FromString(messages.device(Unit(name, gpu), "Healthy"))
        topology = None if node is None else beta.TopologyInfo(nodes=[beta.NUMANode(ID=node)])
        assert list(listed.devices) == [beta.Device(ID=name, health="Healthy", topology=topology)]

        some, others, size = texts(), texts(), chance.choice((0, 1, -1, 70_000, 2**31 - 1, -(2**31)))
        preference = beta.ContainerPreferredAllocationRequest(
            available_deviceIDs=some, must_include_deviceIDs=others, allocation_size=size
        )
        asked = beta.PreferredAllocationRequest(
            container_requests=[preference, preference]
        ).SerializeToString()
        assert messages.preferences(asked) == [(some, others, size)] * 2
        preferred = beta.PreferredAllocationResponse.FromString(messages.preferred_response([some, others]))
        assert [list(each.deviceIDs) for each in preferred.container_responses] == [some, others]
        allocate = beta.AllocateRequest(
            container_requests=[beta.ContainerAllocateRequest(devices_ids=ids) for ids in (some, others)]
        )
        assert messages.ids_by_container(allocate.SerializeToString()) == [some, others]
        assert messages.ids(alpha.AllocateRequest(devicesIDs=some).SerializeToString()) == some
        assert messages.ids(beta.PreStartContainerRequest(devices_ids=others).SerializeToString()) == others

        devices = pods.ContainerDevices(resource_name=resource, device_ids=some)
        container = pods.ContainerResources(name=endpoint, devices=[devices])
        pod = pods.PodResources(name="p", namespace="n", containers=[container])
        unknown = b"\x78\x05" + b"\x7d1234" + b"\x7912345678"  # fields 15 of three types
        reported = messages.containers_devices(
            pods.ListPodResourcesResponse(pod_resources=[pod]).SerializeToString() + unknown
        )
        assert [(each.pod.name, each.container, each.resource, each.ids) for each in reported] == [
            ("n/p", endpoint, resource, tuple(sorted(set(some))))
        ]


@pytest.mark.parametrize(
    "message", [b"\x0a", b"\x0a\x05abc", b"\x0b", b"\x80" * 12, b"\x0a\x02\xff\xfe", b"\x0d123"]
)
def test_what_is_no_message_is_refused(message):
    with pytest.raises(ValueError):  # noqa: PT011 (any kind of it)
        messages.ids(message)
