"""How each node's GPUs are used, as its device plugin says on request; and which pods have some where it does not."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gpunode.cluster import pods
from gpunode.cluster.api import Api, side_by_side
from gpunode.cluster.api.kinds import Object, path
from gpunode.contract.usage import PATH, Gpu, Newer, loads
from gpunode.errors import ClusterError, Problem, UsageError
from gpunode.links import node as nodes
from gpunode.links.node import GPU_LABEL, Node
from gpunode.links.plugin import daemonset, published
from gpunode.links.plugin.published import CONTAINER, UPDATE
from gpunode.wording import advise, page

NO_PLUGIN = "no-plugin"  # code
FORBIDDEN = "forbidden"  # code of a right that is missing for all nodes alike
RESOURCES = (pods.GPU, pods.SHARED, pods.MEMORY)
GPU_NAME = re.compile(r"(?P<uuid>GPU-[0-9a-zA-Z-]*)|(?P<node>[^/]+)/(?P<index>[0-9]+)")
WHOLE = re.compile(r"GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


@dataclass(frozen=True, slots=True)
class GpuName:
    """A GPU as a user names it: by the beginning of its UUID, or by its node and its index there."""

    uuid: str | None
    node: str | None
    index: str | None

    def __str__(self) -> str:
        return self.uuid or f"{self.node}/{self.index}"

    @property
    def is_whole(self) -> bool:
        """Whether it names one GPU of all."""
        return bool(self.node or WHOLE.fullmatch(str(self)))

    def fits(self, node: str, index: str, uuid: str) -> bool:
        return uuid.startswith(self.uuid) if self.uuid else (self.node, self.index) == (node, index)


def parse_gpu(text: str) -> GpuName:
    """Raises UsageError for what names no GPU."""
    if match := GPU_NAME.fullmatch(text):
        return GpuName(**match.groupdict())
    hint = "Give NODE/INDEX, as `gpunode status` shows it, or a UUID such as GPU-3f1c. For a MIG device give its GPU's."
    raise UsageError(f"{text} names no GPU", hint=hint)


@dataclass(frozen=True, slots=True)
class NodeUsage:
    """A node's GPUs, or why they are not known. `holders`: pods that have GPUs there by their limits, namespace/name."""

    node: str
    gpus: tuple[Gpu, ...] = ()
    reason: Problem | None = None
    holders: tuple[str, ...] = ()


def read_usage(
    api: Api,
    namespace: str,
    node_objects: Iterable[Object],
    all_pods: Sequence[Object],
    only: Sequence[str] | None = None,
) -> tuple[NodeUsage, ...]:
    """The usage of each node that has GPUs, a plugin's pod or gpunode's label; with `only`, of the nodes with these names.
    `node_objects` and `all_pods` are all of the cluster's."""
    everywhere = daemonset.plugins(all_pods)
    own = [pod for pod in everywhere if pod["metadata"]["namespace"] == namespace]
    plugins = daemonset.by_node(everywhere) | daemonset.by_node(own)
    known = [
        node
        for node in map(nodes.parse, node_objects)
        if (
            node.name in only
            if only is not None
            else GPU_LABEL in node.labels or node.capacity or node.offers or node.name in plugins
        )
    ]
    holders = _holders(all_pods)

    def ask(node: Node) -> NodeUsage:
        answer = _ask(api, node, plugins.get(node.name), namespace)
        gpus, reason = ((), answer) if isinstance(answer, Problem) else (answer, None)
        return NodeUsage(node.name, gpus, reason, holders.get(node.name, ()))

    return tuple(sorted(side_by_side(ask, known), key=lambda usage: usage.node))


def _ask(api: Api, node: Node, pod: Object | None, namespace: str) -> tuple[Gpu, ...] | Problem:
    """What the plugin answers, or why there is no answer."""
    if not node.ready:
        return Problem("node-not-ready", f"the node is not Ready: {node.why_not_ready}")
    if pod is None and node.labels.get(GPU_LABEL) == daemonset.PAUSED:
        return daemonset.why_paused(node)
    if pod is None:
        fix: str = advise(f"`gpunode provision --limit {node.name}` installs what is missing there.")
        return Problem(NO_PLUGIN, "gpunode's device plugin does not run there", fix=fix)
    place = pod["metadata"]["namespace"]
    if place != namespace:
        fix = f"`-n {place}` asks it; in the inventory, `cluster.namespace: {place}`."
        return Problem("no-plugin", f"its device plugin is in namespace {place}, not in {namespace}", fix=fix)
    problem = pods.problem(pod)
    if problem or not pods.is_running(pod):
        return Problem(
            "plugin-not-running", f"its device plugin does not run: {problem or 'its pod is starting'}"
        )
    meta = pod["metadata"]
    where = f"{path('Pod', meta['namespace'], meta['name'] + ':' + _port(pod))}/proxy{PATH}"
    try:
        status, text = api.health(where)
    except ClusterError as error:
        return Problem("no-answer", error.message, fix=error.hint)
    if status == 404:
        return Problem(
            "plugin-older", "its device plugin is older than this gpunode and has no figures", fix=UPDATE
        )
    if status in (401, 403):
        fix = f"To show the GPUs' use, memory and health, this user needs `get` on `pods/proxy` in namespace {namespace}: {page('rights#to-look-only')}"
        return Problem(FORBIDDEN, "this user may not ask the plugin through the API server", fix=fix)
    if status != 200:
        return Problem("no-answer", f"the plugin cannot be asked: HTTP {status}")
    try:
        gpus = loads(text)
    except Newer as error:
        what = f"the plugin's answer is newer than this gpunode: {error}"
        return Problem("plugin-newer", what, fix="Update gpunode on this computer.")
    except ValueError as error:
        return Problem("bad-answer", f"the plugin's answer cannot be read: {error}", fix=UPDATE)
    if gpus or pods.is_ready(pod):
        return gpus
    # Its container may have got no library: the node's GPUs are not none.
    why = published.why_not_ready(published.read(api, node, pod))
    return why or Problem("not-ready", "its device plugin is not ready yet")


def _port(pod: Object) -> str:
    for container in pod["spec"]["containers"]:
        for variable in container.get("env") or [] if container["name"] == CONTAINER else ():
            if variable["name"] == "PROBE_ADDRESS":
                return str(variable.get("value", "")).rpartition(":")[2]
    return "9401"


def _holders(all_pods: Iterable[Object]) -> dict[str, tuple[str, ...]]:
    """Node → pods that have GPUs, or memory of some, by their limits."""
    holders: dict[str, tuple[str, ...]] = {}
    for pod in all_pods:
        node = pod["spec"].get("nodeName", "")
        if node and any(pods.holds(pod, resource) for resource in RESOURCES):
            name = f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"
            holders[node] = (*holders.get(node, ()), name)
    return holders
