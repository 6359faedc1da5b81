"""The operator's process is killed (-9), and the run resumed: to the same end, with no work lost and nothing done twice."""

import signal
from collections.abc import Iterator
from dataclasses import dataclass
from typing import get_args

import pytest
import yaml

from gpunode.engine import history, record
from gpunode.engine.record import State
from gpunode.links.pod.vectoradd import HOLDER
from gpunode.sim.host import kinds
from gpunode.sim.process import Demo

from . import operators
from .clusters import Client, until
from .jobs import JOBS, applies, change, client, cordoned, ended, job
from .operators import run
from .storm import storm

pytestmark = pytest.mark.usefixtures("records")
HOST, BY_HAND = "gpu-1", "by-hand"
MERGE = "application/merge-patch+json"
LEASE = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/gpunode"


@pytest.fixture(scope="module")
def demo() -> Iterator[Demo]:
    """A GPU node, and one that an administrator has cordoned."""
    with Demo([kinds.old_host(HOST, count=1)]) as made:
        code, _ = run(made, "provision", "inventory.yaml", "--yes")
        assert code == 0, operators.output(made)
        node = {"kind": "Node", "metadata": {"name": BY_HAND}, "spec": {"unschedulable": True}}
        client(made).ask("POST", "/api/v1/nodes", node, fieldManager="kubectl-cordon")
        yield made


# States that a run with changes, which provisions and proves, never comes to.
NEVER = ("finished", "in use", "undone", "kept", "forgotten")


@dataclass(frozen=True)
class Scene:
    """How a run comes to a state: what happens while it is "changing", and the host's variables."""

    hook: str = ""
    variables: tuple[tuple[str, str], ...] = ()
    applies: int = 1  # that the two runs need at most
    seconds: int = 5  # of the job


# Of every kind one: the cluster is held, the host is changed, it is proven, it fails. The others are for `make lab-test`.
OFTEN = ("waiting", "changing", "changed", "proven", "failed")
# A state that is not here must be come to by a run in which all goes well.
SCENES: dict[State, Scene] = {
    "skipped": Scene(variables=(("work_timeout", "1s"),), seconds=60),  # it must outlast a slow start
    "refused": Scene("locked"),
    "unreachable": Scene("gone", applies=2),  # it puts back what nobody confirms
    "failed": Scene("unapplicable", applies=2),
}


@pytest.mark.parametrize(
    "state",
    [
        pytest.param(state, marks=() if state in OFTEN else pytest.mark.storm)
        for state in get_args(State)
        if state not in NEVER
    ],
)
def test_a_run_that_is_killed_at_any_state_is_resumed_to_the_same_end(demo: Demo, state: State):
    scene, api, written = SCENES.get(state, Scene()), client(demo), demo.inventory.read_text()
    api.ask(
        "DELETE", LEASE
    )  # which the dead run of the case before may still hold, for longer than the job lasts
    change(demo, HOST)
    job(api, state, HOST, scene.seconds)
    until(lambda: api.ask("GET", f"{JOBS}/{state}")[1]["status"].get("containerStatuses"))
    before, wish = applies(demo, HOST), yaml.safe_load(written)
    wish["defaults"] |= dict(scene.variables)
    demo.inventory.write_text(yaml.safe_dump(wish))
    then = [[HOST, "changing", scene.hook]] if scene.hook else []
    try:
        values = operators.GONE if scene.hook == "gone" else {}
        words = ("provision", "inventory.yaml", "--yes", "--taint-until-verified")
        code, _ = run(demo, *words, die=[HOST, state], then=then, values=values)
    finally:
        demo.inventory.write_text(written)
        operators.back(demo.states[HOST])
    assert code == -signal.SIGKILL, f"no run came to {state}: {operators.output(demo)}"
    last = history.last_run(demo.inventory)
    assert (last.hosts[HOST].state, last.ended) == (state, False)

    code, seen = run(demo, "resume", "inventory.yaml", "--yes")

    assert code == 0, operators.output(demo)
    if state not in record.DONE:
        rows = [(line["host"], line["result"]) for line in seen if line["type"] == "verified"]
        assert rows == [(HOST, "verified")]
    assert (cordoned(api), taints(api, HOST)) == ([BY_HAND], [])
    assert 1 <= len(applies(demo, HOST) - before) <= scene.applies
    until(lambda: ended(api, state)[0] == "Succeeded")
    assert ended(api, state) == ("Succeeded", 0)
    code, _ = run(demo, "plan", "inventory.yaml", "--exit-code")
    assert code == 0, operators.output(demo)


def test_no_pod_starts_before_the_proof_though_the_run_is_killed_after_it(demo: Demo):
    """Between the proof and the removal of its taint: only then is the pod of a user started."""
    api = client(demo)
    api.ask("DELETE", LEASE)
    change(demo, HOST)
    words = ("provision", "inventory.yaml", "--yes", "--taint-until-verified")
    code, seen = run(demo, *words, before="gpunode.engine.work.release")
    assert code == -signal.SIGKILL, operators.output(demo)
    assert [each["result"] for each in seen if each["type"] == "vectoradd"] == ["passed"]
    dead = history.last_run(demo.inventory)
    assert taints(api, HOST) == [f"gpunode.dev/unverified={dead.id}:NoSchedule"]
    api.ask("PATCH", f"/api/v1/nodes/{HOST}", {"spec": {"unschedulable": None}}, MERGE)  # the taint is enough
    container = {"name": "c", "image": "gpunode-deviceplugin:demo", "command": ["sleep", "1"]}
    spec = {"restartPolicy": "Never", "containers": [container]}
    body = {"kind": "Pod", "metadata": {"name": "early"}, "spec": spec}
    assert api.ask("POST", JOBS, body)[0] == 201
    until(lambda: "untolerated taint" in str(api.ask("GET", f"{JOBS}/early")[1].get("status")))

    code, _ = run(demo, "resume", "inventory.yaml", "--yes")

    assert code == 0, operators.output(demo)
    assert taints(api, HOST) == []
    until(lambda: api.ask("GET", f"{JOBS}/early")[1]["status"].get("phase") == "Succeeded")


def test_a_host_that_fails_keeps_its_taint_and_the_command_that_removes_it_is_named(demo: Demo):
    api = client(demo)
    api.ask("DELETE", LEASE)
    change(demo, HOST)
    words = ("provision", "inventory.yaml", "--yes", "--taint-until-verified")
    code, _ = run(demo, *words, then=[[HOST, "changing", "unapplicable"]])
    assert code == 1, operators.output(demo)
    failed = history.last_run(demo.inventory)
    assert taints(api, HOST) == [f"gpunode.dev/unverified={failed.id}:NoSchedule"]
    assert "kubectl taint node gpu-1 gpunode.dev/unverified-" in operators.output(demo)
    code, _ = run(demo, "verify", "inventory.yaml", "--no-run")
    assert code == 1

    code, _ = run(demo, "provision", "inventory.yaml", "--yes")  # the taint needs no option to be removed

    assert code == 0, operators.output(demo)
    assert taints(api, HOST) == []


def taints(api: Client, node: str) -> list[str]:
    """As kubectl writes them, without the API server's own."""
    every = api.ask("GET", f"/api/v1/nodes/{node}")[1]["spec"].get("taints") or []
    return [
        f"{taint['key']}={taint.get('value', '')}:{taint['effect']}"
        for taint in every
        if "kubernetes.io" not in taint["key"]
    ]


def phases(api: Client) -> dict[str, str]:
    """gpunode's own pods."""
    items = api.ask("GET", "/api/v1/namespaces/gpunode/pods")[1]["items"]
    return {item["metadata"]["name"]: item.get("status", {}).get("phase", "") for item in items}


def test_a_gpu_that_a_killed_runs_own_pod_holds_is_free_for_the_next(demo: Demo):
    """The pod of a run that was killed at its proof sleeps on for minutes."""
    api = client(demo)
    api.ask("DELETE", LEASE)
    meta = {
        "labels": {"app.kubernetes.io/name": "gpunode-vectoradd"},
        "annotations": {HOLDER: "run 1 of x@y"},
    }
    job(api, "vectoradd-dead", HOST, 240, namespace="gpunode", **meta)
    until(lambda: phases(api).get("vectoradd-dead") == "Running")

    code, seen = run(demo, "provision", "inventory.yaml", "--yes")

    assert code == 0, operators.output(demo)
    assert [each["result"] for each in seen if each["type"] == "verified"] == ["verified"]
    assert "vectoradd-dead" not in phases(api)


@pytest.mark.storm
def test_a_run_that_is_killed_again_and_again_keeps_its_bound_and_every_job():
    """`python bench/kills.py` does it with 100 hosts and 50 kills."""
    figures = storm(6, 3, bound=2, seed=20)
    assert (figures.kills, figures.lost, figures.rebooted) == (3, (), 2)
    assert figures.disturbed <= figures.bound
