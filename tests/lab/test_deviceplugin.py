"""The device plugin with the two real kubelets: faults of GPUs, of the kubelet, of the plugin itself."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlencode

import pytest
import yaml

from . import faults
from .api import Lab
from .conftest import Ran
from .progress import wait

pytestmark = pytest.mark.lab

GPUS = {"legacy": 2, "modern": 4}
ONE_LESS = {name: count - 1 for name, count in GPUS.items()}
RECOVERY = 8.0  # seconds; a minute by default
PLUGIN = "app.kubernetes.io/name=gpunode-device-plugin"


@pytest.fixture(scope="module", autouse=True)
def provisioned(lab: Lab, gpunode: Callable[..., Ran]) -> Iterator[None]:
    """Both hosts are GPU nodes, with a quiet time short enough for tests; afterwards the plugin is as the inventory has it."""
    lab.inventory.with_name("quiet-plugin.yaml").write_text(
        f"version: v1\nflags: {{plugin: {{recoverySeconds: {RECOVERY:.0f}}}}}\n"
    )
    inventory = yaml.safe_load(lab.inventory.read_text())
    inventory["cluster"]["plugin"]["config"] = "quiet-plugin.yaml"
    file = lab.inventory.with_name("quiet.yaml")
    file.write_text(yaml.safe_dump(inventory))
    ran = gpunode("provision", "--yes", "--json", "--no-run", inventory=file)
    assert ran.code == 0, ran
    yield
    ran = gpunode("plugin deploy", "--yes", "--json")
    assert ran.code == 0, ran


@pytest.fixture(autouse=True)
def whole(lab: Lab) -> Iterator[None]:
    """All GPUs of both nodes are allocatable before and after."""
    wait("all GPUs of both nodes", lambda: everywhere(lab) == GPUS, 120)
    yield
    for name, count in GPUS.items():
        for gpu in range(count):
            lab.node(name).gpus.bring_back(gpu)
    wait("all GPUs of both nodes", lambda: everywhere(lab) == GPUS, 120)


def everywhere(lab: Lab, which: str = "allocatable") -> dict[str, int]:
    """How many nvidia.com/gpu each node has."""
    status = {name: lab.request("GET", f"/api/v1/nodes/{name}")["status"] for name in GPUS}
    return {name: int(status[name][which].get("nvidia.com/gpu", 0)) for name in GPUS}


def plugin(lab: Lab, name: str) -> dict[str, Any]:
    """The plugin's pod on a node."""
    query = urlencode({"labelSelector": PLUGIN, "fieldSelector": f"spec.nodeName={name}"})
    return dict(lab.request("GET", f"/api/v1/pods?{query}")["items"][0])


def restarts(lab: Lab) -> dict[str, int]:
    """How often each node's plugin was started again."""
    return {name: plugin(lab, name)["status"]["containerStatuses"][0]["restartCount"] for name in GPUS}


def test_a_gpu_with_a_fatal_xid_is_out_and_comes_back(lab: Lab) -> None:
    """Allocatable goes down by one, capacity stays, and after the quiet time it is as before: no restart."""
    before = restarts(lab)
    with faults.xids(lab.node("legacy"), 0, 95), faults.xids(lab.node("modern"), 0, 95):
        wait("the Unhealthy GPUs to be out", lambda: everywhere(lab) == ONE_LESS, 120)
        assert everywhere(lab, "capacity") == GPUS
    began = time.monotonic()
    for name in GPUS:
        lab.node(name).gpus.xid(0, 95)
    wait("the GPUs to be back", lambda: everywhere(lab) == GPUS, RECOVERY + 60)
    assert time.monotonic() - began >= RECOVERY
    assert restarts(lab) == before


def test_an_applications_xid_changes_nothing(lab: Lab) -> None:
    """Xid 13 is heard (the log has it) and not held against the GPU."""
    for name in GPUS:
        pod = plugin(lab, name)["metadata"]
        log = f"/api/v1/namespaces/{pod['namespace']}/pods/{pod['name']}/log"
        lab.node(name).gpus.xid(0, 13)
        wait("the plugin to hear of it", lambda log=log: "Xid 13" in str(lab.request("GET", log)), 120)
    assert everywhere(lab) == GPUS


def test_a_lost_gpu_leaves_the_others_usable(lab: Lab) -> None:
    """Out as long as it is lost; the nodes stay Ready and offer the rest."""
    for name in GPUS:
        lab.node(name).gpus.lose(1)
    wait("the lost GPUs to be out", lambda: everywhere(lab) == ONE_LESS, 120)
    for name in GPUS:
        assert lab.node(name).is_ready()
        lab.node(name).gpus.bring_back(1)
    wait("the GPUs to be back", lambda: everywhere(lab) == GPUS, RECOVERY + 60)


def test_a_restarted_kubelet_finds_the_plugin_again(lab: Lab) -> None:
    """The kubelet wipes its plugins' directory when it starts; the plugin registers again by itself."""
    before = restarts(lab)
    for name in GPUS:
        node, folder = lab.node(name), "/var/lib/kubelet/device-plugins"
        inode = ["stat", "-c", "%i %z", f"{folder}/kubelet.sock"]  # a number alone may be given out again
        old = node.exec(inode).stdout
        node.exec(["systemctl", "restart", "kubelet"])
        wait("a new kubelet", lambda: node.exec(inode, check=False).stdout not in ("", old), 60)  # noqa: B023
        node.wait_until("the plugin's new socket", ["test", "-S", f"{folder}/nvidia-gpu.sock"])
        node.wait_ready()
    wait("all GPUs", lambda: everywhere(lab) == GPUS, 60)
    assert restarts(lab) == before


def test_a_plugin_that_cannot_register_is_not_ready_and_says_why(
    lab: Lab, gpunode: Callable[..., Ran]
) -> None:
    """The kubelet asks it: the DaemonSet counts it as ready only once the kubelet has its devices."""
    modern, folder = lab.node("modern"), "/var/lib/kubelet/device-plugins"
    before = plugin(lab, "modern")["metadata"]["name"]
    modern.exec(["chmod", "0555", folder])
    try:
        lab.request("DELETE", f"/api/v1/namespaces/gpunode/pods/{before}")
        wait("the next pod to run", lambda: runs(lab, "modern", before), 60)
        wait("its words", lambda: "may not use" in gpunode("plugin status", "--json").stdout, 120)
        assert not ready(lab, "modern")
        assert gpunode("plugin status", "--json").code == 1
    finally:
        modern.exec(["chmod", "0755", folder])
    wait("it to be ready", lambda: ready(lab, "modern"), 60)


def runs(lab: Lab, name: str, other: str) -> bool:
    """Whether the plugin's container runs there, in another pod than before."""
    pod = plugin(lab, name)
    states = pod["status"].get("containerStatuses") or [{"state": {}}]
    return pod["metadata"]["name"] != other and "running" in states[0]["state"]


def ready(lab: Lab, name: str) -> bool:
    conditions = {one["type"]: one["status"] for one in plugin(lab, name)["status"]["conditions"]}
    return conditions.get("Ready") == "True"


def test_a_killed_plugin_is_replaced(lab: Lab) -> None:
    """SIGKILL: the kubelet starts the container anew, and all GPUs are offered again."""
    before = restarts(lab)
    for name in GPUS:
        pid = lab.node(name).exec(["pgrep", "-f", "-x", "python3 -m gpunode.deviceplugin"]).stdout.strip()
        lab.node(name).exec(["kill", "-KILL", pid])
    wait("the restarts", lambda: all(count > before[name] for name, count in restarts(lab).items()), 90)
    wait("all GPUs", lambda: everywhere(lab) == GPUS, 90)
