"""How quick and how light the scheduler extender is: `python bench/share.py`. Prints a JSON object.

1,000 nodes of eight GPUs and 10,000 bound pods. The extender is a process of its own, asked over HTTP on the loopback
as the scheduler asks: one filter after the other, binds side by side. The API server behind it is a stand-in that takes
10 ms for a request; the scheduler is none.
"""

import http.client
import json
import os
import random
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from gpunode.contract.promises import INDEX  # noqa: E402
from gpunode.deviceplugin.cluster.apiserver import ApiError, Object  # noqa: E402
from gpunode.share.ledger import Ledger  # noqa: E402
from gpunode.share.protocol import Extender  # noqa: E402
from gpunode.share.server import Server  # noqa: E402
from tests.share.objects import MEM, node, pod  # noqa: E402

NODES, PODS, GPUS, UNITS = 1000, 10_000, 8, 80
STEPS = PODS // 4, PODS // 2  # at which memory is read, too: it is linear in pods
FILTERS, BINDS, AT_ONCE = 500, 1000, 50
REQUEST = 0.01  # seconds the API server takes


class Slow:
    """An API server with pods that all ask for four units and can be bound once."""

    def __init__(self) -> None:
        self._bound: set[str] = set()

    def get(self, path: str) -> Object:
        time.sleep(REQUEST)
        return pod(path.rpartition("/")[2], 4)

    def send(self, method: str, path: str, body: Object | None = None) -> None:
        time.sleep(REQUEST)
        if path in self._bound:
            raise ApiError(409, "bound already")
        self._bound.add(path)

    def watch(self, path: str, seconds: int) -> Iterator[tuple[str, Object]]:
        raise NotImplementedError


def memory() -> float:
    """This process's, in MiB."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) / 1024


def extender() -> None:
    """Serve until the input ends; print a line about the ledger first."""
    chance = random.Random(1)
    before, began = memory(), time.perf_counter()
    ledger = Ledger.of(
        MEM, (node(f"n{number}", *[UNITS] * GPUS, published=True) for number in range(NODES)), ()
    )
    with_nodes = memory()
    of_pods = {}
    for number in range(PODS):
        if number in STEPS:
            of_pods[number] = round(memory() - with_nodes, 1)
        where = {INDEX: str(chance.randrange(GPUS))}
        ledger.put_pod(
            pod(f"old{number}", chance.choice([2, 4, 8, 16, 40]), on=f"n{number % NODES}", **where)
        )
    figures: dict[str, Any] = {
        "built_s": round(time.perf_counter() - began, 2),
        "memory_of_nodes_mib": round(with_nodes - before, 1),
        "memory_of_pods_mib": {**of_pods, PODS: round(memory() - with_nodes, 1)},
    }
    event = pod("old0", 4, on="n0", **{INDEX: "1"})
    began = time.perf_counter()
    for _ in range(PODS):
        ledger.put_pod(event)
    figures["event_us"] = round((time.perf_counter() - began) / PODS * 1e6, 1)
    with Server(("127.0.0.1", 0), Extender(ledger, Slow())) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        print(json.dumps({"port": server.server_address[1], **figures}), flush=True)
        sys.stdin.read()
        print(json.dumps({"memory_at_the_end_mib": round(memory(), 1)}), flush=True)
        server.shutdown()


class Client:
    """One kept connection, as Go's client has them."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)

    def ask(self, verb: str, body: bytes) -> tuple[float, Any]:
        """Milliseconds, and the answer, which is not read within them."""
        began = time.perf_counter()
        self._connection.request("POST", f"/{verb}", body)
        text = self._connection.getresponse().read()
        return (time.perf_counter() - began) * 1000, json.loads(text)


def timed(child: tuple[int, int], verb: str, bodies: list[bytes]) -> dict[str, float]:
    """Of the extender with this port and pid; its CPU time shows what a busy machine adds."""
    port, pid = child
    client, before = Client(port), cpu_seconds(pid)
    took = sorted(client.ask(verb, body)[0] for body in bodies)
    cpu = round((cpu_seconds(pid) - before) / len(bodies) * 1000, 2)
    return {
        "cpu_ms": cpu,
        "p50_ms": round(statistics.median(took), 2),
        "p99_ms": round(took[int(len(took) * 0.99)], 2),
    }


def binds(port: int) -> dict[str, float]:
    """Pods bound side by side, each to the first node that a filter leaves, and how long filters take meanwhile."""
    local, filters = threading.local(), []
    done = threading.Event()

    def bind(number: int) -> str:
        if not hasattr(local, "client"):
            local.client = Client(port)
        body = {"PodName": f"new{number}", "PodNamespace": "default", "PodUID": f"uid-new{number}"}
        answer = local.client.ask("bind", json.dumps(body | {"Node": f"n{number % NODES}"}).encode())[1]
        return str(answer["Error"])

    def filtering() -> None:
        client = Client(port)
        while not done.is_set():
            filters.append(client.ask("filter", args(pod("new", 4)))[0])

    thread = threading.Thread(target=filtering)
    thread.start()
    began = time.perf_counter()
    with ThreadPoolExecutor(AT_ONCE) as pool:
        errors = [error for error in pool.map(bind, range(BINDS)) if error]
    seconds = time.perf_counter() - began
    done.set()
    thread.join()
    worst = sorted(filters)[int(len(filters) * 0.99)]
    return {
        "a_second": round(BINDS / seconds),
        "refused": len(errors),
        "filter_p99_ms_meanwhile": round(worst, 2),
    }


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def args(asking: Object, *, whole: bool = False) -> bytes:
    """ExtenderArgs; `whole`: with the nodes themselves, of about 10 KiB each."""
    names = [f"n{number}" for number in range(NODES)]
    if not whole:
        return json.dumps({"Pod": asking, "NodeNames": names}).encode()
    images = [{"names": [f"team/image-{number}@sha256:{'0' * 64}"]} for number in range(80)]
    items = [{"metadata": {"name": name}, "status": {"images": images}} for name in names]
    return json.dumps({"Pod": asking, "Nodes": {"items": items}}).encode()


def main() -> None:
    command = [sys.executable, __file__, "extender"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        results: dict[str, Any] = {"ledger": json.loads(child.stdout.readline())}
        port = results["ledger"].pop("port")
        served = port, child.pid
        chance = random.Random(2)
        single = [args(pod("new", chance.choice([4, 16, 40, 79]))) for _ in range(FILTERS)]
        several = [args(pod("new", 40, 16, 8, 8, gpus=2)) for _ in range(FILTERS)]
        whole = args(pod("new", 16), whole=True)
        results["filter"] = timed(served, "filter", single)
        results["filter, four containers of two GPUs"] = timed(served, "filter", several)
        results["filter, whole nodes"] = timed(served, "filter", [whole] * 20) | {
            "MiB": round(len(whole) / 2**20, 1)
        }
        results["prioritize"] = timed(served, "prioritize", single)
        results["bind"] = binds(port)
        child.stdin.close()
        results["ledger"] |= json.loads(child.stdout.readline())
    print(json.dumps(results, indent=2))


if __name__ == "__main__":
    extender() if sys.argv[1:] == ["extender"] else main()
