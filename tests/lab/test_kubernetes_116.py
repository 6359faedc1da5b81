"""Kubernetes 1.16.15 whole, on docker 20.10: API server, controllers, scheduler and kubelet of that release, from bare to pods.

Its control plane runs beside the lab's own: on the same host, with the same certificates, by another port. There is no
kube-proxy: its one rule that is needed, for the API server's service, is made by hand.
"""

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from . import api_servers, cluster, machine
from .api import Lab, Node
from .conftest import Ran
from .docker import DOCKER
from .progress import wait
from .slot import Slot

pytestmark = [
    pytest.mark.lab,
    pytest.mark.matrix,
    pytest.mark.skipif(machine.has_cgroup2(), reason="kubelets before 1.19 need cgroup v1"),
]

NAME = "legacy"
PORT = 7443
ETCD = "http://127.0.0.1:23790"
FOLDER = "/opt/old"
PKI = "/etc/kubernetes/pki"
CONTROL_PLANE = (
    f"/usr/bin/etcd --data-dir={FOLDER}/etcd --listen-client-urls={ETCD} --advertise-client-urls={ETCD}"
    " --listen-peer-urls=http://127.0.0.1:23800 --initial-advertise-peer-urls=http://127.0.0.1:23800"
    " --initial-cluster=default=http://127.0.0.1:23800",
    f"{FOLDER}/kube-apiserver --etcd-servers={ETCD} --secure-port={PORT} --insecure-port=0 --allow-privileged=true"
    f" --authorization-mode=Node,RBAC --enable-admission-plugins=NodeRestriction --client-ca-file={PKI}/ca.crt"
    f" --tls-cert-file={PKI}/apiserver.crt --tls-private-key-file={PKI}/apiserver.key"
    f" --kubelet-client-certificate={PKI}/apiserver-kubelet-client.crt --kubelet-preferred-address-types=InternalIP"
    f" --kubelet-client-key={PKI}/apiserver-kubelet-client.key --service-account-key-file={PKI}/sa.pub"
    " --service-cluster-ip-range=10.96.0.0/16",
    f"{FOLDER}/kube-controller-manager --kubeconfig={FOLDER}/controller-manager.conf --port=0 --secure-port=20257"
    f" --leader-elect=false --root-ca-file={PKI}/ca.crt --service-account-private-key-file={PKI}/sa.key"
    " --use-service-account-credentials=true",
    f"{FOLDER}/kube-scheduler --kubeconfig={FOLDER}/scheduler.conf --port=0 --secure-port=20259 --leader-elect=false",
)
# What the newer kubelet has left is in formats that the older one does not read.
OLDER = f"""
systemctl stop kubelet
docker ps -aq | xargs -r docker rm -f >/dev/null
rm -rf /var/lib/kubelet/*_manager_state /var/lib/kubelet/device-plugins
sed -i 's/:6443/:{PORT}/' /etc/kubernetes/kubelet.conf
for chain in PREROUTING OUTPUT; do
    iptables -t nat -I $chain -d 10.96.0.1 -p tcp --dport 443 -j DNAT --to-destination $1:{PORT}
done
systemctl start --no-block kubelet
"""


class Old(Slot):
    """The same lab, by the older API server."""

    @property
    def server(self) -> str:
        return f"https://{self.control_plane}:{PORT}"


def put(node: Node, program: str, to: str) -> None:
    source = str(api_servers.programs("1.16") / program)
    copy = [DOCKER, "-H", node.slot.docker_host, "cp", source, f"{node.name}:{to}"]
    subprocess.run(copy, check=True, capture_output=True)


@pytest.fixture(scope="module")
def old(lab: Lab) -> Iterator[Old]:
    """The older cluster with the docker host, bare of NVIDIA's, as its one node; in the end both hosts are as they were."""
    slot, master, node = Old(lab.slot.number, lab.slot.out), lab.node("control-plane"), lab.node(NAME)
    units = [f"old-{command.split()[0].rpartition('/')[2]}" for command in CONTROL_PLANE]
    try:
        master.exec(["mkdir", "-p", FOLDER])
        for program in ("kube-apiserver", "kube-controller-manager", "kube-scheduler"):
            put(master, program, f"{FOLDER}/{program}")
        for user in ("controller-manager", "scheduler"):
            conf = master.read(f"/etc/kubernetes/{user}.conf").replace(lab.slot.server, slot.server)
            master.exec(["sh", "-c", f"cat > {FOLDER}/{user}.conf"], input=conf)
        for unit, command in zip(units, CONTROL_PLANE, strict=True):
            restart = (
                "-p",
                "Restart=always",
                "-p",
                "RestartSec=1",
            )  # the first ones may begin before etcd answers
            master.exec(["systemd-run", f"--unit={unit}", *restart, *command.split()])
        cluster.wait_ready(slot)
        node.reset()
        put(node, "kubelet", "/usr/bin/kubelet")
        node.exec(["sh", "-ec", OLDER, "sh", slot.control_plane])
        wait("legacy to be Ready", lambda: cluster.node_ready(slot, NAME), 120)
        yield slot
    finally:
        node.reset()
        master.exec(["systemctl", "stop", *units], check=False)
        master.exec(["rm", "-rf", FOLDER])
        node.wait_ready()


@pytest.fixture(scope="module")
def inventory(lab: Lab, old: Old) -> Path:
    old_config = lab.kubeconfig.with_name("kubeconfig-old")
    old_config.write_text(lab.kubeconfig.read_text().replace(lab.slot.server, old.server))
    file = lab.inventory.with_name("old.yaml")
    file.write_text(
        lab.inventory.read_text().replace("kubeconfig: kubeconfig ", "kubeconfig: kubeconfig-old ")
    )
    return file


@pytest.fixture(scope="module")
def provisioned(inventory: Path, gpunode: Callable[..., Ran]) -> Ran:
    return gpunode("provision", "--limit", NAME, "--yes", "--json", inventory=inventory, timeout=800)


def test_a_bare_host_becomes_a_verified_node(provisioned: Ran, old: Old):
    """By the plugin's DaemonSet; each GPU has run a pod."""
    assert provisioned.code == 0, provisioned
    info = cluster.request(old, "GET", f"/api/v1/nodes/{NAME}")["status"]["nodeInfo"]
    assert (info["kubeletVersion"], info["containerRuntimeVersion"][:12]) == ("v1.16.15", "docker://20.")
    passed = [row for row in provisioned.of("vectoradd") if row["result"] == "passed"]
    assert len({row["uuid"] for row in passed}) == 2


def test_the_plan_is_empty_afterwards_and_every_link_is_ok(
    provisioned: Ran, inventory: Path, gpunode: Callable[..., Ran]
):
    planned = gpunode("plan", "--limit", NAME, "--json", "--exit-code", inventory=inventory)
    assert planned.code == 0, planned
    verified = gpunode("verify", "--limit", NAME, "--json", inventory=inventory)
    assert verified.code == 0, verified
    assert {link["status"] for link in verified.of("link", NAME)} == {"ok"}
