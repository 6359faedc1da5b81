"""The Job controller: pods of the template until enough have succeeded, or too many failed."""

from __future__ import annotations

import copy

from gpunode.sim.apiserver.errors import StatusError
from gpunode.sim.apiserver.resources import Resources
from gpunode.sim.apiserver.store import Object, Store, now, owned_by
from gpunode.sim.controllers.events import record

LOST = "Job has reached the specified backoff limit"


def concerns(item: Object) -> bool:
    """True if a change of this object may need a pod."""
    return item["kind"] in {"Job", "Pod"}


def look(store: Store) -> None:
    """Create the pods that are due, and write the status."""
    for job in store.all("Job"):
        over = any(one["type"] in {"Complete", "Failed"} for one in job["status"].get("conditions") or [])
        if not over and "deletionTimestamp" not in job["metadata"]:
            _tend(store, job)


def _tend(store: Store, job: Object) -> None:
    spec, status = job["spec"], job["status"]
    pods = [pod for pod in store.all("Pod", job["metadata"]["namespace"]) if owned_by(pod, job)]
    phases = [pod["status"].get("phase") for pod in pods]
    succeeded, failed = phases.count("Succeeded"), phases.count("Failed")
    again = sum(
        one.get("restartCount", 0) for pod in pods for one in pod["status"].get("containerStatuses", [])
    )
    status = {"startTime": now(), **status, "active": len(pods) - succeeded - failed, "succeeded": succeeded}
    status["failed"] = failed
    if succeeded >= spec["completions"]:
        words = {"reason": "CompletionsReached", "message": "Reached expected number of succeeded pods"}
        status |= {"completionTime": now(), "conditions": [_condition("Complete", words)]}
        record(store, job, "job-controller", "Normal", "Completed", "Job completed")
    elif failed + again > spec["backoffLimit"]:
        words = {"reason": "BackoffLimitExceeded", "message": LOST}
        status["conditions"] = [_condition("Failed", words)]
        record(store, job, "job-controller", "Warning", "BackoffLimitExceeded", LOST)
        for pod in pods:
            if pod["status"].get("phase") not in {"Succeeded", "Failed"}:
                Resources(store, "Pod", pod["metadata"]["namespace"]).delete(pod["metadata"]["name"], {}, {})
    else:
        for _ in range(min(spec["parallelism"], spec["completions"] - succeeded) - status["active"]):
            _make(store, job)
    store.change(job, lambda item: item.update(status=status))


def _condition(kind: str, words: Object) -> Object:
    return {"type": kind, "status": "True", "lastProbeTime": now(), "lastTransitionTime": now(), **words}


def _make(store: Store, job: Object) -> None:
    meta, template = job["metadata"], copy.deepcopy(job["spec"]["template"])
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": meta["name"], "uid": meta["uid"]}
    own = {"ownerReferences": [{**owner, "controller": True, "blockOwnerDeletion": True}]}
    pod = {
        "metadata": {**template["metadata"], **own, "generateName": f"{meta['name']}-"},
        "spec": template["spec"],
    }
    try:
        made = Resources(store, "Pod", meta["namespace"]).create(
            pod, {"fieldManager": "kube-controller-manager"}
        )
        words = f"Created pod: {made['metadata']['name']}"
        record(store, job, "job-controller", "Normal", "SuccessfulCreate", words)
    except StatusError as no:
        record(store, job, "job-controller", "Warning", "FailedCreate", f"Error creating: {no}")
