"""Agents of k3s and RKE2 by their layout, with a real kubelet and containerd: from bare to a pod on every GPU."""

import contextlib
import urllib.error
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import pytest

from .api import Lab, Node
from .conftest import Ran
from .images import BUSYBOX
from .progress import wait
from .shapes import rancher

pytestmark = [pytest.mark.lab, pytest.mark.matrix]
PODS = "/api/v1/namespaces/default/pods"


@dataclass(frozen=True, slots=True)
class Agent:
    """A host of that shape; `pod`: one that ran before gpunode came, as it was then."""

    name: Literal["k3s", "rke2"]
    node: Node
    pod: dict[str, Any]

    @property
    def unit(self) -> str:
        return f"{self.name}-agent.service"

    @property
    def folder(self) -> str:
        return f"/var/lib/rancher/{self.name}/agent"


@pytest.fixture(scope="module", params=["k3s", "rke2"])
def agent(lab: Lab, request) -> Iterator[Agent]:
    """A node of that shape, bare of NVIDIA's programs, with a pod on it; in the end a bare host of the lab again."""
    node = lab.node("modern")
    node.reset()
    rancher.become(node, request.param)
    yield Agent(request.param, node, running(lab, f"before-{request.param}", node.name))
    with contextlib.suppress(urllib.error.HTTPError):
        lab.request("DELETE", f"{PODS}/before-{request.param}?gracePeriodSeconds=0")
    node.reset()


@pytest.fixture(scope="module")
def provisioned(agent: Agent, gpunode: Callable[..., Ran]) -> Ran:
    return gpunode("provision", "--limit", agent.node.name, "--yes", "--json", timeout=800)


def running(lab: Lab, name: str, node: str) -> dict[str, Any]:
    """A pod that runs without a GPU."""
    # it ends when the host shuts down
    command = ["sh", "-c", "trap exit TERM; sleep 3600 & wait"]
    container = {"name": "work", "image": BUSYBOX, "command": command, "imagePullPolicy": "Never"}
    spec = {"nodeName": node, "terminationGracePeriodSeconds": 0, "containers": [container]}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}
    lab.request("POST", PODS, pod)
    wait(f"pod {name}", lambda: lab.request("GET", f"{PODS}/{name}")["status"]["phase"] == "Running", 120)
    return dict(lab.request("GET", f"{PODS}/{name}"))


def container(pod: dict[str, Any]) -> tuple[str, int]:
    """The container's id, and how often it was started again."""
    (status,) = pod["status"]["containerStatuses"]
    return status["containerID"], status["restartCount"]


def test_a_plan_sets_the_default_runtime_and_restarts_the_agent(agent: Agent, gpunode: Callable[..., Ran]):
    """By a drop-in of its settings; containerd's own configuration is the product's to write."""
    planned = gpunode("plan", "--limit", agent.node.name, "--json")
    titles = [change["what"] for change in planned.of("plan", agent.node.name)[0]["changes"]]
    assert f"write /etc/rancher/{agent.name}/config.yaml.d/90-gpunode-runtime.yaml" in titles, planned
    assert f"restart {agent.name}-agent" in titles, planned
    assert not [what for what in titles if "/etc/containerd/" in what], planned


def test_a_bare_agent_becomes_a_verified_node(agent: Agent, provisioned: Ran):
    """Each GPU has run a pod; the image of the plugin came by the product's own ctr."""
    assert provisioned.code == 0, provisioned
    passed = [row for row in provisioned.of("vectoradd") if row["result"] == "passed"]
    assert len({row["uuid"] for row in passed}) == 4
    generated = agent.node.read(f"{agent.folder}/etc/containerd/config.toml")
    assert 'default_runtime_name = "nvidia"' in generated
    assert "runtimes.sandboxed]" in generated


def test_pods_go_on_while_the_agent_restarts(agent: Agent, provisioned: Ran, lab: Lab):
    """The same container as before."""
    assert provisioned.code == 0, provisioned
    now = lab.request("GET", f"{PODS}/{agent.pod['metadata']['name']}")
    assert container(now) == container(agent.pod)


def test_the_plan_is_empty_afterwards_and_every_link_is_ok(
    agent: Agent, provisioned: Ran, gpunode: Callable[..., Ran]
):
    planned = gpunode("plan", "--limit", agent.node.name, "--json", "--exit-code")
    assert planned.code == 0, planned
    verified = gpunode("verify", "--limit", agent.node.name, "--json")
    assert verified.code == 0, verified
    assert {link["status"] for link in verified.of("link", agent.node.name)} == {"ok"}


def test_the_owners_files_are_kept(agent: Agent, provisioned: Ran):
    assert provisioned.code == 0, provisioned
    assert agent.node.read(f"/etc/rancher/{agent.name}/config.yaml") == rancher.SETTINGS
    assert agent.node.read(f"{agent.folder}/etc/containerd/config-v3.toml.tmpl") == rancher.TEMPLATE


def test_after_a_reboot_the_plan_is_empty(agent: Agent, provisioned: Ran, gpunode: Callable[..., Ran]):
    """The product has written its configuration again, and nothing of it was lost."""
    agent.node.reboot()
    agent.node.wait_ready()
    planned = gpunode("plan", "--limit", agent.node.name, "--json", "--exit-code")
    assert planned.code == 0, planned


def test_a_gate_that_the_kubelet_refuses_is_taken_out(
    agent: Agent, provisioned: Ran, gpunode: Callable[..., Ran]
):
    """Kubernetes 1.28 removed DevicePlugins: with it in a drop-in, the agent starts again and again."""
    path = f"/etc/rancher/{agent.name}/config.yaml.d/50-gpu.yaml"
    agent.node.write(path, "kubelet-arg+:\n  - feature-gates=DevicePlugins=true\n  - max-pods=70\n")
    agent.node.exec(["systemctl", "restart", agent.unit])
    agent.node.wait_until("a new try", ["sh", "-c", f"! systemctl is-active -q {agent.unit}"])
    repaired = gpunode("provision", "--limit", agent.node.name, "--yes", "--json", timeout=800)
    assert repaired.code == 0, repaired
    assert agent.node.read(path) == "kubelet-arg+:\n  - max-pods=70\n"
