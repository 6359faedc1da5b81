"""The operator's process is killed (-9), and the run resumed: to the same end, with no work lost and nothing done twice."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml

from gpunode.agent.record import RECORDS
from gpunode.rollout import record
from gpunode.rollout.record import State
from gpunode.sim.demo import Demo
from gpunode.sim.host import kinds

from . import operators
from .clusters import Client
from .operators import run

JOBS = "/api/v1/namespaces/default/pods"
HOST, BY_HAND = "gpu-1", "by-hand"


@pytest.fixture(scope="module")
def demo() -> Iterator[Demo]:
    """A GPU node, and one that an administrator has cordoned."""
    with Demo([kinds.old(HOST, count=1)]) as made:
        code, _ = run(made, "provision", "inventory.yaml", "--yes")
        assert code == 0, operators.output(made)
        node = {"kind": "Node", "metadata": {"name": BY_HAND}, "spec": {"unschedulable": True}}
        client(made).ask("POST", "/api/v1/nodes", node, fieldManager="kubectl-cordon")
        yield made


@pytest.fixture(autouse=True)
def records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Records of runs are this test's own."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def client(demo: Demo) -> Client:
    return Client(demo.folder / "kubeconfig")


def job(api: Client, name: str, node: str, seconds: int) -> None:
    """A job's pod with a GPU, which ends by itself. A container that is killed would be started again."""
    container = {"name": "c", "image": "gpunode-deviceplugin:demo", "command": ["sleep", str(seconds)]}
    container |= {"resources": {"limits": {"nvidia.com/gpu": "1"}}}  # type: ignore[dict-item]
    spec = {"nodeName": node, "restartPolicy": "OnFailure", "containers": [container]}
    code, answer = api.ask("POST", JOBS, {"kind": "Pod", "metadata": {"name": name}, "spec": spec})
    assert code == 201, answer


def cordoned(api: Client) -> list[str]:
    items = api.ask("GET", "/api/v1/nodes")[1]["items"]
    return [item["metadata"]["name"] for item in items if item["spec"].get("unschedulable")]


def change(demo: Demo, host: str) -> None:
    """Something that gpunode corrects with a restart of docker."""
    (demo.states[host].root / "etc/docker/daemon.json").write_text('{"log-driver": "journald"}\n')


def applies(demo: Demo, host: str) -> set[str]:
    """The applies that the host has a record of."""
    folder = demo.states[host].root / RECORDS.lstrip("/")
    return {path.name for path in folder.iterdir()} if folder.exists() else set()


@dataclass(frozen=True)
class Scene:
    """How a run comes to a state: what happens while it is "changing", and the host's variables."""

    hook: str = ""
    variables: tuple[tuple[str, str], ...] = ()
    applies: int = 1  # that the two runs need at most


# A state that is not here must be come to by a run in which all goes well.
SCENES: dict[State, Scene] = {
    "skipped": Scene(variables=(("work_timeout", "1s"),)),
    "refused": Scene("locked"),
    "unreachable": Scene("gone", applies=2),  # it puts back what nobody confirms
    "failed": Scene("unapplicable", applies=2),
}


@pytest.mark.parametrize("state", get_args(State))
def test_a_run_that_is_killed_at_any_state_is_resumed_to_the_same_end(demo: Demo, state: State) -> None:
    scene, api, written = SCENES.get(state, Scene()), client(demo), demo.inventory.read_text()
    change(demo, HOST)
    job(api, state, HOST, 5)
    before, values = applies(demo, HOST), yaml.safe_load(written)
    values["defaults"] |= dict(scene.variables)
    demo.inventory.write_text(yaml.safe_dump(values))
    then = [[HOST, "changing", scene.hook]] if scene.hook else []
    try:
        code, _ = run(demo, "provision", "inventory.yaml", "--yes", die=[HOST, state], then=then)
    finally:
        demo.inventory.write_text(written)
        operators.back(demo.states[HOST])
    assert code == -signal.SIGKILL, f"no run came to {state}: {operators.output(demo)}"
    found = record.last(demo.inventory)
    assert found is not None
    assert (found.hosts[HOST].state, found.ended) == (state, False)

    code, seen = run(demo, "resume", "inventory.yaml", "--yes")

    assert code == 0, operators.output(demo)
    if state != record.DONE:
        rows = [(one["host"], one["result"]) for one in seen if one["type"] == "verified"]
        assert rows == [(HOST, "verified")]
    assert cordoned(api) == [BY_HAND]
    assert 1 <= len(applies(demo, HOST) - before) <= scene.applies
    assert ended(api, state) == ("Succeeded", 0)
    code, _ = run(demo, "plan", "inventory.yaml", "--exit-code")
    assert code == 0, operators.output(demo)


def ended(api: Client, name: str) -> tuple[str, int]:
    """The phase of a job's pod, and how often its container was started again."""
    pod: dict[str, Any] = api.ask("GET", f"{JOBS}/{name}")[1]
    return pod["status"]["phase"], pod["status"]["containerStatuses"][0]["restartCount"]
