"""The lab's control plane and services are a cluster's own: static pods, kube-proxy, and state that outlives a reboot."""

import http.client
from collections.abc import Collection, Iterator
from typing import Any

import pytest

from . import cluster
from .api import Lab, Node
from .hosts import CONTROL_PLANE
from .pods import NAMESPACE, Pods, pods
from .progress import wait

pytestmark = pytest.mark.lab

WORKERS = ("legacy", "modern")
ROLE = "node-role.kubernetes.io/control-plane"
SYSTEM = "/api/v1/namespaces/kube-system/pods"
GATE = "--feature-gates=DevicePlugins=true "
KUBELET = "/etc/default/kubelet"
ANSWERS = "while true; do hostname | nc -l -p 8080; done"


@pytest.fixture
def host(lab: Lab) -> Node:
    return lab.node(CONTROL_PLANE.name)


@pytest.fixture
def workers(lab: Lab) -> Iterator[None]:
    """Both kubelets run: what keeps a bare modern's from it is put back afterwards."""
    modern = lab.node("modern")
    before = modern.read(KUBELET)
    if GATE in before:
        modern.write(KUBELET, before.replace(GATE, ""))
        modern.exec(["systemctl", "restart", "kubelet"])
    for name in WORKERS:
        lab.node(name).wait_ready()
    yield
    if GATE in before:
        modern.write(KUBELET, before)
        modern.exec(["systemctl", "restart", "kubelet"], check=False)


def container(lab: Lab, part: str) -> dict[str, Any]:
    """The status of a static pod's container, as its mirror pod has it."""
    pod = lab.request("GET", f"{SYSTEM}/{part}-{CONTROL_PLANE.name}")
    assert "kubernetes.io/config.mirror" in pod["metadata"]["annotations"]
    return dict(pod["status"]["containerStatuses"][0])


def containers(lab: Lab) -> set[str]:
    """The containers of the static pods that are Ready; none while the API is away."""
    try:
        ids = [container(lab, part) for part in cluster.PARTS]
    except (OSError, http.client.HTTPException, KeyError):  # the latter: a pod without a status yet
        return set()
    return {status["containerID"] for status in ids if status["ready"]}


def all_ready(lab: Lab, besides: Collection[str] = ()) -> bool:
    """Whether all static pods are Ready, `besides` in these containers."""
    return len(containers(lab) - set(besides)) == len(cluster.PARTS)


def runs(made: Pods, lab: Lab, name: str, node: str, command: str, **labels: str) -> str:
    box = {"name": "box", "image": lab.table["images"]["busybox"], "imagePullPolicy": "Never"}
    spec = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 0,
        "nodeName": node,
        "containers": [box | {"command": ["sh", "-c", command]}],
    }
    return made.create(
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": labels}, "spec": spec}
    )


def test_the_control_plane_is_static_pods_of_a_node_for_nothing_else(lab: Lab, host: Node):
    """Mirror pods are Ready; the node has kubeadm's label, taint and files."""
    wait("the static pods to be Ready", lambda: all_ready(lab), 90)
    node = lab.request("GET", f"/api/v1/nodes/{CONTROL_PLANE.name}")

    assert node["metadata"]["labels"][ROLE] == ""
    assert {"key": ROLE, "effect": "NoSchedule"} in node["spec"]["taints"]
    manifests = host.exec(["ls", "/etc/kubernetes/manifests"]).stdout.split()
    assert manifests == [f"{part}.yaml" for part in sorted(cluster.PARTS)]
    for path in ("admin.conf", "pki/ca.key", "pki/etcd/server.crt", "pki/front-proxy-ca.crt", "pki/sa.pub"):
        assert host.exec(["test", "-s", f"/etc/kubernetes/{path}"], check=False).returncode == 0, path


def test_services_answer_pods_on_every_worker(lab: Lab, workers: None):
    """The API at its cluster address, and both endpoints of a service, one of them on another node."""
    services = "/api/v1/namespaces/default/services"
    port = {"port": 80, "targetPort": 8080}
    service = {"metadata": {"name": "two"}, "spec": {"selector": {"service": "two"}, "ports": [port]}}
    with pods(lab) as made:
        address = lab.request("POST", services, service)["spec"]["clusterIP"]
        try:
            for name in WORKERS:
                runs(made, lab, f"answers-{name}", name, ANSWERS, service="two")
            # an HTTPS server says what it is; which endpoint answers is kube-proxy's choice
            asks = "until echo GET / | nc -w 5 10.96.0.1 443; do sleep 1; done"
            for name in WORKERS:
                asks += f"; until nc -w 5 {address} 80 < /dev/null | grep answers-{name}; do sleep 0.1; done"
            for name in WORKERS:
                runs(made, lab, f"asks-{name}", name, asks)
            for name in WORKERS:
                done = f"asks-{name}"
                wait(f"{done} to end", lambda done=done: made.get(done)["status"]["phase"] == "Succeeded", 90)
                assert "HTTPS server" in made.log(done)
        finally:
            lab.request("DELETE", f"{services}/two")


def test_the_kubelet_brings_a_killed_apiserver_back(lab: Lab, host: Node):
    """A new container of the same pod; nothing else of the control plane is started again."""
    wait("the static pods to be Ready", lambda: all_ready(lab), 90)
    before = containers(lab)
    host.exec(["pkill", "-KILL", "-x", "kube-apiserver"])
    wait("the apiserver to be back", lambda: all_ready(lab) and containers(lab) != before, 120)

    assert len(containers(lab) & before) == len(cluster.PARTS) - 1
    assert container(lab, "kube-apiserver")["restartCount"] > 0


def test_a_reboot_of_the_control_plane_loses_no_state(lab: Lab, host: Node):
    """Objects and nodes are as before, every part runs again, and workers are heard of."""
    path = f"{NAMESPACE}/configmaps"
    lab.request("POST", path, {"metadata": {"name": "kept"}, "data": {"key": "value"}})
    try:
        before, ran = nodes(lab), containers(lab)
        host.reboot()
        wait("all static pods to be Ready again", lambda: all_ready(lab, besides=ran), 240)
        after = nodes(lab)
        kept = lab.request("GET", f"{path}/kept")
    finally:
        lab.request("DELETE", f"{path}/kept")

    assert kept["data"] == {"key": "value"}
    assert after == before
    lab.node("legacy").wait_ready()


def nodes(lab: Lab) -> dict[str, str]:
    """The UID of each node by name."""
    items = lab.request("GET", "/api/v1/nodes")["items"]
    return {node["metadata"]["name"]: node["metadata"]["uid"] for node in items}
