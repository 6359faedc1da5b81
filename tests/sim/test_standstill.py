"""Pods that hold a GPU and do not run: nobody waits for them, unless they run again before the host is changed."""

from collections.abc import Iterator
from typing import Any

import pytest

from gpunode.sim import faults
from gpunode.sim.host import kinds
from gpunode.sim.process import Demo

from .clusters import until
from .jobs import JOBS, client, cordoned, describe, job
from .operators import begin, output, run

HOST = "gpu-1"
PROVISION = ("provision", "inventory.yaml", "--yes")
BUDGETS = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"
LATER = "later:1"  # an image that the host does not have


@pytest.fixture(scope="module")
def node() -> Iterator[Demo]:
    """A GPU node."""
    with Demo([kinds.new_host(HOST, count=2)]) as made:
        assert run(made, *PROVISION)[0] == 0, output(made)
        yield made


@pytest.fixture
def demo(node: Demo, records: None) -> Iterator[Demo]:
    """The node; records of runs are the test's own, and so is what it writes into the inventory."""
    written = node.inventory.read_text()
    for path in ("here", "go"):
        (node.folder / path).unlink(missing_ok=True)
    yield node
    node.inventory.write_text(written)
    with node.states[HOST].change() as now:
        now.images.pop(LATER, None)
    for item in client(node).ask("GET", JOBS)[1]["items"]:
        client(node).ask("DELETE", f"{JOBS}/{item['metadata']['name']}", {"gracePeriodSeconds": 0})
    assert run(node, *PROVISION, "--no-run")[0] == 0, output(node)


def another(demo: Demo) -> int:
    """A branch of the driver that the host does not have."""
    return 595 if loaded(demo).startswith("580.") else 580


def loaded(demo: Demo) -> str:
    return str(demo.states[HOST].now().modules["nvidia"])


def pod(demo: Demo, name: str) -> dict[str, Any]:
    job: dict[str, Any] = client(demo).ask("GET", f"{JOBS}/{name}")[1]
    return job


def state(demo: Demo, name: str) -> str:
    """The phase of the pod, or why its container waits."""
    status = pod(demo, name)["status"]
    for each in status.get("containerStatuses") or []:
        if why := each["state"].get("waiting", {}).get("reason"):
            return str(why)
    return str(status.get("phase"))


def plugin(demo: Demo) -> str:
    labels = client(demo).ask("GET", f"/api/v1/nodes/{HOST}")[1]["metadata"]["labels"]
    return str(labels.get("gpunode.dev/gpu"))


def test_the_run_that_repairs_a_driver_does_not_wait_for_the_pods_that_need_it(demo: Demo):
    """The plan names them. They run again with the repair."""
    api, host = client(demo), demo.states[HOST]
    job(api, "train", HOST, 600)
    until(lambda: state(demo, "train") == "Running")
    before = pod(demo, "train")["metadata"]["uid"]
    with host.change() as now:
        faults.ACTS["nouveau"].cause(host, host.machine(), now)
    until(lambda: state(demo, "train") == "CrashLoopBackOff")
    code, seen = run(demo, *PROVISION)
    assert code == 0, output(demo)
    (plan,) = [line for line in seen if line["type"] == "plan"]
    assert plan["disturbs"]["reboot"]
    assert [(entry["name"], entry["standstill"]) for entry in plan["disturbs"]["pods"]] == [
        ("default/train", "CrashLoopBackOff")
    ]
    assert "not waited for, since they do not run: default/train (CrashLoopBackOff)" in output(demo)
    assert "waiting for default/train" not in output(demo)
    until(lambda: state(demo, "train") == "Running")
    assert pod(demo, "train")["metadata"]["uid"] == before
    assert cordoned(api) == []


@pytest.mark.parametrize(
    ("seconds", "patience", "code", "phase"),
    [(6, "60s", 0, "Succeeded"), (600, "10s", 1, "Running")],
    ids=["and ends", "and does not end in time"],
)
def test_a_pod_that_runs_again_right_before_the_change_is_waited_for(
    demo: Demo, seconds: int, patience: str, code: int, phase: str
):
    """The host was cleared, and the device plugin has made way. Where the pod does not end in time, both are put back."""
    api, before = client(demo), loaded(demo)
    describe(demo, driver=another(demo), work_timeout=patience)
    job(api, "late", HOST, seconds, image=LATER)
    until(lambda: "Pull" in state(demo, "late"))
    with begin(demo, *PROVISION, then=[[HOST, "changing", "held"]]) as going:
        until(lambda: (demo.folder / "here").exists() or going.poll() is not None)
        assert going.poll() is None, output(demo)
        assert plugin(demo) == "paused"
        with demo.states[HOST].change() as now:
            now.images[LATER] = "sha256:0"
        until(lambda: state(demo, "late") == "Running")
        (demo.folder / "go").touch()
        assert going.wait() == code, output(demo)
    assert "waiting for default/late" in output(demo)
    assert state(demo, "late") == phase
    assert pod(demo, "late")["status"]["containerStatuses"][0]["restartCount"] == 0
    assert (cordoned(api), plugin(demo)) == ([], "true")
    assert (loaded(demo) == before) == (code == 1)


def test_a_budget_does_not_keep_a_pod_that_does_not_run_in_the_way(demo: Demo):
    """Nor is it deleted."""
    api = client(demo)
    describe(demo, driver=another(demo), work="drain", work_timeout="60s")
    job(api, "web", HOST, 600, image=LATER, labels={"app": "web"})
    until(lambda: "Pull" in state(demo, "web"))
    before = pod(demo, "web")["metadata"]["uid"]
    spec = {"minAvailable": 1, "selector": {"matchLabels": {"app": "web"}}}
    budget = {"kind": "PodDisruptionBudget", "metadata": {"name": "never"}, "spec": spec}
    assert api.ask("POST", BUDGETS, budget)[0] == 201
    try:
        code, _ = run(demo, *PROVISION)
    finally:
        api.ask("DELETE", f"{BUDGETS}/never")
    assert code == 0, output(demo)
    assert "not waited for, since they do not run: default/web (" in output(demo)
    assert pod(demo, "web")["metadata"]["uid"] == before
