"""From NVIDIA's own device plugin to this one and back on a real kubelet, step by step as docs/switching.md has it."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from . import nvidia
from .api import Lab, Node
from .conftest import Ran
from .plugin_log import REGISTERED, plugin_log, plugin_pods, registered
from .pods import Pods
from .progress import wait

pytestmark = pytest.mark.lab

NODE = "modern"
GPU = "nvidia.com/gpu"
SAMPLE = Path(__file__).parents[1] / "deviceplugin/nvidia-samples/time-slicing.yaml"
CONFIG = SAMPLE.read_text().replace("replicas: 10", "replicas: 2")
SHARES = 8
CLASSES = "/apis/node.k8s.io/v1/runtimeclasses"
THEIRS = "DaemonSet kube-system/nvidia-device-plugin-daemonset, on 1 node, offers NVIDIA GPUs too."
CHECKPOINT = "/var/lib/kubelet/device-plugins/kubelet_internal_checkpoint"


@pytest.fixture(scope="module", autouse=True)
def theirs(lab: Lab, gpunode: Callable[..., Ran]) -> Iterator[None]:
    """A GPU node with NVIDIA's plugin and a RuntimeClass of its owner's; afterwards one with this plugin."""
    for command in ("provision --no-run", "plugin remove"):
        ran = gpunode(command, "--yes", "--json")
        assert ran.code == 0, ran
    owned = {"metadata": {"name": "nvidia"}, "handler": "nvidia"}
    lab.request("POST", CLASSES, {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", **owned})
    nvidia.load_image(lab, NODE)
    nvidia.deploy(lab, NODE, CONFIG)
    yield
    nvidia.remove(lab)
    lab.request("DELETE", f"{CLASSES}/nvidia")
    ran = gpunode("plugin deploy", "--yes", "--json")
    assert ran.code == 0, ran


@pytest.fixture
def inventory(lab: Lab) -> Path:
    """The lab's inventory with the configuration file that NVIDIA's ConfigMap has."""
    (config,) = lab.request("GET", f"{nvidia.CONFIG_MAPS}/{nvidia.CONFIG}")["data"].values()
    lab.inventory.with_name("switch-plugin.yaml").write_text(config)
    changed = yaml.safe_load(lab.inventory.read_text())
    changed["cluster"]["plugin"]["config"] = "switch-plugin.yaml"
    file = lab.inventory.with_name("switch.yaml")
    file.write_text(yaml.safe_dump(changed))
    return file


def offered(lab: Lab, number: int) -> None:
    """Wait until the node has so many to give."""
    wait(f"{number} {GPU}", lambda: lab.units(NODE) == number, 60)


def held(node: Node) -> dict[str, set[str]]:
    """The kubelet's record: pod's UID -> the ids of its devices."""
    entries = json.loads(node.read(CHECKPOINT))["Data"]["PodDeviceEntries"] or []
    return {
        entry["PodUID"]: {unit for ids in entry["DeviceIDs"].values() for unit in ids}
        for entry in entries
        if entry["ResourceName"] == GPU
    }


def container(made: Pods, name: str) -> tuple[str, str]:
    """Which container it is that the pod runs."""
    (status,) = made.get(name)["status"]["containerStatuses"]
    assert "running" in status["state"], status
    return status["containerID"], status["state"]["running"]["startedAt"]


def our_pod(lab: Lab) -> dict[str, Any]:
    """This plugin's pod on the node."""
    (pod,) = plugin_pods(lab, NODE)
    return pod


def registrations(lab: Lab) -> int:
    """How often device plugins have registered with the node's kubelet."""
    metrics = lab.request("GET", f"/api/v1/nodes/{NODE}/proxy/metrics")
    name = f'kubelet_device_plugin_registration_total{{resource_name="{GPU}"}} '
    (line,) = [line for line in metrics.splitlines() if line.startswith(name)]
    return int(line.removeprefix(name))


def test_a_pod_keeps_its_gpu_all_the_way_there_and_back(
    lab: Lab, gpunode: Callable[..., Ran], inventory: Path, made: Pods
):
    """Its container runs on, and for the kubelet it has the same devices, which nobody else is given."""
    node = lab.node(NODE)
    offered(lab, SHARES)
    before = made.make("before", NODE)
    made.seen(before)
    same, record = container(made, before), held(node)
    assert [len(ids) for ids in record.values()] == [1]

    look = gpunode("plan", "--json", "--limit", NODE, inventory=inventory)
    assert look.code == 0, look
    assert {"ConfigMap", "DaemonSet"} <= {each["object"].partition(" ")[0] for each in look.of("cluster")}
    assert THEIRS in look.stdout
    for command in (f"plugin deploy --yes --replace {THEIRS.split()[1].rstrip(',')}", "verify"):
        ran = gpunode(command, "--json", "--limit", NODE, inventory=inventory)
        assert ran.code == 0, ran
        assert THEIRS not in ran.stdout
    nvidia.remove(lab)  # its ConfigMap
    offered(lab, SHARES)
    assert container(made, before) == same
    assert record.items() <= held(node).items()
    rest = made.make("rest", NODE, SHARES - 1)
    made.seen(rest)
    unit, others = (
        held(node)[made.get(before)["metadata"]["uid"]],
        held(node)[made.get(rest)["metadata"]["uid"]],
    )
    assert len(unit | others) == SHARES
    assert not unit & others
    made.delete(rest)

    ran = gpunode("plugin remove", "--yes", "--json", inventory=inventory)
    assert ran.code == 0, ran
    assert "nvidia" in {item["metadata"]["name"] for item in lab.request("GET", CLASSES)["items"]}
    nvidia.deploy(lab, NODE, CONFIG)
    offered(lab, SHARES)
    assert container(made, before) == same
    made.seen(made.make("after", NODE))
    assert record.items() <= held(node).items()


def test_of_two_at_once_the_newest_wins_and_the_node_has_gpus_all_the_time(
    lab: Lab, gpunode: Callable[..., Ran], inventory: Path, made: Pods
):
    """This one says that it stands by, and takes over when the other goes, which from then on is nobody's trouble."""
    node, taken = (
        lab.node(NODE),
        "another process has taken over /var/lib/kubelet/device-plugins/nvidia-gpu.sock",
    )
    offered(lab, SHARES)
    ran = gpunode("plugin deploy", "--yes", "--json", "--limit", NODE, inventory=inventory)
    assert ran.code == 0, ran
    assert THEIRS in ran.stdout
    registered(lab, NODE)
    made.seen(made.make("first", NODE))
    assert plugin_log(lab, NODE).count(" allocated ") == 1

    # For the end of the one that it does not know any more, the kubelet drops the one that it knows.
    nvidia.remove(lab)
    registered(lab, NODE, times=2)

    # The same the other way: this one is kept from seeing the other come before that is registered.
    before = registrations(lab)
    pid = node.exec(["pgrep", "-f", "-x", "python3 -S -m gpunode.deviceplugin"]).stdout.strip()
    node.exec(["kill", "-STOP", pid])
    nvidia.deploy(lab, NODE, CONFIG)
    node.exec(["kill", "-CONT", pid])
    wait("this plugin to stand by", lambda: taken in plugin_log(lab, NODE), 60)
    wait("NVIDIA's plugin to be registered once more", lambda: registrations(lab) == before + 2, 60)
    made.seen(made.make("second", NODE))
    assert plugin_log(lab, NODE).count(" allocated ") == 1
    wait("its pod to be unready", lambda: not our_pod(lab)["status"]["containerStatuses"][0]["ready"], 120)
    ran = gpunode("verify", "--json", "--limit", NODE, inventory=inventory)
    assert (ran.code, f"another device plugin on this node has taken over {GPU}" in ran.stdout) == (
        1,
        True,
    ), ran

    nvidia.remove(lab)
    wait(
        "this plugin to be back",
        lambda: REGISTERED in plugin_log(lab, NODE).partition("taking over again")[2],
        60,
    )
    made.seen(made.make("third", NODE))
    assert plugin_log(lab, NODE).count(" allocated ") == 2
