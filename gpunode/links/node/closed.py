"""Why a node takes no new pods: who closed it, and when."""

from collections.abc import Iterator
from dataclasses import replace

from gpunode.cluster.api.kinds import Object
from gpunode.errors import Problem
from gpunode.links.node import cordon, parse
from gpunode.links.node.link import judge_node
from gpunode.wording import advise, lines

NOT_READY, CORDONED = "node-not-ready", "cordoned"  # codes
UNNAMED = "unknown"  # the API server's manager of a client without a name (apimachinery, util/managedfields)


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
        owner = node.cordoned_by
        moment, manager = changed_by(item, "f:spec", "f:unschedulable")
        known = bool(owner) or manager not in ("", UNNAMED)
        who = f"by gpunode, {owner}" if owner else f"by {manager}" if known else ""
        by = " ".join(filter(None, ("cordoned", who, moment and f"at {moment}")))
        by += "" if known else "; the cluster does not record by whom"
        lift: str = (
            cordon.FOLLOW
            if owner
            else f"`kubectl uncordon {name}` allows new pods; it disturbs none. First find out why the node was cordoned."
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
