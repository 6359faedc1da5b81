"""The links above the kubelet, judged from what the cluster shows: node → plugin → capacity → pod."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from gpunode.cluster.identity import ANOTHER_MACHINE
from gpunode.cluster.mig import Trouble
from gpunode.cluster.nodes import Node
from gpunode.cluster.plugin import Row
from gpunode.cluster.pods import MEMORY
from gpunode.cluster.reason import Reason
from gpunode.cluster.results import NodeResult, Result
from gpunode.model import Link
from gpunode.verify.host import LOST
from gpunode.wording import few


def node_link(node: Node) -> Link:
    """The node is registered, Ready and may be scheduled on."""
    if not node.ready:
        return Link(
            "node",
            "broken",
            f"{node.name} is not Ready",
            node.why_not_ready,
            f"kubectl describe node {node.name}",
        )
    if not node.schedulable:
        return Link(
            "node",
            "broken",
            f"{node.name} is cordoned",
            "no pod is scheduled on it",
            f"kubectl uncordon {node.name}",
        )
    return Link("node", "ok", f"{node.name} is Ready, kubelet {node.kubelet}, {node.runtime}")


def missing_link(why: Reason) -> Link:
    """The host is no node of the cluster, or goes for another machine's."""
    if why.code == ANOTHER_MACHINE:
        return Link("node", "broken", "its node is another machine's", why.words, why.fix)
    fix = f"{why.fix} A kubelet that has not joined says why in `journalctl -u kubelet` on the host."
    return Link("node", "broken", "the cluster has no such node", why.words, fix)


def plugin_link(row: Row | None, fix: str) -> Link:
    """The device plugin runs there."""
    if row is None or not row.pod:
        cause = row.trouble if row else "it is not deployed, or the node lacks its label"
        return Link("plugin", "broken", "no device plugin pod on this node", cause, fix)
    if row.trouble:
        return Link("plugin", "broken", f"{row.pod} is not right", row.trouble, fix)
    restarts = f", restarts: {row.restarts}" if row.restarts else ""
    return Link("plugin", "ok", f"{row.pod} is ready{restarts}")


def capacity_link(node: Node, expected: int, why: Reason | None) -> Link:
    """The node offers every GPU that its host has; `why` not, if it does not."""
    text = f"{node.allocatable} of {expected} GPUs allocatable"
    lost = node.short.get(MEMORY, 0) if node.shared else 0
    if node.shared:
        units = f"{node.memory} of {node.memory + lost}" if lost else f"{node.memory}"
        text += f", {'all' if node.shared == node.allocatable else node.shared} shared by memory: {units} {MEMORY}"
    if node.allocatable != expected or lost:
        unhealthy = node.allocatable < node.capacity
        fix = LOST if unhealthy else f"kubectl describe node {node.name}"
        return Link("capacity", "broken", text, _words(why), _fix(why) or fix)
    return Link("capacity", "ok", text)


def shares_link(node: Node, expected: Mapping[str, int], why: Reason | None, fix: str = "") -> Link:
    """The node offers what the plugin's configuration makes of its GPUs; `why` not, if it does not, and what to do."""
    text = ", ".join(f"{node.units.get(name, 0)} of {count} {name}" for name, count in expected.items())
    if any(node.units.get(name, 0) != count for name, count in expected.items()):
        fix = _fix(why) or fix or f"kubectl describe node {node.name}"
        return Link("capacity", "broken", f"{text} allocatable", _words(why), fix)
    return Link("capacity", "ok", f"{text} allocatable")


def unlisted_link(node: Node, why: Reason | None) -> Link:
    """The node offers something; what its host has is not known, as MIG devices could not be listed. `why` it offers
    nothing, if so."""
    if not node.offers:
        fix = f"kubectl describe node {node.name}"
        return Link("capacity", "broken", "no GPU allocatable", _words(why), _fix(why) or fix)
    untold = "not compared with what the host has: its MIG devices are not known (see NVML)"
    return Link("capacity", "ok", f"{node.offered} allocatable", untold)


def with_mig(link: Link, trouble: Trouble | None) -> Link:
    """The link with what is wrong with GPUs whose MIG is on."""
    if trouble is None:
        return link
    cause, fix = (
        "\n".join(filter(None, words)) for words in ((trouble.what, link.cause), (trouble.fix, link.fix))
    )
    if trouble.missing and link.status == "ok":
        text = f"{link.text}; of {trouble.missing} nothing is"
        return replace(link, status="broken", text=text, cause=cause, fix=fix)
    return replace(link, cause=cause, fix=fix)


def misnamed_link(node: Node, why: str, label: str) -> Link:
    """The node's label names no configuration, so what it should offer is not known: `why`."""
    text = f"{node.offered or 'no GPU'} allocatable"
    return Link("capacity", "broken", text, why, f"kubectl label node {node.name} {label}-")


# What init containers alone have, the kubelet tells the plugin by the pod's UID.
NAMES = "kubectl get pods -A -o custom-columns=:.metadata.uid,:.metadata.namespace,:.metadata.name"


def _words(why: Reason | None) -> str:
    return why.words if why else ""


def _fix(why: Reason | None) -> str:
    """What to do; where GPUs only wait for pods that use them by an earlier configuration, how to end those."""
    if why is None or not why.holders:
        return why.fix if why else ""
    named = [pod.name for pod in why.holders if pod.name]
    uids = [pod.uid for pod in why.holders if not pod.name]
    several = len(why.holders) > 1
    waited = " and ".join([*named, *(f"the pod with UID {uid}" for uid in uids)])
    ends = "; ".join("kubectl delete pod -n {} {}".format(*one.split("/", 1)) for one in named)
    which = "those named" if uids else "them" if several else "it"
    how = [f"`{ends}` ends {which}"] if ends else []
    how += [f"`{NAMES} | grep {uid}` names it" for uid in uids]
    return f"Nothing to fix: it is free again when {waited} end{'' if several else 's'} ({'; '.join(how)})."


def pod_link(result: NodeResult, reported: str = "", unlimited: str = "") -> Link:
    """vectoradd passed on every GPU that nobody else holds.

    `reported`: what the plugin reports of unhealthy GPUs; `unlimited`: why shares of memory have no limits.
    """
    passed = [one for one in result.results if one.passed]
    users = f"; in use by {', '.join(result.users)}" if result.users else ""
    failed = [one for one in result.results if not one.passed]
    if failed:
        alike: dict[tuple[str, str], list[str]] = {}
        for one in failed:
            alike.setdefault((one.uuid, one.why), []).append(one.pod)
        cause = "\n".join(
            f"{few(pods, 3)}{f' on {uuid}' if uuid else ''}: {why}" for (uuid, why), pods in alike.items()
        )
        cause += f"\n{reported}" if reported else ""
        bad, tried = (len({one.pod for one in several}) for several in (failed, result.results))
        text = f"vectoradd failed in {bad} of {tried} pods"
        return Link("pod", "broken", text, cause, "gpunode run vectoradd shows the whole log")
    if not passed:
        text = f"vectoradd was not run: {result.why or 'no GPU is free'}"
        return Link("pod", "unknown" if result.users else "broken", text)
    if result.uncovered and not result.users:
        return Link("pod", "broken", f"no pod was given {', '.join(result.uncovered)}", result.why)
    where = ", ".join(dict.fromkeys(one.uuid or one.pod for one in passed))  # shares of a GPU: once
    return Link(
        "pod", "ok", f"vectoradd passed on {where}{_together(result)}{_limits(passed, unlimited)}{users}"
    )


def _together(result: NodeResult) -> str:
    """Whether it was seen that pods share a GPU, on a node where they can."""
    if not result.divided:
        return ""
    if result.together:
        return f"; two pods at the same time on {result.together}"
    return "; no two pods shared a GPU: too little is known to be free"


def _limits(passed: Sequence[Result], unlimited: str) -> str:
    """What the pods saw of limits to their share of memory, "" where none had one. A limit that is not kept fails the pod."""
    shares = [one for one in passed if one.share is not None]
    loose = list(dict.fromkeys(one.uuid or one.pod for one in shares if one.limit is None))
    sizes = ", ".join(dict.fromkeys(f"{one.limit} MiB" for one in shares if one.limit is not None))
    why = f": {unlimited}" if unlimited else ", the plugin's log says why"
    if sizes and loose:
        return (
            f"; the driver held some to their share of memory: {sizes}, but none on {', '.join(loose)}{why}"
        )
    if sizes:
        return f"; the driver held each to its share of memory: {sizes}"
    return f"; shares of memory are not limited by the driver{why}" if loose else ""
