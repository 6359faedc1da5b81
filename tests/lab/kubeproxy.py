"""kube-proxy as kubeadm deploys it: a DaemonSet on every node, with its account and configuration."""

from collections.abc import Iterator
from typing import Any

from .images import HOSTS_USR
from .slot import Slot

_NAME = "kube-proxy"
_NAMESPACE = "/namespaces/kube-system"
_ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
# No limit on connections is set: it is the machine's, and only its own network namespace may.
_CONFIG = """apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: iptables
clusterCIDR: 10.244.0.0/16
clientConnection: {kubeconfig: /var/lib/kube-proxy/kubeconfig.conf}
conntrack: {maxPerCore: 0, min: 0, tcpCloseWaitTimeout: 0s, tcpEstablishedTimeout: 0s}
"""


def objects(slot: Slot) -> Iterator[tuple[str, dict[str, Any]]]:
    """API path and content of each object, in the order of creation."""
    kubeconfig = f"""apiVersion: v1
kind: Config
clusters: [{{name: lab, cluster: {{server: "{slot.server}", certificate-authority: {_ACCOUNT}/ca.crt}}}}]
users: [{{name: lab, user: {{tokenFile: {_ACCOUNT}/token}}}}]
contexts: [{{name: lab, context: {{cluster: lab, user: lab}}}}]
current-context: lab
"""
    data = {"config.conf": _CONFIG, "kubeconfig.conf": kubeconfig}
    subject = {"kind": "ServiceAccount", "name": _NAME, "namespace": "kube-system"}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "system:node-proxier"}
    rbac = "rbac.authorization.k8s.io/v1"
    binding = {"subjects": [subject], "roleRef": role}
    yield f"/api/v1{_NAMESPACE}/serviceaccounts/{_NAME}", _object("v1", "ServiceAccount")
    yield (
        f"/apis/{rbac}/clusterrolebindings/kubeadm:node-proxier",
        _object(rbac, "ClusterRoleBinding", "kubeadm:node-proxier") | binding,
    )
    yield f"/api/v1{_NAMESPACE}/configmaps/{_NAME}", _object("v1", "ConfigMap") | {"data": data}
    yield f"/apis/apps/v1{_NAMESPACE}/daemonsets/{_NAME}", _object("apps/v1", "DaemonSet") | _daemonset()


def _object(version: str, kind: str, name: str = _NAME) -> dict[str, Any]:
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name}}


def _daemonset() -> dict[str, Any]:
    labels = {"k8s-app": _NAME}
    folders = {  # iptables is the host's own
        "usr": "/usr",
        "alternatives": "/etc/alternatives",
        "lib-modules": "/lib/modules",
    }
    mounts = [{"name": name, "mountPath": path, "readOnly": True} for name, path in folders.items()]
    volumes: list[dict[str, Any]] = [
        {"name": name, "hostPath": {"path": path}} for name, path in folders.items()
    ]
    lock = {"path": "/run/xtables.lock", "type": "FileOrCreate"}
    container = {
        "name": _NAME,
        "image": HOSTS_USR,
        "imagePullPolicy": "Never",
        "command": [
            "/usr/local/lib/lab/kubernetes/kube-proxy",
            "--config=/var/lib/kube-proxy/config.conf",
            "--hostname-override=$(NODE_NAME)",
        ],
        "env": [{"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}],
        "securityContext": {"privileged": True},
        "volumeMounts": [
            *mounts,
            {"name": _NAME, "mountPath": "/var/lib/kube-proxy"},
            {"name": "xtables-lock", "mountPath": "/run/xtables.lock"},
        ],
    }
    spec = {
        "priorityClassName": "system-node-critical",
        "serviceAccountName": _NAME,
        "hostNetwork": True,
        "terminationGracePeriodSeconds": 5,
        "tolerations": [{"operator": "Exists"}],
        "nodeSelector": {"kubernetes.io/os": "linux"},
        "containers": [container],
        "volumes": [
            *volumes,
            {"name": _NAME, "configMap": {"name": _NAME}},
            {"name": "xtables-lock", "hostPath": lock},
        ],
    }
    template = {"metadata": {"labels": labels}, "spec": spec}
    return {"spec": {"selector": {"matchLabels": labels}, "template": template}}
