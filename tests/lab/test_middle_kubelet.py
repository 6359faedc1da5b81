"""A node of the years between: kubelet 1.30 on Debian's containerd 1.6, from bare to pods; the lab's other hosts have 1.23 and 1.36."""

import subprocess
from collections.abc import Callable, Iterator

import pytest

from . import builds
from .api import Lab, Node
from .conftest import Ran
from .docker import DOCKER

pytestmark = [pytest.mark.lab, pytest.mark.matrix]

CONFIG = "/etc/containerd/config.toml"
ARGUMENTS = "/etc/default/kubelet"
OWNED = """\
# the mirror's team owns this file
version = 2

[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "gpunode-lab/pause:1"
  restrict_oom_score_adj = true   # these hosts may not lower an OOM score

  [plugins."io.containerd.grpc.v1.cri".containerd]
    default_runtime_name = "runc"

    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"

  [plugins."io.containerd.grpc.v1.cri".registry]
    config_path = "/etc/containerd/certs.d"

  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/opt/cni/bin"
    conf_dir = "/etc/cni/net.d"
"""
# dpkg keeps the configuration that is there; the unit of Debian's package takes the place of the lab's
CONTAINERD = (
    "systemctl stop kubelet containerd && apt-get -qq update &&"
    " DEBIAN_FRONTEND=noninteractive apt-get -qq install --no-install-recommends"
    " -o Dpkg::Options::=--force-confold containerd && systemctl daemon-reload"
)


@pytest.fixture(scope="module")
def node(lab: Lab) -> Iterator[Node]:
    """The modern host with older programs, bare of NVIDIA's; in the end as it was."""
    node = lab.node("modern")
    node.reset()
    kubelet = builds.go(builds.KUBERNETES_MIDDLE) / "kubelet"
    node.exec(["sh", "-c", CONTAINERD])
    copy = [DOCKER, "-H", node.slot.docker_host, "cp", str(kubelet), f"{node.name}:/usr/bin/kubelet"]
    subprocess.run(copy, check=True, capture_output=True)
    # these keys are newer than this kubelet
    node.exec(["sed", "-i", "/^failCgroupV1:/d", "/var/lib/kubelet/config.yaml"])
    node.write(CONFIG, OWNED)
    node.exec(["systemctl", "restart", "containerd", "lab-images"])
    node.exec(["systemctl", "start", "--no-block", "kubelet"])
    yield node
    node.reset()


@pytest.fixture(scope="module")
def provisioned(node: Node, gpunode: Callable[..., Ran]) -> Ran:
    return gpunode("provision", "--limit", node.name, "--yes", "--json", timeout=800)


def test_a_bare_host_becomes_a_verified_node(provisioned: Ran, node: Node, lab: Lab):
    """The real kubelet and containerd are of those versions, and each GPU has run a pod."""
    assert provisioned.code == 0, provisioned
    info = lab.request("GET", f"/api/v1/nodes/{node.name}")["status"]["nodeInfo"]
    assert info["kubeletVersion"].startswith("v1.30.")
    assert info["containerRuntimeVersion"].startswith("containerd://1.6.")
    passed = [row for row in provisioned.of("vectoradd") if row["result"] == "passed"]
    assert len({row["uuid"] for row in passed}) == 4


def test_the_plan_is_empty_afterwards_and_every_link_is_ok(
    provisioned: Ran, node: Node, gpunode: Callable[..., Ran]
):
    planned = gpunode("plan", "--limit", node.name, "--json", "--exit-code")
    assert planned.code == 0, planned
    verified = gpunode("verify", "--limit", node.name, "--json")
    assert verified.code == 0, verified
    assert {link["status"] for link in verified.of("link", node.name)} == {"ok"}


def test_the_owners_lines_are_kept(provisioned: Ran, node: Node):
    """All of config.toml but the default runtime's name; of the kubelet's arguments only the gate goes, which 1.28 removed."""
    lines = node.read(CONFIG).splitlines()
    assert [line for line in OWNED.splitlines() if line not in lines] == ['    default_runtime_name = "runc"']
    assert 'KUBELET_EXTRA_ARGS="--node-labels=pool=lab,rack=r12 --v=2"' in node.read(ARGUMENTS)
