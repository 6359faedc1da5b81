"""What ends a run before its next batch; which hosts count, and which are probed again."""

import threading
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast
from unittest import mock

import pytest

from gpunode.cluster.api import watch
from gpunode.engine import batch, control_plane, rollout, rounds, work
from gpunode.engine.batch import Run
from gpunode.engine.batch_order import Size
from gpunode.engine.member import PAUSED, Member, Members
from gpunode.engine.session import Session
from gpunode.errors import ApiConnectionLost, Problem, Unreachable
from gpunode.model import Cluster, Host, Inventory, Outcome, Plan, Reboot, Ssh, StepPlan

FAILED = Member(Host("a", Ssh("a")), Outcome("a", "failed", problem=Problem("", "no disk")))
SKIPPED = Member(
    Host("b", Ssh("b")), Outcome("b", "planned"), reason=Problem(control_plane.UNHEALTHY, "etcd is down")
)


@pytest.mark.parametrize(
    ("member", "judged", "seen", "code", "what"),
    [
        (None, "a", {}, "", ""),
        (FAILED, "a", {}, rounds.STOPPED, "1 host failed (a)"),
        (FAILED, "a", {"max_fail": 1}, "", ""),
        (FAILED, "b", {}, "", ""),  # the plan showed it as failed
        (SKIPPED, "", {}, rounds.STOPPED, "etcd is down"),
        (None, "", {"lease": "ada has it"}, rounds.STOPPED, "ada has it"),
        (None, "", {"lost": "no space left"}, rounds.STOPPED, "no space left"),
        (None, "", {"set": True}, PAUSED, "the run was interrupted"),
        (None, "", {"paused": True}, PAUSED, "the run was paused"),
    ],
    ids=["none", "failed", "allowed", "before", "control plane", "lease", "record", "Ctrl-C", "pause"],
)
def test_a_run_stops_for_its_first_reason(
    member: Member | None, judged: str, seen: dict[str, Any], code: str, what: str
):
    record: Any = SimpleNamespace(lost=seen.get("lost", ""), paused=seen.get("paused", False))
    interrupt: Any = SimpleNamespace(set=seen.get("set", False), continues="")
    run = Run(mock.Mock(), None, record, interrupt, {}, prove=True)
    lease: Any = SimpleNamespace(lost_reason=lambda *_: seen.get("lease", ""))
    members = (member,) if member else ()
    hosts = rollout.Hosts(members, (), (), frozenset(judged), seen.get("max_fail"))
    reason = rollout.stop_reason(run, lease, members, hosts)
    assert ((reason.code, reason.what) if reason else ("", "")) == (code, what)


@pytest.mark.parametrize(("begun", "max_fail", "judged"), [((), None, ""), ("a", None, "a"), ((), 1, "ab")])
def test_hosts_that_the_resumed_run_has_begun_count_as_failed(
    begun: tuple[str, ...], max_fail: int | None, judged: str
):
    """Though none of them can be reached any more."""
    members = tuple(replace(FAILED, host=Host(name, Ssh(name))) for name in "ab")
    inventory = Inventory("", tuple(member.host for member in members), Cluster())
    session = mock.Mock(inventory=inventory, hosts=inventory.hosts, planners={})
    hosts = rollout.plan_hosts(session, None, members, begun=begun, max_fail=max_fail)
    assert hosts.judged == {*judged}


@pytest.mark.parametrize(("max_fail", "judged"), [(None, "b"), (1, "ab")])
def test_a_host_that_the_plan_shows_as_broken_ends_no_run(monkeypatch, max_fail: int | None, judged: str):
    """As one that has lost a GPU and has nothing to change."""
    members = tuple(Member(Host(name, Ssh(name)), Outcome(name, "right")) for name in "ab")
    monkeypatch.setattr(rollout, "status_of", lambda seen: "broken" if seen.host == "a" else seen.status)
    inventory = Inventory("", tuple(member.host for member in members), Cluster())
    session = mock.Mock(inventory=inventory, hosts=inventory.hosts, planners={})
    assert rollout.plan_hosts(session, None, members, max_fail=max_fail).judged == {*judged}


@pytest.mark.parametrize(("waited", "status"), [(False, "right"), (True, "planned")])
def test_hosts_are_probed_again_where_another_run_held_the_lease(monkeypatch, waited: bool, status: str):
    """Those that can take part: their plans may be out of date. Whom these disturb is asked, too: by that a host of the control plane
    waits until that is healthy."""
    members = (FAILED, Member(Host("b", Ssh("b")), Outcome("b", "right")))
    plan = Plan("b", (StepPlan("x", (Reboot("why"),)),))
    again = Outcome("b", "planned", plan=plan)
    monkeypatch.setattr(
        rounds, "probe_all", lambda *known: tuple(replace(each, outcome=again) for each in known[2])
    )
    run = cast("Any", SimpleNamespace(session=mock.Mock(planners={}), api=None, reviewed=None))
    lease = cast("Any", SimpleNamespace(waited=waited))
    after = rollout.plan_again(run, rollout.Hosts(members, (), (), frozenset()), lease)
    assert [member.outcome and member.outcome.status for member in after] == ["failed", status]
    assert after[1].disturbs.what.reboot is waited


def test_a_run_that_is_paused_while_a_gate_runs_begins_neither_that_batch_nor_another(monkeypatch):
    members = tuple(Member(Host(name, Ssh(name)), Outcome(name, "right")) for name in "ab")
    record = mock.Mock(lost="", paused=False)

    def pass_gates(*_: object) -> str:
        record.paused = True
        return ""

    monkeypatch.setattr(rollout.gate, "run_gates", pass_gates)
    monkeypatch.setattr(rollout, "mean_seconds", lambda _: {})
    monkeypatch.setattr(rollout.batch, "finish", pytest.fail)
    session = mock.Mock(inventory=Inventory("i.yaml", (), Cluster()))
    run = Run(session, None, record, mock.Mock(set=False), {}, prove=True)
    lease: Any = SimpleNamespace(waited=False, lost_reason=lambda *_: "")
    order = tuple((member.host,) for member in members)
    after = rollout.run_batches(run, lease, rollout.Hosts(members, (), order, frozenset()))
    assert [member.reason and member.reason.code for member in after] == [PAUSED, PAUSED]


def test_hosts_that_an_earlier_run_left_cordoned_go_first(monkeypatch):
    """They are disturbed already."""
    nodes = {name: mock.Mock(own_taints=(), taints={}) for name in "ab"}
    members = []
    for name, node in nodes.items():
        node.name = name
        members.append(Member(Host(name, Ssh(name)), Outcome(name, "right"), node=node))
    monkeypatch.setattr(rollout.impact, "locate", lambda *_: ())
    monkeypatch.setattr(rollout.impact, "find_impact", lambda *_, **__: tuple(members))
    monkeypatch.setattr(rollout.cordon, "owners", lambda _: {"b": "run 1"})
    monkeypatch.setattr(rounds.taint, "run_of", lambda _: "")
    inventory = Inventory("", tuple(member.host for member in members), Cluster())
    session = mock.Mock(inventory=inventory, hosts=inventory.hosts, planners={})
    hosts = rollout.plan_hosts(session, mock.Mock(), tuple(members), size=Size(1))
    assert [[host.name for host in batch] for batch in hosts.order] == [["b"], ["a"]]


def test_an_undone_host_gets_its_node_back_from_an_api_server_that_was_away_meanwhile(monkeypatch):
    monkeypatch.setattr(watch, "PAUSE", 0)
    api = mock.Mock(version=mock.Mock(side_effect=[ApiConnectionLost("it is away"), "v1.30.0"]))

    def take_back(members: Members) -> Members:
        assert api.version.call_count == 2
        return members

    record = mock.Mock(lost="")
    run = Run(mock.Mock(), api, record, mock.Mock(set=False), {}, prove=False, last=take_back)
    batch.finish(run, (Member(Host("a", Ssh("a")), Outcome("a", "right", left=())),))
    assert [call.args[1] for call in record.host.call_args_list] == ["changed", "undone"]


def test_no_host_is_changed_while_others_of_its_batch_are_proven():
    turns = batch.Turns({"a", "b"}, forks=2)
    assert not turns.begin_proof("a")  # b may be free at once
    turns.wait("b")
    assert turns.begin_proof("a")
    changed = threading.Thread(target=turns.take, args=("b",))
    changed.start()
    changed.join(0.05)
    assert changed.is_alive()
    turns.end_proof()
    changed.join(60)
    assert not turns.begin_proof("a")


def test_hosts_that_have_no_fork_while_others_wait_for_work_keep_none_from_its_proof():
    turns = batch.Turns({"a", "b", "c"}, forks=1)
    assert not turns.begin_proof("a")  # the fork takes the next
    turns.wait("b")
    assert turns.begin_proof("a")


def test_hosts_that_end_together_are_proven_together(monkeypatch):
    """The one's connection is still being closed when the other's outcome comes."""
    closing, asked, begin_proof = threading.Event(), threading.Event(), batch.Turns.begin_proof
    closes = {"a": closing.wait, "b": lambda: closing.set() or asked.wait(60)}
    visits = {name: mock.Mock(host=Host(name, Ssh(name)), close=close) for name, close in closes.items()}
    plan = Plan("", (StepPlan("x", (Reboot("why"),)),))
    members = tuple(Member(visits[name].host, Outcome(name, "planned", plan=plan)) for name in "ab")
    monkeypatch.setattr(batch.Turns, "begin_proof", lambda *known: (begin_proof(*known), asked.set())[0])
    monkeypatch.setattr(batch, "_change_host", lambda _run, member, *_, **__: member)
    monkeypatch.setattr(work, "clear", lambda _api, _session, member, *_, **__: member)
    session = Session(mock.Mock(), tuple(mock.Mock() for _ in "abc"), visits, mock.MagicMock(), forks=2)
    run = Run(session, None, mock.Mock(), mock.Mock(), {}, prove=False)
    parts = list(batch._change(run, members))
    assert [[member.host.name for member in part] for part in parts] == [["a", "b"]]


def test_hosts_that_still_wait_are_given_back_by_a_run_that_breaks():
    interrupt, broken = mock.Mock(set=False), mock.Mock(side_effect=RuntimeError)
    run = Run(mock.Mock(), mock.Mock(), mock.Mock(lost=""), interrupt, {}, prove=False, last=broken)
    with pytest.raises(RuntimeError):
        batch.finish(run, (Member(Host("a", Ssh("a")), Outcome("a", "right")),))
    assert run.stopped == replace(batch.BY_INTERRUPT, fix=interrupt.continues)


def test_a_host_that_is_lost_before_its_changes_gives_its_node_back(monkeypatch):
    plan = Plan("a", (StepPlan("x", (Reboot("why"),)),))
    member = Member(Host("a", Ssh("a")), Outcome("a", "planned", plan=plan), node=mock.Mock())
    monkeypatch.setattr(work.cordon, "cordon", lambda *_: None)
    monkeypatch.setattr(work, "wait_for_end", mock.Mock(side_effect=Unreachable("a", "no route")))
    lift = mock.Mock(side_effect=lambda _api, _member, reason, _emit: reason)
    monkeypatch.setattr(work, "lift_cordon", lift)
    api, session, visit, record, emit = (mock.Mock() for _ in range(5))
    after = work.clear(api, session, member, visit, record, emit, stopped=lambda: None)
    assert after.outcome
    assert (after.outcome.status, after.outcome.why, lift.call_count) == ("unreachable", "no route", 1)


@pytest.mark.parametrize(
    ("ended", "ill", "code", "what"),
    [
        (True, "", PAUSED, "the run was interrupted"),
        (False, "etcd is down", control_plane.UNHEALTHY, "the control plane is not healthy: etcd is down"),
    ],
    ids=["after a second Ctrl-C during a proof", "a host of the control plane that fell ill meanwhile"],
)
def test_no_change_begins_where_it_may_not_any_more(monkeypatch, ended: bool, ill: str, code: str, what: str):
    """Once its work has ended, its node is given back."""
    plan = Plan("a", (StepPlan("x", (Reboot("why"),)),))
    node = mock.Mock(labels={"node-role.kubernetes.io/control-plane": ""})
    member = Member(Host("a", Ssh("a")), Outcome("a", "planned", plan=plan), node)
    monkeypatch.setattr(rounds, "converge_host", mock.Mock(side_effect=AssertionError("it was changed")))
    monkeypatch.setattr(work, "lift_cordon", lambda _api, _member, reason, _emit: reason)
    monkeypatch.setattr(control_plane.control_plane, "wait", lambda *_: ill)
    record = mock.Mock(lost="")
    run = Run(mock.Mock(), mock.Mock(), record, mock.Mock(set=ended), {}, prove=False)
    after = batch._change_host(run, member, mock.Mock(), mock.Mock(), cleared=True)
    assert after.reason
    assert not record.host.called
    assert (after.reason.code, after.reason.what) == (code, f"not changed: {what}")
