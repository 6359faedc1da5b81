"""Counts what happens and serves it with the present state: /metrics for Prometheus, /healthz, /readyz."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager

from .offer.board import Board

PREFIX = "gpunode_device_plugin_"
HELP = {
    "devices": "Units offered to the kubelet, by health",
    "memory_limited": "Whether the driver holds containers to their part of a GPU (1) or not (0), and why not",
    "left_out": "GPUs of which nothing is offered, and why",
    "held": "Units that wait for a container which has their device by an earlier configuration",
    "registered": "Whether the resource is registered with the kubelet (1) or not (0)",
    "registrations_total": "Registrations with the kubelet",
    "xids_total": "Xid events, whether they count against the GPU or not",
    "pod_devices": "Units of a device that a container has, as the kubelet tells",
    "pod_resources_up": "Whether the kubelet told which pods have devices (1) or not (0)",
    "allocations_total": "Containers that were given devices",
    "allocations_refused_total": "Allocations that were refused",
    "allocate_seconds": "Time that Allocate took",
}
# What every pod of the cluster may ask for costs no more memory than this many small requests and pages.
CONNECTIONS = 64  # to an address; the oldest makes room for one more, so that a probe gets through whoever else is there
REQUEST = 8192  # bytes
DEADLINE = 10.0  # seconds in which a request is read, and its answer taken
BUCKETS = (0.0005, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0)  # seconds

Sample = tuple[str, dict[str, str], float]


class CannotListen(Exception):
    """An address cannot be had; says which, and why."""


class Metrics:
    """Counters and one histogram. May be called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[tuple[str, tuple[tuple[str, str], ...]]] = Counter()

    def count(self, name: str, by: float = 1, **labels: str) -> None:
        """Add to the counter `name`, one of HELP's."""
        with self._lock:
            self._counts[name, tuple(sorted(labels.items()))] += by  # type: ignore[assignment]

    def allocated(self, resource: str, seconds: float) -> None:
        """An Allocate was answered, after so long."""
        self.count("allocations_total", resource=resource)
        for bound in BUCKETS:
            self.count("allocate_seconds_bucket", by=seconds <= bound, resource=resource, le=f"{bound:g}")
        self.count("allocate_seconds_bucket", resource=resource, le="+Inf")
        self.count("allocate_seconds_sum", by=seconds, resource=resource)
        self.count("allocate_seconds_count", resource=resource)

    def samples(self) -> list[Sample]:
        with self._lock:
            return [(name, dict(labels), value) for (name, labels), value in self._counts.items()]


def text(samples: Iterable[Sample]) -> str:
    """The samples as Prometheus reads them."""
    families: dict[str, list[str]] = {}
    for name, labels, value in samples:
        inner = ",".join(f'{key}="{_escaped(word)}"' for key, word in labels.items())
        families.setdefault(_family(name), []).append(f"{PREFIX}{name}{{{inner}}} {value:.15g}")
    lines = []
    for family, rows in sorted(families.items()):
        kind = (
            "counter"
            if family.endswith("_total")
            else "histogram"
            if family.endswith("_seconds")
            else "gauge"
        )
        lines += [f"# HELP {PREFIX}{family} {HELP[family]}", f"# TYPE {PREFIX}{family} {kind}", *rows]
    return "\n".join(lines) + "\n"


def offered(board: Board) -> list[Sample]:
    """How many units there are now, by resource and health."""
    found: list[Sample] = []
    for resource, units in board.offers.items():
        held = board.held.get(resource, ())
        sick = sum(unit.id in held or unit.device.uuid in board.sick for unit in units)
        found.append(("devices", {"resource": resource, "health": "Healthy"}, len(units) - sick))
        found.append(("devices", {"resource": resource, "health": "Unhealthy"}, sick))
    return found


def limited(board: Board) -> list[Sample]:
    """Of the GPUs shared by memory, whether the driver holds containers to their part."""
    return [
        ("memory_limited", {"gpu": gpu, "why": why or ""}, float(why is None))
        for gpu, why in board.limits.items()
    ]


def left_out(board: Board) -> list[Sample]:
    """GPUs of which nothing is offered, by UUID, or by index where they do not tell that."""
    left = {**board.left, **board.mute}
    return [("left_out", {"gpu": gpu, "why": str(why)}, 1.0) for gpu, why in left.items()]


def held(board: Board) -> list[Sample]:
    """Units that wait for a container which has their device by an earlier configuration."""
    return [
        ("held", {"resource": hold.resource, "gpu": hold.device, "why": hold.why}, float(len(hold.ids)))
        for hold in board.holds
    ]


@asynccontextmanager
async def serving(
    address: str, ready: Callable[[], str | None], metrics: Callable[[], Awaitable[str]] | None = None
) -> AsyncIterator[None]:
    """Answer HTTP on `address` ([host]:port; "" for not at all). `ready` gives the reason why not, or None.

    Without `metrics` there is no such page. Raises CannotListen.
    """
    if not address:
        yield
        return

    async def answer(path: str) -> tuple[str, str]:
        if path == "/metrics" and metrics is not None:
            return "200 OK", await metrics()
        if path == "/healthz":
            return "200 OK", "ok\n"
        if path == "/readyz":
            why = ready()
            return ("200 OK", "ok\n") if why is None else ("503 Service Unavailable", f"{why}\n")
        return "404 Not Found", f"{'/metrics, ' if metrics else ''}/healthz and /readyz are here\n"

    async def exchange(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = await reader.readuntil(b"\r\n\r\n")
        words = request.split(b"\r\n", 1)[0].decode("latin-1").split()
        status, body = await answer(words[1].partition("?")[0] if len(words) == 3 else "")
        head = f"HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n"
        writer.write(
            f"{head}Content-Length: {len(body.encode())}\r\nConnection: close\r\n\r\n{body}".encode()
        )
        writer.transport.set_write_buffer_limits(high=0)  # drained is all of it sent
        await writer.drain()

    talks: dict[asyncio.Task[None], None] = {}  # in the order they began

    async def converse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(talks) >= CONNECTIONS:
            oldest = next(iter(talks))
            del talks[oldest]
            oldest.cancel()
        talk = asyncio.create_task(exchange(reader, writer))
        talks[talk] = None
        # Not HTTP, too slow, or gone: nobody is there to be answered.
        await asyncio.wait({talk}, timeout=DEADLINE)
        talks.pop(talk, None)
        if talk.done() and not talk.cancelled() and talk.exception() is None:
            writer.close()
            return
        talk.cancel()
        if not writer.transport.is_closing():
            # What it has not taken is not kept for it, by the kernel neither.
            linger = struct.pack("ii", 1, 0)
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            writer.transport.abort()

    host, _, port = address.rpartition(":")
    try:
        server = await asyncio.start_server(converse, host.strip("[]") or None, int(port), limit=REQUEST)
    except OSError as error:
        raise CannotListen(f"cannot serve metrics and probes on {address}: {error.strerror}") from None
    async with server:
        yield


def _family(name: str) -> str:
    for ending in ("_bucket", "_sum", "_count"):
        if name.endswith(ending):
            return name.removesuffix(ending)
    return name


def _escaped(word: str) -> str:
    return word.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
