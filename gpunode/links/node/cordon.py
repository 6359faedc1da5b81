"""Cordons: while one stands, no new pods come to the node. Each carries its owner, and gpunode lifts only its own."""

from collections.abc import Callable

from gpunode.cluster.api import MANAGER, Api
from gpunode.cluster.api.kinds import Object
from gpunode.errors import ClusterError, HttpError
from gpunode.wording import advise

OWNER = "gpunode.dev/cordoned-by"
TAINT = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}  # what a cordon keeps away
TRIES = 5
# What to do about a node that a run of gpunode has cordoned: its user must not lift that cordon while the run changes the host
FOLLOW = advise(
    "`gpunode top` shows a running run. If the run has ended, `gpunode resume` finishes it and lifts the cordon. After a `forget`, run `gpunode forget` of the same hosts."
)


def cordon(api: Api, name: str, owner: str) -> bool:
    """Cordon the node; False if another client has cordoned it: that cordon is not gpunode's.

    Raises ClusterError where the node is gone.
    """

    def change(node: Object) -> Object | None:
        if node.get("spec", {}).get("unschedulable") and not owner_of(node):
            return None
        return {"metadata": {"annotations": {OWNER: owner}}, "spec": {"unschedulable": True}}

    return change_node(api, name, change) is not None


def uncordon(api: Api, name: str) -> bool:
    """Lift gpunode's cordon, of whichever run; False if there is none, or it has become another's."""

    def change(node: Object) -> Object | None:
        if OWNER not in (node["metadata"].get("annotations") or {}):
            return None
        lifted: Object = {"spec": {"unschedulable": None}} if owner_of(node) else {}
        return {"metadata": {"annotations": {OWNER: None}}, **lifted}

    after = change_node(api, name, change)
    return after is not None and not after.get("spec", {}).get("unschedulable")


def owner_of(node: Object) -> str:
    """Who cordoned the node through gpunode; "" for a node that is not cordoned, or that others cordoned.

    `kubectl uncordon` leaves the annotation behind, and a later `kubectl cordon` is its user's: what counts is which
    field manager the API server has down for the field (since Kubernetes 1.18).
    """
    if not node.get("spec", {}).get("unschedulable"):
        return ""
    managers = [
        entry.get("manager")
        for entry in node["metadata"].get("managedFields") or []
        if "f:unschedulable" in ((entry.get("fieldsV1") or {}).get("f:spec") or {})
    ]
    if managers and MANAGER not in managers:
        return ""
    return str((node["metadata"].get("annotations") or {}).get(OWNER, ""))


def owners(api: Api) -> dict[str, str]:
    """Nodes that gpunode has cordoned → by which owner: those of runs that died are among them."""
    nodes, _ = api.find("Node")
    return {node["metadata"]["name"]: owner for node in nodes if (owner := owner_of(node))}


def change_node(api: Api, name: str, change: Callable[[Object], Object | None]) -> Object | None:
    """The node after the change of what it is now, retried after a conflict; None: nothing is to change."""
    for attempt in range(1, TRIES + 1):
        node = api.get("Node", name)
        if node is None:
            raise ClusterError(
                f"the cluster has no node `{name}` any more", hint="See who deleted it; then run again."
            )
        fields = change(node)
        if fields is None:
            return None
        seen = {key: node["metadata"][key] for key in ("uid", "resourceVersion")}
        try:
            return api.merge("Node", name, {**fields, "metadata": {**fields.get("metadata", {}), **seen}})
        except HttpError as error:
            if error.reason != "Conflict" or attempt == TRIES:
                raise
    return None
