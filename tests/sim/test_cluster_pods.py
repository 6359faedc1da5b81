"""From the DaemonSet to a finished CUDA pod on simulated hosts: real processes, real device plugin protocol."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpunode.cluster import pods
from gpunode.deviceplugin.metrics import PREFIX
from gpunode.links import node as nodes
from gpunode.links import plugin
from gpunode.links.node import labels
from gpunode.links.plugin import Spec
from gpunode.model import PluginConfig, PluginImage, PluginPublish
from gpunode.sim.host.machine import Machine
from tests import forks

from .clusters import IMAGE, Client, until
from .deployed import NEW, NS, OLD, Fleet
from .deployed import fleet as made

CHOICE = "nvidia.com/device-plugin.config"
BY_TIME = """\
version: v1
sharing:
  timeSlicing:
    renameByDefault: true
    resources:
      - {name: nvidia.com/gpu, replicas: 3}
"""
BY_MEMORY = "version: v1\nsharing: {memory: {unit: GiB}}\n"


@pytest.fixture(scope="module")
def fleet() -> Iterator[Fleet]:
    with made(OLD, NEW) as pair:
        yield pair


@pytest.fixture(scope="module")
def deployed(fleet: Fleet) -> Fleet:
    """With the plugin running and every GPU offered."""
    assert fleet.deploy().good
    fleet.wait(OLD, 2)
    fleet.wait(NEW, 2)
    return fleet


def test_the_plugin_registers_and_every_gpu_is_offered(deployed: Fleet):
    """The real plugin, over the kubelet's socket: one DaemonSet with the runtime class, one without."""
    old, new = deployed.row(OLD), deployed.row(NEW)
    assert (old.allocatable, new.allocatable) == (2, 2)
    assert old.pod.startswith("gpunode-device-plugin-")
    assert "class" not in old.pod
    assert new.pod.startswith("gpunode-device-plugin-class-")
    assert "INFO registered with the kubelet" in deployed.log(OLD)
    assert {change.action for change in plugin.plan(deployed.api, Spec(NS, PluginImage(IMAGE)))} == {"same"}


def test_vectoradd_runs_on_every_gpu_of_every_host(deployed: Fleet):
    """Real processes that add real vectors; together they saw each UUID once, and no pod is left."""
    results = deployed.run(OLD, NEW)
    assert all(result.passed for result in results), results
    seen = [gpu.uuid for result in results for gpu in result.results]
    assert sorted(seen) == sorted(gpu.uuid for machine in (OLD, NEW) for gpu in machine.gpus)
    assert {gpu.gpu for gpu in results[0].results} == {"Tesla P100-PCIE-16GB"}
    assert deployed.api.find("Pod", NS, labels="app.kubernetes.io/name=gpunode-vectoradd")[0] == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda n: n.name)
def test_a_command_that_is_ended_leaves_no_pod(deployed: Fleet, number: signal.Signals):
    """However it is ended: the GPUs that its pods were to have are free."""
    inventory = deployed.demo / "inventory.yaml"
    inventory.write_text(
        json.dumps(
            {
                "cluster": {"kubeconfig": "kubeconfig", "namespace": NS, "plugin": {"image": IMAGE}},
                "groups": {"gpu": {"hosts": [NEW.name]}},
            }
        )
    )
    words = [sys.executable, "-m", "gpunode", "run", "vectoradd", str(inventory), "--image", "none:1"]
    with forks.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as ran:
        until(lambda: of_vectoradd(deployed) or ran.poll() is not None)
        ran.send_signal(number)
        said, _ = ran.communicate()
    assert ran.returncode == 130, said
    assert [pod for pod in of_vectoradd(deployed) if "deletionTimestamp" not in pod["metadata"]] == []
    until(lambda: not of_vectoradd(deployed))


def of_vectoradd(fleet: Fleet) -> list[dict[str, Any]]:
    """The pods of vectoradd that are there."""
    return fleet.api.find("Pod", NS, labels="app.kubernetes.io/name=gpunode-vectoradd")[0]


def pod(name: str, args: list[str], **spec: Any) -> dict[str, Any]:
    """A pod of the plugin's image that needs no GPU."""
    containers = [{"name": "c", "image": IMAGE, "args": args}]
    return {
        "kind": "Pod",
        "apiVersion": "v1",
        "metadata": {"name": name, "namespace": NS},
        "spec": {"containers": containers, **spec},
    }


def test_a_container_that_keeps_ending_is_started_ever_more_seldom(deployed: Fleet):
    """CrashLoopBackOff, with how it ended and what its last life wrote."""
    deployed.api.create(pod("crash", ["-m", "gpunode.deviceplugin", "--no-such-flag"]))

    def status() -> dict[str, Any]:
        return deployed.api.get("Pod", "crash", NS) or {}

    until(lambda: pods.problem(status()) == "c is in CrashLoopBackOff: exit code 2")
    assert pods.restarts(status()) >= 2
    assert "unrecognized arguments: --no-such-flag" in deployed.api.log(NS, "crash", "c", previous=True)
    deployed.api.delete("Pod", "crash", NS)
    until(lambda: not status())


def test_an_image_that_is_not_on_the_host_is_not_run(deployed: Fleet):
    """ErrImagePull with the runtime's words, and both runtimes have their own."""
    old, new = deployed.run(OLD, NEW, image="absent:1", seconds=8)
    assert "ImagePull" in old.results[0].why
    assert "pull access denied for absent:1" in old.results[0].why
    assert 'failed to resolve reference "absent:1"' in new.results[0].why


def test_the_plugins_configuration_is_rolled_out(deployed: Fleet):
    """Its ConfigMap is mounted: GPUs are shared by time, then by memory, then whole again."""
    memory = sum(gpu.memory_mib // 1024 for gpu in NEW.gpus)
    steps: tuple[tuple[PluginConfig | None, dict[str, int]], ...] = (
        (PluginConfig(BY_TIME), {"nvidia.com/gpu.shared": 6, "nvidia.com/gpu": 0}),
        (PluginConfig(BY_MEMORY), {"aliyun.com/gpu-mem": memory, "nvidia.com/gpu.shared": 0}),
        (None, {"nvidia.com/gpu": 2, "aliyun.com/gpu-mem": 0}),
    )
    for config, offered in steps:
        rollout = deployed.deploy(config)
        assert rollout.good, rollout.states
        deployed.wait(NEW, offered)
    deployed.wait(OLD, 2)


def test_a_configuration_that_changes_reaches_the_pods_that_run(deployed: Fleet):
    """Of several files the node's label names one; the plugin takes up what becomes of it, in the same pod."""
    labels.write(deployed.api, deployed.node(NEW), {CHOICE: "shared"}, writer="test")
    files = {"shared": BY_TIME, "default": "version: v1\n"}
    assert deployed.deploy(PluginConfig(files=files)).good
    deployed.wait(NEW, {"nvidia.com/gpu.shared": 6})
    deployed.wait(OLD, 2)
    pod = deployed.row(NEW).pod
    assert deployed.deploy(PluginConfig(files={**files, "shared": BY_TIME.replace("3}", "4}")})).good
    deployed.wait(NEW, {"nvidia.com/gpu.shared": 8})
    assert deployed.row(NEW).pod == pod
    labels.write(deployed.api, deployed.node(NEW), {}, writer="test")
    assert deployed.deploy().good
    deployed.wait(NEW, {"nvidia.com/gpu": 2, "nvidia.com/gpu.shared": 0})


def test_a_log_is_followed_until_its_container_has_ended(deployed: Fleet):
    """What it writes last comes, too; without `follow` the answer ends with what there is."""
    pod = deployed.row(OLD).pod
    client, path = Client(deployed.cluster.kubeconfig), f"/api/v1/namespaces/{NS}/pods/{pod}/log"
    with client.begin("GET", path, follow="true", tailLines="1") as log:
        assert log.read1().decode() == client.ask("GET", path, tailLines="1")[1]
        deployed.api.delete("Pod", pod, NS)
        assert b"stopping" in log.read()
    deployed.wait(OLD, 2)


def test_an_xid_makes_its_gpu_unhealthy(deployed: Fleet):
    """The plugin hears of it through NVML, the kubelet from the plugin, the node offers one less."""
    gpu = NEW.gpus[1]
    with deployed.states[NEW.name].change() as now:
        now.xids.append((gpu.uuid, 48))
    deployed.wait(NEW, 1)
    assert deployed.node(NEW).capacity == 2
    assert "Xid 48: double bit ECC error" in deployed.log(NEW)
    (result,) = deployed.run(Machine(NEW.name, NEW.os, NEW.kernel, NEW.runtime, NEW.kubelet, NEW.gpus[:1]))
    assert [gpu.uuid for gpu in result.results] == [NEW.gpus[0].uuid]
    # A new pod of the plugin knows nothing of it: as after a reset of the GPU.
    deployed.api.delete("Pod", deployed.row(NEW).pod, NS)
    deployed.wait(NEW, 2)


def test_a_kubelet_that_restarts_has_its_gpus_back(deployed: Fleet):
    """It forgets its plugins, the plugin notices the new socket and registers again: no pod is restarted."""
    before = deployed.row(OLD)
    registered = deployed.log(OLD).count("INFO registered with the kubelet")
    deployed.restart(OLD, "kubelet.service")
    until(lambda: deployed.log(OLD).count("INFO registered with the kubelet") > registered)
    deployed.wait(OLD, 2)
    assert deployed.row(OLD).pod == before.pod
    assert deployed.row(OLD).restarts == 0


def test_plugins_of_several_hosts_serve_their_metrics_side_by_side(deployed: Fleet):
    """Each at its own address, and with the containers that have its GPUs."""
    publish = PluginPublish(metrics=True)
    rollout = plugin.deploy(
        deployed.api, Spec(NS, PluginImage(IMAGE), None, publish), seconds=60, notify=lambda _: None
    )
    assert rollout.good
    limits = {"limits": {"nvidia.com/gpu": 1}}
    containers = [
        {"name": name, "image": IMAGE, "command": ["sleep", "60"], "resources": limits} for name in ("a", "b")
    ]
    spec = {"nodeName": NEW.name, "containers": containers, "terminationGracePeriodSeconds": 0}
    meta = {"name": "two", "namespace": "default"}
    deployed.wait(NEW, 2)
    deployed.api.create({"kind": "Pod", "apiVersion": "v1", "metadata": meta, "spec": spec})
    until(lambda: pods.is_ready(deployed.api.get("Pod", "two", "default") or {}))

    def metrics(machine: Machine) -> str:
        with urllib.request.urlopen(deployed.cluster.metrics[machine.name], timeout=10) as answer:
            return str(answer.read().decode())

    def held() -> list[list[str]]:
        """Container and GPU of each line that has both."""
        lines = [line for line in metrics(NEW).splitlines() if line.startswith(f"{PREFIX}pod_devices{{")]
        return sorted(re.findall(r'(?:container|gpu)="([^"]*)"', line) for line in lines)

    # What the kubelet said counts for some seconds.
    until(lambda: [container for container, _ in held()] == ["a", "b"])
    assert {gpu for _, gpu in held()} == {gpu.uuid for gpu in NEW.gpus}
    assert f"{PREFIX}pod_resources_up{{}} 1" in metrics(OLD)
    assert NEW.gpus[0].uuid not in metrics(OLD)
    addresses = {deployed.address(machine) for machine in (OLD, NEW)}
    assert len(addresses) == (2 if sys.platform == "linux" else 1)
    deployed.api.delete("Pod", "two", "default")
    assert deployed.deploy().good
    deployed.wait(OLD, 2)
    deployed.wait(NEW, 2)


def test_a_kubelet_whose_gate_is_off_takes_no_plugin(deployed: Fleet):
    """An old one that was started without device plugins has no socket to register with."""
    deployed.restart(OLD, "kubelet.service", arguments=["kubelet", "--feature-gates=DevicePlugins=false"])
    until(lambda: deployed.node(OLD).allocatable == 0)
    until(lambda: "waiting for" in deployed.row(OLD).last_line)
    until(
        lambda: (
            deployed.row(OLD).wrong
            == "the plugin is not ready: not registered with the kubelet: nvidia.com/gpu"
        )
    )
    assert not plugin.deploy(
        deployed.api, Spec(NS, PluginImage(IMAGE)), seconds=1, notify=lambda _: None
    ).good
    deployed.restart(OLD, "kubelet.service", arguments=["kubelet"])
    deployed.wait(OLD, 2)


def test_removing_takes_all_of_it(deployed: Fleet):
    """Pods first, then what owned them, then the namespace; gpunode's labels of nodes last. No process is left."""
    removed = plugin.remove(deployed.api, NS, seconds=60, notify=lambda _: None)
    assert removed[removed.index(f"Namespace {NS}") + 1 :] == (
        "Node new label gpunode.dev/gpu, gpunode.dev/runtime",
        "Node old label gpunode.dev/gpu",
    )
    assert not any("gpunode.dev/gpu" in node.labels for node in nodes.fetch(deployed.api))
    assert deployed.api.find("Pod")[0] == []
    assert containers() == set()


def containers() -> set[int]:
    """The processes of containers, which forks of the fork servers below this one started; none where there is no /proc."""
    servers = [fork for server in _children(os.getpid()) for fork in _children(server)]
    return {pid for server in servers for pid in _children(server)}


def _children(pid: int) -> list[int]:
    with contextlib.suppress(OSError):  # it has just ended
        return [
            int(child)
            for path in Path(f"/proc/{pid}/task").glob("*/children")
            for child in path.read_text().split()
        ]
    return []
