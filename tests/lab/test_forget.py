"""A node comes to gpunode out of the GPU Operator's hands and goes back, as docs/switching.md has it, and is forgotten: it is as before."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.snapshots import differences

from . import gpu_operator as operator
from .api import Lab, Node
from .conftest import Ran
from .progress import wait
from .test_undo import ARGUMENTS, LEFT, booted, snapshot

pytestmark = pytest.mark.lab

NODE = "modern"
ONLY = ("--json", "--limit", NODE)
GATE = "--feature-gates=DevicePlugins=true "
PLUGIN = "DaemonSet gpu-operator/nvidia-device-plugin-daemonset, on 1 node, offers NVIDIA GPUs too"


@pytest.fixture
def modern(lab: Lab) -> Iterator[Node]:
    """A node in the hands of the GPU Operator, whose driver is in a container; bare before it and in the end."""
    node = lab.node(NODE)
    operator.remove(lab, node)  # of a test that died
    node.reset()
    node.write(ARGUMENTS, node.read(ARGUMENTS).replace(GATE, ""))
    operator.configure(node)
    node.exec(["systemctl", "restart", "kubelet"])
    node.wait_ready()
    operator.deploy(lab)
    operator.reconcile(lab, node)
    operator.start_driver(node, "580.178.04")
    yield node
    operator.remove(lab, node)
    node.reset()


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


def test_a_node_of_the_gpu_operator_comes_to_gpunode_and_back_and_is_forgotten(
    lab: Lab, gpunode: Callable[..., Ran], modern: Node
) -> None:
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
    stranger = "an nvidia module 580.178.04 is loaded that no package brought"
    assert stranger in refused(gpunode("plan", *ONLY))
    assert stranger in broken(gpunode("verify", *ONLY))["module"]
    modern.exec(["modprobe", "-r", "nvidia_uvm", "nvidia"])

    booted(modern)
    before = snapshot(modern)
    ran = gpunode("provision", "--yes", *ONLY)
    assert ran.code == 0, ran
    verified = gpunode("verify", *ONLY)
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
    forgotten = gpunode(f"forget {NODE} -i", "--yes", "--json")
    assert forgotten.code == 0, forgotten
    assert differences(before, snapshot(modern), LEFT) == []
