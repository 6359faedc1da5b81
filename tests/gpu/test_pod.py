"""A pod gets a real GPU by everything that is real: driver, NVIDIA's toolkit, CDI, the plugin, a kubelet, containerd, runc.

Without a GPU these tests run all the same, on a machine with the programs: the plugin then offers a GPU that does not exist, and what needs
one is skipped. The programs are those that `make lab` has built, or on PATH.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from gpunode.contract import measurements
from tests.lab import cache

from .node import PROGRAMS, static_pod

ROOT = Path(__file__).parents[2]
REAL = Path("/dev/nvidiactl").exists()
GPU = {"nvidia.com/gpu": "1"}
pytestmark = pytest.mark.gpu

Run = Callable[[str, str, Mapping[str, str]], str]


def search_path() -> str:
    """PATH, behind what the lab has built."""
    kinds = ("kubernetes-1.36", "containerd", "container-toolkit", "pause")
    built = [str(folder) for kind in kinds for folder in cache.root().glob(f"{kind}-*")]
    return os.pathsep.join([*built, os.environ["PATH"]])


@pytest.fixture(scope="module")
def pod() -> Iterator[Run]:
    """Runs a static pod (name, a Python's program, limits), and returns its output."""
    path = search_path()
    missing = [name for name in (*PROGRAMS, "pause", "unshare") if shutil.which(name, path=path) is None]
    if missing:
        pytest.skip(f"not on PATH: {', '.join(missing)}")
    if os.geteuid() != 0:
        pytest.skip("a kubelet needs root")
    folder = tempfile.mkdtemp(prefix="gpunode-node-")
    apart = ("unshare", "--mount", "--propagation", "private")
    command = [*apart, sys.executable, "-m", "tests.gpu.node", folder]
    with (
        (Path(folder) / "node.log").open("w") as log,
        subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            cwd=ROOT,
            env={**os.environ, "PATH": path},
        ) as node,
    ):
        assert node.stdin
        assert node.stdout
        assert node.stdout.readline() == "ready\n", logs(folder)

        def run(name: str, program: str, limits: Mapping[str, str]) -> str:
            node.stdin.write(json.dumps(static_pod(name, program, limits)) + "\n")
            node.stdin.flush()
            output = str(json.loads(node.stdout.readline()))
            assert not output.startswith("TIMEOUT"), f"{output}\n{logs(folder)}"
            return "\n".join(line.split(" ", 3)[-1] for line in output.splitlines())

        yield run
        node.stdin.close()
    shutil.rmtree(folder)


def logs(folder: str) -> str:
    """The ends of what the node's programs wrote."""
    return "\n".join(f"{path}:\n{path.read_text()[-3000:]}" for path in sorted(Path(folder).glob("*.log")))


def test_a_pod_that_asks_for_a_gpu_gets_it_and_cuda_works(pod):
    program = """
import os, runpy, sys
print(sorted(name for name in os.listdir('/dev') if name.startswith('nvidia')))
sys.argv = ['vectoradd', '--json']
try:
    runpy.run_module('gpunode.deviceplugin.vectoradd', run_name='__main__')
except SystemExit as end:
    print('exit', end.code)
"""
    output = pod("gpu", program, GPU)
    print(output)
    if not REAL:
        pytest.skip("no NVIDIA GPU on this machine: the pod ran, without CUDA")
    assert "exit 0" in output
    assert "nvidia0" in output


def test_a_pod_that_asks_for_none_sees_none(pod):
    """Its devices and its libraries."""
    program = """
import ctypes, os
print([name for name in os.listdir('/dev') if name.startswith('nvidia')])
try:
    ctypes.CDLL('libcuda.so.1')
except OSError as error:
    print(error)
"""
    output = pod("none", program, {})
    assert output.startswith("[]\nlibcuda.so.1: cannot open shared object file")


def test_measurements_of_the_gpu_in_a_pod(pod):
    """Acceptance, as its pod runs it."""
    program = """
import runpy, sys
sys.argv = ['accept', '--level', 'quick', '--json']
try:
    runpy.run_module('gpunode.accept', run_name='__main__')
except SystemExit as end:
    print('exit', end.code)
"""
    if not REAL:
        pytest.skip("no NVIDIA GPU on this machine: nothing to measure")
    output = pod("accept", program, GPU)
    print(output)
    document = next(line for line in output.splitlines() if line.startswith("{"))
    [gpu] = measurements.loads(document).gpus
    assert gpu.error is None
    assert gpu.measured.memory_errors == gpu.measured.compute_errors == 0
