"""The device plugin on a node: its image is there, it runs, and the node's GPUs are its own."""

from collections.abc import Iterable
from contextlib import suppress

from gpunode.cluster import pods
from gpunode.cluster.api import Api
from gpunode.cluster.api.kinds import Object
from gpunode.errors import ClusterError, Problem
from gpunode.links.link import Link, Step, judge_by_plan, waiting_step
from gpunode.links.node import Node
from gpunode.links.plugin import cordons, daemonset
from gpunode.links.plugin.daemonset import State
from gpunode.model import Change, Desired, Facts, Fault, LoadImage, Outcome, PluginImage, Verdict, Watch


def judge_plugin(state: State, fix: str) -> Verdict:
    """The device plugin runs on the node. `fix`: where the reason has none."""
    if why := state.reason:
        text = f"{state.name} is not ready" if state.pod else "no device plugin pod on this node"
        return Verdict.broken("plugin", text, why.what, why.fix or fix, why.code)
    restarts = pods.restarts(state.pod) if state.pod else 0
    return Verdict.ok("plugin", f"{state.name} is ready{f', restarts: {restarts}' if restarts else ''}")


def judge_owned(why: Problem) -> Verdict:
    """The node's GPUs have another owner, so it is to have no plugin."""
    return Verdict.broken("plugin", "the node's GPUs have another owner", why.what, why.fix, why.code)


def nodes_without(api: Api, namespace: str, image: PluginImage, nodes: Iterable[Node]) -> list[str]:
    """The nodes without an image that is loaded onto hosts and not pulled; none where a DaemonSet already names it: a
    kubelet reports a new image only after up to a minute."""
    if image.archive is None:
        return []
    name = image.reference if ":" in image.reference.rpartition("/")[2] else f"{image.reference}:latest"
    daemonsets: list[Object] = []
    with suppress(ClusterError):  # without the right to list them, the warning is needless at worst
        daemonsets = api.find("DaemonSet", namespace, labels=daemonset.SELECTOR)[0]
    templates = [live["spec"]["template"] for live in daemonsets]
    if any(
        container["image"] == image.reference for pod in templates for container in pod["spec"]["containers"]
    ):
        return []
    return [node.name for node in nodes if node.images and not any(_same(ref, name) for ref in node.images)]


def floating_warning(image: PluginImage) -> str:
    """A warning about an image reference whose image may change; "" where it does not."""
    _, digest, _ = image.reference.partition("@")
    tag = image.reference.rpartition("/")[2].partition(":")[2] or "latest"
    if image.archive is not None or digest or tag != "latest":
        return ""
    return f"The tag of {image.reference} can move, and a node pulls it only once (IfNotPresent): nodes may run different images. Name a version, or better a digest (name:version@sha256:…)."


def _same(reported: str, name: str) -> bool:
    """Whether this is the image `name`: a runtime may put a registry in front, docker.io/library/plugin:1."""
    return reported == name or reported.endswith(f"/{name}")


def plan(facts: Facts, desired: Desired) -> tuple[Change, ...]:
    """Load the image where the runtime has none of that name, or another one."""
    image = desired.image
    if image is None or image.archive is None or image.image_id is None:
        return ()
    present = facts.images.get(desired.runtime, {}).get(image.reference)
    if present == image.image_id:
        return ()
    why = "the node has another image of that name" if present else "so the node need not pull it"
    fault = "the plugin's image is not on the node"
    if present:
        fault = f"{image.reference} on the node is another image than the archive's"
    return (LoadImage(image.reference, image.image_id, image.archive, desired.runtime, why, fault=fault),)


def judge_image(outcome: Outcome) -> Verdict | None:
    """The plugin's verdict where the node does not have the plugin's image: new pods cannot start. None where it has."""
    if outcome.facts is None or waiting_step(outcome, "image") is None:
        return None
    return judge_by_plan(outcome, "plugin", "new pods of the plugin cannot start", "image")


LINK = Link(
    "plugin",
    steps=(Step("image", "plugin", plan, Watch(files=(cordons.PATH,))),),
    faults=(Fault("image", "plugin", "a clean-up removed the device plugin's image from the node"),),
)
