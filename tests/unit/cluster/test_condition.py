"""The node's condition GpuReady: what it is for a status, whether it agrees, and who removes it."""

from dataclasses import replace
from typing import Any

import pytest

from gpunode.acceptance.stamp import Stamp
from gpunode.cluster.api import Api
from gpunode.contract.condition import Condition, condition_of, with_acceptance
from gpunode.contract.status import Reason, Resource, Status, Unavailable
from gpunode.contract.times import DAY
from gpunode.links.node import parse
from gpunode.links.plugin import Spec, condition
from gpunode.links.plugin.daemonset import State
from gpunode.model import PluginImage, PluginPublish, Verdict

from .conftest import add_node, pod, publish, status
from .fake import FakeApi

OFFERED = {"nvidia.com/gpu": Resource(2, True)}
XID = Unavailable("GPU-a", "0", "xid-79", "Xid 79: GPU has fallen off the bus")
CORDONED = Unavailable("GPU-b", "1", "cordoned", "cordoned by ada@ws since now: fan")
OK = Verdict.ok("plugin", "p is ready")
POD = "gpunode-device-plugin-a"


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        (status(resources=OFFERED), ("True", "ready", "all GPUs are healthy")),
        (status(resources=OFFERED, lost=(XID,)), ("False", "xid-79", XID.sentence)),
        (status(resources=OFFERED, lost=(CORDONED,)), ("True", "ready", CORDONED.sentence)),
        (status(resources=OFFERED, lost=(CORDONED, XID)), ("False", "xid-79", XID.sentence)),
        (status(problem=Reason("no-driver", "no driver")), ("False", "no-driver", "no driver")),
        (
            status(resources=OFFERED, not_ready=Reason("not-registered", "n")),
            ("False", "not-registered", "n"),
        ),
        (status(problem=Reason("starting", "s")), ("Unknown", "starting", "s")),
        (status(), ("False", "no-gpu", "the node offers no GPU")),
    ],
)
def test_the_condition_has_the_code_of_the_status(seen: Status, expected: tuple[str, str, str]):
    assert condition_of(seen) == Condition(*expected)


READY = Condition("True", "ready", "all GPUs are healthy")
FAULT = Condition("False", "xid-79", "GPU 0")
NOV, DEC = 1_795_651_200.0, 1_798_243_200.0  # 2026-11-26, 2026-12-26
STAMP = Stamp("standard", "accepted", NOV, DEC, "580", "6.8", "i:1", ("GPU-a",), required=True)

AHEAD = "the acceptance is dated 2026-11-26, which is in the future: check the clock of this node and of the computer that measured"


@pytest.mark.parametrize(
    ("before", "note", "now", "expected"),
    [
        (READY, STAMP.text(), DEC - 1, ("True", "ready", "accepted 2026-11-26 (standard), valid until 2026-12-26")),
        (READY, STAMP.text(), DEC, ("False", "not-accepted", "the acceptance ran out 2026-12-26")),
        (READY, replace(STAMP, required=False).text(), DEC, ("True", "ready", "the acceptance ran out 2026-12-26")),
        (READY, replace(STAMP, verdict="failed").text(), NOV, ("False", "not-accepted", "not accepted 2026-11-26 (standard)")),
        (READY, STAMP.text(), NOV - DAY, ("True", "ready", "accepted 2026-11-26 (standard), valid until 2026-12-26")),
        (READY, STAMP.text(), NOV - DAY - 1, ("False", "not-accepted", AHEAD)),
        (READY, replace(STAMP, required=False).text(), NOV - DAY - 1, ("True", "ready", AHEAD)),
        (FAULT, STAMP.text(), DEC, ("False", "xid-79", "the acceptance ran out 2026-12-26")),
        (READY, "", DEC, ("True", "ready", "")),
        (READY, "[]", DEC, ("True", "ready", "")),
        (READY, '{"kind": "gpunode-acceptance", "version": 1, "until": 7}', DEC, ("True", "ready", "")),
        (READY, STAMP.text().replace('"version": 1', '"version": 2'), DEC, ("True", "ready", "")),
    ],
)  # fmt: skip
def test_the_condition_has_the_acceptance_and_is_not_true_without_a_required_one(
    before: Condition, note: str, now: float, expected: tuple[str, str, str]
):
    status, reason, text = expected
    message = "; ".join(filter(None, (before.message, text)))
    assert with_acceptance(before, note, now) == Condition(status, reason, message)


def write(fake: FakeApi, state: str, reason: str) -> None:
    own = {"type": "GpuReady", "status": state, "reason": reason, "message": "m"}
    fake.update("Node", "a", status={"conditions": [{"type": "Ready", "status": "True"}, own]})


def judged(api: Api, fake: FakeApi, before: Verdict = OK) -> Verdict:
    node = api.get("Node", "a")
    assert node is not None
    own: Any = api.get("Pod", POD, "gpunode")
    return condition.judge(api, before, State(parse(node), own, None))


@pytest.fixture
def running(fake: FakeApi, monkeypatch) -> FakeApi:
    """A node whose plugin publishes a lost GPU."""
    monkeypatch.setattr(condition, "SECONDS", 0.2)
    monkeypatch.setattr(condition, "PAUSE", 0.05)
    add_node(fake, "a", 2)
    fake.put(pod(POD, node="a"))
    publish(fake, "a", status(resources=OFFERED, lost=(XID,)))
    return fake


@pytest.mark.parametrize(
    ("state", "reason", "code"),
    [("False", "xid-79", ""), ("True", "ready", "condition-differs"), ("False", "gone", "condition-differs")],
)
def test_verify_compares_the_condition_with_the_status(
    api: Api, running: FakeApi, state: str, reason: str, code: str
):
    write(running, state, reason)
    verdict = judged(api, running)
    assert (verdict.problem.code if verdict.problem else "") == code
    assert verdict.status == ("broken" if code else "ok")


def test_a_missing_acceptance_is_for_its_own_link_to_judge(api: Api, running: FakeApi):
    write(running, "False", "not-accepted")
    assert judged(api, running).problem is not None  # a GPU is lost
    publish(running, "a", status(resources=OFFERED))
    assert judged(api, running) == OK


def test_a_condition_that_is_missing_is_named(api: Api, running: FakeApi):
    assert judged(api, running).text.startswith("the node's condition is no GpuReady")


def test_the_condition_of_a_dead_plugin_is_called_stale(api: Api, running: FakeApi):
    write(running, "True", "ready")
    dead = judged(api, running, Verdict.broken("plugin", "p is not ready", "it crashes"))
    assert dead.cause == "it crashes\nthe node's condition GpuReady=True is from before"


def test_a_condition_that_a_plugin_left_is_removed_alone(api: Api, running: FakeApi):
    write(running, "True", "ready")
    assert condition.read_nodes(api) == ("a",)
    assert condition.remove(api, lambda _: None) == ("a",)
    (node,) = running.all("Node")
    assert [each["type"] for each in node["status"]["conditions"]] == ["Ready"]


def test_a_condition_of_this_type_that_another_client_wrote_stays(api: Api, running: FakeApi):
    """By the API server's books; several may have written it."""

    def entry(manager: str, kind: str) -> dict[str, Any]:
        fields = {f'k:{{"type":"{kind}"}}': {".": {}, "f:status": {}}}
        return {"manager": manager, "fieldsV1": {"f:status": {"f:conditions": fields}}}

    write(running, "True", "ready")
    theirs = [entry("node-doctor", "GpuReady"), entry("gpunode-device-plugin", "Other")]
    running.update("Node", "a", metadata={"managedFields": theirs})
    assert condition.read_nodes(api) == ()
    assert condition.remove(api, lambda _: None) == ()
    running.update(
        "Node", "a", metadata={"managedFields": [*theirs, entry("gpunode-device-plugin", "GpuReady")]}
    )
    assert condition.remove(api, lambda _: None) == ("a",)


@pytest.mark.parametrize("on", [True, False])
def test_the_plugin_has_the_right_only_where_it_is_asked_for(on: bool):
    objects = Spec("gpunode", PluginImage("i:1"), publish=PluginPublish(condition=on)).manifests
    rules = [rule for item in objects if item["kind"] == "ClusterRole" for rule in item["rules"]]
    assert rules == ([{"apiGroups": [""], "resources": ["nodes/status"], "verbs": ["patch"]}] if on else [])
    policies = [item for item in objects if item["kind"] == "ValidatingAdmissionPolicy"]
    assert bool(policies) is on
    for policy in policies:
        (rule,) = policy["spec"]["matchConstraints"]["resourceRules"]
        assert rule["resources"] == ["nodes", "nodes/status"]
