"""Counters, and the HTTP server for them and the current state: /metrics for Prometheus, /healthz, /readyz."""

import asyncio
import socket
import struct
import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from itertools import accumulate

from .bounded import Bounded
from .state import NodeState

PREFIX = "gpunode_device_plugin_"
HELP = {
    "devices": "Units offered to the kubelet, by health",
    "memory_limited": "Whether the driver enforces containers' shares of a GPU's memory (1) or not (0), and why not",
    "left_out": "GPUs that offer nothing, and why",
    "held": "Units reserved while a container uses their device by an earlier configuration",
    "registered": "Whether the resource is registered with the kubelet (1) or not (0)",
    "registrations_total": "Registrations with the kubelet",
    "xids_total": "Xid events, whether they make the GPU Unhealthy or not",
    "pod_devices": "Units of a device allocated to a container, as the kubelet reports",
    "pod_resources_up": "Whether the kubelet reported which pods have devices (1) or not (0)",
    "allocations_total": "Containers that got devices",
    "allocations_refused_total": "Allocations that were refused",
    "allocate_seconds": "Time that Allocate took",
}
# Any pod of the cluster can connect: these limits bound the memory that requests take.
CONNECTIONS = 64  # per address
REQUEST = 8192  # bytes
DEADLINE = 10.0  # seconds to send a request and take its answer
BUCKETS = (0.0005, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0)  # seconds

NO_PAGES: Mapping[str, Callable[[], Awaitable[str]]] = {}

Sample = tuple[str, dict[str, str], float]


class CannotListen(Exception):
    """An address cannot be served; the message names it and the reason."""


class Metrics:
    """Counters and one histogram. May be called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[tuple[str, tuple[tuple[str, str], ...]]] = Counter()
        self._took: dict[str, list[int]] = {}  # allocations by resource, and by bucket
        self.xids: dict[str, int] = {}  # the last of each GPU, by UUID

    def count(self, name: str, by: float = 1, **labels: str) -> None:
        """Add to the counter `name`, a key of HELP."""
        with self._lock:
            self._counts[name, tuple(sorted(labels.items()))] += by  # type: ignore[assignment]

    def count_xid(self, gpu: str, number: int) -> None:
        self.count("xids_total", gpu=gpu, xid=str(number))
        self.xids[gpu] = number

    def observe_allocation(self, resource: str, seconds: float) -> None:
        """Count an answered Allocate and its duration."""
        self.count("allocate_seconds_sum", by=seconds, resource=resource)
        with self._lock:
            self._took.setdefault(resource, [0] * (len(BUCKETS) + 1))[bisect_left(BUCKETS, seconds)] += 1

    def samples(self) -> list[Sample]:
        with self._lock:
            samples: list[Sample] = [
                (name, dict(labels), value) for (name, labels), value in self._counts.items()
            ]
            for resource, counts in self._took.items():
                labels = {"resource": resource}
                for bound, count in zip(
                    (*map("{:g}".format, BUCKETS), "+Inf"), accumulate(counts), strict=True
                ):
                    samples.append(("allocate_seconds_bucket", {"le": bound, **labels}, count))
                for name in ("allocate_seconds_count", "allocations_total"):
                    samples.append((name, labels, sum(counts)))
            return samples


def render(samples: Iterable[Sample]) -> str:
    """The samples in Prometheus' text format."""
    families: dict[str, list[str]] = {}
    for name, labels, value in samples:
        families.setdefault(_family(name), []).append(f"{PREFIX}{name}{{{label_text(labels)}}} {value:.15g}")
    lines = []
    for family, rows in sorted(families.items()):
        kind = {"total": "counter", "seconds": "histogram"}.get(family.rpartition("_")[2], "gauge")
        lines += [f"# HELP {PREFIX}{family} {HELP[family]}", f"# TYPE {PREFIX}{family} {kind}", *rows]
    return "\n".join(lines) + "\n"


def state_samples(state: NodeState) -> list[Sample]:
    """Units by resource and health; GPUs shared by memory, with whether the driver enforces the shares; GPUs without any
    unit, by UUID, or by index where the UUID is unknown; reserved units, by resource and device."""
    samples: list[Sample] = []
    for resource, units in state.offers.items():
        reserved = state.reserved.get(resource, ())
        unhealthy = sum(unit.id in reserved or unit.device.uuid in state.unhealthy for unit in units)
        samples.append(("devices", {"resource": resource, "health": "Healthy"}, len(units) - unhealthy))
        samples.append(("devices", {"resource": resource, "health": "Unhealthy"}, unhealthy))
    for gpu, unlimited in state.memory_limits.items():
        samples.append(("memory_limited", {"gpu": gpu, "why": unlimited or ""}, float(unlimited is None)))
    for gpu, why in {**state.not_offered, **state.unidentified}.items():
        samples.append(("left_out", {"gpu": gpu, "why": str(why)}, 1.0))
    for reservation in state.reservations:
        labels = {"resource": reservation.resource, "gpu": reservation.device, "why": reservation.why}
        samples.append(("held", labels, float(len(reservation.ids))))
    return samples


@asynccontextmanager
async def serving(
    address: str,
    ready: Callable[[], str | None],
    pages: Mapping[str, Callable[[], Awaitable[str]]] = NO_PAGES,
) -> AsyncIterator[None]:
    """Serve HTTP on `address` ([host]:port; "": do not serve). `ready` returns why the plugin is not ready, or None.

    `pages` by path, beside /healthz and /readyz. Raises CannotListen.
    """
    if not address:
        yield
        return

    async def answer(path: str) -> tuple[str, str]:
        if path in pages:
            return "200 OK", await pages[path]()
        if path == "/healthz":
            return "200 OK", "ok\n"
        if path == "/readyz":
            why = ready()
            return ("200 OK", "ok\n") if why is None else ("503 Service Unavailable", f"{why}\n")
        return "404 Not Found", f"{''.join(f'{page}, ' for page in pages)}/healthz and /readyz are here\n"

    async def exchange(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = await reader.readuntil(b"\r\n\r\n")
        line = request.split(b"\r\n", 1)[0].decode("latin-1").split()
        status, body = await answer(line[1].partition("?")[0] if len(line) == 3 else "")
        head = f"HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n"
        writer.write(
            f"{head}Content-Length: {len(body.encode())}\r\nConnection: close\r\n\r\n{body}".encode()
        )
        writer.transport.set_write_buffer_limits(high=0)  # drain() then waits until all of it is sent
        await writer.drain()

    talks = Bounded[asyncio.Task[None]](CONNECTIONS, asyncio.Task.cancel)

    async def converse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        talk = asyncio.create_task(exchange(reader, writer))
        talks.add(talk)
        # A client that speaks no HTTP, is too slow or has disconnected gets no answer.
        await asyncio.wait({talk}, timeout=DEADLINE)
        talks.discard(talk)
        if talk.done() and not talk.cancelled() and talk.exception() is None:
            writer.close()
            return
        talk.cancel()
        if not writer.transport.is_closing():
            # Also drop what the kernel has buffered for it.
            linger = struct.pack("ii", 1, 0)
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            writer.transport.abort()

    host, _, port = address.rpartition(":")
    try:
        server = await asyncio.start_server(
            converse, host.strip("[]") or None, int(port), limit=REQUEST, start_serving=False
        )
    except OSError as error:
        raise CannotListen(f"cannot serve metrics and probes on {address}: {error.strerror}") from None
    async with server:
        await server.start_serving()
        yield


def _family(name: str) -> str:
    for ending in ("_bucket", "_sum", "_count"):
        if name.endswith(ending):
            return name.removesuffix(ending)
    return name


def label_text(labels: Mapping[str, str]) -> str:
    """The labels as they stand in braces."""
    return ",".join(f'{key}="{_escape(word)}"' for key, word in labels.items())


def _escape(word: str) -> str:
    return word.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
