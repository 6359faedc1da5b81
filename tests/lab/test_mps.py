"""GPUs shared by MPS on the two real nodes: pods that share one, and what becomes of it when its daemon fails.

The control daemon is a stand-in without servers (tests/lab/packages/files); how it comes into containers, its pipes, its
/dev/shm, its limits and its deaths are real.
"""

import json
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from .api import Lab
from .conftest import Ran
from .gpu import control
from .plugin_log import plugin_log
from .pods import pods
from .progress import wait

pytestmark = pytest.mark.lab

NODES = {"legacy": 2, "modern": 4}  # and their GPUs
SHARES = 2
MPS = "app.kubernetes.io/name=gpunode-mps"
SHARED = "nvidia.com/gpu.shared"
CONFIG = f"""
version: v1
sharing:
  mps:
    renameByDefault: true
    resources:
      - {{name: nvidia.com/gpu, replicas: {SHARES}, devices: ["0"]}}
"""
PROGRAM = "/usr/bin/nvidia-cuda-mps-control"
DAEMON = f"python3 {PROGRAM} -f"
READY = "its MPS control daemon is ready"
PROCESS = "python3 -S -m gpunode.deviceplugin.mps"
# What a pod is to find out: its GPU, its daemon's limits by the daemon's own word, and what it shares with the other pod.
LOOK = """
import json, os, pathlib, subprocess, time
shm = pathlib.Path("/dev/shm")
(shm / os.environ["ME"]).write_text("here")
while not (shm / os.environ["OTHER"]).exists():
    time.sleep(0.2)
def run(*words, **more):
    return subprocess.run(words, capture_output=True, text=True, check=True, **more).stdout
print(json.dumps({"gpus": run("nvidia-smi", "--query-gpu=uuid", "--format=csv,noheader").split(),
                  "pipe": os.environ["CUDA_MPS_PIPE_DIRECTORY"], "uid": os.getuid(),
                  "threads": run("nvidia-cuda-mps-control", input="get_default_active_thread_percentage\\n"),
                  "shm": os.statvfs(shm).f_blocks * os.statvfs(shm).f_frsize}))
"""


@pytest.fixture(scope="module", autouse=True)
def shared(lab: Lab, gpunode: Callable[..., Ran]) -> Iterator[None]:
    """Both nodes share GPU 0 by MPS; afterwards they have whole GPUs again and nothing of MPS runs."""
    ran = gpunode("provision", "--yes", "--json", "--no-run")
    assert ran.code == 0, ran
    inventory, config = (lab.inventory.with_name(name) for name in ("inventory-mps.yaml", "mps.yaml"))
    config.write_text(CONFIG)
    inventory.write_text(
        lab.inventory.read_text().replace(
            "archive: plugin.tar", f"archive: plugin.tar, config: {config.name}"
        )
    )
    for name in NODES:
        lab.node(name).exec(control.use(0, 1, "python3"))
    with pods(lab) as made:
        made.seen(made.make("whole", "modern", NODES["modern"]))
        ran = gpunode("plugin deploy", "--yes", "--json", inventory=inventory)
        assert ran.code == 0, ran
        words = "waiting: container look of pod with UID "
        wait("the daemon to wait for the pod", lambda: words in plugin_log(lab, "modern", MPS), 120)
        assert mode(lab, "modern") == ["Default"] * NODES["modern"]
    used_without_mps(lab)
    wait("a shared GPU on both nodes", lambda: offered(lab, SHARED) == dict.fromkeys(NODES, SHARES), 180)
    whole = {name: gpus - 1 for name, gpus in NODES.items()}
    wait("the others to be whole", lambda: offered(lab, "nvidia.com/gpu") == whole)
    for name, gpus in NODES.items():
        assert mode(lab, name) == ["Exclusive_Process", *["Default"] * (gpus - 1)]
    yield
    ran = gpunode("plugin deploy", "--yes", "--json")
    assert ran.code == 0, ran
    wait("whole GPUs on both nodes", lambda: offered(lab, "nvidia.com/gpu") == NODES, 120)
    for name, gpus in NODES.items():
        wait(f"the end of MPS on {name}", lambda name=name: not processes(lab, name, PROCESS), 60)
        assert not processes(lab, name, DAEMON)
        assert mode(lab, name) == ["Default"] * gpus


def used_without_mps(lab: Lab) -> None:
    """While a process uses a GPU without MPS its shares wait, and it keeps its compute mode; then the process ends."""
    words = "MPS control daemon: process 1 ("
    for name, gpus in NODES.items():
        wait(f"the reason on {name}", lambda name=name: words in plugin_log(lab, name), 120)
        assert mode(lab, name) == ["Default"] * gpus
        assert not processes(lab, name, DAEMON)
    assert offered(lab, SHARED) == dict.fromkeys(NODES, 0)
    for name in NODES:
        lab.node(name).exec(control.leave(0))


def offered(lab: Lab, resource: str) -> dict[str, int]:
    """How many units of it pods can have on each node."""
    status = {name: lab.request("GET", f"/api/v1/nodes/{name}")["status"] for name in NODES}
    return {name: int(status[name]["allocatable"].get(resource, 0)) for name in NODES}


def processes(lab: Lab, name: str, command: str) -> list[str]:
    """Process ids of a command on a node, its containers included."""
    return lab.node(name).exec(["pgrep", "-f", "-x", command], check=False).stdout.split()


def mode(lab: Lab, node: str) -> list[str]:
    """The compute mode of each GPU of a node."""
    asked = ["nvidia-smi", "--query-gpu=compute_mode", "--format=csv,noheader"]
    return lab.node(node).exec(asked).stdout.split()


def pod(lab: Lab, node: str, me: str, other: str) -> dict[str, Any]:
    """A pod with one share on a node, of the plugin's image, as nobody. It waits for another one."""
    query = urlencode({"labelSelector": MPS})
    image = lab.request("GET", f"/api/v1/pods?{query}")["items"][0]["spec"]["containers"][0]["image"]
    container = {
        "name": "client",
        "image": image,
        "args": ["-c", LOOK],
        "env": [{"name": "ME", "value": me}, {"name": "OTHER", "value": other}],
        "resources": {"limits": {SHARED: 1}},
    }
    spec = {
        "restartPolicy": "Never",
        "nodeSelector": {"kubernetes.io/hostname": node},
        "containers": [container],
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": me}, "spec": spec}


@pytest.mark.parametrize("node", NODES)
def test_two_pods_share_one_gpu_by_mps(lab: Lab, node: str):
    """Each reaches the GPU's control daemon, which has half of the GPU for each; they have one small /dev/shm."""
    pods, run = "/api/v1/namespaces/default/pods", uuid.uuid4().hex[:8]
    names = [f"mps-{node}-{run}-{letter}" for letter in "ab"]
    ended = {"Succeeded", "Failed"}
    for me, other in zip(names, reversed(names), strict=True):
        lab.request("POST", pods, pod(lab, node, me, other))
    try:
        for name in names:
            phase = lambda name=name: lab.request("GET", f"{pods}/{name}")["status"]["phase"]  # noqa: E731
            wait(f"the end of {name}", lambda phase=phase: phase() in ended, 90)
        said = [json.loads(lab.request("GET", f"{pods}/{name}/log")) for name in names]
    finally:
        for name in names:
            lab.request("DELETE", f"{pods}/{name}")
    assert said[0] == said[1]
    first = lab.node(node).exec(["nvidia-smi", "--query-gpu=uuid", "--format=csv,noheader", "-i", "0"]).stdout
    assert said[0] == {
        "gpus": [first.strip()],
        "pipe": f"/run/nvidia/mps/{first.strip()}/pipe",
        "uid": 65534,
        "threads": "50.0\n",
        "shm": 1 << 30,
    }


def test_a_killed_daemon_is_started_again_and_the_plugin_hears_of_both(lab: Lab):
    """At once, by its process; no pod is started anew for it."""
    for name in NODES:
        (before,) = processes(lab, name, DAEMON)
        lab.node(name).exec(["kill", "-KILL", before])
        wait(f"another daemon on {name}", lambda: processes(lab, name, DAEMON) not in ([], [before]), 60)  # noqa: B023
        wait(
            f"the plugin of {name} to hear of it",
            lambda name=name: READY in plugin_log(lab, name).partition("signal 9")[2],
            60,
        )
        assert "not offered: MPS control daemon: it has ended by signal 9" in plugin_log(lab, name)
    wait("the shares", lambda: offered(lab, SHARED) == dict.fromkeys(NODES, SHARES), 60)


def test_shares_without_a_daemon_are_unhealthy_until_it_is_back(lab: Lab):
    """The program cannot be started for a while; the node's other GPUs stay allocatable."""
    whole = offered(lab, "nvidia.com/gpu")
    for name in NODES:
        lab.node(name).exec(["chmod", "000", PROGRAM])
        lab.node(name).exec(["pkill", "-KILL", "-f", "-x", DAEMON])
    try:
        wait("no share to be allocatable", lambda: offered(lab, SHARED) == dict.fromkeys(NODES, 0), 60)
        assert offered(lab, "nvidia.com/gpu") == whole
        for name in NODES:
            words = f"cannot start {Path(PROGRAM).name}: Permission denied"
            wait(f"the reason on {name}", lambda: words in plugin_log(lab, name, MPS), 120)  # noqa: B023
    finally:
        for name in NODES:
            lab.node(name).exec(["chmod", "755", PROGRAM])
    wait("the shares", lambda: offered(lab, SHARED) == dict.fromkeys(NODES, SHARES), 120)


def test_a_killed_process_of_the_daemons_leaves_nothing_behind(lab: Lab):
    """Its daemon ends with its container; the kubelet starts the container again, and there is one daemon."""
    for name in NODES:
        (before,), (daemon,) = processes(lab, name, PROCESS), processes(lab, name, DAEMON)
        lab.node(name).exec(["kill", "-KILL", before])
        wait(f"another process on {name}", lambda: processes(lab, name, PROCESS) not in ([], [before]), 90)  # noqa: B023
        wait(f"another daemon on {name}", lambda: processes(lab, name, DAEMON) not in ([], [daemon]), 60)  # noqa: B023
        assert len(processes(lab, name, DAEMON)) == 1
        mounts = [
            line for line in lab.node(name).read("/proc/1/mountinfo").splitlines() if "/mps/shm " in line
        ]
        assert len(mounts) == 1, mounts
    wait("the shares", lambda: offered(lab, SHARED) == dict.fromkeys(NODES, SHARES), 120)
