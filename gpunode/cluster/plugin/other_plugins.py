"""Other device plugins for NVIDIA GPUs in the cluster: of two on a node, the kubelet uses the last one registered."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from gpunode.cluster.api import Api
from gpunode.cluster.api.kinds import Object, ours, title
from gpunode.errors import ClusterError

SOCKETS = "/var/lib/kubelet/device-plugins"


@dataclass(frozen=True, slots=True)
class Product:
    """Whose a DaemonSet is, and how it leaves a node or the cluster."""

    name: str
    way: str
    owns: Callable[[str, str], bool]  # by its namespace, and its names and images in lower case


@dataclass(frozen=True, slots=True)
class Other:
    """A DaemonSet that offers NVIDIA GPUs, or writes the container runtime's configuration, on this many nodes."""

    title: str
    nodes: int
    product: Product
    configures: bool = False  # the runtime; else it offers GPUs


# Names of the products' own manifests and charts: canonical/microk8s-core-addons:addons/nvidia, NVIDIA/gpu-operator (the label
# of an operand, controllers/state_manager.go), AliyunContainerService/gpushare-device-plugin, Project-HAMi/HAMi:charts/hami.
PRODUCTS = (
    Product(
        "MicroK8s' addon for NVIDIA",
        "`microk8s disable nvidia`",
        lambda where, _: where == "gpu-operator-resources",
    ),
    Product(
        "the GPU Operator",
        "`kubectl label node NODE nvidia.com/gpu.deploy.operands=false` keeps it off a node",
        lambda where, names: where == "gpu-operator" or "gpu-operator" in names,
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
    ),
    Product(
        "NVIDIA's",
        "delete the DaemonSet, or uninstall its chart",
        lambda _, names: "nvidia" in names and "k8s-device-plugin" in names,
    ),
    Product("another's", "delete the DaemonSet", lambda _, names: "nvidia" in names),
)


def every(api: Api) -> tuple[Other, ...]:
    """All of them. Also empty where the user may not list DaemonSets."""
    try:
        found = api.find("DaemonSet")[0]
    except ClusterError:
        return ()  # only a warning depends on it
    return tuple(_others(found))


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
            yield Other(named, count, product, configures=True)


def _offers(pod: Object) -> bool:
    """Judged by the kubelet's directory, which gpu-feature-discovery and MPS daemons of the same image do not mount."""
    paths = [volume.get("hostPath", {}).get("path", "") for volume in pod.get("volumes") or []]
    return any(path.startswith(SOCKETS) for path in paths)
