"""The cluster as its API shows it. What it runs on: nodes/control-plane."""

import datetime
import http.client
import json
import ssl
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from . import kubeproxy, pki
from .hosts import CONTROL_PLANE
from .progress import wait
from .slot import Slot

APISERVER_SECONDS = 240  # 10 to 15 alone; more than a minute was seen beside other labs and builds
PARTS = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler")  # the static pods
_ROLE = "node-role.kubernetes.io/control-plane"


def up(slot: Slot) -> None:
    """Wait until the apiserver is ready, and give the cluster what kubeadm gives it then: the role's label, kube-proxy."""
    wait_ready(slot)
    for path, thing in kubeproxy.objects(slot):
        request(slot, "PATCH", f"{path}?fieldManager=lab&force=true", thing, "application/apply-patch+yaml")
    name = CONTROL_PLANE.name
    wait(f"{name} to be Ready", lambda: node_ready(slot, name), APISERVER_SECONDS)
    request(slot, "PATCH", f"/api/v1/nodes/{name}", {"metadata": {"labels": {_ROLE: ""}}})


def wait_ready(slot: Slot) -> None:
    log = f"/var/log/pods on the host {CONTROL_PLANE.name}"
    wait("a ready apiserver", lambda: ready(slot), APISERVER_SECONDS, Path(log))


def ready(slot: Slot) -> bool:
    try:
        return bool(request(slot, "GET", "/readyz") == "ok")
    except (OSError, http.client.HTTPException):  # the latter: it ends in the middle of an answer
        return False


def request(slot: Slot, method: str, path: str, body: Any = None, content: str = "") -> Any:
    """One call to the apiserver as its administrator; JSON is decoded, other answers come as text. PATCH: a merge patch."""
    keys = pki.ensure(slot)
    context = ssl.create_default_context(cafile=str(keys / "ca.crt"))
    context.load_cert_chain(keys / pki.USERS / "admin.crt", keys / pki.USERS / "admin.key")
    data = None if body is None else json.dumps(body).encode()
    content = content or f"application/{'merge-patch+' if method == 'PATCH' else ''}json"
    call = urllib.request.Request(slot.server + path, data, {"Content-Type": content}, method=method)
    opener = urllib.request.build_opener(
        urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)
    )
    with opener.open(call, timeout=10) as answer:
        text = answer.read().decode()
        return json.loads(text) if "json" in answer.headers.get("Content-Type", "") else text


def forget_node(slot: Slot, name: str) -> None:
    """Delete a node and, at once, the pods that were on it."""
    pods = request(slot, "GET", f"/api/v1/pods?fieldSelector=spec.nodeName%3D{name}")["items"]
    paths = [f"/api/v1/namespaces/{p['metadata']['namespace']}/pods/{p['metadata']['name']}" for p in pods]
    for path in [f"/api/v1/nodes/{name}", *paths]:
        try:
            request(
                slot, "DELETE", path, {"kind": "DeleteOptions", "apiVersion": "v1", "gracePeriodSeconds": 0}
            )
        except urllib.error.HTTPError as error:
            if error.code != 404:
                raise


def node_ready(slot: Slot, name: str) -> bool:
    """Whether the node is Ready and its kubelet said so within its last two heartbeats."""
    try:
        node = request(slot, "GET", f"/api/v1/nodes/{name}")
        lease = request(slot, "GET", f"/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/{name}")
    except OSError:
        return False
    renewed = datetime.datetime.fromisoformat(lease["spec"]["renewTime"].replace("Z", "+00:00"))
    alive = datetime.datetime.now(datetime.timezone.utc) - renewed < datetime.timedelta(seconds=20)
    return alive and any(c["type"] == "Ready" and c["status"] == "True" for c in node["status"]["conditions"])
