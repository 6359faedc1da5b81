"""Right before a host's changes: whether pods that were not waited for run by now."""

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gpunode.cluster.api import Api
from gpunode.engine import converge, exit_codes, rounds, work
from gpunode.engine.batch import Run
from gpunode.engine.fleet import Visit
from gpunode.engine.impact import Act
from gpunode.engine.member import PAUSED, Member
from gpunode.errors import ClusterError, Problem
from gpunode.links.node import drain
from gpunode.links.node.drain import Work
from gpunode.model import (
    Event,
    GpuUser,
    Host,
    OnEvent,
    Outcome,
    Plan,
    Reboot,
    Service,
    Ssh,
    StepPlan,
    WriteFile,
)
from tests import cases

HOST = Host("h", Ssh("h"), work="wait", work_timeout=60)
REBOOT = Reboot("why")
SAME = WriteFile("/etc/x", "", "why")


def member(*changes: Any, applied: tuple[Any, ...] = (), idle_pods_left: bool = True) -> Member:
    status = "changed" if applied else "planned"
    plan = Plan("h", (StepPlan("x", changes),))
    outcome = Outcome("h", cast("Any", status), cases.facts("modern"), plan=plan, applied=applied)
    return Member(HOST, outcome, idle_pods_left=idle_pods_left)


def prepared(waiting: Member, stopped: Problem | None = None) -> Member:
    return work.clear_again(None, waiting, cast("Visit", None), lambda _: None, stopped=lambda: stopped)


@pytest.fixture
def waits(monkeypatch) -> Callable[[work.End | ClusterError], list[str]]:
    """How the wait ends; the hosts that it was for."""

    def end(how: work.End | ClusterError) -> list[str]:
        asked: list[str] = []

        def ended(_api: Any, waiting: Member, *_: Any) -> work.End:
            asked.append(waiting.host.name)
            if isinstance(how, ClusterError):
                raise how
            return how

        monkeypatch.setattr(work, "wait_for_end", ended)
        return asked

    return end


@pytest.mark.parametrize(
    "asks",
    [
        member(REBOOT, idle_pods_left=False),
        member(WriteFile("/etc/x", "", "why")),
        member(Service("containerd.service", "why", restart=True)),
    ],
)
def test_a_host_is_asked_again_only_where_pods_were_left_and_a_change_ends_work(
    asks: Member, waits: Callable[..., list[str]]
):
    asked = waits(ClusterError("unasked"))
    assert prepared(asks) is asks
    assert asked == []


@pytest.mark.parametrize("applied", [(), (REBOOT,)])
def test_its_plan_is_the_one_of_its_last_probe(applied: tuple[Any, ...], waits: Callable[..., list[str]]):
    """What was applied in earlier rounds is not forgotten."""
    now = member(WriteFile("/etc/x", "", "why")).outcome
    assert now is not None
    asked = waits(work.End("", now, idle_pods_left=False))
    after = prepared(member(REBOOT, applied=applied))
    assert (asked, after.idle_pods_left) == (["h"], False)
    assert after.outcome == replace(now, status="changed" if applied else "planned", applied=applied)


@pytest.mark.parametrize(
    "how",
    [
        work.End("ml/train", Outcome("h", "planned")),
        ClusterError("the API at x does not answer", hint="See to it."),
    ],
)
def test_work_that_does_not_end_keeps_the_host_from_its_changes(how: Any, waits: Callable[..., list[str]]):
    """It is skipped where nothing is changed yet; else it has failed, and its node stays cordoned."""
    waits(how)
    why = "after 60 s ml/train still used its GPUs" if isinstance(how, work.End) else how.message
    fresh, partly = prepared(member(REBOOT)), prepared(member(REBOOT, applied=(REBOOT,)))
    assert (fresh.reason.subject, fresh.reason.what) == ("h", f"not changed: {why}")
    assert partly.reason is None
    assert (partly.outcome.status, partly.outcome.why) == ("failed", f"not finished: {why}")


def converged(before: Member, accepted: frozenset[Act] = frozenset(), **ready: Any) -> Member:
    return rounds.converge_host(cast("Visit", None), before, accepted, lambda _: None, **ready)


@pytest.mark.parametrize(
    ("set_", "lost", "code", "ends"),
    [
        (True, "", PAUSED, 8),
        (False, "its record cannot be written", rounds.STOPPED, 1),
        (False, "", work.BUSY, 1),
    ],
    ids=["interrupted", "record lost", "time over"],
)
def test_only_the_operator_pauses_a_run(
    waits: Callable[[work.End | ClusterError], list[str]], set_: bool, lost: str, code: str, ends: int
):
    waiting = member(REBOOT)
    assert waiting.outcome
    waits(work.End("ml/train", waiting.outcome))
    run = Run(
        *cast(
            "Any", (None, None, SimpleNamespace(lost=lost), SimpleNamespace(set=set_, continues=""), {}, True)
        )
    )
    after = prepared(waiting, run.stopped)
    assert after.reason
    assert (after.reason.code, exit_codes.of_run([after])) == (code, ends)


@pytest.mark.parametrize("later", [REBOOT, WriteFile("/etc/y", "", "why")])
def test_every_round_asks_before_it_changes_anything(later: Any, monkeypatch):
    """Pods that stood still may run after the first round, which repaired the driver. A plan that is new by then must have
    been accepted, too."""
    done: list[str] = []
    plans = [Plan("h", (StepPlan("x", (later,)),)), Plan("h", ())]

    def apply(_: Visit, outcome: Outcome, *_more: Any) -> Outcome:
        assert outcome.plan is not None
        done.append("apply")
        return replace(outcome, status="changed", applied=outcome.plan.changes, plan=plans.pop(0))

    def ready(waiting: Member) -> Member:
        done.append("ask")
        return waiting

    monkeypatch.setattr(converge, "apply", apply)
    shown = frozenset({("write", "files"), ("reboot", "")})
    after = converged(member(WriteFile("/etc/x", "", "why")), shown, ready=ready)
    assert done == ["ask", "apply", "ask", "apply"]
    assert after.outcome.status == "changed"

    def another(waiting: Member) -> Member:
        return replace(waiting, outcome=member(Service("docker.service", "why", restart=True)).outcome)

    done.clear()
    after = converged(member(SAME), frozenset({("write", "files")}), ready=another)
    assert done == []
    assert after.outcome.why == (
        "the host now needs more than the plan showed: restart docker.service\n  restart docker: why"
    )


@pytest.mark.parametrize(
    ("rounds_of", "why"),
    [
        ([REBOOT], "the host now needs more than the plan showed: reboot\n  reboot: why"),
        (
            [SAME, SAME, SAME],
            "it does not converge: after 3 rounds changes of x are still needed\n  write /etc/x: why",
        ),
    ],
)
def test_a_host_that_stops_between_rounds_ends_with_its_cause(rounds_of: list[Any], why: str, monkeypatch):
    plans = [Plan("h", (StepPlan("x", (change,)),)) for change in rounds_of]
    monkeypatch.setattr(
        converge,
        "apply",
        lambda _, outcome, *_more: replace(outcome, status="changed", plan=plans.pop(0)),
    )
    after = converged(member(SAME), frozenset({("write", "files")}))
    assert (after.outcome.status, after.outcome.why) == ("failed", why)


def test_a_host_that_is_excluded_before_its_changes_is_not_reported_as_failed():
    out = member(REBOOT).exclude(Problem(rounds.STOPPED, "not changed: another plan"))
    assert converged(out) is out


def test_a_pod_that_runs_by_the_time_that_others_have_left_the_gpus_is_waited_for(monkeypatch):
    """Processes outside Kubernetes may take minutes to end; a container that was started meanwhile may have no GPU open yet."""
    stands = Work("ml/train", "u", {"nvidia.com/gpu": 1}, service=False, standstill="CrashLoopBackOff")
    pods, users = [(stands,), (replace(stands, standstill=""),)], [(GpuUser(7, "python3"),), ()]
    monkeypatch.setattr(work, "PROBE_SECONDS", 0)
    monkeypatch.setattr(work, "wait_for_api", lambda *_, **__: None)
    monkeypatch.setattr(drain, "wait", lambda *_, **__: pods.pop(0))
    monkeypatch.setattr(drain, "work_on", lambda *_, **__: ())
    seen = cases.facts("modern")
    monkeypatch.setattr(
        converge, "probe_and_plan", lambda *_: Outcome("h", "planned", replace(seen, gpu_users=users.pop(0)))
    )
    waiting = replace(member(REBOOT), node=cast("Any", SimpleNamespace(name="n")))
    end = work.wait_for_end(cast("Api", object()), waiting, cast("Visit", None), lambda _: None, lambda: None)
    assert (end.left, pods) == ("ml/train", [])


def test_the_probes_of_a_wait_are_no_news_of_its_host(monkeypatch):
    """Only the first, which begins it."""
    users, heard = [(GpuUser(7, "python3"),), ()], list[str]()

    def probe(_: Visit, emit: OnEvent) -> Outcome:
        emit(Event("stage", "h", "probe"))
        return Outcome("h", "planned", replace(cases.facts("modern"), gpu_users=users.pop(0)))

    monkeypatch.setattr(work, "PROBE_SECONDS", 0)
    monkeypatch.setattr(converge, "probe_and_plan", probe)
    work.wait_for_end(
        None,
        member(REBOOT),
        cast("Visit", None),
        lambda event: heard.append(event.message),
        lambda: None,
    )
    assert (heard, users) == (["probe", "waiting for python3 (pid 7) to leave the GPUs"], [])


# --- whether the kubelet's report counts ---


class Cluster:
    """A cluster of one pod that stands still, and its node."""

    def __init__(self, *, ready: str = "True", boot: str = "b1", gone: bool = False) -> None:
        self.ready, self.boot, self.gone = ready, boot, gone

    def find(self, *_: Any, **__: Any) -> tuple[list[dict[str, Any]], str]:
        limits = {"nvidia.com/gpu": "1"}
        status = {"name": "c", "state": {"waiting": {"reason": "CrashLoopBackOff"}}}
        return [
            {
                "metadata": {"name": "p", "uid": "u"},
                "spec": {"containers": [{"name": "c", "resources": {"limits": limits}}]},
                "status": {"phase": "Running", "containerStatuses": [status]},
            }
        ], "1"

    def get(self, *_: Any) -> dict[str, Any] | None:
        conditions = [{"type": "Ready", "status": self.ready}]
        status = {"conditions": conditions, "nodeInfo": {"bootID": self.boot}}
        return None if self.gone else {"metadata": {"name": "n", "uid": "n"}, "status": status}


@pytest.mark.parametrize(
    ("cluster", "standstill"),
    [
        (Cluster(), "CrashLoopBackOff"),
        (Cluster(boot=""), "CrashLoopBackOff"),
        (Cluster(boot="b0"), ""),
        (Cluster(ready="Unknown"), ""),
        (Cluster(ready="False"), ""),
        (Cluster(gone=True), ""),
    ],
)
def test_a_kubelet_that_does_not_report_leaves_it_open_whether_a_pod_runs(cluster: Cluster, standstill: str):
    """Its node is not Ready, or it has not reported since the host's boot: the pod counts as working."""
    work: tuple[Work, ...] = drain.work_on(cast("Api", cluster), "n", "b1")
    assert [pod.standstill for pod in work] == [standstill]


@pytest.mark.parametrize(
    ("waited", "most", "times"),
    [
        (0.2, 1800, "at most 30 min"),
        (35, 1800, "35 s, at most 30 min"),
        (150, 1799.9, "2 min, at most 30 min"),
        (1, 1.5, "1 s, at most 2 s"),
    ],
)
def test_a_wait_says_how_long_it_lasts_and_may_last(waited: float, most: float, times: str):
    job = Work("default/job2", "u", {}, service=False)
    assert drain._progress([job], 1, waited, most) == f"waiting for default/job2: {times}"
