"""The kinds of objects that gpunode reads and writes, and their API paths."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias
from urllib.parse import quote

from gpunode.errors import ClusterError
from gpunode.model import Title

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


# By apiVersion; a star: of no namespace.
NEWEST = {
    "v1": "Namespace* Node* ServiceAccount Service Pod Event ConfigMap Secret PersistentVolumeClaim",
    "rbac.authorization.k8s.io/v1": "Role RoleBinding ClusterRole* ClusterRoleBinding*",
    "apps/v1": "DaemonSet Deployment",
    "node.k8s.io/v1": "RuntimeClass*",
    "policy/v1": "PodDisruptionBudget",
    "coordination.k8s.io/v1": "Lease",
    "resource.k8s.io/v1": "ResourceSlice* ResourceClaim ResourceClaimTemplate DeviceClass*",
    "nvidia.com/v1alpha1": "GPUCluster*",  # of the GPU Operator, from 26.7 on
    "admissionregistration.k8s.io/v1": "ValidatingAdmissionPolicy* ValidatingAdmissionPolicyBinding*",
    "authentication.k8s.io/v1": "SelfSubjectReview*",
    "authorization.k8s.io/v1": "SelfSubjectAccessReview*",
}
KINDS = {
    name.strip("*"): Kind(
        api, re.sub("y$", "ie", re.sub("s$", "se", name.strip("*").lower())) + "s", "*" not in name
    )
    for api, names in NEWEST.items()
    for name in names.split()
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
    return KINDS[kind].path(namespace, name)


def title(manifest: Object) -> str:
    """How messages name an object."""
    return str(Title.of(manifest))


def is_ours(live: Object) -> bool:
    """True if gpunode made this object."""
    return bool((live["metadata"].get("labels") or {}).get(OURS) == "gpunode")


FLOOR = 8  # Kubernetes 1.8: RBAC v1, DaemonSets of group apps, device plugins
# Server-side apply is on since 1.16. Before 1.18 the API server does not say who set a field of an object that was
# never applied, before 1.20 it refuses ports without a protocol (kubernetes/kubernetes#92332): so gpunode uses it from
# 1.20 on.
APPLY = 20
DRY_RUN = 13  # on by default; before 1.12 the API server does not know the parameter, and would write
# Fields of pods -> the first minor that keeps them. An older API server drops them, and they would look as if a client
# had taken them off. Source: staging/src/k8s.io/api/core/v1/types.go of each release.
FIELDS = {"runtimeClassName": 14, "enableServiceLinks": 13, "seccompProfile": 19}
# Before, admission lets pods have the system's priorities in kube-system alone (plugin/pkg/admission/priority).
PRIORITY = 17
HOME = "kube-system"


@dataclass(frozen=True, slots=True)
class Served:
    """An API server's version (`v1.16.15`), its minor, and the groups' versions that it serves."""

    version: str
    minor: int
    groups: frozenset[str]

    @property
    def apply(self) -> bool:
        """True if server-side apply records the manager of each field."""
        return self.minor >= APPLY

    @property
    def dry_run(self) -> bool:
        return self.minor >= DRY_RUN

    @property
    def untried(self) -> str:
        """Why there are no dry runs; "" if there are."""
        return "" if self.dry_run else f"Kubernetes {self.version} has no dry run"

    def has(self, kind: str) -> bool:
        """True if the API server has this kind, in any version."""
        return self._find(kind) is not None

    def kind(self, kind: str) -> Kind:
        """The kind in the newest version that the API server has; where it has none, as the newest API servers have it."""
        return self._find(kind) or KINDS[kind]

    def _find(self, kind: str) -> Kind | None:
        if self.minor < SINCE.get(kind, 0):
            return None
        every = (KINDS[kind], *OLDER.get(kind, ()))
        return next((each for each in every if each.api in self.groups or "/" not in each.api), None)

    def fit(self, manifest: Object) -> Object | None:
        """The manifest as this API server can keep it whole; None for a kind that it does not have."""
        kind = manifest["kind"]
        if not self.has(kind):
            return None
        gone = {field for field, since in FIELDS.items() if self.minor < since}
        if not self.has("RuntimeClass"):
            gone.add("runtimeClassName")
        if self.minor < PRIORITY and manifest["metadata"].get("namespace") != HOME:
            gone.add("priorityClassName")
        fitting: Object = _without(manifest, gone) if gone else manifest
        return {**fitting, "apiVersion": self.kind(kind).api}


def discover(read: Callable[[str], Object]) -> Served:
    """Ask the API server. Raises ClusterError for one below the floor."""
    version = str(read("/version").get("gitVersion"))
    match = re.match(r"v?1\.([0-9]{1,9})", version)
    minor = int(match[1]) if match else 99  # another major: newer than all that is known
    if minor < FLOOR:
        raise ClusterError(
            f"this Kubernetes is {version}; gpunode's cluster side needs 1.{FLOOR} or newer",
            hint="Upgrade the control plane, or name another cluster with cluster.context in the inventory.",
        )
    groups = read("/apis").get("groups") or []
    versions = (version["groupVersion"] for group in groups for version in group.get("versions") or [])
    return Served(version, minor, frozenset(versions))


def _without(value: object, fields: set[str]) -> Object:
    """The object without these fields, at any depth; maps that are empty then go, too."""

    def cut(part: object) -> object:
        if isinstance(part, dict):
            return {key: cut(below) for key, below in part.items() if key not in fields}
        return [cut(below) for below in part] if isinstance(part, list) else part

    done = cut(value)
    assert isinstance(done, dict)
    return done
