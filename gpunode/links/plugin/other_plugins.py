"""Other device plugins for NVIDIA GPUs in the cluster: of two on a node, the kubelet uses the last one registered."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from gpunode.cluster.api import Api
from gpunode.cluster.api.kinds import Object, ours, title
from gpunode.errors import ClusterError
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
        "the GPU Operator",
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


PAUSED = "paused-for-mig-change"  # NVIDIA/mig-parted#485


def paused(labels: Mapping[str, str]) -> list[str]:
    """The labels of the GPU Operator that its mig-manager has set, and sets back when it is done."""
    return [
        key for key, value in labels.items() if key.startswith("nvidia.com/gpu.deploy.") and value == PAUSED
    ]


def every(api: Api) -> tuple[Other, ...]:
    """All of them. Also empty where the user may not list DaemonSets."""
    try:
        found = api.find("DaemonSet")[0]
    except ClusterError:
        return ()  # only a warning depends on it
    return tuple(_others(found))


def replaced(api: Api, named: str, nodes: Collection[str]) -> Object:
    """The DaemonSet NAMESPACE/NAME of another plugin, to be deleted where the bundled one comes to these nodes. Raises
    ClusterError where it is no such, would be made again, or serves other nodes, too."""
    found = {one.title: one for one in every(api) if one.does == "offers"}
    other, (namespace, _, name) = found.get(f"DaemonSet {named}"), named.partition("/")
    live = api.get("DaemonSet", name, namespace) if other else None
    if other is None or live is None:
        there = ", ".join(one.removeprefix("DaemonSet ") for one in found)
        raise ClusterError(
            f"--replace {named}: no DaemonSet of another device plugin has this name",
            hint=f"Name one of: {there}." if there else "The cluster has none: leave the option out.",
        )
    meta = live["metadata"]
    if (
        other.product.returns
        or meta.get("ownerReferences")
        or (meta.get("labels") or {}).get(MANAGED) == "Helm"
    ):
        raise ClusterError(
            f"--replace {named}: it would be made again by what manages it",
            hint=f"It is {other.product.name}: {other.product.way}.",
        )
    pods = api.find("Pod", namespace)[0]
    owned = [
        pod
        for pod in pods
        if any(by["uid"] == meta["uid"] for by in pod["metadata"].get("ownerReferences") or ())
    ]
    if left := sorted({place(one) for one in owned} - {*nodes}):
        raise ClusterError(
            f"--replace {named}: it also serves {few(left, 5)}, which would offer no GPUs then",
            hint=f"Add these hosts to the command, or remove the DaemonSet by hand: {page('switching.md')}",
        )
    return live


def _others(found: Iterable[Object]) -> Iterable[Other]:
    for one in found:
        count = one.get("status", {}).get("desiredNumberScheduled", 0)
        pod = one["spec"]["template"]["spec"]
        names = [one["metadata"]["name"], *(container["image"] for container in pod["containers"])]
        names += [owner["name"] for owner in one["metadata"].get("ownerReferences") or () if "name" in owner]
        if not count or ours(one):
            continue
        words, where = " ".join(names).lower(), one["metadata"].get("namespace", "")
        product = next((product for product in PRODUCTS if product.owns(where, words)), None)
        named = title({"kind": "DaemonSet", **one})
        if product and _offers(pod):
            yield Other(named, count, product)
        elif product and "container-toolkit" in words:
            yield Other(named, count, product, "configures")
        elif (
            product
            and "dra-driver" in words
            and any(container["name"] == "gpus" for container in pod["containers"])
        ):
            yield Other(named, count, product, "allocates")


def _offers(pod: Object) -> bool:
    """Judged by the kubelet's directory, which gpu-feature-discovery and MPS daemons of the same image do not mount."""
    paths = [volume.get("hostPath", {}).get("path", "") for volume in pod.get("volumes") or []]
    return any(path.startswith(SOCKETS) for path in paths)
