"""The plugin with the device managers of the kubelets 1.8.15, 1.9.11 and 1.10.13: Kubernetes' own code of those days.

Needs no cluster: both are processes of a mount namespace that has the GPUs, and talk by the sockets in
/var/lib/kubelet/device-plugins.
"""

import contextlib
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from gpunode.contract.status import MARK

from . import machine
from .builds import CHECKOUT
from .device_managers import device_manager
from .gpu import control
from .gpu.namespace import Namespace, namespace
from .progress import CannotRun, wait

pytestmark = pytest.mark.lab

SOCKETS = "/var/lib/kubelet/device-plugins"
GPU, SHARED, MIG, MEMORY = (
    "nvidia.com/gpu",
    "nvidia.com/gpu.shared",
    "nvidia.com/mig-1g.10gb",
    "example.com/mib",
)
# what each takes in Register; 1.8 calls its v1alpha1 so
SPEAKS = {"1.8": "0.1", "1.9": "v1alpha2", "1.10": "v1beta1"}
MACHINES: dict[str, list[dict[str, Any]]] = {
    "whole": [{"model": "P100-PCIE-16GB"}] * 4,
    "cut": [{"model": "H100-SXM5-80GB", "mig_layout": ["1g.10gb"] * 2}, {"model": "H100-SXM5-80GB"}],
}


class Rejected(Exception):
    """The kubelet does not let a pod run; its words."""


class Kubelet:
    """A kubelet's device manager, which runs."""

    def __init__(self, minor: str, within: Namespace, log: Path, pods: Sequence[dict[str, Any]] = ()) -> None:
        command = [*within.enter, str(device_manager(minor)), "-logtostderr", "-v=3"]
        with log.open("ab") as file:
            self.process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=file, text=True
            )
        self._ask(do="start", pods=list(pods))

    def _ask(self, **request: Any) -> dict[str, Any]:
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        answer: dict[str, Any] = json.loads(self.process.stdout.readline())
        if "error" in answer:
            raise Rejected(answer["error"])
        return answer

    def offers(self) -> dict[str, int]:
        """What the node has for pods, of each resource that a plugin brought."""
        allocatable = self._ask(do="report")["node"]["allocatable"]
        return {name: int(count) for name, count in allocatable.items() if count != "0"}

    def run(self, pod: dict[str, Any]) -> dict[str, Any]:
        """What each container of a pod is given. A pod that runs already is started again. Raises Rejected."""
        given: dict[str, Any] = self._ask(do="run", pod=pod)["containers"]
        return given

    def end(self, pod: dict[str, Any]) -> None:
        self._ask(do="end", pod=pod)

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


class Node:
    """GPUs, and a kubelet and a plugin that come and go."""

    def __init__(self, within: Namespace, folder: Path) -> None:
        self.within, self.folder = within, folder
        self.kubelets: list[Kubelet] = []
        self.plugins: list[subprocess.Popen[bytes]] = []

    def kubelet(self, minor: str, *pods: dict[str, Any]) -> Kubelet:
        """Start one; `pods` are on the node already."""
        self.kubelets.append(Kubelet(minor, self.within, self.folder / "kubelet.log", pods))
        return self.kubelets[-1]

    def plugin(self, config: str = "", **env: str) -> subprocess.Popen[bytes]:
        """Start one, with a configuration file or variables."""
        if config:
            self.config.write_text(config)
            env["CONFIG_FILE"] = str(self.config)
        env = {"PYTHONPATH": str(CHECKOUT), "HEALTH_INTERVAL": "0.2", "RECOVERY_SECONDS": "0.5", **env}
        log = self.folder / f"plugin-{len(self.plugins)}.log"
        self.plugins.append(self.within.start([sys.executable, "-m", "gpunode.deviceplugin"], log, env))
        return self.plugins[-1]

    @property
    def config(self) -> Path:
        return self.folder / "config.yaml"

    def log(self) -> str:
        """What the plugins logged for people: without their status, which has the same words."""
        every = [path.read_text() for path in sorted(self.folder.glob("plugin-*.log"))]
        return "".join(line for text in every for line in text.splitlines(keepends=True) if MARK not in line)

    def clear(self) -> None:
        """As it was before a test."""
        for kubelet in self.kubelets:
            kubelet.kill()
        for plugin in self.plugins:
            plugin.kill()
            plugin.wait()
        self.kubelets.clear()
        self.plugins.clear()
        for path in [*self.folder.glob("*.log"), *(self.folder / "s").iterdir()]:
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()
        for command in control.bring_back(1):
            self.within.run(*command)


@pytest.fixture(scope="module")
def machines() -> Iterator[Callable[[str], Node]]:
    """Machines by name, made when first asked for."""
    try:
        machine.check()
    except CannotRun as reason:
        pytest.skip(f"no lab: {reason}")
    made: dict[str, Node] = {}
    with contextlib.ExitStack() as stack:

        def node(name: str) -> Node:
            if name not in made:
                folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dm-", dir="/tmp")))
                (folder / "s").mkdir()
                within = stack.enter_context(namespace(MACHINES[name], folder / "s", SOCKETS))
                made[name] = Node(within, folder)
            return made[name]

        yield node


@pytest.fixture
def node(machines: Callable[[str], Node], request) -> Iterator[Node]:
    """Four GPUs, or the machine that the test names."""
    each = machines(getattr(request, "param", "whole"))
    yield each
    each.clear()


def pod(name: str, *containers: int, resource: str = GPU, first: int = 0) -> dict[str, Any]:
    """A pod whose containers ask for so many devices each; `first`: so does an init container."""

    def container(name: str, count: int) -> dict[str, Any]:
        return {"name": name, "resources": {"limits": {resource: str(count)}}}

    return {
        "metadata": {"name": name, "uid": name},
        "spec": {
            "initContainers": [container("first", first)] if first else [],
            "containers": [container(f"c{number}", count) for number, count in enumerate(containers)],
        },
    }


def offered(kubelet: Kubelet, counts: dict[str, int], seconds: float = 20) -> None:
    """Wait until pods can have so many of each resource."""
    wait(f"an offer of {counts}", lambda: kubelet.offers() == counts, seconds)


def visible(given: dict[str, Any]) -> set[str]:
    return set(given["envs"]["NVIDIA_VISIBLE_DEVICES"].split(","))


every_kubelet = pytest.mark.parametrize("minor", SPEAKS)


@every_kubelet
def test_gpus_are_offered_and_each_is_given_once(node, minor):
    """Registered in the kubelet's version of the protocol; containers get what the plugin gave, and the rest is free."""
    kubelet = node.kubelet(minor)
    node.plugin(PASS_DEVICE_SPECS="true")
    offered(kubelet, {GPU: 4})
    assert f"version={SPEAKS[minor]}" in node.log()
    assert "not registered" not in node.log()

    given = kubelet.run(pod("a", 1, 2))
    first, second = visible(given["c0"]), visible(given["c1"])
    assert (len(first), len(second), len(first | second)) == (1, 2, 3)
    for container, count in (("c0", 1), ("c1", 2)):
        assert all(
            inside == outside and mode == "rw" for inside, outside, mode in given[container]["devices"]
        )
        paths = {inside for inside, _, _ in given[container]["devices"]}
        assert paths >= {"/dev/nvidiactl", "/dev/nvidia-uvm"}
        assert len(paths & {f"/dev/nvidia{number}" for number in range(4)}) == count

    with pytest.raises(Rejected, match=r"requested number of devices unavailable.* Available: 1"):
        kubelet.run(pod("b", 2))
    kubelet.end(pod("b", 2))
    rest = visible(kubelet.run(pod("c", 1))["c0"])
    assert not rest & (first | second)
    kubelet.end(pod("a", 1, 2))
    assert visible(kubelet.run(pod("d", 3))["c0"]) == first | second


@every_kubelet
def test_mounts_are_given(node, minor):
    """Which a strategy hands over instead of a variable."""
    kubelet = node.kubelet(minor)
    node.plugin(DEVICE_LIST_STRATEGY="volume-mounts")
    offered(kubelet, {GPU: 4})
    given = kubelet.run(pod("a", 2))["c0"]
    folder = given["envs"]["NVIDIA_VISIBLE_DEVICES"]
    assert len(given["mounts"]) == 2
    for inside, outside, mode in given["mounts"]:
        assert (str(Path(inside).parent), outside, mode) == (folder, "/dev/null", "rw")


@every_kubelet
def test_a_lost_gpu_is_not_offered_until_it_is_back(node, minor):
    kubelet = node.kubelet(minor)
    node.plugin()
    offered(kubelet, {GPU: 4})
    for command in control.lose(1):
        node.within.run(*command)
    offered(kubelet, {GPU: 3})
    well = visible(kubelet.run(pod("a", 3))["c0"])
    kubelet.end(pod("a", 3))
    for command in control.bring_back(1):
        node.within.run(*command)
    offered(kubelet, {GPU: 4})
    assert visible(kubelet.run(pod("b", 4))["c0"]) > well


@every_kubelet
def test_the_reason_of_a_refusal_reaches_the_kubelet(node, minor):
    """And what it had picked for the pod is free again."""
    share = {"renameByDefault": True, "failRequestsGreaterThanOne": True}
    share["resources"] = [{"name": GPU, "replicas": 2}]
    kubelet = node.kubelet(minor)
    node.plugin(json.dumps({"version": "v1", "sharing": {"timeSlicing": share}}))
    offered(kubelet, {SHARED: 8})
    with pytest.raises(Rejected, match="maximum request size for shared resources is 1; found 2"):
        kubelet.run(pod("a", 2, resource=SHARED))
    kubelet.end(pod("a", 2, resource=SHARED))
    assert visible(kubelet.run(pod("b", *[1] * 8, resource=SHARED))["c7"])


@every_kubelet
def test_a_kubelet_that_starts_again_has_the_plugin_back(node, minor):
    """It wipes the sockets, and what pods have is theirs still."""
    kubelet = node.kubelet(minor)
    node.plugin()
    offered(kubelet, {GPU: 4})
    mine = pod("a", 2)
    before = kubelet.run(mine)
    kubelet.kill()
    wait("the plugin to see it", lambda: "the kubelet has stopped" in node.log(), 120)

    kubelet = node.kubelet(minor, mine)
    offered(kubelet, {GPU: 4})
    other = visible(kubelet.run(pod("b", 2))["c0"])
    assert not other & visible(before["c0"])
    assert {name: visible(given) for name, given in kubelet.run(mine).items()} == {
        name: visible(given) for name, given in before.items()
    }


@every_kubelet
def test_a_killed_plugin_comes_back(node, minor):
    """Nothing is offered meanwhile, and pods keep what they have."""
    kubelet = node.kubelet(minor)
    plugin = node.plugin()
    offered(kubelet, {GPU: 4})
    mine = visible(kubelet.run(pod("a", 1))["c0"])
    plugin.kill()
    offered(kubelet, {})
    with pytest.raises(Rejected, match="Requested: 1, Available: 0"):
        kubelet.run(pod("b", 1))
    kubelet.end(pod("b", 1))

    node.plugin()
    offered(kubelet, {GPU: 4})
    assert not mine & visible(kubelet.run(pod("c", 3))["c0"])


@every_kubelet
def test_a_plugin_that_ends_takes_its_offer_and_socket_with_it(node, minor):
    kubelet = node.kubelet(minor)
    plugin = node.plugin()
    offered(kubelet, {GPU: 4})
    plugin.terminate()
    assert plugin.wait(10) == 0
    offered(kubelet, {})
    assert {path.name for path in (node.folder / "s").iterdir()} <= {
        "gpunode",  # the plugin's own folder
        "kubelet.sock",
        "kubelet_internal_checkpoint",
    }


@every_kubelet
def test_a_resource_gets_another_name(node, minor):
    """By a change of the configuration, with the same plugin and kubelet."""
    kubelet = node.kubelet(minor)
    node.plugin("version: v1\n")
    offered(kubelet, {GPU: 4})
    share = {"renameByDefault": True, "resources": [{"name": GPU, "replicas": 3}]}
    node.config.write_text(json.dumps({"version": "v1", "sharing": {"timeSlicing": share}}))
    offered(kubelet, {SHARED: 12})
    assert len(visible(kubelet.run(pod("a", 1, resource=SHARED))["c0"])) == 1
    node.config.write_text("version: v1\n")
    offered(kubelet, {GPU: 4})


@every_kubelet
def test_of_two_plugins_the_newer_serves_and_the_other_takes_over(node, minor):
    kubelet = node.kubelet(minor)
    node.plugin()
    offered(kubelet, {GPU: 4})
    newer = node.plugin()
    wait("the newer to be registered", lambda: node.log().count("INFO registered with the kubelet") == 2, 120)
    wait("the other to see it", lambda: "this one stands by" in node.log(), 120)
    offered(kubelet, {GPU: 4})
    kubelet.run(pod("a", 1))
    newer.kill()
    wait("the other to take over", lambda: node.log().count("INFO registered with the kubelet") == 3, 120)
    offered(kubelet, {GPU: 4})
    kubelet.run(pod("b", 1))


@pytest.mark.parametrize("minor", ["1.8", "1.9"])  # 1.10 writes its record as 1.9 does
def test_a_kubelet_that_cannot_say_what_pods_have_is_not_waited_for(node, minor):
    """The log tells that nothing is held back, and does not complain of a record in that kubelet's own form."""
    kubelet = node.kubelet(minor)
    node.plugin(POD_RESOURCES_SOCKET="/var/lib/kubelet/pod-resources/kubelet.sock")
    offered(kubelet, {GPU: 4}, 8)
    kubelet.run(pod("a", 1))
    wait("the warning", lambda: "by an earlier configuration are not reserved" in node.log(), 120)
    assert "init containers" not in node.log()
    offered(kubelet, {GPU: 4})


@every_kubelet
def test_long_lists_are_taken(node, minor):
    """Of nearly the 4 MiB that a message may have; and thousands of units for one container, of one GPU's memory."""
    kubelet = node.kubelet(minor)
    share = {"resources": [{"name": GPU, "replicas": 15_001, "rename": SHARED}]}
    node.plugin(json.dumps({"version": "v1", "sharing": {"timeSlicing": share}}))
    offered(kubelet, {SHARED: 60_004})
    assert visible(kubelet.run(pod("a", 1, resource=SHARED))["c0"])

    memory = {"name": MEMORY, "unit": "MiB", "devices": ["0"]}
    node.config.write_text(json.dumps({"version": "v1", "sharing": {"memory": memory}}))
    wait("the memory", lambda: kubelet.offers().get(MEMORY, 0) > 16_000, 120)
    given = kubelet.run(pod("b", 10_000, resource=MEMORY))["c0"]
    assert given["envs"]["ALIYUN_COM_GPU_MEM_CONTAINER"] == "10000"


@pytest.mark.parametrize("node", ["cut"], indirect=True)
@every_kubelet
def test_mig_devices_are_offered_beside_gpus(node, minor):
    """Two resources of one plugin, in one pod."""
    kubelet = node.kubelet(minor)
    node.plugin(MIG_STRATEGY="mixed")
    offered(kubelet, {GPU: 1, MIG: 2})
    both = pod("a", 1)
    both["spec"]["containers"] += pod("", 0, 2, resource=MIG)["spec"]["containers"][1:]
    given = kubelet.run(both)
    assert [sorted(each[:4] for each in visible(given[name])) for name in ("c0", "c1")] == [
        ["GPU-"],
        ["MIG-", "MIG-"],
    ]


@pytest.mark.parametrize("minor", ["1.9", "1.10"])
def test_a_container_has_what_an_init_container_had(node, minor):
    """These kubelets give the same devices again, but ask for them anew."""
    kubelet = node.kubelet(minor)
    node.plugin()
    offered(kubelet, {GPU: 4})
    given = kubelet.run(pod("a", 1, first=1))
    assert visible(given["first"]) == visible(given["c0"])


def test_a_1_8_kubelet_asks_again_whenever_a_container_starts(node):
    """For the same devices. So a container whose GPU is lost does not start again, and does when the GPU is back."""
    kubelet = node.kubelet("1.8")
    node.plugin()
    offered(kubelet, {GPU: 4})
    mine = pod("a", 4)
    before = kubelet.run(mine)
    for command in control.lose(1):
        node.within.run(*command)
    offered(kubelet, {GPU: 3})
    with pytest.raises(Rejected, match="is unhealthy: NVML: GPU is lost"):
        kubelet.run(mine)
    for command in control.bring_back(1):
        node.within.run(*command)
    offered(kubelet, {GPU: 4})
    assert {name: visible(given) for name, given in kubelet.run(mine).items()} == {
        name: visible(given) for name, given in before.items()
    }


def test_the_plugin_follows_a_kubelet_through_its_upgrades(node):
    """Each is spoken to as it speaks."""
    node.plugin()
    for minor in ("1.8", "1.9", "1.10", "1.8"):
        kubelet = node.kubelet(minor)
        offered(kubelet, {GPU: 4})
        assert node.log().rstrip().splitlines()[-1].endswith(f"version={SPEAKS[minor]}")
        kubelet.kill()
