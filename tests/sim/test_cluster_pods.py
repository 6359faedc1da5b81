"""From the DaemonSet to a finished CUDA pod on simulated hosts: real processes, real device plugin protocol."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpunode.cluster import nodes, plugin, pods
from gpunode.cluster.nodes import labels
from gpunode.cluster.plugin import Spec
from gpunode.deviceplugin.metrics import PREFIX
from gpunode.model import PluginConfig, PluginImage, PluginPublish
from gpunode.sim.host.machine import Machine, RuntimeNow, UnitNow
from gpunode.sim.host.programs import kernel
from gpunode.sim.node import devices
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
    with made(OLD, NEW) as one:
        yield one


@pytest.fixture(scope="module")
def deployed(fleet: Fleet) -> Fleet:
    """With the plugin running and every GPU offered."""
    assert fleet.deploy().good
    fleet.wait(OLD, 2)
    fleet.wait(NEW, 2)
    return fleet


def test_hosts_are_nodes_as_their_kubelets_tell_of_them(fleet: Fleet) -> None:
    """Name, versions and labels; no GPU before a plugin has registered."""
    until(lambda: len(nodes.every(fleet.api)) == 2)
    old, new = fleet.node(OLD), fleet.node(NEW)
    assert (old.kubelet, old.runtime.partition(":")[0]) == ("v1.23.17", "docker")
    assert (new.kubelet, new.runtime.partition(":")[0]) == ("v1.36.3", "containerd")
    assert old.labels["kubernetes.io/hostname"] == "old"
    assert (old.capacity, new.capacity) == (0, 0)


def test_the_plugin_registers_and_every_gpu_is_offered(deployed: Fleet) -> None:
    """The real plugin, over the kubelet's socket: one DaemonSet with the runtime class, one without."""
    old, new = deployed.row(OLD), deployed.row(NEW)
    assert (old.allocatable, new.allocatable) == (2, 2)
    assert old.pod.startswith("gpunode-device-plugin-")
    assert "class" not in old.pod
    assert new.pod.startswith("gpunode-device-plugin-class-")
    assert "INFO registered with the kubelet" in deployed.log(OLD)
    assert {one.action for one in plugin.plan(deployed.api, Spec(NS, PluginImage(IMAGE)))} == {"same"}


def test_vectoradd_runs_on_every_gpu_of_every_host(deployed: Fleet) -> None:
    """Real processes that add real vectors; together they saw each UUID once, and no pod is left."""
    results = deployed.run(OLD, NEW)
    assert all(result.passed for result in results), results
    seen = [one.uuid for result in results for one in result.results]
    assert sorted(seen) == sorted(gpu.uuid for machine in (OLD, NEW) for gpu in machine.gpus)
    assert {one.gpu for one in results[0].results} == {"Tesla P100-PCIE-16GB"}
    assert deployed.api.find("Pod", NS, labels="app.kubernetes.io/name=gpunode-vectoradd")[0] == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda one: one.name)
def test_a_command_that_is_ended_leaves_no_pod(deployed: Fleet, number: signal.Signals) -> None:
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
    assert [one for one in of_vectoradd(deployed) if "deletionTimestamp" not in one["metadata"]] == []
    until(lambda: not of_vectoradd(deployed))


def of_vectoradd(fleet: Fleet) -> list[dict[str, Any]]:
    """The pods of vectoradd that are there."""
    return fleet.api.find("Pod", NS, labels="app.kubernetes.io/name=gpunode-vectoradd")[0]


def test_a_pod_that_asks_for_more_gpus_than_there_are_stays_pending(deployed: Fleet) -> None:
    """The scheduler's words, as `gpunode` shows them."""
    limits = {"limits": {"nvidia.com/gpu": 3}}
    wish = {
        "kind": "Pod",
        "apiVersion": "v1",
        "metadata": {"name": "greedy", "namespace": NS},
        "spec": {"containers": [{"name": "c", "image": IMAGE, "resources": limits}]},
    }
    made = deployed.api.create(wish)
    found = until(lambda: pods.problem(deployed.api.get("Pod", "greedy", NS) or {}))
    assert found.startswith("not scheduled: 0/2 nodes are available: 2 Insufficient nvidia.com/gpu.")
    assert [event["reason"] for event in pods.events(deployed.api, made)] == ["FailedScheduling"]
    deployed.api.delete("Pod", "greedy", NS)
    until(lambda: deployed.api.get("Pod", "greedy", NS) is None)


def pod(name: str, args: list[str], **spec: Any) -> dict[str, Any]:
    """A pod of the plugin's image that needs no GPU."""
    containers = [{"name": "c", "image": IMAGE, "args": args}]
    return {
        "kind": "Pod",
        "apiVersion": "v1",
        "metadata": {"name": name, "namespace": NS},
        "spec": {"containers": containers, **spec},
    }


def test_a_host_sees_the_containers_of_its_pods_and_who_has_its_gpus(deployed: Fleet) -> None:
    """docker counts them, with their pods' sandboxes, and the driver is in use."""
    state = deployed.states[OLD.name]
    limits = {"nvidia.com/gpu": 1}
    container = {"name": "c", "image": IMAGE, "command": ["sleep", "600"], "resources": {"limits": limits}}
    spec = {"nodeName": OLD.name, "containers": [container]}
    pod = {
        "kind": "Pod",
        "apiVersion": "v1",
        "metadata": {"name": "job", "namespace": "default"},
        "spec": spec,
    }
    deployed.api.create(pod)
    until(lambda: len(state.now().containers) == 2)  # and the plugin's

    def running() -> int:
        return int(json.loads((state.folder / "answers/docker-info").read_text())["ContainersRunning"])

    assert running() == 4
    uid = (deployed.api.get("Pod", "job", "default") or {})["metadata"]["uid"]
    assert ("sleep", uid) in {(one.words[0], one.pod) for one in state.now().gpu_users}
    assert "in use" in (kernel.unload(state.now(), "nvidia") or "")
    deployed.api.delete("Pod", "job", "default")
    until(lambda: running() == 2)


def test_a_container_that_keeps_ending_is_started_ever_more_seldom(deployed: Fleet) -> None:
    """CrashLoopBackOff, with how it ended and what its last life wrote."""
    deployed.api.create(pod("crash", ["-m", "gpunode.deviceplugin", "--no-such-flag"]))

    def found() -> dict[str, Any]:
        return deployed.api.get("Pod", "crash", NS) or {}

    until(lambda: pods.problem(found()) == "c is in CrashLoopBackOff: exit code 2")
    assert pods.restarts(found()) >= 2
    assert "unrecognized arguments: --no-such-flag" in deployed.api.log(NS, "crash", "c", previous=True)
    deployed.api.delete("Pod", "crash", NS)
    until(lambda: not found())


def test_a_pod_that_is_over_its_deadline_is_ended(deployed: Fleet) -> None:
    """Its process is stopped, and its status has the reason."""
    before = containers()
    deployed.api.create(
        pod("late", ["-m", "gpunode.deviceplugin", "--log-level=error"], activeDeadlineSeconds=1)
    )
    if before:  # only Linux tells
        until(lambda: containers() - before)
    until(lambda: (deployed.api.get("Pod", "late", NS) or {})["status"]["phase"] == "Failed")
    late = deployed.api.get("Pod", "late", NS)
    assert late
    assert pods.problem(late).startswith("DeadlineExceeded: Pod was active on the node longer")
    until(lambda: not containers() - before)
    deployed.api.delete("Pod", "late", NS)


def test_an_image_that_is_not_on_the_host_is_not_run(deployed: Fleet) -> None:
    """ErrImagePull with the runtime's words, and both runtimes have their own."""
    old, new = deployed.run(OLD, NEW, image="absent:1", seconds=3)
    assert "ImagePull" in old.results[0].why
    assert "pull access denied for absent:1" in old.results[0].why
    assert 'failed to resolve reference "absent:1"' in new.results[0].why


def test_the_plugins_configuration_is_rolled_out(deployed: Fleet) -> None:
    """Its ConfigMap is mounted: GPUs are shared by time, then by memory, then whole again."""
    memory = sum(gpu.memory_mib // 1024 for gpu in NEW.gpus)
    steps: tuple[tuple[PluginConfig | None, dict[str, int]], ...] = (
        (PluginConfig(BY_TIME), {"nvidia.com/gpu.shared": 6, "nvidia.com/gpu": 0}),
        (PluginConfig(BY_MEMORY), {"aliyun.com/gpu-mem": memory, "nvidia.com/gpu.shared": 0}),
        (None, {"nvidia.com/gpu": 2, "aliyun.com/gpu-mem": 0}),
    )
    for config, offered in steps:
        rollout = deployed.deploy(config)
        assert rollout.good, rollout.rows
        deployed.wait(NEW, offered)
    deployed.wait(OLD, 2)


def test_a_configuration_that_changes_reaches_the_pods_that_run(deployed: Fleet) -> None:
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


def test_what_a_plugin_no_longer_offers_is_forgotten_after_a_while(
    deployed: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kubelet keeps what it knows of a plugin that has gone for five minutes, as unhealthy; then there is none."""

    def counts() -> list[str]:
        node = deployed.api.get("Node", NEW.name) or {}
        return [node["status"][part]["nvidia.com/gpu.shared"] for part in ("capacity", "allocatable")]

    assert counts() == ["8", "0"]  # of the configuration before
    monkeypatch.setattr(devices, "GRACE", 0.0)
    until(lambda: counts() == ["0", "0"])
    deployed.wait(NEW, {"nvidia.com/gpu": 2})


def test_a_pod_waits_for_the_configmap_that_it_mounts(deployed: Fleet) -> None:
    """What is missing is an event in the kubelet's words; once it is there the pod runs, and its folder goes with it."""
    container = {
        "name": "c",
        "image": IMAGE,
        "command": ["sleep", "60"],
        "volumeMounts": [{"name": "v", "mountPath": "/x"}],
    }
    spec = {
        "nodeName": NEW.name,
        "containers": [container],
        "volumes": [{"name": "v", "configMap": {"name": "later"}}],
    }
    meta = {"name": "mounts", "namespace": "default"}
    pod = deployed.api.create({"kind": "Pod", "apiVersion": "v1", "metadata": meta, "spec": spec})
    words = 'MountVolume.SetUp failed for volume "v" : configmap "later" not found'
    until(lambda: words in [event["message"] for event in pods.events(deployed.api, pod)])
    config = {"kind": "ConfigMap", "apiVersion": "v1", "metadata": {**meta, "name": "later"}}
    deployed.api.create({**config, "data": {"key": "value"}})
    until(lambda: pods.ready(deployed.api.get("Pod", "mounts", "default") or {}))
    folder = deployed.states[NEW.name].root / "var/lib/kubelet/pods" / pod["metadata"]["uid"]
    assert (folder / "volumes/kubernetes.io~configmap/v/key").read_text() == "value"
    deployed.api.delete("Pod", "mounts", "default")
    until(lambda: not folder.exists())
    deployed.api.delete("ConfigMap", "later", "default")


def test_a_log_is_followed_until_its_container_has_ended(deployed: Fleet) -> None:
    """What it writes last comes, too; without `follow` the answer ends with what there is."""
    pod = deployed.row(OLD).pod
    client, path = Client(deployed.cluster.kubeconfig), f"/api/v1/namespaces/{NS}/pods/{pod}/log"
    with client.begin("GET", path, follow="true", tailLines="1") as log:
        assert log.read1().decode() == client.ask("GET", path, tailLines="1")[1]
        deployed.api.delete("Pod", pod, NS)
        assert b"stopping" in log.read()
    deployed.wait(OLD, 2)


def test_what_happens_to_a_container_is_reported_in_its_order(deployed: Fleet) -> None:
    """As kubelets report it; `kubectl describe pod` shows it."""
    spec = {"nodeName": OLD.name, "containers": [{"name": "c", "image": IMAGE, "command": ["sleep", "60"]}]}
    meta = {"name": "told", "namespace": "default"}
    pod = deployed.api.create({"kind": "Pod", "apiVersion": "v1", "metadata": meta, "spec": spec})
    until(lambda: pods.ready(deployed.api.get("Pod", "told", "default") or {}))
    (status,) = (deployed.api.get("Pod", "told", "default") or {})["status"]["containerStatuses"]
    assert status["containerID"].startswith("docker://")
    deployed.api.delete("Pod", "told", "default")
    until(lambda: deployed.api.get("Pod", "told", "default") is None)
    told = [event["message"] for event in deployed.api.find("Event", "default")[0] if _about(event, pod)]
    present = f'Container image "{IMAGE}" already present on machine'
    assert told == [present, "Created container: c", "Started container c", "Stopping container c"]


def _about(event: dict[str, Any], pod: dict[str, Any]) -> bool:
    return bool(event["involvedObject"]["uid"] == pod["metadata"]["uid"])


def test_an_xid_makes_its_gpu_unhealthy(deployed: Fleet) -> None:
    """The plugin hears of it through NVML, the kubelet from the plugin, the node offers one less."""
    gpu = NEW.gpus[1]
    with deployed.states[NEW.name].change() as now:
        now.xids.append((gpu.uuid, 48))
    deployed.wait(NEW, 1)
    assert deployed.node(NEW).capacity == 2
    assert "Xid 48: double bit ECC error" in deployed.log(NEW)
    (result,) = deployed.run(Machine(NEW.name, NEW.os, NEW.kernel, NEW.runtime, NEW.kubelet, NEW.gpus[:1]))
    assert [one.uuid for one in result.results] == [NEW.gpus[0].uuid]
    # A new pod of the plugin knows nothing of it: as after a reset of the GPU.
    deployed.api.delete("Pod", deployed.row(NEW).pod, NS)
    deployed.wait(NEW, 2)


def test_a_kubelet_that_restarts_has_its_gpus_back(deployed: Fleet) -> None:
    """It forgets its plugins, the plugin notices the new socket and registers again: no pod is restarted."""
    before = deployed.row(OLD)
    registered = deployed.log(OLD).count("INFO registered with the kubelet")
    deployed.restart(OLD, "kubelet.service")
    until(lambda: deployed.log(OLD).count("INFO registered with the kubelet") > registered)
    deployed.wait(OLD, 2)
    assert deployed.row(OLD).pod == before.pod
    assert deployed.row(OLD).restarts == 0


def test_a_kubelet_that_restarts_offers_nothing_before_a_plugin_registers(deployed: Fleet) -> None:
    """While it runs it remembers how many devices a plugin had that has gone; a new one knows their resource only."""
    labels.write(deployed.api, deployed.node(OLD), {"gpunode.dev/gpu": "false"})
    until(lambda: deployed.node(OLD).allocatable == 0)
    assert deployed.node(OLD).capacity == 2
    deployed.restart(OLD, "kubelet.service")
    until(lambda: deployed.node(OLD).capacity == 0)
    labels.write(deployed.api, deployed.node(OLD), {"gpunode.dev/gpu": "true"})
    deployed.wait(OLD, 2)


def test_plugins_of_several_hosts_serve_their_metrics_side_by_side(deployed: Fleet) -> None:
    """Each at its own address, and with the containers that have its GPUs."""
    publish = PluginPublish(metrics=True)
    rollout = plugin.deploy(
        deployed.api, Spec(NS, PluginImage(IMAGE), None, publish), seconds=60, tell=lambda _: None
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
    until(lambda: pods.ready(deployed.api.get("Pod", "two", "default") or {}))

    def metrics(machine: Machine) -> str:
        with urllib.request.urlopen(deployed.cluster.metrics[machine.name], timeout=10) as answer:
            return str(answer.read().decode())

    def held() -> list[list[str]]:
        """Container and GPU of each line that has both."""
        lines = [line for line in metrics(NEW).splitlines() if line.startswith(f"{PREFIX}pod_devices{{")]
        return sorted(re.findall(r'(?:container|gpu)="([^"]*)"', line) for line in lines)

    until(held)  # what the kubelet said counts for some seconds
    assert [container for container, _ in held()] == ["a", "b"]
    assert {gpu for _, gpu in held()} == {gpu.uuid for gpu in NEW.gpus}
    assert f"{PREFIX}pod_resources_up{{}} 1" in metrics(OLD)
    assert NEW.gpus[0].uuid not in metrics(OLD)
    addresses = {deployed.address(machine) for machine in (OLD, NEW)}
    assert len(addresses) == (2 if sys.platform == "linux" else 1)
    deployed.api.delete("Pod", "two", "default")
    assert deployed.deploy().good
    deployed.wait(OLD, 2)
    deployed.wait(NEW, 2)


def test_a_kubelet_whose_gate_is_off_takes_no_plugin(deployed: Fleet) -> None:
    """An old one that was started without device plugins has no socket to register with."""
    deployed.restart(OLD, "kubelet.service", arguments=["kubelet", "--feature-gates=DevicePlugins=false"])
    until(lambda: deployed.node(OLD).allocatable == 0)
    until(lambda: "waiting for" in deployed.row(OLD).last_line)
    until(
        lambda: (
            deployed.row(OLD).problem
            == "the plugin is not ready: not registered with the kubelet: nvidia.com/gpu"
        )
    )
    assert not plugin.deploy(deployed.api, Spec(NS, PluginImage(IMAGE)), seconds=1, tell=lambda _: None).good
    deployed.restart(OLD, "kubelet.service", arguments=["kubelet"])
    deployed.wait(OLD, 2)


def test_a_kubelet_that_stops_is_no_longer_ready(deployed: Fleet) -> None:
    """The node controller reports it; when the kubelet is back, the node is Ready and its pods have run on."""
    pod = deployed.row(NEW).pod
    state = deployed.states[NEW.name]
    with state.change() as now:
        unit = now.units["kubelet.service"]
        now.units["kubelet.service"] = UnitNow("failed", "failed")
    until(lambda: not deployed.node(NEW).ready)
    assert deployed.node(NEW).why_not_ready == "Kubelet stopped posting node status."
    with state.change() as now:
        now.units["kubelet.service"] = UnitNow("active", "running", time.time(), pid=unit.pid)
    until(lambda: deployed.node(NEW).ready)
    deployed.wait(NEW, 2)
    assert deployed.row(NEW).pod == pod


def test_a_docker_that_no_longer_has_the_nvidia_runtime_leaves_the_plugin_without_a_driver(
    deployed: Fleet,
) -> None:
    """Restarting docker ends its containers; the plugin is restarted, finds no library and reports it."""
    state = deployed.restart(OLD, "docker.service", runtime=RuntimeNow(["runc"], "runc"))
    until(lambda: deployed.row(OLD).restarts == 1)
    until(lambda: "NVML: Shared Library Not Found" in deployed.log(OLD))
    assert deployed.node(OLD).allocatable == 0
    with state.change() as now:
        now.units["docker.service"].since = time.time()
        now.runtime = RuntimeNow(["runc", "nvidia"], "nvidia")
    deployed.wait(OLD, 2)
    assert "NVML: Shared Library Not Found" in deployed.log(OLD, previous=True)


def test_a_class_that_containerd_does_not_know_makes_no_sandbox(deployed: Fleet) -> None:
    """The handler of the runtime class is missing in the running containerd."""
    with deployed.states[NEW.name].change() as now:
        now.runtime = RuntimeNow(["runc"], "runc")
    (result,) = deployed.run(NEW, seconds=3)
    assert 'no runtime for "nvidia" is configured' in result.results[0].why
    with deployed.states[NEW.name].change() as now:
        now.runtime = RuntimeNow(["runc", "nvidia"], "runc")


def test_a_library_that_does_not_fit_its_module_starts_no_container(deployed: Fleet) -> None:
    """The nvidia runtime's hook finds it out: the pod never runs."""
    with deployed.states[NEW.name].change() as now:
        now.library = "595.1.2"
    (result,) = deployed.run(NEW)
    assert "driver/library version mismatch" in result.results[0].why
    with deployed.states[NEW.name].change() as now:
        now.library = now.modules["nvidia"]


def test_a_reboot_ends_all_processes_and_the_plugin_comes_back(deployed: Fleet) -> None:
    """The node has another boot id; its pods are the same, started once more."""
    before = deployed.row(NEW)
    with deployed.states[NEW.name].change() as now:
        now.boot_id, now.down_until = "another", time.time() + 0.5
        for unit in now.units.values():
            unit.since = time.time() + 0.5
    until(lambda: deployed.row(NEW).restarts == before.restarts + 1)
    deployed.wait(NEW, 2)
    assert deployed.row(NEW).pod == before.pod


def test_removing_takes_all_of_it(deployed: Fleet) -> None:
    """Pods first, then what owned them, then the namespace; gpunode's labels of nodes last. No process is left."""
    removed = plugin.remove(deployed.api, NS, seconds=60, tell=lambda _: None)
    assert removed[removed.index(f"Namespace {NS}") + 1 :] == (
        "Node new label gpunode.dev/gpu, gpunode.dev/runtime",
        "Node old label gpunode.dev/gpu",
    )
    assert not any("gpunode.dev/gpu" in node.labels for node in nodes.every(deployed.api))
    assert deployed.api.find("Pod")[0] == []
    assert containers() == set()


def containers() -> set[int]:
    """The processes of containers, which the fork servers below this one started; none where there is no /proc."""
    return {pid for server in _children(os.getpid()) for pid in _children(server)}


def _children(pid: int) -> list[int]:
    with contextlib.suppress(OSError):  # it has just ended
        return [
            int(child)
            for path in Path(f"/proc/{pid}/task").glob("*/children")
            for child in path.read_text().split()
        ]
    return []
