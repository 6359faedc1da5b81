"""A pod that runs once on a GPU: made, followed to its end, and deleted in every case."""

from __future__ import annotations

import secrets
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from gpunode.cluster import pods
from gpunode.cluster.api import Api
from gpunode.cluster.api.kinds import Object
from gpunode.cluster.api.watch import OnProgress, follow
from gpunode.cluster.objects.manifests import render
from gpunode.links.node import HOSTNAME, RUNTIME_LABEL, Node
from gpunode.links.plugin.expected import unit
from gpunode.model import PluginConfig, PluginImage

NAME = "nvidia-smi"
NEVER = {"CreateContainerError", "RunContainerError", "CreateContainerConfigError"}
PENDING = 20.0  # seconds in which a GPU may become free


def place(
    nodes: Sequence[Node], config: PluginConfig | None, schedulers: Mapping[str, str]
) -> dict[str, Any]:
    """Values of a template for a pod with one unit of what these nodes offer, a GPU where they can. Nodes where pods need the
    RuntimeClass are used only where there are no others: dockershim knows none. `config`: the plugin's. `schedulers`: by resource,
    where it is not the cluster's own."""
    resource, nodes = unit(nodes, config)
    plain = [node for node in nodes if node.labels.get(RUNTIME_LABEL) != "class"]
    return {
        "nodes": [node.labels.get(HOSTNAME, node.name) for node in plain or nodes],
        "resource": resource,
        "runtime_class": "" if plain else "nvidia",
        "scheduler": schedulers.get(resource, ""),
    }


class Wait:
    """A wait for a pod to run, which ends where it cannot. `never`: reasons for which its container never starts."""

    def __init__(self, never: Collection[str] = NEVER) -> None:
        self._never, self._pulls, self._begun = never, pods.Pulls(), time.monotonic()

    def is_hopeless(self, pod: Object, why: str) -> bool:
        """Whether waiting does not help; `why`: what is wrong with the pod, "" for nothing."""
        late = not pod["spec"].get("nodeName") and time.monotonic() - self._begun >= PENDING
        never = not pods.waiting(pod).isdisjoint(self._never)
        return never or self._pulls.hopeless(pod) or bool(why and late)


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
    unit of what they offer. `config`, `schedulers`: as in `place`."""
    name = f"gpunode-{NAME}-{secrets.token_hex(4)}"
    (manifest,) = render(
        "nvidia-smi.yaml.j2",
        name=name,
        namespace=namespace,
        run=name,
        image=image.reference,
        pull=image.pull,
        seconds=int(seconds),
        **place(nodes, config, schedulers),
    )
    made = api.create(manifest)
    try:
        return _followed(api, made, seconds, tell)
    finally:
        api.delete("Pod", name, namespace, uid=made["metadata"]["uid"])


def _followed(api: Api, made: Object, seconds: float, tell: OnProgress) -> Ran:
    name, namespace = made["metadata"]["name"], made["metadata"]["namespace"]
    wait, pod, why = Wait(), made, ""
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
        if wait.is_hopeless(pod, why):
            kept = pods.obstacle(pod)
            fix = kept.fix if kept else ""
            return Ran(name, node, why or "it cannot run", fix=fix)
        tell(f"{name}: {why or 'starting'}")
    return Ran(
        name,
        str(pod["spec"].get("nodeName", "")),
        f"not done after {seconds:.0f} s: {why or 'it is starting'}",
    )
