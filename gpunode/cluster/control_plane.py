"""The control plane: its nodes, and the health of API server and etcd."""

import time
from collections.abc import Collection, Iterable
from http import HTTPStatus

from gpunode.cluster.api import Api
from gpunode.cluster.api.kinds import Object
from gpunode.cluster.api.watch import OnProgress
from gpunode.cluster.pods import is_ready
from gpunode.errors import ClusterError
from gpunode.wording import few

LABELS = frozenset({"node-role.kubernetes.io/control-plane", "node-role.kubernetes.io/master"})
# The check, and its name before Kubernetes 1.16; then etcd's part of it, which not every user may read.
CHECKS = (("/readyz", "/healthz"), ("/readyz/etcd", "/healthz/etcd"))
PARTS = "tier=control-plane"  # kubeadm's label of its static pods
NAMED = 3
RETRY = 1.0


def has_label(labels: Collection[str]) -> bool:
    """True if a node with these labels is of the control plane."""
    return not LABELS.isdisjoint(labels)


def schedulers(api: Api) -> set[str]:
    """The nodes with a scheduler: those with its pods, and all of the control plane."""
    pods, _ = api.find("Pod", "kube-system", labels="component=kube-scheduler")
    nodes, _ = api.find("Node")
    running = {str(pod["spec"].get("nodeName") or "") for pod in pods} - {""}
    return running | _members(nodes).keys()


def problem(api: Api, but: Collection[str] = ()) -> str:
    """Why API server or etcd are unhealthy on the control plane's nodes, except those in `but`; "" if healthy."""
    try:
        for where, older in CHECKS:
            if why := _check(api, where, older):
                return why
        pods, _ = api.find("Pod", "kube-system", labels=PARTS)
        nodes, _ = api.find("Node")
    except ClusterError as error:
        return error.message
    down = [name for name, node in _members(nodes).items() if not is_ready(node) and name not in but]
    broken = [
        str(pod["metadata"]["name"])
        for pod in pods
        if not is_ready(pod) and pod["spec"].get("nodeName") not in but
    ]
    return f"not Ready: {few(sorted(down or broken), NAMED)}" if down or broken else ""


def wait(api: Api, seconds: float, notify: OnProgress, but: Collection[str] = ()) -> str:
    """Wait until there is no `problem`; returns the one that remains after `seconds`, "" for none."""
    end = time.monotonic() + seconds
    while True:
        why = problem(api, but)
        if not why or time.monotonic() >= end:
            return why
        notify(f"waiting for the control plane: {why}")
        time.sleep(RETRY)


def _members(nodes: Iterable[Object]) -> dict[str, Object]:
    return {
        str(node["metadata"]["name"]): node
        for node in nodes
        if has_label(node["metadata"].get("labels") or {})
    }


def _check(api: Api, where: str, older: str) -> str:
    status, text = api.health(where)
    if status == HTTPStatus.OK:
        return ""
    if status == HTTPStatus.NOT_FOUND and older:
        return _check(api, older, "")
    if status in (HTTPStatus.FORBIDDEN, HTTPStatus.NOT_FOUND) and where.endswith("/etcd"):
        return ""  # its pods say it, and /readyz holds it
    failed = [line for line in text.splitlines() if line.startswith("[-]")] or text.splitlines()[:1]
    return f"{where} answers {status}: {few(failed, NAMED)}"
