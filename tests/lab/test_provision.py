"""The main job on the real cluster: two bare hosts become verified GPU nodes, and stay as their owners had them."""

import json
from collections.abc import Callable

import pytest

from .api import Lab, Node
from .conftest import Ran

pytestmark = pytest.mark.lab

GPUS = {"legacy": 2, "modern": 4}
# What an owner has in /etc that no run of gpunode may lose.
KEPT = {
    "legacy": {
        "/etc/docker/daemon.json": ["native.cgroupdriver", "registry-mirrors", "log-opts", "max-size"],
        "/etc/default/kubelet": ["KUBELET_EXTRA_ARGS=", "--node-labels", "--max-pods"],
    },
    "modern": {
        "/etc/containerd/config.toml": ["restrict_oom_score_adj"],
        "/etc/default/kubelet": ["KUBELET_EXTRA_ARGS=", "--node-labels"],
    },
}
# dkms and all that it brought goes, what others suggest too.
NO_COMPILER = (
    "apt-get purge -y --auto-remove dkms"
    " -o APT::AutoRemove::RecommendsImportant=false -o APT::AutoRemove::SuggestsImportant=false"
)


@pytest.fixture(scope="module")
def bare(lab: Lab) -> dict[str, dict[str, str]]:
    """Both hosts bare, of a compiler too, and the text of their owners' files as it then is."""
    before = {}
    for name, files in KEPT.items():
        lab.node(name).reset()
        lab.node(name).exec(["sh", "-c", NO_COMPILER])
        assert lab.node(name).exec(["which", "gcc", "make"], check=False).stdout == ""
        before[name] = {path: lab.node(name).read(path) for path in files}
    return before


@pytest.fixture(scope="module")
def planned(bare: object, gpunode: Callable[..., Ran]) -> Ran:
    return gpunode("plan", "--json", "--exit-code")


@pytest.fixture(scope="module")
def provisioned(planned: Ran, gpunode: Callable[..., Ran]) -> Ran:
    return gpunode("provision", "--yes", "--json")


def test_the_plan_of_bare_hosts_says_what_would_change_and_why(planned: Ran):
    """Driver by GPU, toolkit, runtime, kubelet: each change with a reason; exit code 5."""
    assert planned.code == 5, planned
    for host, runtime in (("legacy", "docker"), ("modern", "containerd")):
        changes = planned.of("plan", host)[0]["changes"]
        assert {"driver", "toolkit", runtime} <= {change["step"] for change in changes}
        assert all(change["why"] for change in changes)
    assert "580" in json.dumps(planned.of("plan", "legacy"))
    assert "595" in json.dumps(planned.of("plan", "modern"))
    assert "DevicePlugins" in json.dumps(planned.of("plan", "modern"))


def test_a_plan_changes_nothing(planned: Ran, bare: dict[str, dict[str, str]], lab: Lab):
    """The owners' files are as they were, and no driver is there."""
    for name, files in bare.items():
        assert {path: lab.node(name).read(path) for path in files} == files
        assert lab.node(name).exec(["which", "nvidia-smi"], check=False).returncode != 0


def test_provision_takes_both_hosts_from_bare_to_verified(provisioned: Ran):
    """Every GPU of every node is allocatable and has run vectoradd."""
    assert provisioned.code == 0, provisioned
    assert provisioned.status("legacy") == provisioned.status("modern") == "changed"
    passed = [row for row in provisioned.of("vectoradd") if row["result"] == "passed"]
    assert {host: len({row["uuid"] for row in passed if row["node"] == host}) for host in GPUS} == GPUS


def test_what_the_owner_had_is_kept(provisioned: Ran, lab: Lab):
    """daemon.json, config.toml and the kubelet's arguments still hold what they held."""
    for name, files in KEPT.items():
        for path, words in files.items():
            text = lab.node(name).read(path)
            assert [word for word in words if word not in text] == [], f"{name}:{path}\n{text}"


def test_the_gate_that_kept_the_kubelet_down_is_gone(provisioned: Ran, lab: Lab):
    """The kubelet of 1.36 runs, without DevicePlugins in its arguments."""
    modern = lab.node("modern")
    assert "DevicePlugins" not in modern.read("/etc/default/kubelet")
    assert modern.is_ready()


def test_each_node_has_the_driver_its_gpus_need(provisioned: Ran, lab: Lab):
    """Pascal: 580, proprietary. Hopper: the production branch, open."""
    assert lab.node("legacy").read("/sys/module/nvidia/version").startswith("580.")
    assert "Open Kernel Module" not in lab.node("legacy").read("/proc/driver/nvidia/version")
    assert lab.node("modern").read("/sys/module/nvidia/version").startswith("595.")
    assert "Open Kernel Module" in lab.node("modern").read("/proc/driver/nvidia/version")


def logins(node: Node) -> tuple[int, int]:
    """Number of logins by key that sshd accepted, and of sudo commands."""
    journal = node.exec(["journalctl", "-q", "--no-pager", "-o", "cat"]).stdout.splitlines()
    return (
        sum("Accepted publickey" in line for line in journal),
        sum("COMMAND=" in line for line in journal),
    )


def test_a_second_provision_has_nothing_to_do_and_visits_each_host_once(
    provisioned: Ran, lab: Lab, gpunode: Callable[..., Ran]
):
    """The empty plan is the product: one connection, one exec, no change on host or cluster."""
    before = {name: logins(lab.node(name)) for name in GPUS}
    again = gpunode("provision", "--json", "--no-run")
    after = {name: logins(lab.node(name)) for name in GPUS}

    assert again.code == 0, again
    assert [line["changes"] for line in again.of("plan")] == [[], []]
    assert again.status("legacy") == again.status("modern") == "right"
    assert {name: (after[name][0] - before[name][0], after[name][1] - before[name][1]) for name in GPUS} == {
        "legacy": (1, 1),
        "modern": (1, 1),
    }


def test_verify_walks_the_whole_chain(provisioned: Ran, gpunode: Callable[..., Ran]):
    """From the PCI bus to a finished pod, every link is ok; last comes the work, as the plugin's own container has GPUs."""
    verified = gpunode("verify", "--json")

    assert verified.code == 0, verified
    for host in GPUS:
        links = verified.of("link", host)
        assert [link["layer"] for link in links] == [
            "PCI", "module", "library", "NVML", "toolkit", "runtime", "kubelet", "node", "plugin", "capacity", "pod",
            "work",
        ]  # fmt: skip
        assert {link["status"] for link in links} == {"ok"}


def test_nvidia_smi_shows_the_gpu_of_a_pod(provisioned: Ran, gpunode: Callable[..., Ran]):
    """The nvidia runtime brings the program into the pod, which sees one GPU and is deleted."""
    ran = gpunode("run nvidia-smi", "--json", "--limit", "modern")
    assert ran.code == 0, ran
    assert {line["node"] for line in ran.of("log")} == {"modern"}
    assert sum("H100" in line["log"] for line in ran.of("log")) == 1, ran


def test_label_writes_what_the_gpus_are(provisioned: Ran, lab: Lab, gpunode: Callable[..., Ran]):
    """accelerator=… by model; a dry run shows it, --remove takes it off again."""

    def accelerators() -> dict[str, str | None]:
        nodes = {name: lab.request("GET", f"/api/v1/nodes/{name}") for name in GPUS}
        return {name: node["metadata"]["labels"].get("accelerator") for name, node in nodes.items()}

    assert gpunode("label --accelerator", "--dry-run").code == 0
    assert accelerators() == {"legacy": None, "modern": None}
    assert gpunode("label --accelerator").code == 0
    assert accelerators() == {"legacy": "nvidia-tesla-p100", "modern": "nvidia-h100-80gb"}
    assert gpunode("label --accelerator", "--remove").code == 0
    assert accelerators() == {"legacy": None, "modern": None}
