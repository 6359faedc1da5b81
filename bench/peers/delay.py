"""A network with latency: a process that forwards each connection, and everything on it half of a round trip later."""

import asyncio
import json
import sys
from collections.abc import Sequence


async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, seconds: float) -> None:
    """Copy one direction to its end. What comes in goes out `seconds` later; later input does not wait for earlier output."""
    loop = asyncio.get_running_loop()
    under_way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

    async def receive() -> None:
        data = b"first"
        while data:
            try:
                data = await reader.read(65536)
            except OSError:
                data = b""
            under_way.put_nowait((loop.time() + seconds, data))

    receiving = asyncio.create_task(receive())
    try:
        while True:
            due, data = await under_way.get()
            await asyncio.sleep(due - loop.time())
            if not data:
                break
            writer.write(data)
            await writer.drain()
    except OSError:
        pass
    finally:
        receiving.cancel()
        writer.close()


async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, port: int, trip: float) -> None:
    address = writer.get_extra_info("sockname")[0]
    await asyncio.sleep(trip)  # TCP's handshake
    there = await asyncio.open_connection(address, port)
    await asyncio.gather(carry(reader, there[1], trip / 2), carry(there[0], writer, trip / 2))


async def serve(addresses: Sequence[str], port: int, doors: Sequence[tuple[int, float]]) -> None:
    """A door is a port, and the seconds of the round trip to the server behind it, which is `port` of the same address."""
    servers = [
        await asyncio.start_server(
            lambda reader, writer, trip=trip: forward(reader, writer, port, trip),  # type: ignore[misc]
            addresses,
            door,
            backlog=512,
        )
        for door, trip in doors
    ]
    print("ready", flush=True)
    await asyncio.gather(*(server.serve_forever() for server in servers))


if __name__ == "__main__":
    asyncio.run(serve(*json.loads(sys.argv[1])))
