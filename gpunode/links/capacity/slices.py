"""What NVIDIA's DRA driver publishes of a node's GPUs, what of it claims have, and whether these are all of the host's.

Source: kubernetes-sigs/dra-driver-nvidia-gpu (cmd/gpu-kubelet-plugin/deviceinfo.go: attributes `type`, `uuid` and `productName`,
capacity `memory`; its chart's DeviceClasses), Kubernetes 1.34 (staging/src/k8s.io/api/resource/v1/types.go).
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from gpunode.cluster.api import Api
from gpunode.cluster.api.kinds import Object
from gpunode.contract import usage as usages
from gpunode.contract.promises import parse_quantity
from gpunode.errors import Problem
from gpunode.links.node import GPU_LABEL, Node
from gpunode.links.plugin.other_owners import DRA_DRIVER
from gpunode.model import Gpu, Verdict
from gpunode.wording import few

CLASSES = {"gpu": "gpu.nvidia.com", "mig": "mig.nvidia.com"}  # DeviceClass by a device's type
NAMED = 4
NO_DRIVER = (
    "Install NVIDIA's chart dra-driver-nvidia-gpu with `resources.gpus.enabled=true`, so that its kubelet plugin comes to this node; or "
    "set `allocation: plugin` for the host."
)


@dataclass(frozen=True, slots=True)
class Published:
    """A device in a ResourceSlice. `kind`: gpu, mig, …. `users`: namespace/name of the pods whose claim has it. `memory`: bytes."""

    pool: str
    name: str
    kind: str
    uuid: str
    users: tuple[str, ...] = ()
    model: str = ""
    memory: int | None = None


def unserved(api: Api) -> Problem | None:
    """Why no node of this cluster can be served by DRA: the API server has no resource.k8s.io/v1 (before 1.34)."""
    if api.served.has("ResourceClaim"):
        return None
    what = "`allocation: dra` needs resource.k8s.io/v1, which this API server does not serve"
    return Problem("no-dra", what, fix="Use Kubernetes 1.34 or newer, or `allocation: plugin`.")


def read(api: Api) -> dict[str, tuple[Published, ...]]:
    """The driver's devices by node. Raises ClusterError."""
    specs = [item["spec"] for item in api.find("ResourceSlice")[0]]
    specs = [spec for spec in specs if spec.get("nodeName") and spec.get("driver") == DRA_DRIVER]
    claims = api.find("ResourceClaim")[0] if specs else ()
    users = {key: names for claim in claims for key, names in _allocated(claim)}
    by_node: dict[str, tuple[Published, ...]] = {}
    for spec in specs:
        node, pool = spec["nodeName"], (spec.get("pool") or {}).get("name", "")
        devices = (_device(pool, device, users) for device in spec.get("devices") or ())
        by_node[node] = (*by_node.get(node, ()), *devices)
    return by_node


def _allocated(claim: Object) -> Iterator[tuple[tuple[str, str], tuple[str, ...]]]:
    """(pool, device) of each device that the claim has, and its pods; the claim itself where it is reserved for none."""
    status, meta = claim.get("status") or {}, claim["metadata"]
    pods = tuple(f"{meta['namespace']}/{pod['name']}" for pod in status.get("reservedFor") or ())
    results = ((status.get("allocation") or {}).get("devices") or {}).get("results") or ()
    for result in results:
        # Admin access watches, and takes no device
        if result.get("driver") == DRA_DRIVER and not result.get("adminAccess"):
            named = pods or (f"ResourceClaim {meta['namespace']}/{meta['name']}",)
            yield (result.get("pool", ""), result.get("device", "")), named


def _device(pool: str, device: Object, users: Mapping[tuple[str, str], tuple[str, ...]]) -> Published:
    values = {key: (value or {}).get("string", "") for key, value in (device.get("attributes") or {}).items()}
    name = device.get("name", "")
    memory = None
    with suppress(ValueError):
        memory = parse_quantity(((device.get("capacity") or {}).get("memory") or {}).get("value"))
    return Published(
        pool,
        name,
        values.get("type", ""),
        values.get("uuid", ""),
        users.get((pool, name), ()),
        values.get("productName", ""),
        memory,
    )


def usage(devices: Sequence[Published]) -> tuple[usages.Gpu, ...]:
    """The devices and their users, as far as slices and claims tell: without figures of NVML."""
    return tuple(
        usages.Gpu(
            device.uuid,
            device.name,
            device.model,
            device.memory,
            users=tuple(usages.User(name, "", CLASSES[device.kind], 1) for name in device.users),
        )
        for device in devices
        if device.kind in CLASSES
    )


def judge_driver(node: Node, devices: Sequence[Published]) -> Verdict:
    """In the plugin's place: the DRA driver serves the node, and gpunode's plugin does not."""
    if not devices:
        what = f"no ResourceSlice of the driver {DRA_DRIVER} is for this node"
        return Verdict.broken("plugin", "no DRA driver serves this node", what, NO_DRIVER, "no-dra-driver")
    if node.labels.get(GPU_LABEL) == "true":
        fix = f"kubectl label node {node.name} {GPU_LABEL}-"
        what = "the device plugin and the DRA driver would give a GPU to two pods"
        return Verdict.broken("plugin", "two own this node's GPUs", what, fix, "two-owners")
    return Verdict.ok("plugin", f"none, by `allocation: dra`: the DRA driver {DRA_DRIVER} serves this node")


def judge_devices(node: Node, devices: Sequence[Published], gpus: Sequence[Gpu]) -> Verdict:
    """Every GPU of the host is published, or every MIG device of one that is cut."""
    uuids = [part.uuid for gpu in gpus for part in (gpu.mig if gpu.mig_on and gpu.mig else (gpu,))]
    there = {device.uuid for device in devices}
    missing = [uuid for uuid in uuids if uuid not in there]
    text = f"{len(uuids) - len(missing)} of {len(uuids)} devices published by {DRA_DRIVER}"
    if not missing:
        return Verdict.ok("capacity", text)
    fix = f"`kubectl get resourceslices --field-selector spec.nodeName={node.name} -o yaml` shows them; the log of the DRA driver's pod on this node shows why. A new pod lists the GPUs again."
    return Verdict.broken("capacity", text, f"not published: {few(missing, NAMED)}", fix, "not-published")
