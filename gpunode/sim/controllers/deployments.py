"""What a Deployment's status says here, where nothing makes its pods: else its user waits for them."""

from __future__ import annotations

from functools import partial

from gpunode.sim.apiserver.store import Object, Store, now

WHY = (
    "this cluster is simulated, and nothing in it makes pods of Deployments. "
    "`make try`, in a checkout of gpunode, has a real cluster"
)


def concerns(item: Object) -> bool:
    """True for what `look` writes to."""
    return bool(item["kind"] == "Deployment")


def look(store: Store) -> None:
    """Write why there are no pods, as the controller does where they are refused; once, and over nothing. The reason is none
    of the controller's, which tries again."""
    for one in store.all("Deployment"):
        if not one.get("status"):
            reason = {"type": "ReplicaFailure", "status": "True", "reason": "Simulated", "message": WHY}
            condition = {**reason, "lastUpdateTime": now(), "lastTransitionTime": now()}
            store.change(one, partial(_told, condition=condition))


def _told(item: Object, condition: Object) -> None:
    item["status"] = {"conditions": [condition]}
