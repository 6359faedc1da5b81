"""Capacity: the node offers what the device plugin makes of its host's GPUs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gpunode.cluster.api import Api
from gpunode.cluster.pods import MEMORY
from gpunode.contract.config import LABEL
from gpunode.errors import Problem
from gpunode.links.driver.link import LOST
from gpunode.links.node import Node
from gpunode.links.plugin import capacity, expected, mig
from gpunode.model import Gpu, PluginConfig, Verdict
from gpunode.wording import lines


def judge_capacity(
    api: Api, node: Node, gpus: Sequence[Gpu], *, config: PluginConfig | None, namespace: str, pod: str
) -> Verdict:
    """Whether the node offers what the plugin, in this pod, makes of its host's GPUs."""
    if misnamed := expected.misnamed(config, node.labels):
        return _misnamed(node, misnamed)
    shares, mig_problem = expected.units(config, gpus, node.labels), mig.problem(config, gpus, node.labels)
    if shares is not None:
        right = all(node.units.get(name, 0) == count for name, count in shares.items())
        why = None if right else capacity.why_not(api, node, None, namespace)
        unseen = "The plugin sees the MIG devices that were there when its pod was started; if some were made since, "
        fix = f"{unseen}kubectl -n {namespace} delete pod {pod}" if mig.unseen(config, gpus, node) else ""
        verdict = judge_shares(node, shares, why, fix)
    elif expected.unlisted(config, gpus, node.labels):
        verdict = _unlisted(node, None if node.offers else capacity.why_not(api, node, None, namespace))
    elif mig_problem and mig_problem.subject:  # nothing is to be offered
        text = f"{node.allocatable} of {len(gpus)} GPUs allocatable"
        return Verdict.broken("capacity", text, mig_problem.what, mig_problem.fix)
    else:
        verdict = judge_whole(node, len(gpus), None)
        if verdict.status == "broken":
            why = capacity.why_not(api, node, len(gpus), namespace)
            verdict = judge_whole(node, len(gpus), why)
    return with_mig(verdict, mig_problem)


def judge_whole(node: Node, expected: int, why: Problem | None) -> Verdict:
    """The node offers every GPU of its host; `why`: the reason if not."""
    text = f"{node.allocatable} of {expected} GPUs allocatable"
    lost = node.short.get(MEMORY, 0) if node.shared else 0
    if node.shared:
        units = f"{node.memory} of {node.memory + lost}" if lost else f"{node.memory}"
        text += f", {'all' if node.shared == node.allocatable else node.shared} shared by memory: {units} {MEMORY}"
    if node.allocatable != expected or lost:
        unhealthy = node.allocatable < node.capacity
        fix = LOST if unhealthy else f"kubectl describe node {node.name}"
        return Verdict.broken("capacity", text, _words(why), _fix(why) or fix)
    return Verdict.ok("capacity", text)


def judge_shares(node: Node, expected: Mapping[str, int], why: Problem | None, fix: str = "") -> Verdict:
    """The node offers the units that the plugin's configuration makes of its GPUs; `why`: the reason if not."""
    text = ", ".join(f"{node.units.get(name, 0)} of {count} {name}" for name, count in expected.items())
    if any(node.units.get(name, 0) != count for name, count in expected.items()):
        fix = _fix(why) or fix or f"kubectl describe node {node.name}"
        return Verdict.broken("capacity", f"{text} allocatable", _words(why), fix)
    return Verdict.ok("capacity", f"{text} allocatable")


def _unlisted(node: Node, why: Problem | None) -> Verdict:
    """The node offers some units; its host could not list MIG devices, so the count is not checked. `why`: the reason
    if it offers none."""
    if not node.offers:
        fix = f"kubectl describe node {node.name}"
        return Verdict.broken("capacity", "no GPU allocatable", _words(why), _fix(why) or fix)
    unlisted = "not compared with what the host has: its MIG devices are not known (see NVML)"
    return Verdict.ok("capacity", f"{node.offered} allocatable", unlisted)


def with_mig(link: Verdict, problem: Problem | None) -> Verdict:
    """The link with the problem of GPUs whose MIG is on."""
    if problem is None:
        return link
    cause, fix = lines((problem.what, link.cause)), lines((problem.fix, link.fix))
    if problem.subject and link.status == "ok":
        text = f"{link.text}; nothing of {problem.subject}"
        return Verdict.broken(link.layer, text, cause, fix, problem.code)
    return link.because(cause, fix)


def _misnamed(node: Node, why: str) -> Verdict:
    """The node's label names no configuration, so its expected units are not known: `why`."""
    text = f"{node.offered or 'no GPU'} allocatable"
    return Verdict.broken("capacity", text, why, f"kubectl label node {node.name} {LABEL}-")


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
