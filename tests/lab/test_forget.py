"""A node comes to gpunode out of the GPU Operator's hands and goes back, as docs/switching.md has it, and is forgotten: it is as before. In
the matrix it comes with a second host, and their provision is killed again and again."""

from collections.abc import Callable, Iterator

import pytest

from tests.snapshots import differences

from . import gpu_operator as operator
from .api import Lab, Node
from .conftest import Ran
from .progress import wait
from .test_undo import ARGUMENTS, HOSTS, LEFT, booted, kill, snapshot

pytestmark = pytest.mark.lab

NODE = "modern"
ONLY = ("--json", "--limit", NODE)
GATE = "--feature-gates=DevicePlugins=true "
PLUGIN = "DaemonSet gpu-operator/nvidia-device-plugin-daemonset, on 1 node, offers NVIDIA GPUs too"
# A line for each time that the provision is killed: where on each host, so that together they are all states of each kind.
KILLED = (
    {"legacy": ("write_file", "noted"), "modern": ("write_file", "torn")},
    {"legacy": ("write_file", "made"), "modern": ("packages", "noted", "nvidia-open")},
    {"legacy": ("packages", "made", "cuda-drivers"), "modern": ("packages", "made", "nvidia-open")},
    {"legacy": ("kernel_module", "noted"), "modern": ("kernel_module", "made")},
    {"legacy": ("service", "noted"), "modern": ("service", "made")},
    {"legacy": ("load_image", "ended"), "modern": ("load_image", "noted")},
)


@pytest.fixture
def modern(lab: Lab) -> Iterator[Node]:
    """A node in the hands of the GPU Operator, whose driver is in a container; both hosts are bare before it and in the end."""
    node = lab.node(NODE)
    operator.remove(lab, node)  # of a test that died
    for name in HOSTS:
        lab.node(name).reset()
    node.write(ARGUMENTS, node.read(ARGUMENTS).replace(GATE, ""))
    operator.configure(node)
    node.exec(["systemctl", "restart", "kubelet"])
    node.wait_ready()
    operator.deploy(lab)
    operator.reconcile(lab, node)
    operator.start_driver(node, "580.178.04")
    yield node
    operator.remove(lab, node)
    for name in HOSTS:
        lab.node(name).reset()


def refused(ran: Ran) -> str:
    assert ran.code == 4, ran
    return str(ran.of("outcome", NODE)[0]["error"])


def broken(ran: Ran) -> dict[str, str]:
    """Layer → text of the broken links of the node."""
    return {link["layer"]: link["text"] for link in ran.of("link", NODE) if link["status"] == "broken"}


def has_plugin(lab: Lab) -> bool:
    """True while the node has a pod of gpunode's plugin."""
    items = lab.request("GET", "/api/v1/namespaces/gpunode/pods")["items"]
    return any(
        item["spec"]["nodeName"] == NODE for item in items if "device-plugin" in item["metadata"]["name"]
    )


@pytest.mark.parametrize(
    "killed", [False, pytest.param(True, marks=pytest.mark.matrix)], ids=["whole", "killed"]
)
def test_a_node_of_the_gpu_operator_comes_to_gpunode_and_back_and_is_forgotten(
    lab: Lab, gpunode: Callable[..., Ran], modern: Node, killed: bool
):
    hosts, limit = (HOSTS, ()) if killed else ((NODE,), ("--limit", NODE))
    container = "the GPU Operator's driver container brings this host's driver"
    planned = gpunode("plan", *ONLY)
    assert container in refused(planned)
    assert PLUGIN in planned.stdout
    assert container in broken(gpunode("verify", *ONLY))["module"]

    operator.label(lab, modern, operands="false")
    operator.reconcile(lab, modern)
    planned = gpunode("plan", *ONLY)
    assert container in refused(planned)
    assert PLUGIN not in planned.stdout

    operator.label(lab, modern, driver="false")
    operator.reconcile(lab, modern)
    operator.stop_driver(modern)
    stranger = "an nvidia module 580.178.04 is loaded, but no package installed it"
    assert stranger in refused(gpunode("plan", *ONLY))
    assert stranger in broken(gpunode("verify", *ONLY))["module"]
    modern.exec(["modprobe", "-r", "nvidia_uvm", "nvidia"])

    for name in hosts:
        booted(lab.node(name))
    before = {name: snapshot(lab.node(name)) for name in hosts}
    for points in KILLED if killed else ():
        kill(gpunode, points, "provision --batch 100%")  # both at once
    ran = gpunode("provision", "--yes", "--json", *limit)
    assert ran.code == 0, ran
    verified = gpunode("verify", "--json", *limit)
    assert verified.code == 0, verified

    # Back to the operator, which uses the host's driver.
    lab.request("PATCH", f"/api/v1/nodes/{NODE}", {"metadata": {"labels": {"gpunode.dev/gpu": None}}})
    wait("gpunode's plugin to leave the node", lambda: not has_plugin(lab), 60)
    operator.label(lab, modern, operands=None, driver=None)
    operator.configure(modern)
    operator.reconcile(lab, modern, "pre-installed")
    verified = gpunode("verify", *ONLY)
    (runtime,) = (link for link in verified.of("link", NODE) if link["status"] == "broken")
    assert (runtime["layer"], "last written by the GPU Operator" in runtime["cause"]) == ("runtime", True), (
        verified
    )
    assert {link["layer"] for link in verified.of("link", NODE) if link["status"] == "ok"} >= {
        "module",
        "NVML",
    }

    operator.remove(lab, modern)
    forgotten = gpunode(f"forget {' '.join(hosts)} -i", "--yes", "--json")
    assert forgotten.code == 0, forgotten
    for name in hosts:
        assert differences(before[name], snapshot(lab.node(name)), LEFT) == [], name
