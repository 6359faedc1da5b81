"""The links above the kubelet, judged by the cluster's state: node → plugin → capacity → pod."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from gpunode.cluster.pods import MEMORY
from gpunode.errors import Problem
from gpunode.links.driver.link import LOST
from gpunode.links.node import Node
from gpunode.links.node.identity import ANOTHER_MACHINE
from gpunode.links.plugin import Row
from gpunode.links.pod.results import NodeResult, Result
from gpunode.model import Verdict
from gpunode.wording import Advice, Command, few, lines


def node_link(node: Node) -> Verdict:
    """The node is registered, Ready and schedulable."""
    if not node.ready:
        return Verdict(
            "node",
            "broken",
            f"{node.name} is not Ready",
            node.why_not_ready,
            f"kubectl describe node {node.name}",
        )
    if not node.schedulable:
        return Verdict(
            "node",
            "broken",
            f"{node.name} is cordoned",
            "no pod is scheduled on it",
            f"kubectl uncordon {node.name}",
        )
    return Verdict("node", "ok", f"{node.name} is Ready, kubelet {node.kubelet}, {node.runtime}")


def missing_link(why: Problem) -> Verdict:
    """The host is not a node of the cluster, or its node is another machine."""
    if why.code == ANOTHER_MACHINE:
        return Verdict("node", "broken", "its node is another machine's", why.what, why.fix)
    fix = lines((why.fix, "If the kubelet has not joined, see `journalctl -u kubelet` on the host."), " ")
    return Verdict("node", "broken", "the cluster has no such node", why.what, fix)


def plugin_link(row: Row | None, fix: str) -> Verdict:
    """The device plugin runs on the node."""
    if row is None or not row.pod:
        cause = row.problem if row else "the plugin is not deployed, or the node has no label for it"
        return Verdict("plugin", "broken", "no device plugin pod on this node", cause, fix)
    if row.problem:
        return Verdict("plugin", "broken", f"{row.pod} is not ready", row.problem, fix)
    restarts = f", restarts: {row.restarts}" if row.restarts else ""
    return Verdict("plugin", "ok", f"{row.pod} is ready{restarts}")


def owned_link(why: Problem) -> Verdict:
    """The node's GPUs have another owner, so it is to have no plugin."""
    return Verdict("plugin", "broken", "the node's GPUs have another owner", why.what, why.fix)


def capacity_link(node: Node, expected: int, why: Problem | None) -> Verdict:
    """The node offers every GPU of its host; `why`: the reason if not."""
    text = f"{node.allocatable} of {expected} GPUs allocatable"
    lost = node.short.get(MEMORY, 0) if node.shared else 0
    if node.shared:
        units = f"{node.memory} of {node.memory + lost}" if lost else f"{node.memory}"
        text += f", {'all' if node.shared == node.allocatable else node.shared} shared by memory: {units} {MEMORY}"
    if node.allocatable != expected or lost:
        unhealthy = node.allocatable < node.capacity
        fix = LOST if unhealthy else f"kubectl describe node {node.name}"
        return Verdict("capacity", "broken", text, _words(why), _fix(why) or fix)
    return Verdict("capacity", "ok", text)


def shares_link(node: Node, expected: Mapping[str, int], why: Problem | None, fix: str = "") -> Verdict:
    """The node offers the units that the plugin's configuration makes of its GPUs; `why`: the reason if not."""
    text = ", ".join(f"{node.units.get(name, 0)} of {count} {name}" for name, count in expected.items())
    if any(node.units.get(name, 0) != count for name, count in expected.items()):
        fix = _fix(why) or fix or f"kubectl describe node {node.name}"
        return Verdict("capacity", "broken", f"{text} allocatable", _words(why), fix)
    return Verdict("capacity", "ok", f"{text} allocatable")


def unlisted_link(node: Node, why: Problem | None) -> Verdict:
    """The node offers some units; its host could not list MIG devices, so the count is not checked. `why`: the reason
    if it offers none."""
    if not node.offers:
        fix = f"kubectl describe node {node.name}"
        return Verdict("capacity", "broken", "no GPU allocatable", _words(why), _fix(why) or fix)
    unlisted = "not compared with what the host has: its MIG devices are not known (see NVML)"
    return Verdict("capacity", "ok", f"{node.offered} allocatable", unlisted)


def with_mig(link: Verdict, problem: Problem | None) -> Verdict:
    """The link with the problem of GPUs whose MIG is on."""
    if problem is None:
        return link
    cause, fix = lines((problem.what, link.cause)), lines((problem.fix, link.fix))
    if problem.subject and link.status == "ok":
        text = f"{link.text}; nothing of {problem.subject}"
        return replace(link, status="broken", text=text, cause=cause, fix=fix)
    return replace(link, cause=cause, fix=fix)


def misnamed_link(node: Node, why: str, label: str) -> Verdict:
    """The node's label names no configuration, so its expected units are not known: `why`."""
    text = f"{node.offered or 'no GPU'} allocatable"
    return Verdict("capacity", "broken", text, why, f"kubectl label node {node.name} {label}-")


# The kubelet names the holder by UID alone where only init containers have the device.
NAMES = "kubectl get pods -A -o custom-columns=:.metadata.uid,:.metadata.namespace,:.metadata.name"


def _words(why: Problem | None) -> str:
    return why.what if why else ""


def _fix(why: Problem | None) -> str:
    """The fix; where GPUs are reserved by pods of an earlier configuration, how to end those."""
    if why is None or not why.holders:
        return why.fix if why else ""
    named = [pod for pod in why.holders if "/" in pod]
    uids = [pod for pod in why.holders if "/" not in pod]
    several = len(why.holders) > 1
    waited = " and ".join([*named, *(f"the pod with UID {uid}" for uid in uids)])
    ends = "; ".join("kubectl delete pod -n {} {}".format(*one.split("/", 1)) for one in named)
    which = "those named" if uids else "them" if several else "it"
    how = [f"`{ends}` ends {which}"] if ends else []
    how += [f"`{NAMES} | grep {uid}` names it" for uid in uids]
    return f"Nothing to fix: it is free again when {waited} end{'' if several else 's'} ({'; '.join(how)})."


def pod_link(result: NodeResult, reported: str = "", unlimited: str = "") -> Verdict:
    """vectoradd passed on every GPU that is not in use.

    `reported`: what the plugin reports about unhealthy GPUs; `unlimited`: why shares of memory have no limits.
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
        return Verdict("pod", "broken", text, cause, Advice(Command("run vectoradd"), " shows the whole log"))
    if not passed:
        text = f"vectoradd was not run: {result.why or 'no GPU is free'}"
        return Verdict("pod", "unknown" if result.users else "broken", text)
    if result.uncovered and not result.users:
        return Verdict("pod", "broken", f"no pod got {', '.join(result.uncovered)}", result.why)
    where = ", ".join(dict.fromkeys(one.uuid or one.pod for one in passed))  # shares of a GPU: once
    return Verdict(
        "pod", "ok", f"vectoradd passed on {where}{_together(result)}{_limits(passed, unlimited)}{users}"
    )


def isolated_link(link: Verdict, problem: str) -> Verdict:
    """The link of a host with isolation: `problem` is what a pod that asks for no GPU showed; "" where it saw none."""
    if not problem:
        return replace(link, text=f"{link.text}; a pod that asks for none sees none")
    text = "a pod that asks for no GPU is not kept from them" if link.status == "ok" else link.text
    fix = Advice(
        Command("provision"), " sets what NVIDIA's runtime accepts; containers that run keep what they have"
    )
    return replace(link, status="broken", text=text, cause=lines((problem, link.cause)), fix=link.fix or fix)


def _together(result: NodeResult) -> str:
    """Whether two pods were seen to share a GPU, on a node where they can; "" elsewhere."""
    if not result.divided:
        return ""
    if result.together:
        return f"; two pods at the same time on {result.together}"
    return "; no two pods shared a GPU: too little is known to be free"


def _limits(passed: Sequence[Result], unlimited: str) -> str:
    """The memory limits that pods with a share of memory saw; "" without such pods. An exceeded limit fails the pod."""
    shares = [one for one in passed if one.share is not None]
    loose = list(dict.fromkeys(one.uuid or one.pod for one in shares if one.limit is None))
    sizes = ", ".join(dict.fromkeys(f"{one.limit} MiB" for one in shares if one.limit is not None))
    why = f": {unlimited}" if unlimited else ", see the plugin's log"
    if sizes and loose:
        return (
            f"; the driver held some to their share of memory: {sizes}, but none on {', '.join(loose)}{why}"
        )
    if sizes:
        return f"; the driver held each to its share of memory: {sizes}"
    return f"; shares of memory are not limited by the driver{why}" if loose else ""
