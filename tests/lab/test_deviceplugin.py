"""The device plugin with the two real kubelets: faults of GPUs, of the kubelet, of the plugin itself."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlencode

import pytest

from .api import Lab
from .conftest import Ran
from .progress import wait

pytestmark = pytest.mark.lab

GPUS = {"legacy": 2, "modern": 4}
RECOVERY = 60.0  # seconds, the plugin's default
PLUGIN = "app.kubernetes.io/name=gpunode-device-plugin"


@pytest.fixture(scope="module", autouse=True)
def provisioned(lab: Lab, gpunode: Callable[..., Ran]) -> None:
    """Both hosts are GPU nodes; quick where they were already."""
    ran = gpunode("provision", "--yes", "--json", "--no-run")
    assert ran.code == 0, ran


@pytest.fixture(params=sorted(GPUS))
def name(request: pytest.FixtureRequest, lab: Lab) -> Iterator[str]:
    """A node, with all its GPUs allocatable before and after."""
    wait(f"all GPUs of {request.param}", lambda: gpus(lab, request.param) == GPUS[request.param], 120)
    yield request.param
    for gpu in range(GPUS[request.param]):
        lab.node(request.param).gpus.bring_back(gpu)
    wait(f"all GPUs of {request.param}", lambda: gpus(lab, request.param) == GPUS[request.param], 120)


def gpus(lab: Lab, name: str, which: str = "allocatable") -> int:
    """How many nvidia.com/gpu the node has."""
    return int(lab.request("GET", f"/api/v1/nodes/{name}")["status"][which].get("nvidia.com/gpu", 0))


def plugin(lab: Lab, name: str) -> dict[str, Any]:
    """The plugin's pod on a node."""
    query = urlencode({"labelSelector": PLUGIN, "fieldSelector": f"spec.nodeName={name}"})
    return dict(lab.request("GET", f"/api/v1/pods?{query}")["items"][0])


def kill_plugin(lab: Lab, name: str) -> None:
    """SIGKILL to the plugin's process."""
    pid = lab.node(name).exec(["pgrep", "-f", "-x", "python3 -m gpunode.deviceplugin"]).stdout.strip()
    lab.node(name).exec(["kill", "-KILL", pid])


def test_one_gpu_with_a_fatal_xid_is_out_and_comes_back(lab: Lab, name: str) -> None:
    """Allocatable goes down by one, capacity stays, and after the quiet time it is as before: no restart."""
    restarts = plugin(lab, name)["status"]["containerStatuses"][0]["restartCount"]
    lab.node(name).gpus.xid(0, 95)
    began = time.monotonic()
    wait("the Unhealthy GPU to be out", lambda: gpus(lab, name) == GPUS[name] - 1, 30)
    assert gpus(lab, name, "capacity") == GPUS[name]
    wait("the GPU to be back", lambda: gpus(lab, name) == GPUS[name], RECOVERY + 60)
    assert time.monotonic() - began >= RECOVERY
    assert plugin(lab, name)["status"]["containerStatuses"][0]["restartCount"] == restarts


def test_an_applications_xid_changes_nothing(lab: Lab, name: str) -> None:
    """Xid 13 is heard (the log has it) and not held against the GPU."""
    pod = plugin(lab, name)["metadata"]
    path = f"/api/v1/namespaces/{pod['namespace']}/pods/{pod['name']}/log"
    lab.node(name).gpus.xid(0, 13)
    wait("the plugin to hear of it", lambda: "Xid 13" in str(lab.request("GET", path)), 30)
    assert gpus(lab, name) == GPUS[name]


def test_a_lost_gpu_leaves_the_others_usable(lab: Lab, name: str) -> None:
    """Out as long as it is lost; the node stays Ready and offers the rest."""
    node = lab.node(name)
    node.gpus.lose(1)
    wait("the lost GPU to be out", lambda: gpus(lab, name) == GPUS[name] - 1, 30)
    assert node.is_ready()
    node.gpus.bring_back(1)
    wait("the GPU to be back", lambda: gpus(lab, name) == GPUS[name], RECOVERY + 60)


def test_a_restarted_kubelet_finds_the_plugin_again(lab: Lab, name: str) -> None:
    """The kubelet wipes its plugins' directory when it starts; the plugin registers again by itself."""
    node = lab.node(name)
    restarts = plugin(lab, name)["status"]["containerStatuses"][0]["restartCount"]
    sockets = ["stat", "-c", "%i", "/var/lib/kubelet/device-plugins/kubelet.sock"]
    before = node.exec(sockets).stdout
    node.exec(["systemctl", "restart", "kubelet"])
    wait("a new kubelet", lambda: node.exec(sockets, check=False).stdout not in ("", before), 60)
    wait("the plugin's socket", lambda: not node.exec(
        ["test", "-S", "/var/lib/kubelet/device-plugins/nvidia-gpu.sock"], check=False
    ).returncode, 60)  # fmt: skip
    node.wait_ready()
    wait("all GPUs", lambda: gpus(lab, name) == GPUS[name], 60)
    assert plugin(lab, name)["status"]["containerStatuses"][0]["restartCount"] == restarts


def test_a_killed_plugin_is_replaced(lab: Lab, name: str) -> None:
    """SIGKILL: the kubelet starts the container anew, and all GPUs are offered again."""
    before = plugin(lab, name)["status"]["containerStatuses"][0]["restartCount"]
    kill_plugin(lab, name)
    wait(
        "the restart",
        lambda: plugin(lab, name)["status"]["containerStatuses"][0]["restartCount"] > before,
        60,
    )
    wait("all GPUs", lambda: gpus(lab, name) == GPUS[name], 90)
