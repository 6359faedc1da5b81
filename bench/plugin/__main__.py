"""The device plugin beside NVIDIA's own: `python -m bench.plugin [rounds]`, as root, with Go, gcc and unshare. Prints a table.

Both run on the same stand-in of NVML (nvml.c), whose wait for events blocks, with the same kubelet (kubelet.go, which is the kubelet's
gRPC), one after the other and in each round anew. NVIDIA's is built from the Go module proxy, pinned in tests/lab/go. This one has what its
image has: the libraries of requirements.lock alone, compiled modules, the gpunode of this checkout. Without Go there is nothing to compare
with: bench/deviceplugin.py measures this plugin alone.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from gpunode.links.plugin.image import collect_files, compile_modules, fetch_wheels  # noqa: E402 (after the path)
from gpunode.links.plugin.image.base import Base  # noqa: E402 (after the path)
from tests.lab import builds  # noqa: E402

HERE = Path(__file__).parent
SOCKETS = "/var/lib/kubelet/device-plugins"  # NVIDIA's plugin knows no other
ALLOCATIONS, IDLE_SECONDS = 2000, 30
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


def measure(kubelet: Path, command: Sequence[str], env: dict[str, str], idle: float) -> Figures:
    """One life of a plugin."""
    with tempfile.TemporaryDirectory(prefix="dp-", dir="/tmp") as folder, tempfile.TemporaryFile() as log:
        asking = subprocess.Popen(
            [kubelet, folder, str(ALLOCATIONS)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert asking.stdout is not None
        while not Path(folder, "kubelet.sock").exists():
            time.sleep(0.01)
        enter = ["unshare", "--mount", "--propagation", "private", "sh", "-c", ENTER, "sh", folder]
        began = time.time()
        plugin = subprocess.Popen(
            [*enter, *command], cwd=folder, env={**os.environ, **env}, stdout=log, stderr=log
        )
        try:
            registered = json.loads(asking.stdout.readline())["registered"]
            start = cpu(plugin.pid)
            answers = json.loads(asking.stdout.readline())
            assert answers["devices"] == 8
            time.sleep(2)
            before = cpu(plugin.pid)
            time.sleep(idle)
            return {
                "RSS, MiB": memory(plugin.pid),
                "registered after, s": registered - began,
                "processor until then, s": start,
                "Allocate p50, ms": answers["p50"],
                "Allocate p99, ms": answers["p99"],
                "processor idle, ms per 30 s": (cpu(plugin.pid) - before) * 30_000 / idle,
                "threads": len(list(Path(f"/proc/{plugin.pid}/task").iterdir())),
            }
        except (ValueError, AssertionError):
            log.seek(0)
            sys.stderr.write(log.read().decode())
            raise
        finally:
            plugin.kill()
            plugin.wait()
            asking.communicate()


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    with tempfile.TemporaryDirectory(prefix="bench-plugin-") as folder:
        kubelet, plugins, env = prepare(Path(folder))
        found: dict[str, list[Figures]] = {name: [] for name in plugins}
        for _ in range(rounds):
            for name, command in plugins.items():
                found[name].append(measure(kubelet, command, env, IDLE_SECONDS))
    print(f"{rounds} rounds, load {os.getloadavg()[0]:.1f}, {os.cpu_count()} cores; medians (from – to)\n")
    print("| | gpunode | NVIDIA | ratio |\n|---|---|---|---|")
    for what in found["gpunode"][0]:
        values = {name: sorted(one[what] for one in figures) for name, figures in found.items()}
        middle = {name: statistics.median(each) for name, each in values.items()}
        shown = [f"{middle[name]:.4g} ({each[0]:.4g} – {each[-1]:.4g})" for name, each in values.items()]
        print(f"| {what} | {' | '.join(shown)} | {middle['gpunode'] / middle['NVIDIA']:.2f} |")


if __name__ == "__main__":
    main()
