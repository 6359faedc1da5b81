"""How quick and how light the device plugin is: `python bench/deviceplugin.py`. Prints a JSON object.

The plugin runs as a process of its own, on fake GPUs, with a stand-in for the kubelet at the other end of the real
sockets. So gRPC, scheduling and Python are in the figures; the driver is not.
"""

import asyncio
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.deviceplugin.kubelet import FakeKubelet  # noqa: E402 (after the path is set)
from tests.deviceplugin.test_metrics import free_port  # noqa: E402
from tests.deviceplugin.test_podresources import Lister, pod  # noqa: E402

GPUS = [f"GPU-{uuid.uuid4()}" for _ in range(8)]
SIXTEEN = [*GPUS, *(f"GPU-{uuid.uuid4()}" for _ in range(8))]
ALLOCATIONS = 2000
IDLE_SECONDS = 20
# Asks for a page again and again until its standard input ends; prints the longest wait in milliseconds.
ASK = """
import sys, threading, time, urllib.request
end = threading.Thread(target=sys.stdin.read, daemon=True)
end.start()
longest = 0
while end.is_alive():
    before = time.perf_counter()
    urllib.request.urlopen(sys.argv[1]).read()
    longest = max(longest, time.perf_counter() - before)
    time.sleep(0.002)
print(longest * 1000)
"""


@contextlib.asynccontextmanager
async def plugin(
    sockets: Path, replicas: int = 1, *more: str, gpus: list[str] = GPUS
) -> AsyncIterator[tuple[FakeKubelet, int]]:
    """A kubelet and the pid of a plugin that registers with it. `more`: flags."""
    kubelet = FakeKubelet(sockets)
    await kubelet.start()
    command = [sys.executable, "-m", "tests.deviceplugin.process", ",".join(gpus)]
    command += [f"--kubelet-socket={sockets}/kubelet.sock", "--log-level=error", *more]
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as config:
        resource = f"{{name: nvidia.com/gpu, replicas: {replicas}}}"
        config.write(
            "version: v1\n" + (f"sharing: {{timeSlicing: {{resources: [{resource}]}}}}\n" * (replicas > 1))
        )
        config.flush()
        child = subprocess.Popen([*command, f"--config-file={config.name}"], cwd=ROOT)
        try:
            yield kubelet, child.pid
        finally:
            child.terminate()
            child.wait()
            await kubelet.stop()


async def usual(sockets: Path) -> dict[str, float]:
    """Eight GPUs: start, allocate, idle."""
    began = time.perf_counter()
    async with plugin(sockets) as (kubelet, pid):
        await kubelet.until(kubelet.devices)
        start = time.perf_counter() - began
        took = []
        for number in range(ALLOCATIONS):
            before = time.perf_counter()
            await kubelet.allocate(GPUS[number % 8])
            took.append((time.perf_counter() - before) * 1000)
        busy = cpu_seconds(pid)
        await asyncio.sleep(IDLE_SECONDS)
        return {
            "start_to_listed_s": round(start, 3),
            "allocate_p50_ms": round(statistics.median(took), 3),
            "allocate_p99_ms": round(statistics.quantiles(took, n=100)[98], 3),
            "idle_cpu_percent": round((cpu_seconds(pid) - busy) / IDLE_SECONDS * 100, 3),
            "memory_mib": round(memory(pid), 1),
        }


async def shared(sockets: Path, replicas: int) -> dict[str, float]:
    """Many shares: time from the start to the whole list, and its size."""
    began = time.perf_counter()
    async with plugin(sockets, replicas) as (kubelet, pid):
        plugins = await kubelet.until(lambda: [p for p in kubelet.plugins.values() if p.lists], seconds=60)
        return {
            "asked": replicas * 8,
            "units": len(plugins[0].lists[-1]),
            "start_to_listed_s": round(time.perf_counter() - began, 3),
            "memory_mib": round(memory(pid), 1),
        }


async def preferring(sockets: Path) -> dict[str, float]:
    """How long it takes to choose 8 of 16 linked GPUs, of which there are most sets, and others wait meanwhile."""
    took, waited = [], []
    async with plugin(sockets, gpus=SIXTEEN) as (kubelet, _):
        await kubelet.until(kubelet.devices)
        for _ in range(20):
            before = time.perf_counter()
            asking = asyncio.create_task(kubelet.prefer(SIXTEEN, [], 8))
            while not asking.done():
                asked = time.perf_counter()
                await kubelet.allocate(SIXTEEN[0])
                waited.append((time.perf_counter() - asked) * 1000)
            took.append((time.perf_counter() - before) * 1000)
    return {"chosen_ms": round(statistics.median(took), 1), "longest_wait_ms": round(max(waited), 1)}


async def changing(sockets: Path) -> dict[str, float]:
    """How long others wait for an answer while a long list changes: a GPU that a pod had becomes free."""
    kubelets, port = sockets / "pods", free_port()
    kubelets.mkdir()
    lister = Lister(pod("other"), pod("train", gpu=[GPUS[0]]))
    flags = (f"--pod-resources-socket={kubelets}/kubelet.sock", f"--metrics-address=127.0.0.1:{port}")
    async with lister.serving(kubelets / "kubelet.sock"), plugin(sockets, 7600, *flags) as (kubelet, _):
        await kubelet.until(kubelet.devices, seconds=60)
        url = f"http://127.0.0.1:{port}/healthz"
        asking = subprocess.Popen(
            [sys.executable, "-c", ASK, url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        lister.pods.pop()
        await kubelet.until(lambda: "Unhealthy" not in kubelet.devices().values(), seconds=60)
        longest, _ = await asyncio.to_thread(asking.communicate)
        return {"units": len(kubelet.devices()), "longest_wait_ms": round(float(longest), 1)}


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) / 1024


async def main() -> None:
    results: dict[str, dict[str, float]] = {}
    for name, measure in (
        ("8 GPUs", usual),
        ("8 of 16 linked GPUs", preferring),
        ("1000 shares", lambda sockets: shared(sockets, 125)),
        ("largest list", lambda sockets: shared(sockets, 8300)),
        ("a long list changes", changing),
    ):
        with tempfile.TemporaryDirectory(prefix="dp-", dir="/tmp") as folder:
            results[name] = await measure(Path(folder))
    print(json.dumps(results, indent=2))


if __name__ == "__main__":
    asyncio.run(main())
