"""The node's condition GpuReady: whether it agrees with the plugin's status, and its removal."""

import time
from collections.abc import Collection

from gpunode.cluster.api import Api
from gpunode.cluster.api.kinds import Object
from gpunode.cluster.api.watch import OnProgress
from gpunode.contract.condition import NOT_ACCEPTED, TYPE, WRITER, condition_of
from gpunode.contract.status import Status
from gpunode.errors import HttpError
from gpunode.links import node as nodes
from gpunode.links.plugin import published
from gpunode.links.plugin.daemonset import State
from gpunode.model import Title, Verdict
from gpunode.wording import lines

SECONDS = 5.0  # within which the condition follows the status
PAUSE = 0.5


def judge(api: Api, verdict: Verdict, state: State) -> Verdict:
    """The plugin's verdict, broken where the node's condition is not what the plugin's status says."""
    if verdict.status != "ok" or state.pod is None:
        seen = state.node.gpu_ready
        stale = f"the node's condition {TYPE}={seen.status} is from before" if seen else ""
        return verdict.with_cause(lines((verdict.cause, stale))) if stale else verdict
    end = time.monotonic() + SECONDS
    node = state.node
    while True:
        status = published.read(api, node, state.pod)
        if not isinstance(status, Status):
            return verdict  # another link says why
        expected, seen = condition_of(status), node.gpu_ready
        if seen and (seen.status, seen.reason) == (expected.status, expected.reason):
            return verdict
        if seen and seen.reason == NOT_ACCEPTED and expected.status == "True":
            return verdict  # the last link says whether it is accepted
        if time.monotonic() > end:
            break
        time.sleep(PAUSE)
        item = api.get("Node", node.name)
        node = nodes.parse(item) if item else node
    shown = f"{TYPE}={seen.status} ({seen.reason})" if seen else f"no {TYPE}"
    return Verdict.broken(
        "plugin",
        f"the node's condition is {shown}, the plugin's status {expected.status} ({expected.reason})",
        "the plugin cannot write it, or another client has changed it",
        f"See the log of {state.name}, and `kubectl describe node {node.name}`.",
        "condition-differs",
    )


def title(node: str) -> Title:
    """How messages name a node's condition."""
    return Title("Node", node, part=f"condition {TYPE}")


def read_nodes(api: Api) -> tuple[str, ...]:
    return tuple(item["metadata"]["name"] for item in api.find("Node")[0] if is_own(item))


def remove(api: Api, notify: OnProgress, only: Collection[str] | None = None) -> tuple[str, ...]:
    """Remove the condition that a plugin left, from `only` these nodes (None: all). Returns the nodes; `notify` gets those where this
    user may not."""
    removed = []
    for name in read_nodes(api) if only is None else only:
        item = api.get("Node", name)
        if item is None or not is_own(item):
            continue
        kept = [entry for entry in item["status"]["conditions"] if entry["type"] != TYPE]
        seen = {key: item["metadata"][key] for key in ("uid", "resourceVersion")}
        try:
            api.merge("Node", name, {"metadata": seen, "status": {"conditions": kept}}, part="status")
            removed.append(name)
        except HttpError as error:
            notify(f"{title(name)} stays: {error.message}")
    return tuple(removed)


def is_own(item: Object) -> bool:
    """Whether the node has the condition, and the plugin wrote it: by the API server's books, which it keeps since Kubernetes 1.18."""
    if not nodes.parse(item).gpu_ready:
        return False
    writers = [
        entry.get("manager")
        for entry in item["metadata"].get("managedFields") or []
        if f'k:{{"type":"{TYPE}"}}'
        in ((entry.get("fieldsV1") or {}).get("f:status") or {}).get("f:conditions", {})
    ]
    return not writers or WRITER in writers
