"""Waits for a Deployment of gpunode's."""

from __future__ import annotations

import time

from gpunode.cluster import obstacles, pods
from gpunode.cluster.api import Api
from gpunode.cluster.api.kinds import Object
from gpunode.cluster.api.watch import OnProgress
from gpunode.errors import ClusterError
from gpunode.wording import lines

LOOK = 1.0  # seconds between two looks
REFUSED = (
    20.0  # seconds without a pod that the cluster makes: quotas and policies do not change by themselves
)
FINAL = 3.0  # the same, where no controller tries again: the status may be older than the object
RETRIED = ("FailedCreate", "FailedDelete")  # by the controllers of ReplicaSets


def rolled_out(
    api: Api, name: str, namespace: str, *, what: str, seconds: float, tell: OnProgress, hint: str = ""
) -> None:
    """Wait until all pods of the Deployment are of this version and one is Ready. Raises ClusterError with why none is, early
    where the cluster makes none."""
    begun = made = time.monotonic()
    while not _ready(live := api.get("Deployment", name, namespace) or {}):
        now, (reason, refusal) = time.monotonic(), pods.refusal(live)
        made = made if refusal else now
        if refusal and now - made >= (REFUSED if reason in RETRIED else FINAL):
            known = obstacles.admission(refusal)
            fix = known.fix if known else f"See `kubectl -n {namespace} describe deployments {name}`."
            raise ClusterError(
                f"waited {now - begun:.0f} s for {what}: the cluster makes no pods: {refusal}",
                hint=lines((fix, hint), " "),
            )
        if now > begun + seconds:
            selector = f"app.kubernetes.io/name={name}"
            raise ClusterError(
                f"waited {seconds:.0f} s for {what}: {_why(api, namespace, selector)}",
                hint=lines(
                    (f"See `kubectl -n {namespace} describe pods -l {selector}`, and their logs.", hint), " "
                ),
            )
        tell(f"waiting for {what}, up to {seconds / 60:g} min{refusal and f': {refusal}'}")
        time.sleep(LOOK)


def _ready(deployment: Object) -> bool:
    status, wanted = deployment.get("status", {}), deployment.get("spec", {}).get("replicas", 0)
    current = status.get("observedGeneration", 0) >= deployment.get("metadata", {}).get("generation", 1)
    all_new = status.get("updatedReplicas", 0) == wanted == status.get("replicas", 0)
    return bool(current and all_new and status.get("readyReplicas", 0) > 0)


def _why(api: Api, namespace: str, selector: str) -> str:
    found = [{"kind": "Pod", **one} for one in api.find("Pod", namespace, labels=selector)[0]]
    why = [problem for pod in found if (problem := pods.problem(pod, pods.events(api, pod)))]
    return "; ".join(dict.fromkeys(why)) or (f"{len(found)} pods are starting" if found else "it has no pods")
