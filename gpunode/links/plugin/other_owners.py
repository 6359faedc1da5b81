"""Who else may have a node's GPUs: other device plugins, of which the kubelet uses the last one registered, and DRA drivers, beside
which a device plugin would give each GPU a second time.

Source of DRA: kubernetes-sigs/dra-driver-nvidia-gpu (its chart's DeviceClass gpu.nvidia.com has `extendedResourceName:
nvidia.com/gpu`), NVIDIA/gpu-operator v26.7.0 (controllers/nodelabeling_controller.go, manifests/state-dra-driver). A driver's
ResourceSlices go when it does: the kubelet deletes them.
"""

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from gpunode.cluster.api import Api
from gpunode.cluster.api.kinds import Object, is_ours, title
from gpunode.cluster.pods import GPU
from gpunode.errors import ClusterError, HttpError, Problem
from gpunode.links.node import GPU_LABEL, Node
from gpunode.links.plugin.daemonset import place
from gpunode.wording import few, page

MANAGED = "app.kubernetes.io/managed-by"
SOCKETS = "/var/lib/kubelet/device-plugins"


@dataclass(frozen=True, slots=True)
class Product:
    """Whose a DaemonSet is, and how it leaves a node or the cluster."""

    name: str
    way: str
    owns: Callable[[str, str], bool]  # by its namespace, and its names and images in lower case
    returns: bool = False  # an operator or an add-on manager makes its DaemonSet again


@dataclass(frozen=True, slots=True)
class Other:
    """A DaemonSet on this many nodes that offers NVIDIA GPUs, writes the container runtime's configuration, or allocates GPUs by DRA."""

    title: str
    nodes: int
    product: Product
    does: Literal["offers", "configures", "allocates"] = "offers"


GPU_OPERATOR = "the GPU Operator"
# Names of the products' own manifests and charts: canonical/microk8s-core-addons:addons/nvidia, NVIDIA/gpu-operator (the label
# of an operand, controllers/state_manager.go), AliyunContainerService/gpushare-device-plugin, Project-HAMi/HAMi:charts/hami.
PRODUCTS = (
    Product(
        "MicroK8s' addon for NVIDIA",
        "`microk8s disable nvidia`",
        lambda where, _: where == "gpu-operator-resources",
        returns=True,
    ),
    Product(
        GPU_OPERATOR,
        # From NVIDIA/gpu-operator#2575 on, the first label leaves the driver's pod on the node; before, it takes that, too.
        "`kubectl label node NODE nvidia.com/gpu.deploy.operands=false` takes it off a node; a driver pod that stays goes by "
        "`nvidia.com/gpu.deploy.driver=false` once nothing uses that driver",
        lambda where, names: where == "gpu-operator" or "gpu-operator" in names,
        returns=True,
    ),
    Product(
        "gpushare's",
        "take the label `gpushare` off the node, or delete the DaemonSet",
        lambda _, names: "gpushare" in names,
    ),
    Product(
        "HAMi's",
        "take the label `gpu=on` off the node, or uninstall its chart",
        lambda _, names: "hami" in names,
    ),
    Product(
        "Volcano's",
        "take its nodes out of the DaemonSet's nodeSelector, or delete the DaemonSet",
        lambda _, names: "volcano" in names,
    ),
    Product(
        "GKE's",
        "`kubectl label node NODE gke-no-default-nvidia-gpu-device-plugin=true` keeps it off a node",
        lambda where, names: where == "kube-system" and "nvidia-gpu-device-plugin" in names,
        returns=True,
    ),
    Product(
        "NVIDIA's",
        "delete the DaemonSet, or uninstall its chart",
        lambda _, names: "nvidia" in names and "k8s-device-plugin" in names,
    ),
    Product("another's", "delete the DaemonSet", lambda _, names: "nvidia" in names),
)


# With the operands of a node: NVIDIA/gpu-operator, controllers/state_manager.go (gpuStateLabels). `operands=false` takes it off.
OPERATED = "nvidia.com/gpu.deploy.device-plugin"
PAUSED = "paused-for-mig-change"  # NVIDIA/mig-parted#485


def paused_labels(labels: Mapping[str, str]) -> list[str]:
    """The labels of the GPU Operator that its mig-manager has set, and sets back when it is done."""
    return [
        key for key, value in labels.items() if key.startswith("nvidia.com/gpu.deploy.") and value == PAUSED
    ]


def list_others(api: Api) -> tuple[Other, ...]:
    """All of them. Also empty where the user may not list DaemonSets."""
    try:
        daemonsets = api.find("DaemonSet")[0]
    except ClusterError:
        return ()  # only a warning depends on it
    return tuple(_others(daemonsets))


def find_replaceable(api: Api, named: str, nodes: Collection[str]) -> Object:
    """The DaemonSet NAMESPACE/NAME of another plugin, to be deleted where the bundled one comes to these nodes. Raises
    ClusterError where it is no such, would be made again, or serves other nodes, too."""
    others = {each.title: each for each in list_others(api) if each.does == "offers"}
    other, (namespace, _, name) = others.get(f"DaemonSet {named}"), named.partition("/")
    live = api.get("DaemonSet", name, namespace) if other else None
    if other is None or live is None:
        names = ", ".join(each.removeprefix("DaemonSet ") for each in others)
        raise ClusterError(
            f"--replace {named}: no DaemonSet of another device plugin has this name",
            hint=f"Name one of: {names}." if names else "The cluster has none: leave the option out.",
        )
    meta = live["metadata"]
    if (
        other.product.returns
        or meta.get("ownerReferences")
        or (meta.get("labels") or {}).get(MANAGED) == "Helm"
    ):
        raise ClusterError(
            f"--replace {named}: its manager would create it again",
            hint=f"It is {other.product.name}: {other.product.way}.",
        )
    pods = api.find("Pod", namespace)[0]
    owned = [
        pod
        for pod in pods
        if any(by["uid"] == meta["uid"] for by in pod["metadata"].get("ownerReferences") or ())
    ]
    if left := sorted({place(each) for each in owned} - {*nodes}):
        raise ClusterError(
            f"--replace {named}: it also serves {few(left, 5)}, which would offer no GPUs then",
            hint=f"Add these hosts to the command, or remove the DaemonSet by hand: {page('switching')}",
        )
    return live


def _others(daemonsets: Iterable[Object]) -> Iterable[Other]:
    for live in daemonsets:
        count = live.get("status", {}).get("desiredNumberScheduled", 0)
        pod = live["spec"]["template"]["spec"]
        names = [live["metadata"]["name"], *(container["image"] for container in pod["containers"])]
        names += [owner["name"] for owner in live["metadata"].get("ownerReferences") or () if "name" in owner]
        if not count or is_ours(live):
            continue
        text, where = " ".join(names).lower(), live["metadata"].get("namespace", "")
        product = next((product for product in PRODUCTS if product.owns(where, text)), None)
        named = title({"kind": "DaemonSet", **live})
        if product and _offers(pod):
            yield Other(named, count, product)
        elif product and "container-toolkit" in text:
            yield Other(named, count, product, "configures")
        elif (
            product
            and "dra-driver" in text
            and any(container["name"] == "gpus" for container in pod["containers"])
        ):
            yield Other(named, count, product, "allocates")


def _offers(pod: Object) -> bool:
    """Judged by the kubelet's directory, which gpu-feature-discovery and MPS daemons of the same image do not mount."""
    paths = [volume.get("hostPath", {}).get("path", "") for volume in pod.get("volumes") or []]
    return any(path.startswith(SOCKETS) for path in paths)


OTHER_OWNER = "other-owner"  # code
# NVIDIA's for ComputeDomains is compute-domain.nvidia.com, and allocates no GPU
DRA_DRIVER = "gpu.nvidia.com"
DRA_LABEL = "nvidia.com/gpu.deploy.dra-driver"  # "true": a GPUCluster of the GPU Operator brings its driver to the node
SELECTS = re.compile(r"device\.driver\s*==\s*['\"]([^'\"]+)['\"]")  # in CEL
FEW = 2  # ResourceSlices of a node that a message names


@dataclass(frozen=True, slots=True)
class Owners:
    """By node, the ResourceSlices with its GPUs; the cluster's objects that go with them. `unknown`: why slices could not be read."""

    slices: Mapping[str, tuple[str, ...]]
    objects: tuple[str, ...] = ()
    unknown: str = ""
    # Some object brings the driver to labelled nodes; else a label is left over, and means nothing
    brought: bool = False

    def reason(self, node: Node) -> Problem | None:
        """Why the node may have no device plugin; None where it may."""
        labelled = node.labels.get(DRA_LABEL) == "true" and (self.brought or node.name in self.slices)
        signs = [few(self.slices[node.name], FEW)] if node.name in self.slices else []
        signs += [f"label {DRA_LABEL}=true"] if labelled else []
        if not signs:
            return self._doubt(node) if self.unknown and self.objects else None
        what = (
            f"a DRA driver allocates the GPUs of this node ({', '.join([*signs, *self.objects])}); "
            "a device plugin there would give each to a second pod"
        )
        way = (
            f"with `kubectl label node {node.name} {DRA_LABEL}=false --overwrite`, once no pod has a claim"
            if labelled
            else "with the nodeSelector of its DaemonSet, or with `resources.gpus.enabled=false` in its chart"
        )
        off = f"`kubectl label node {node.name} {GPU_LABEL}-`"
        keep = f" and take gpunode's plugin off it: {off}." if GPU_LABEL in node.labels else "."
        fix = (
            f"To use the plugin, take the DRA driver off the node, {way}. To keep DRA, exclude the host{keep}"
        )
        return Problem(OTHER_OWNER, what, fix=fix, subject=node.name)

    def _doubt(self, node: Node) -> Problem:
        """Whether a DRA driver that is there has this node's GPUs cannot be read."""
        what = f"a DRA driver may allocate the GPUs of this node ({', '.join(self.objects)}): {self.unknown}"
        fix = "Give this user the right to list resourceslices.resource.k8s.io, or exclude the host."
        return Problem(OTHER_OWNER, what, fix=fix, subject=node.name)


NONE = Owners({})


def dra_owners(api: Api) -> Owners:
    """What the API server has of it. An older one has none; what this user may not list is `unknown`."""
    if not api.served.has("ResourceSlice"):
        return NONE
    published, unknown = list[Object](), ""
    try:
        published = [
            item["spec"] | {"title": title({**item, "kind": "ResourceSlice"})}
            for item in api.find("ResourceSlice")[0]
        ]
    except HttpError as error:
        unknown = error.message
    # The DeviceClasses by which pods that ask for GPUs as a resource get them from DRA.
    classes = [item for item in _list(api, "DeviceClass") if item["spec"].get("extendedResourceName") == GPU]
    drivers = {DRA_DRIVER}
    for selector in (selector for item in classes for selector in item["spec"].get("selectors") or ()):
        drivers.update(SELECTS.findall((selector.get("cel") or {}).get("expression", "")))
    slices: dict[str, tuple[str, ...]] = {}
    for spec in published:
        if spec.get("nodeName") and spec.get("devices") and spec.get("driver") in drivers:
            slices[spec["nodeName"]] = (*slices.get(spec["nodeName"], ()), spec["title"])
    offers = [f"{title(item)} for {GPU}" for item in classes]
    bring = [title(item) for item in _list(api, "GPUCluster")]
    bring += [item.title for item in list_others(api) if item.does == "allocates"]
    return Owners(slices, (*bring, *offers), unknown, brought=bool(bring))


def _list(api: Api, kind: str) -> list[Object]:
    """Also empty where the API server has no such kind, or the user may not list it: it only adds names."""
    try:
        return [{**item, "kind": kind} for item in api.find(kind)[0]] if api.served.has(kind) else []
    except HttpError:
        return []
