"""The node: the host is registered as it, Ready and schedulable, or who closed it and when; and the feature gates that its kubelet runs
with."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from urllib.parse import quote

from gpunode.cluster.api import Api
from gpunode.cluster.api.kinds import Object
from gpunode.errors import ClusterError, Problem
from gpunode.links.node import Node, cordon, parse, taint
from gpunode.links.node.identity import ANOTHER_MACHINE
from gpunode.model import Verdict
from gpunode.wording import advise, lines

NOT_READY, CORDONED = "node-not-ready", "cordoned"  # codes


def judge_node(node: Node, *, cordoned: bool = False, unproven: bool = False) -> Verdict:
    """The node is registered, Ready and schedulable. `cordoned`: it may be cordoned now. `unproven`: it may be tainted until its
    proof."""
    if not node.ready:
        return Verdict.broken(
            "node",
            f"{node.name} is not Ready",
            node.why_not_ready,
            f"kubectl describe node {node.name}",
        )
    if not node.schedulable and not cordoned:
        return Verdict.broken(
            "node",
            f"{node.name} is cordoned",
            "no pod is scheduled on it",
            f"kubectl uncordon {node.name}",
        )
    if (run := taint.run_of(node)) and not unproven:
        return Verdict.broken(
            "node",
            f"{node.name} is tainted until its GPUs are verified",
            f"{taint.text(run)} keeps pods away",
            advise("`gpunode provision` verifies them and removes the taint."),
            "unverified",
        )
    return Verdict.ok("node", f"{node.name} is Ready, kubelet {node.kubelet}, {node.runtime}")


def judge_missing(why: Problem) -> Verdict:
    """The host is not a node of the cluster, or its node is another machine."""
    if why.code == ANOTHER_MACHINE:
        return Verdict.broken("node", "its node is another machine's", why.what, why.fix, why.code)
    fix = lines((why.fix, "If the kubelet has not joined, see `journalctl -u kubelet` on the host."), " ")
    return Verdict.broken("node", "the cluster has no such node", why.what, fix, why.code)


def why_closed(item: Object) -> Iterator[Problem]:
    """Why the node takes no new pods, each reason with who caused it and when, as the API server has it: NotReady, tainted until its proof,
    cordoned. Other taints are for the pods to tolerate."""
    node = parse(item)
    ready, name = replace(node, ready=True), node.name
    if problem := judge_node(node, cordoned=True, unproven=True).problem:
        fix = advise(f"`gpunode verify --limit {name}` inspects its host; `kubectl describe node {name}`.")
        yield replace(
            problem, code=NOT_READY, cause=lines((problem.cause, _since(item))), fix=fix, subject=name
        )
    if problem := judge_node(ready, cordoned=True).problem:
        fix = advise(
            f"`gpunode provision --limit {name}` verifies them and removes the taint. That disturbs no pod."
        )
        yield replace(problem, fix=fix, subject=name)
    if problem := judge_node(ready, unproven=True).problem:
        owner = cordon.owner_of(item)
        moment, manager = changed_by(item, "f:spec", "f:unschedulable")
        who = f"by gpunode, {owner}" if owner else f"by {manager}" if manager else ""
        by = " ".join(filter(None, ("cordoned", who, moment and f"at {moment}")))
        lift: str = (
            advise("`gpunode resume` finishes the run that cordoned it, and lifts the cordon.")
            if owner
            else f"`kubectl uncordon {name}` lets pods come again; it disturbs none. Ask first why it was cordoned."
        )
        yield replace(
            problem, code=CORDONED, cause=by if who or moment else problem.cause, fix=lift, subject=name
        )


def changed_by(item: Object, *place: str) -> tuple[str, str]:
    """When and by which field manager a field was set last; "" where the API server does not say."""
    for entry in item["metadata"].get("managedFields") or []:
        fields = entry.get("fieldsV1") or {}
        for key in place:
            fields = fields.get(key) if isinstance(fields, dict) else None
        if fields is not None:
            return str(entry.get("time") or ""), str(entry.get("manager") or "")
    return "", ""


def _since(item: Object) -> str:
    conditions = (item.get("status") or {}).get("conditions") or []
    moment = next((each.get("lastTransitionTime") for each in conditions if each["type"] == "Ready"), "")
    return f"since {moment}" if moment else ""


def read_gates(api: Api, node: str) -> Mapping[str, bool] | str:
    """The feature gates that its arguments and its configuration set, wherever that is; else why they are not known:
    `get` on `nodes/proxy` is a right that few users have."""
    try:
        status, text = api.health(f"/api/v1/nodes/{quote(node)}/proxy/configz")
    except ClusterError as error:
        return error.message.partition("\n")[0]
    if status in (401, 403):
        return "this user may not `get` `nodes/proxy`, by which the kubelet is asked"
    try:
        answer = json.loads(text) if status == 200 else {}
        config = answer["kubeletconfig" if "kubeletconfig" in answer else "componentconfig"]
        return {str(name): state is True for name, state in (config.get("featureGates") or {}).items()}
    except (ValueError, KeyError, TypeError, AttributeError):
        return f"the kubelet answers /configz without its configuration (HTTP {status})"
