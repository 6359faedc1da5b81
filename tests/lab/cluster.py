"""The control plane: etcd, apiserver, controller-manager and scheduler as processes of the machine."""

from __future__ import annotations

import datetime
import http.client
import json
import ssl
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from . import pki, process
from .progress import LabError, wait
from .slot import Slot

SERVICES = "10.96.0.0/16"
APISERVER_SECONDS = 240  # 5 to 10 alone; more than a minute was seen beside other labs and builds
DAEMONS = ("kube-scheduler", "kube-controller-manager", "kube-apiserver", "etcd")  # in the order of stopping


def up(slot: Slot, programs: Path) -> None:
    """Start what does not run, and wait until the apiserver is ready."""
    pki.ensure(slot)
    etcd, peer = f"http://127.0.0.1:{slot.etcd_port}", f"http://127.0.0.1:{slot.etcd_port + 1}"
    process.start(
        slot.state,
        "etcd",
        [
            "/usr/bin/etcd",
            f"--data-dir={slot.state}/etcd",
            f"--listen-client-urls={etcd}",
            f"--advertise-client-urls={etcd}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=default={peer}",
            "--log-level=warn",
        ],
    )
    start_apiserver(slot, programs)
    process.start(
        slot.state,
        "kube-controller-manager",
        [
            programs / "kube-controller-manager",
            f"--kubeconfig={pki.kubeconfig(slot, 'controller-manager')}",
            f"--service-account-private-key-file={pki.folder(slot)}/sa.key",
            f"--root-ca-file={pki.folder(slot)}/ca.crt",
            "--use-service-account-credentials=true",  # each controller has only the rights of its own role
            f"--service-cluster-ip-range={SERVICES}",
            "--leader-elect=false",
            "--secure-port=0",
        ],
    )
    process.start(
        slot.state,
        "kube-scheduler",
        [
            programs / "kube-scheduler",
            f"--kubeconfig={pki.kubeconfig(slot, 'scheduler')}",
            "--leader-elect=false",
            "--secure-port=0",
        ],
    )


def start_apiserver(slot: Slot, programs: Path) -> None:
    """Start the apiserver and wait until it is ready; one that gives up on an etcd that is still slow is started again."""
    keys = pki.folder(slot)
    command: list[str | Path] = [
        programs / "kube-apiserver",
        f"--etcd-servers=http://127.0.0.1:{slot.etcd_port}",
        f"--bind-address={slot.gateway}",
        f"--advertise-address={slot.gateway}",
        "--secure-port=6443",
        f"--cert-dir={slot.state}/apiserver",
        f"--client-ca-file={keys}/ca.crt",
        f"--tls-cert-file={keys}/apiserver.crt",
        f"--tls-private-key-file={keys}/apiserver.key",
        f"--kubelet-client-certificate={keys}/apiserver-kubelet-client.crt",
        f"--kubelet-client-key={keys}/apiserver-kubelet-client.key",
        "--kubelet-preferred-address-types=InternalIP",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-account-key-file={keys}/sa.key",
        f"--service-account-signing-key-file={keys}/sa.key",
        f"--service-cluster-ip-range={SERVICES}",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        "--allow-privileged=true",
    ]
    log = process.log(slot.state, "kube-apiserver")

    def ended() -> bool:
        return not process.running(slot.state, "kube-apiserver")

    for _ in range(3):
        process.start(slot.state, "kube-apiserver", command)
        wait("a ready apiserver", lambda: ready(slot) or ended(), APISERVER_SECONDS, log)
        if not ended():
            return
    raise LabError(f"the apiserver ended three times: {log.read_text().splitlines()[-1]}")


def down(slot: Slot) -> None:
    for name in DAEMONS:
        process.stop(
            slot.state, name, patience=1
        )  # the apiserver waits for its watches, and all data goes anyway


def ready(slot: Slot) -> bool:
    try:
        return bool(request(slot, "GET", "/readyz") == "ok")
    except (OSError, http.client.HTTPException):  # the latter: it ends in the middle of an answer
        return False


def request(slot: Slot, method: str, path: str, body: Any = None) -> Any:
    """One call to the apiserver as its administrator; JSON is decoded, other answers come as text. PATCH: a merge patch."""
    keys = pki.folder(slot)
    context = ssl.create_default_context(cafile=str(keys / "ca.crt"))
    context.load_cert_chain(keys / "admin.crt", keys / "admin.key")
    data = None if body is None else json.dumps(body).encode()
    content = "application/merge-patch+json" if method == "PATCH" else "application/json"
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
