"""The device plugin beside NVIDIA's own: `python -m bench.plugin [rounds]`, as root, with Go, gcc and unshare. Prints a table, and keeps
all rounds in bench/results.

Both run on the same stand-in of NVML (nvml.c), whose wait for events blocks, with the same kubelet (kubelet.go, which is the kubelet's
gRPC), one after the other and in each round anew. NVIDIA's is built from the Go module proxy, pinned in tests/lab/go. This one has what its
image has: the libraries of requirements.lock alone, compiled modules, the gpunode of this checkout. Without Go there is nothing to compare
with: bench/deviceplugin.py measures this plugin alone.
"""

import contextlib
import io
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from bench.results import Row, collect  # noqa: E402 (after the path)
from gpunode.links.plugin.image import collect_files, compile_modules, fetch_wheels  # noqa: E402 (after the path)
from gpunode.links.plugin.image.base import Base  # noqa: E402 (after the path)
from tests.lab import builds  # noqa: E402

HERE = Path(__file__).parent
SOCKETS = "/var/lib/kubelet/device-plugins"  # NVIDIA's plugin knows no other
GPUS, ALLOCATIONS, FAULTS = 8, 2000, 100
IDLE_SECONDS = 60  # with one of this plugin's scans for devices
LISTED = {"x": "Xid to list, ms", "l": "lost GPU to list, ms"}
FAULT_NAMES = {name.rpartition(",")[0] for name in LISTED.values()}
ENTER = f'mount -t tmpfs bench /var/lib; mkdir -p {SOCKETS}; mount --bind "$1" {SOCKETS}; shift; exec "$@"'
Figures = dict[str, float]


def prepare(folder: Path) -> tuple[Path, dict[str, Sequence[str]], dict[str, str]]:
    """The kubelet's program, the plugins' commands, and their environment."""
    subprocess.run(
        ["gcc", "-O2", "-shared", "-fPIC", "-o", folder / "libnvidia-ml.so.1", HERE / "nvml.c"], check=True
    )
    source = folder / "kubelet"
    source.mkdir()
    for path in (*(builds.HERE / "go" / builds.NVIDIA_PLUGIN.name).iterdir(), HERE / "kubelet.go"):
        shutil.copy(path, source)
    build = ["go", "build", "-mod=mod", "-o", folder / "kubelet.bin", "kubelet.go"]
    subprocess.run(build, cwd=source, check=True, env={**os.environ, "GOFLAGS": "", "CGO_ENABLED": "0"})
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    (folder / "wheels").mkdir()
    files = collect_files(fetch_wheels(folder / "wheels", python=version, machine=os.uname().machine))
    base = Base({}, (), version, lambda _: io.BytesIO(), {})  # this Python has its own modules compiled
    for name, content in {**files, **compile_modules(files, base)}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    python = [os.path.realpath(sys.executable), "-S", "-m", "gpunode.deviceplugin"]
    plugins = {"gpunode": python, "NVIDIA": [str(builds.go(builds.NVIDIA_PLUGIN) / "nvidia-device-plugin")]}
    return (
        folder / "kubelet.bin",
        plugins,
        {"PYTHONPATH": str(folder / "app"), "LD_LIBRARY_PATH": str(folder)},
    )


def cpu(pid: int) -> float:
    """Seconds of processor, of which the kernel counts nanoseconds for each thread."""
    tasks = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(task.read_text().split()[0]) for task in tasks) / 1e9


def memory(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) / 1024


@contextlib.contextmanager
def life(
    kubelet: Path, command: Sequence[str], env: dict[str, str], allocations: int
) -> Iterator[tuple[int, float, Callable[[], dict[str, Any]], Path]]:
    """A plugin's process: its id, when it was started, the kubelet's next line, and the FIFO of faults."""
    with tempfile.TemporaryDirectory(prefix="dp-", dir="/tmp") as folder, tempfile.TemporaryFile() as log:
        asking = subprocess.Popen(
            [kubelet, folder, str(allocations)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert asking.stdout is not None
        lines, faults = asking.stdout, Path(folder, "faults")
        os.mkfifo(faults)
        while not Path(folder, "kubelet.sock").exists():
            time.sleep(0.01)
        enter = ["unshare", "--mount", "--propagation", "private", "sh", "-c", ENTER, "sh", folder]
        env = {**os.environ, **env, "BENCH_FAULTS": str(faults)}
        began = time.time()
        # Not in the checkout, whose modules -m would take.
        plugin = subprocess.Popen([*enter, *command], cwd=folder, env=env, stdout=log, stderr=log)
        try:
            yield plugin.pid, began, lambda: json.loads(lines.readline()), faults
        except (ValueError, AssertionError):
            log.seek(0)
            sys.stderr.write(log.read().decode())
            raise
        finally:
            plugin.kill()
            plugin.wait()
            asking.communicate()


def measure(kubelet: Path, command: Sequence[str], env: dict[str, str], idle: float, gpus: int) -> Figures:
    """One life of a plugin that nothing happens to."""
    with life(kubelet, command, env, ALLOCATIONS) as (pid, began, read, _):
        registered = read()["registered"]
        start = cpu(pid)
        answers = read()
        assert answers["devices"] == gpus
        time.sleep(2)
        before = cpu(pid)
        time.sleep(idle)
        return {
            "RSS, MiB": memory(pid),
            "registered after, s": registered - began,
            "processor until then, s": start,
            "Allocate p50, ms": answers["p50"],
            "Allocate p99, ms": answers["p99"],
            "processor idle for 30 s, ms": (cpu(pid) - before) * 30_000 / idle,
            "threads, number": len(list(Path(f"/proc/{pid}/task").iterdir())),
        }


def on_real_gpus(kubelet: Path, command: Sequence[str], env: dict[str, str]) -> Figures:
    """The same on this machine's GPUs and its own NVML; nothing where there is none. The stand-in's folder is not searched then."""
    if not (gpus := len(list(Path("/proc/driver/nvidia/gpus").glob("*")))):
        return {}
    own = {name: value for name, value in env.items() if name != "LD_LIBRARY_PATH"}
    return measure(kubelet, command, own, IDLE_SECONDS, gpus)


def fault(kubelet: Path, command: Sequence[str], env: dict[str, str], kinds: str) -> list[tuple[str, float]]:
    """Milliseconds from a fault to a list with that GPU as Unhealthy, for each of these faults (x, l), one on each GPU."""
    with life(kubelet, command, env, 1) as (_, _, read, faults), faults.open("r+b", buffering=0) as pipe:
        for _ in range(2):
            read()
        time.sleep(1)  # until it watches
        took = []
        for number, kind in enumerate(kinds):
            at = time.time()
            pipe.write(bytes([number]) + kind.encode())
            while f"GPU-{number:08x}" not in "".join((line := read())["unhealthy"]):
                pass
            took.append((kind, (line["at"] - at) * 1000))
            assert len(line["unhealthy"]) == number + 1 or "l" in kinds[: number + 1]
        return took


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    load, seen = [], dict[tuple[str, str], list[float]]()
    with tempfile.TemporaryDirectory(prefix="bench-plugin-") as folder:
        kubelet, plugins, env = prepare(Path(folder))
        for _ in range(rounds):
            load.append(os.getloadavg()[0])
            for name, command in plugins.items():
                for what, value in measure(kubelet, command, env, IDLE_SECONDS, GPUS).items():
                    seen.setdefault((name, what), []).append(value)
                for what, value in on_real_gpus(kubelet, command, env).items():
                    seen.setdefault((name, f"real GPUs: {what}"), []).append(value)
        for _ in range(-(-FAULTS // GPUS)):
            for kind, took in fault(kubelet, plugins["gpunode"], env, "xl" * (GPUS // 2)):
                seen.setdefault(("gpunode", LISTED[kind]), []).append(took)
        for _ in range(-(-FAULTS // 2 // GPUS)):  # for NVIDIA's a lost GPU is a fault of all, so Xids alone
            for kind, took in fault(kubelet, plugins["NVIDIA"], env, "x" * GPUS):
                seen.setdefault(("NVIDIA", LISTED[kind]), []).append(took)
    rows = [Row(who, *what.rsplit(", ", 1), rounds) for (who, what), rounds in seen.items()]
    path = collect(rows, load, {"Python": sys.version.split()[0], "NVIDIA": "0.19.1"}).save("plugin")
    print(f"{path}: {rounds} rounds, load {min(load):.1f} to {max(load):.1f}, {os.cpu_count()} cores\n")
    print(
        "medians (from - to), of faults the 99th percentile too\n\n| | gpunode | NVIDIA | ratio |\n|---|---|---|---|"
    )
    for row in (row for row in rows if row.who == "gpunode"):
        peer = next((other for other in rows if other.what == row.what and other.who != row.who), None)
        ratio = f"{row.median / peer.median:.2f}" if peer else ""
        print(f"| {row.what}, {row.unit} | {show(row)} | {show(peer) if peer else ''} | {ratio} |")


def show(row: Row) -> str:
    text = f"{row.median:.4g} ({min(row.rounds):.4g} - {max(row.rounds):.4g})"
    return (
        f"{text}, p99 {statistics.quantiles(row.rounds, n=100)[98]:.4g}" if row.what in FAULT_NAMES else text
    )


if __name__ == "__main__":
    main()
