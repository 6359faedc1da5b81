"""Capacity: the node offers what the device plugin makes of its host's GPUs; a wait for it, and why it does not."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

from gpunode.cluster import pods
from gpunode.cluster.api import Api
from gpunode.cluster.api.kinds import Object
from gpunode.cluster.api.watch import OnProgress, Patience, follow
from gpunode.cluster.pods import MEMORY
from gpunode.contract.config import LABEL
from gpunode.contract.status import CORDONED, Status
from gpunode.errors import ClusterError, Problem
from gpunode.links import node as nodes
from gpunode.links.capacity import mig
from gpunode.links.driver.link import repair
from gpunode.links.node import GPU_LABEL, Node, parse
from gpunode.links.plugin import daemonset, expected, published
from gpunode.links.plugin.daemonset import State
from gpunode.links.plugin.other_owners import Owners
from gpunode.model import Gpu, Layout, PluginConfig, Verdict
from gpunode.wording import lines

Expected: TypeAlias = int | Mapping[str, int] | str | None
"""What a node should offer: a count of GPUs with all of their memory, units by resource, a resource (any units of it), or
None (any GPU)."""

NO_POD = Problem("no-pod", "")
UNLISTED = "not compared with the host: its MIG devices are unknown (see NVML)"
# The kubelet names the holder by UID alone where only init containers have the device.
NAMES = "kubectl get pods -A -o custom-columns=:.metadata.uid,:.metadata.namespace,:.metadata.name"


def expected_units(config: PluginConfig | None, gpus: Sequence[Gpu], labels: Mapping[str, str]) -> Expected:
    """What a node with these labels should offer of its host's GPUs; {} where no wait helps: nothing of them is to be offered, or the
    label names no configuration."""
    units, unfit = expected.units(config, gpus, labels), mig.problem(config, gpus, labels)
    if expected.label_problem(config, labels):
        return {}
    if units is not None:
        return units
    if expected.is_unlisted(config, gpus, labels):
        return None
    return {} if unfit and unfit.subject else len(gpus)


def judge_capacity(
    api: Api,
    state: State,
    gpus: Sequence[Gpu],
    *,
    config: PluginConfig | None,
    namespace: str,
    layouts: Mapping[str, Layout],
) -> Verdict:
    """Whether the node offers what the plugin, in the state's pod, makes of its host's GPUs. `layouts`: of the inventory, by PCI
    address."""
    document = published.read(api, state.node, state.pod) if state.pod else NO_POD
    node = with_capacity(state.node, document)
    if misnamed := expected.label_problem(config, node.labels):
        fix = f"kubectl label node {node.name} {LABEL}-"
        return Verdict.broken(
            "capacity", f"{node.offered or 'no GPU'} allocatable", misnamed, fix, "misnamed"
        )
    offer, unfit = expected_units(config, gpus, node.labels), mig.problem(config, gpus, node.labels, layouts)
    if offer == {} and unfit:
        text = f"{node.allocatable} of {len(gpus)} GPUs allocatable"
        return Verdict.broken("capacity", text, unfit.what, unfit.fix, unfit.code)
    why = None if _offers(node, offer) else why_not(api, node, offer, namespace)
    verdict = judge_offer(node, offer, why)
    if why and not why.fix and not why.holders and mig.has_unseen(config, gpus, node):
        unseen = "The plugin sees the MIG devices that were there when its pod was started; if some were made since, "
        fix = f"{unseen}kubectl -n {namespace} delete pod {state.name}"
        verdict = verdict.with_cause(verdict.cause, fix)
    verdict = with_mig(verdict, unfit)
    if verdict.status == "ok":  # of what else the node has, some may be out
        missing = why_short(api, node, document, config=config, namespace=namespace)
        verdict = verdict.with_cause(lines((verdict.cause, missing)))
    return verdict


def judge_offer(node: Node, offer: Expected, why: Problem | None) -> Verdict:
    """The node offers what is wanted; `why`: the reason if not."""
    text = f"{_part(node, offer)} allocatable"
    if isinstance(offer, int) and node.shared:
        lost = node.short.get(MEMORY, 0)
        units = f"{node.memory} of {node.memory + lost}" if lost else f"{node.memory}"
        text += f", {'all' if node.shared == node.allocatable else node.shared} shared by memory: {units} {MEMORY}"
    if offer is None:
        text = f"{node.offered or 'no GPU'} allocatable"
    if _offers(node, offer):
        return Verdict.ok("capacity", text, UNLISTED if offer is None else "")
    unhealthy = isinstance(offer, int) and node.allocatable < node.capacity
    what, code = (why.what, why.code) if why else ("", "")
    fix = _fix(why) or (repair(node.name, code) if unhealthy else f"kubectl describe node {node.name}")
    return Verdict.broken("capacity", text, what, fix, code)


def why_short(
    api: Api, node: Node, document: Status | Problem, *, config: PluginConfig | None, namespace: str
) -> str:
    """Why the node does not offer all that its kubelet counts, or the plugin all of its GPUs; "" where they do."""
    named = expected.memory(config, node.labels)
    if not (node.offers or node.units.get(named)) or 0 < node.allocatable < node.capacity:
        return why_not(api, node, named or None, namespace).what
    old = stale_counts(node, document, config)
    if lost := ", ".join(f"{count} of {name}" for name, count in node.short.items() if name not in old):
        return f"{lost} not offered: {why_not(api, node, {}, namespace)}"
    return published.hidden_problems(document)


def why_fewer(
    api: Api, node: Node, owners: Owners, *, config: PluginConfig | None, namespace: str
) -> Problem:
    """Why a node of which no host is known offers fewer GPUs than its kubelet counts, or none."""
    if reason := owners.reason(node):
        return reason
    if misnamed := expected.label_problem(config, node.labels):
        return Problem("misnamed", misnamed, fix=f"kubectl label node {node.name} {LABEL}-")
    why = why_not(api, node, expected.memory(config, node.labels) or None, namespace)
    return replace(why, fix=_fix(why))


def drop_stale(item: Object, config: PluginConfig | None) -> Object:
    """The node without what its kubelet still counts of an earlier configuration, if it offers all of its GPUs."""
    node = parse(item)
    stale = stale_counts(node, NO_POD, config)
    if not (stale and node.offers and node.allocatable == node.capacity):
        return item
    capacity = {name: count for name, count in item["status"]["capacity"].items() if name not in stale}
    return {**item, "status": {**item["status"], "capacity": capacity}}


def stale_counts(node: Node, document: Status | Problem, config: PluginConfig | None) -> dict[str, int]:
    """Counts of resources that the kubelet has not forgotten yet and no plugin offers: this configuration makes none of them, or the
    running plugin does not offer them."""
    offers = published.resources(document)
    return {
        name: count
        for name, count in node.short.items()
        if not node.units.get(name)
        and (not expected.makes(config, node.labels, name) or (offers is not None and name not in offers))
    }


def why_not(api: Api, node: Node, offer: Expected, namespace: str) -> Problem:
    """Why the node does not offer what is wanted, from pods, events and logs."""
    pod = _plugins_pod(api, node, namespace)
    if node.ready and node.labels.get(GPU_LABEL) != "true":
        return daemonset.why(api, namespace, node, pod)
    if reason := daemonset.read_state(api, namespace, node, pod).reason:
        return reason
    assert pod is not None
    status = published.read(api, node, pod)
    why = published.why_missing(status)
    node = with_capacity(node, status)
    if isinstance(offer, (Mapping, str)):
        if waiting := daemonset.mps_problem(api, namespace, node):
            return Problem("mps", waiting)
        return why or Problem("not-counted", "the plugin runs, but the kubelet counts none of them yet")
    count = max(1, node.capacity) if offer is None else offer
    if node.shared and node.allocatable == node.capacity == count:  # then memory is missing
        return why or Problem("memory-missing", "the plugin does not offer all of their memory yet")
    lost, holders = node.capacity - node.allocatable, why.holders if why else ()
    cause = (why.what if why else "") or published.outage(api, node, pod)
    cause = f"; {cause}" if cause else ""
    unit = "GPUs" if node.shared else pods.GPU  # of which one may be a shared unit
    if node.capacity == 0:
        what, code = "the plugin runs, but the kubelet does not count its GPUs yet", "not-counted"
    elif why and lost > 0 and holders:
        what, code, cause = f"{lost} of {node.capacity} {unit} reserved: {why}", "reserved", ""
    elif node.allocatable == 0:
        yet = "" if why else " yet"
        what, code = f"the kubelet offers none of its {node.capacity} GPUs{yet}", "none-allocatable"
    elif lost > 0:
        code = CORDONED if why and why.code == CORDONED else "unhealthy"
        state = "not allocatable" if code == CORDONED else "are unhealthy"  # the cause says who cordoned it
        what = f"{lost} of {node.capacity} {unit} {state}"
    else:
        what, code = f"the kubelet counts {node.capacity} GPUs, the host has {count}", "count-differs"
    return Problem(why.code if why else code, what + cause, fix=why.fix if why else "", holders=holders)


def _plugins_pod(api: Api, node: Node, namespace: str) -> Object | None:
    listed = api.find("Pod", namespace, labels=daemonset.SELECTOR, fields=f"spec.nodeName={node.name}")[0]
    return daemonset.by_node(listed).get(node.name)


def with_capacity(node: Node, status: Status | Problem) -> Node:
    """The node with the `capacity` of the plugin's configuration in force, as far as its plugin reports it. The kubelet
    counts the resources of an earlier configuration for five more minutes, or until its next start: it sets them to 0 once, and
    not again where the API server was away at that moment."""
    return node if len(node.counted) < 2 else node.counting(published.resources(status) or node.counted)


def wait_allocatable(
    api: Api,
    name: str,
    offer: Expected,
    *,
    namespace: str,
    seconds: float,
    notify: OnProgress,
    waited: float = 0.0,
) -> Node:
    """Wait until the node offers exactly what is wanted. Raises ClusterError with the reason at the deadline, or when the
    missing units are reserved by pods. `waited`: seconds spent before this call."""
    node: Node | None = None
    patience = Patience(notify)
    begun = time.monotonic()
    for live in follow(api, "Node", seconds=seconds, fields=f"metadata.name={name}", notify=notify):
        if name not in live:
            continue
        node = nodes.parse(live[name])
        if isinstance(offer, int) and len(node.counted) > 1 and (pod := _plugins_pod(api, node, namespace)):
            node = with_capacity(node, published.read(api, node, pod))
        if node.ready and _offers(node, offer):
            return node
        reason = patience.notify(
            f"{name} offers {_part(node, offer)}",
            lambda node=node: why_not(api, node, offer, namespace),  # type: ignore[misc]
        )
        if reason and reason.holders:  # that may take days
            break
    seconds = waited + min(seconds, time.monotonic() - begun)
    why = why_not(api, node, offer, namespace) if node else Problem("no-node", "there is no such node")
    raise ClusterError(
        f"{name} offers {_part(node, offer)} after {seconds:.0f} s: {why}",
        hint=_fix(why)
        or f"See `kubectl describe node {name}` and `kubectl -n {namespace} logs -l {daemonset.SELECTOR}`.",
    )


def _offers(node: Node, offer: Expected) -> bool:
    if isinstance(offer, Mapping):
        return all(node.units.get(resource, 0) == count for resource, count in offer.items())
    if isinstance(offer, str):
        return node.units.get(offer, 0) > 0
    lost = node.short.get(MEMORY, 0) if node.shared else 0
    return bool(node.offers) if offer is None else node.allocatable == offer and not lost


def _part(node: Node | None, offer: Expected) -> str:
    units = node.units if node else {}
    if isinstance(offer, Mapping):
        return ", ".join(
            f"{units.get(resource, 0)} of {count} {resource}" for resource, count in offer.items()
        )
    if isinstance(offer, str):
        return f"{units.get(offer, 0)} {offer}"
    return f"{node.allocatable if node else 0}{'' if offer is None else f' of {offer}'} GPUs"


def with_mig(link: Verdict, unfit: Problem | None) -> Verdict:
    """The link with the problem of GPUs whose MIG is on. Of one that holds but for these, they are the problem's subject."""
    if unfit is None:
        return link
    cause, fix = lines((unfit.what, link.cause)), lines((unfit.fix, link.fix))
    if not unfit.subject or link.status != "ok":
        return link.with_cause(cause, fix)
    text = f"{link.text}; nothing of {unfit.subject}"
    problem = Problem(unfit.code, text, link.layer, unfit.subject, cause, fix)
    return Verdict(link.layer, "broken", text, problem)


def _fix(why: Problem | None) -> str:
    """The fix; where GPUs are reserved by pods of an earlier configuration, how to end those."""
    if why is None or not why.holders:
        return why.fix if why else ""
    named = [pod for pod in why.holders if "/" in pod]
    uids = [pod for pod in why.holders if "/" not in pod]
    several = len(why.holders) > 1
    waited = " and ".join([*named, *(f"the pod with UID {uid}" for uid in uids)])
    ends = "; ".join("kubectl delete pod -n {} {}".format(*pod.split("/", 1)) for pod in named)
    which = "those named" if uids else "them" if several else "it"
    how = [f"`{ends}` ends {which}"] if ends else []
    how += [f"`{NAMES} | grep {uid}` names it" for uid in uids]
    return f"Nothing to fix: it is free again when {waited} end{'' if several else 's'} ({'; '.join(how)})."
