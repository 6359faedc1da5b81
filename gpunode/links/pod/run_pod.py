"""A pod that runs once on a GPU: made, followed to its end, and deleted in every case."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from gpunode.cluster import pods
from gpunode.cluster.api import Api
from gpunode.cluster.api.kinds import Object
from gpunode.cluster.api.watch import OnProgress, follow
from gpunode.cluster.objects.manifests import rendered
from gpunode.links.node import HOSTNAME, RUNTIME_LABEL, Node
from gpunode.links.plugin.unit import unit
from gpunode.model import PluginConfig, PluginImage

NAME = "nvidia-smi"
NEVER = {"CreateContainerError", "RunContainerError", "CreateContainerConfigError"}
PENDING = 20.0  # seconds in which a GPU may become free


@dataclass(frozen=True, slots=True)
class Ran:
    """How it ended. `why`: why it did not run to its end; "" where it did. `log`: what it wrote."""

    pod: str
    node: str = ""
    why: str = ""
    log: str = ""
    fix: str = ""


def run(
    api: Api,
    nodes: Sequence[Node],
    *,
    namespace: str,
    image: PluginImage,
    seconds: float,
    tell: OnProgress,
    config: PluginConfig | None = None,
    schedulers: Mapping[str, str] = MappingProxyType({}),
) -> Ran:
    """Run nvidia-smi in a pod with one GPU, on one of these nodes; `seconds` at most. Where they offer no whole one, with a
    unit of what they offer. `config`: the plugin's. `schedulers`: by resource, where it is not the cluster's own."""
    name = f"gpunode-{NAME}-{secrets.token_hex(4)}"
    # dockershim knows no RuntimeClass, so nodes with the class are used only where there are no others.
    resource, nodes = unit(nodes, config)
    plain = [node for node in nodes if node.labels.get(RUNTIME_LABEL) != "class"]
    (manifest,) = rendered(
        "nvidia-smi.yaml.j2",
        name=name,
        namespace=namespace,
        run=name,
        nodes=[node.labels.get(HOSTNAME, node.name) for node in plain or nodes],
        image=image.reference,
        resource=resource,
        scheduler=schedulers.get(resource, ""),
        pull=image.pull,
        runtime_class="" if plain else "nvidia",
        seconds=int(seconds),
    )
    made = api.create(manifest)
    try:
        return _followed(api, made, seconds, tell)
    finally:
        api.delete("Pod", name, namespace, uid=made["metadata"]["uid"])


def _followed(api: Api, made: Object, seconds: float, tell: OnProgress) -> Ran:
    name, namespace = made["metadata"]["name"], made["metadata"]["namespace"]
    pulls, begun, pod, why = pods.Pulls(), time.monotonic(), made, ""
    for found in follow(api, "Pod", namespace, seconds=seconds, labels=f"gpunode.dev/run={name}", tell=tell):
        if name not in found:
            return Ran(name, why="the pod was deleted by another client")
        pod = found[name]
        ended = pods.ended(pod, NAME)
        node = str(pod["spec"].get("nodeName", ""))
        if ended is not None:
            log = api.log(namespace, name, NAME)
            code = ended.get("exitCode")
            return Ran(name, node, "" if code == 0 else f"exit code {code}", log)
        why = pods.problem(pod, pods.events(api, pod))
        waited = not node and time.monotonic() - begun >= PENDING
        if pods.waiting(pod) & NEVER or pulls.hopeless(pod) or (why and waited):
            kept = pods.obstacle(pod)
            fix = kept.fix if kept else ""
            return Ran(name, node, why or "it cannot run", fix=fix)
        tell(f"{name}: {why or 'starting'}")
    return Ran(
        name,
        str(pod["spec"].get("nodeName", "")),
        f"not done after {seconds:.0f} s: {why or 'it is starting'}",
    )
