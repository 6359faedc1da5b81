"""The kinds of objects that gpunode reads and writes, and their API paths."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias
from urllib.parse import quote

Object: TypeAlias = dict[str, Any]
OURS = "app.kubernetes.io/managed-by"  # the label of what gpunode made


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind: `api` is its apiVersion, `plural` its name in paths."""

    api: str
    plural: str
    namespaced: bool

    @property
    def resource(self) -> str:
        """The name that RBAC and `kubectl auth can-i` use: `pods`, `daemonsets.apps`."""
        group, _, version = self.api.partition("/")
        return f"{self.plural}.{group}" if version else self.plural

    def path(self, namespace: str | None = None, name: str = "") -> str:
        """The URL path of a collection, or of one object in it. No namespace: of all namespaces."""
        parts = ["apis" if "/" in self.api else "api", self.api]
        if self.namespaced and namespace:
            parts += ["namespaces", quote(namespace, safe="")]
        parts.append(self.plural)
        if name:
            parts.append(quote(name, safe=""))
        return "/" + "/".join(parts)


KINDS = {
    "Namespace": Kind("v1", "namespaces", False),
    "Node": Kind("v1", "nodes", False),
    "ServiceAccount": Kind("v1", "serviceaccounts", True),
    "RuntimeClass": Kind("node.k8s.io/v1", "runtimeclasses", False),
    "Role": Kind("rbac.authorization.k8s.io/v1", "roles", True),
    "RoleBinding": Kind("rbac.authorization.k8s.io/v1", "rolebindings", True),
    "ClusterRole": Kind("rbac.authorization.k8s.io/v1", "clusterroles", False),
    "ClusterRoleBinding": Kind("rbac.authorization.k8s.io/v1", "clusterrolebindings", False),
    "DaemonSet": Kind("apps/v1", "daemonsets", True),
    "Deployment": Kind("apps/v1", "deployments", True),
    "Service": Kind("v1", "services", True),
    "Pod": Kind("v1", "pods", True),
    "Event": Kind("v1", "events", True),
    "ConfigMap": Kind("v1", "configmaps", True),
    "Secret": Kind("v1", "secrets", True),
    "PersistentVolumeClaim": Kind("v1", "persistentvolumeclaims", True),
    "ResourceQuota": Kind("v1", "resourcequotas", True),
    "PodDisruptionBudget": Kind("policy/v1", "poddisruptionbudgets", True),
    "Lease": Kind("coordination.k8s.io/v1", "leases", True),
    "ResourceSlice": Kind("resource.k8s.io/v1", "resourceslices", False),
    "DeviceClass": Kind("resource.k8s.io/v1", "deviceclasses", False),
    "GPUCluster": Kind("nvidia.com/v1alpha1", "gpuclusters", False),  # of the GPU Operator, from 26.7 on
    "ValidatingAdmissionPolicy": Kind(
        "admissionregistration.k8s.io/v1", "validatingadmissionpolicies", False
    ),
    "ValidatingAdmissionPolicyBinding": Kind(
        "admissionregistration.k8s.io/v1", "validatingadmissionpolicybindings", False
    ),
    "SelfSubjectAccessReview": Kind("authorization.k8s.io/v1", "selfsubjectaccessreviews", False),
}

# The same kinds as older API servers have them, newest first: what gpunode reads and writes of them looks the same there.
OLDER = {
    "RuntimeClass": (Kind("node.k8s.io/v1beta1", "runtimeclasses", False),),  # 1.14 to 1.24
    "DaemonSet": (Kind("apps/v1beta2", "daemonsets", True),),  # 1.8 to 1.15
    "Lease": (Kind("coordination.k8s.io/v1beta1", "leases", True),),  # 1.12 to 1.21
    "PodDisruptionBudget": (Kind("policy/v1beta1", "poddisruptionbudgets", True),),  # to 1.24
    "ResourceSlice": tuple(  # 1.31 to 1.33, where they are switched on
        Kind(f"resource.k8s.io/{version}", "resourceslices", False)
        for version in ("v1beta2", "v1beta1", "v1alpha3")
    ),
}

# Kinds whose group's version is older than they are -> the first minor that has them.
SINCE = {"ValidatingAdmissionPolicy": 30, "ValidatingAdmissionPolicyBinding": 30}


def path(kind: str, namespace: str | None = None, name: str = "") -> str:
    """`Kind.path` of one of KINDS."""
    return KINDS[kind].path(namespace, name)


def title(manifest: Object) -> str:
    """How messages name an object: `DaemonSet gpunode/gpunode-device-plugin`."""
    meta = manifest["metadata"]
    place = f"{meta['namespace']}/" if meta.get("namespace") else ""
    return f"{manifest['kind']} {place}{meta['name']}"


def ours(live: Object) -> bool:
    """Whether gpunode made this object."""
    return bool((live["metadata"].get("labels") or {}).get(OURS) == "gpunode")
