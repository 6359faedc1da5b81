"""The pod that adds vectors on GPUs of a node."""

from __future__ import annotations

from collections.abc import Sequence

from gpunode.cluster.api.kinds import Object
from gpunode.cluster.objects.manifests import render
from gpunode.links.node import HOSTNAME, RUNTIME_LABEL, Node
from gpunode.links.pod.requests import Request
from gpunode.model import PluginImage

ARGS = ("-m", "gpunode.deviceplugin.vectoradd", "--json")  # of the plugin's image


def pod(
    name: str,
    node: Node,
    request: Request,
    *,
    namespace: str,
    image: PluginImage,
    seconds: float,
    args: Sequence[str] = ARGS,
    run: str = "",
    holder: str = "",
    scheduler: str = "",
) -> Object:
    """The pod that makes this request on the node, of the call of `run` that `run` names."""
    return on_node(
        "vectoradd.yaml.j2",
        name,
        node,
        namespace=namespace,
        image=image,
        seconds=seconds,
        args=args,
        run=run,
        holder=holder,
        resource=request[0],
        amount=request[1],
        scheduler=scheduler,
    )


def on_node(
    template: str,
    name: str,
    node: Node,
    *,
    namespace: str,
    image: PluginImage,
    seconds: float,
    args: Sequence[str],
    run: str,
    holder: str,
    **more: object,
) -> Object:
    """The template's pod for that node, as its taints and its runtime want it; `more` is what this template has besides."""
    (made,) = render(
        template,
        name=name,
        namespace=namespace,
        run=run,
        holder=holder,
        hostname=node.labels.get(HOSTNAME, node.name),
        taints=node.taints,
        image=image.reference,
        pull=image.pull,
        args=args,
        runtime_class="nvidia" if node.labels.get(RUNTIME_LABEL) == "class" else None,
        seconds=int(seconds) + 60,
        **more,
    )
    return made
