"""What the simulated Job controller makes of Jobs."""

from __future__ import annotations

from typing import Any

from gpunode.sim.apiserver.resources import Resources
from gpunode.sim.apiserver.store import Object, Store
from gpunode.sim.controllers.workloads import run_jobs


def made(store: Store, **spec: Any) -> Object:
    store.put({"kind": "Namespace", "apiVersion": "v1", "metadata": {"name": "default"}})
    template = {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}}
    body = {"kind": "Job", "metadata": {"name": "j"}, "spec": {"template": template, **spec}}
    return Resources(store, "Job", "default").create(body, {})


def conditions(store: Store) -> list[tuple[str, str]]:
    status = store.all("Job")[0]["status"]
    return [(one["type"], one["status"]) for one in status.get("conditions", [])]


def test_a_suspended_job_has_no_pods_until_it_is_resumed() -> None:
    """One that is suspended as it runs loses those that it has."""
    store = Store()
    job = made(store, suspend=True, parallelism=2, completions=2)
    run_jobs(store)
    assert store.all("Pod") == []
    assert conditions(store) == [("Suspended", "True")]
    assert "startTime" not in store.all("Job")[0]["status"]

    store.change(job, lambda one: one["spec"].update(suspend=False))
    run_jobs(store)
    assert len(store.all("Pod")) == 2
    assert conditions(store) == [("Suspended", "False")]
    assert "startTime" in store.all("Job")[0]["status"]

    store.change(job, lambda one: one["spec"].update(suspend=True))
    run_jobs(store)
    assert not [pod for pod in store.all("Pod") if "deletionTimestamp" not in pod["metadata"]]
    assert conditions(store) == [("Suspended", "True")]
    run_jobs(store)  # counts none
    version = store.version
    run_jobs(store)
    assert store.version == version  # no write without end
