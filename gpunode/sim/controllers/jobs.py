"""The Job controller: pods of the template until enough have succeeded, or too many failed; none while it is suspended.

source: kubernetes/kubernetes pkg/controller/job/job_controller.go (syncJob, manageJob).
"""

from __future__ import annotations

import copy
from collections.abc import Iterable

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
    status = {**status, "active": len(pods) - succeeded - failed, "succeeded": succeeded, "failed": failed}
    others = status.get("conditions") or []
    was_suspended = any(one["type"] == "Suspended" and one["status"] == "True" for one in others)
    if succeeded >= spec["completions"]:
        words = {"reason": "CompletionsReached", "message": "Reached expected number of succeeded pods"}
        status |= {"completionTime": now(), "conditions": [_condition("Complete", words), *others]}
        record(store, job, "job-controller", "Normal", "Completed", "Job completed")
    elif failed + again > spec["backoffLimit"]:
        words = {"reason": "BackoffLimitExceeded", "message": LOST}
        status["conditions"] = [_condition("Failed", words), *others]
        record(store, job, "job-controller", "Warning", "BackoffLimitExceeded", LOST)
        _end(store, pods)
    elif spec["suspend"]:
        status.pop("startTime", None)
        if not was_suspended:
            words = {"reason": "JobSuspended", "message": "Job suspended"}
            status["conditions"] = [_condition("Suspended", words)]
            record(store, job, "job-controller", "Normal", "Suspended", "Job suspended")
        _end(store, pods)
    else:
        status.setdefault("startTime", now())
        if was_suspended:
            words = {"reason": "JobResumed", "message": "Job resumed"}
            status["conditions"] = [{**_condition("Suspended", words), "status": "False"}]
            record(store, job, "job-controller", "Normal", "Resumed", "Job resumed")
        for _ in range(min(spec["parallelism"], spec["completions"] - succeeded) - status["active"]):
            _make(store, job)
    store.change(job, lambda item: item.update(status=status))


def _end(store: Store, pods: Iterable[Object]) -> None:
    """Delete those that have not ended."""
    for pod in pods:
        meta = pod["metadata"]
        if pod["status"].get("phase") not in {"Succeeded", "Failed"} and "deletionTimestamp" not in meta:
            Resources(store, "Pod", meta["namespace"]).delete(meta["name"], {}, {})


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
