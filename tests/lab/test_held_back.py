"""Another way of sharing while pods run, with the two real kubelets: nothing is given that one of them still has."""

import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import yaml

from .api import Lab
from .conftest import Ran
from .plugin_log import REGISTERED, plugin_log, registered
from .pods import LOOK, Pods
from .progress import wait

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("provisioned")]

GPUS = {"legacy": 2, "modern": 4}
GPU = "nvidia.com/gpu"
RECORD = "/var/lib/kubelet/device-plugins/kubelet_internal_checkpoint"
SHARES = "version: v1\nsharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 2}]}}\n"


def deploy(lab: Lab, gpunode: Callable[..., Ran], config: str) -> None:
    """Roll the plugin out with this configuration, and wait until the one that runs now is registered on both."""
    lab.inventory.with_name("held-plugin.yaml").write_text(config)
    inventory = yaml.safe_load(lab.inventory.read_text())
    inventory["cluster"]["plugin"]["config"] = "held-plugin.yaml"
    file = lab.inventory.with_name("held.yaml")
    file.write_text(yaml.safe_dump(inventory))
    ran = gpunode("plugin deploy", "--yes", "--json", inventory=file)
    assert ran.code == 0, ran
    for name in GPUS:
        registered(lab, name)


def offered(lab: Lab, counts: Mapping[str, int]) -> None:
    """Wait until each node has so many to give."""
    for name, count in counts.items():
        wait(f"{count} {GPU} on {name}", lambda name=name, count=count: lab.units(name) == count, 90)


def says(lab: Lab, node: str, words: str) -> None:
    """Wait until the plugin on the node has said this."""
    wait(f"{words!r} on {node}", lambda: words in plugin_log(lab, node), 60)


def given(lab: Lab, node: str, uid: str) -> bool:
    """Whether the kubelet has written down that the pod has devices."""
    entries = json.loads(lab.node(node).read(RECORD))["Data"]["PodDeviceEntries"] or []
    return uid in {entry["PodUID"] for entry in entries}


def rewritten(lab: Lab, node: str) -> None:
    """Wait until the kubelet has written its record anew: the plugin has looked, and had it do so."""
    when = ["stat", "-c", "%i %y", RECORD]
    before = lab.node(node).exec(when).stdout
    wait(f"another record on {node}", lambda: lab.node(node).exec(when).stdout != before, 120)


def loading(made: Pods, node: str) -> str:
    """A pod whose init container alone has a GPU."""
    init = {
        "name": "load",
        "image": made.image,
        "args": ["-c", LOOK],
        "resources": {"limits": {GPU: 1}},
    }
    spec: dict[str, Any] = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 0,
        "nodeSelector": {"kubernetes.io/hostname": node},
        "tolerations": [{"operator": "Exists"}],
        "initContainers": [init],
        "containers": [{"name": "rest", "image": made.image, "args": ["-c", "pass"]}],
    }
    metadata = {"name": f"load-{node}"}
    return made.create({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})


def test_what_pods_have_is_held_back_over_a_kubelets_restart_until_they_are_gone(
    lab: Lab, gpunode: Callable[..., Ran], made: Pods
):
    """Of one pod an init container alone has a GPU, another one has a GPU itself: they are not shared until then."""
    deploy(lab, gpunode, "version: v1\n")
    offered(lab, GPUS)
    for name in GPUS:
        uid = made.get(loading(made, name))["metadata"]["uid"]
        wait(f"the init container on {name}", lambda name=name, uid=uid: given(lab, name, uid), 60)
    made.seen(made.make("train", "modern"))
    left = {"legacy": 2, "modern": 4}
    deploy(lab, gpunode, SHARES)
    offered(lab, left)
    says(lab, "modern", f"reserved: container look of pod default/train still uses it as {GPU}")
    for name in GPUS:  # it says so once the kubelet has written its record anew
        says(lab, name, "reserved: container load of pod with UID ")
        lab.node(name).exec(["systemctl", "restart", "kubelet"])
    for name in GPUS:
        lab.node(name).wait_ready()
        registered(lab, name, times=2)
        for _ in range(3):
            rewritten(lab, name)
    offered(lab, left)
    for name in GPUS:
        log = plugin_log(lab, name)
        assert REGISTERED in log
        assert "no longer reserved" not in log
        made.delete(f"load-{name}")
    offered(lab, {"legacy": 4, "modern": 6})
    made.delete()
    offered(lab, {"legacy": 4, "modern": 8})
