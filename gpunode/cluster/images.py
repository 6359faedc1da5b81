"""The plugin's image on the nodes: which lack it, as far as their kubelets tell, and whether they have the same."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

from gpunode.cluster import daemonset
from gpunode.cluster.api import Api
from gpunode.cluster.kinds import Object
from gpunode.cluster.nodes import Node
from gpunode.errors import ClusterError
from gpunode.model import PluginImage


def unloaded(api: Api, namespace: str, image: PluginImage, nodes: Iterable[Node]) -> list[str]:
    """The nodes without an image that is loaded onto hosts and not pulled; none where the plugin is to run with it
    already: a kubelet tells of a new image within a minute."""
    if image.archive is None:
        return []
    name = image.reference if ":" in image.reference.rpartition("/")[2] else f"{image.reference}:latest"
    found: list[Object] = []
    with suppress(ClusterError):  # who may not list them is told too much
        found = api.find("DaemonSet", namespace, labels=daemonset.SELECTOR)[0]
    templates = [one["spec"]["template"] for one in found]
    if any(one["image"] == image.reference for pod in templates for one in pod["spec"]["containers"]):
        return []
    return [node.name for node in nodes if node.images and not any(_is(one, name) for one in node.images)]


def floating(image: PluginImage) -> str:
    """What a person should know of an image whose name stays while what it names changes; "" where it does not."""
    _, digest, _ = image.reference.partition("@")
    tag = image.reference.rpartition("/")[2].partition(":")[2] or "latest"
    if image.archive is not None or digest or tag != "latest":
        return ""
    return (
        f"{image.reference} is whatever was pushed last when a node pulled it, and a node pulls it once (IfNotPresent): "
        "nodes may run different ones. Name a version, or better a digest (name:version@sha256:…)."
    )


def _is(there: str, name: str) -> bool:
    """A runtime may put the registry's name before one that has none: docker.io/library/plugin:1."""
    return there == name or there.endswith(f"/{name}")
