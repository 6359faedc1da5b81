"""Labels and taints of nodes after the undo of a run: as before it, others' and later ones stay, an undo can be undone."""

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal
from unittest import mock

import pytest

from gpunode.cluster.api import Api
from gpunode.cluster.api.connection import Connection
from gpunode.cluster.objects import apply, difference
from gpunode.commands import forget
from gpunode.commands import undo as undoing
from gpunode.contract.condition import ACCEPTED
from gpunode.engine import batch, history, nodes, record, rollout, undo_cluster, work
from gpunode.engine.member import Member
from gpunode.engine.record import Record, RunOptions
from gpunode.errors import ApiConnectionLost, ClusterError
from gpunode.links import node as links
from gpunode.links.node import cordon, taint
from gpunode.links.plugin import daemonset
from gpunode.model import (
    Change,
    Cluster,
    Host,
    Inventory,
    KernelModule,
    Left,
    Outcome,
    Packages,
    Plan,
    Ssh,
    StepPlan,
    Title,
    WriteFile,
)
from tests.unit.test_undo import there

from .conftest import add_node, pod
from .fake import FakeApi, Fault

BEFORE = Host("a", Ssh("a"), labels={"tier": "a", "old": "1"}, taints=("gpu=yes:NoSchedule",))
AFTER = Host("a", Ssh("a"), labels={"tier": "b", "new": "1"}, taints=("gpu=yes:NoSchedule", "lab:NoExecute"))
OWN = "gpunode.dev/gpu"
REMOVAL = Packages("", remove=("nvidia-container-toolkit",), purge=True)


def node(api: Api) -> links.Node:
    return links.parse(api.get("Node", "a") or {})


def state(api: Api) -> tuple[dict[str, str], list[str], list[str]]:
    item = api.get("Node", "a") or {}
    kept = {key: value for key, value in item["metadata"]["labels"].items() if "kubernetes.io" not in key}
    taints = [f"{each['key']}:{each['effect']}" for each in item["spec"].get("taints") or []]
    notes = [
        key for key in item["metadata"].get("annotations") or {} if not key.startswith("gpunode.dev/applied")
    ]
    return kept, taints, notes


class Runs:
    """Runs of gpunode on node a, each with its record."""

    def __init__(self, api: Api) -> None:
        self.api = api

    def begin(self, *hosts: str) -> Record:
        return Record.begin(Path("i.yaml"), hosts or ["a"], RunOptions())

    def provision(self, host: Host) -> record.RecordedRun:
        made = self.begin()
        members = nodes.apply_labels(self.api, [Member(host, node=node(self.api))], note=made.marks)
        assert members[0].reason is None
        return history.read(made.path)

    def undo(self, run: record.RecordedRun, *applied: Change) -> tuple[record.RecordedRun, Member]:
        made = self.begin()
        outcome = Outcome("a", "changed" if applied else "right", there(), applied=applied)
        member = Member(AFTER, outcome, node(self.api))
        after = undo_cluster.take_back(self.api, run, member, made, lambda _: None)
        return history.read(made.path), after


@pytest.fixture
def runs(api: Api, fake: FakeApi, tmp_path) -> Runs:
    """Of an API server without server-side apply. The simulation has one with it (tests/sim/test_undo.py)."""
    fake.minor = 9
    add_node(fake, "a", labels={"rack": "7"})
    return Runs(api)


def test_an_undone_node_is_as_before_and_after_its_undo_as_the_run_left_it(runs: Runs):
    bare = state(runs.api)
    first = runs.provision(BEFORE)
    before = state(runs.api)
    second = runs.provision(AFTER)
    after = state(runs.api)
    assert undo_cluster.plan(second.marks, node(runs.api)).lines == (
        "-new=1",
        "+old=1",
        "-tier=b",
        "+tier=a",
        "-lab:NoExecute",
    )
    undone, member = runs.undo(second)
    assert (member.reason, state(runs.api)) == (None, before)
    again, _ = runs.undo(undone)
    assert state(runs.api) == after
    runs.undo(again)
    annotations = {"gpunode.dev/device-plugin": "{}", "note": "n"}
    runs.api.merge("Node", "a", {"metadata": {"annotations": annotations}}, manager="kubectl")
    runs.undo(first)
    assert state(runs.api) == (*bare[:2], ["note"])


def test_what_was_changed_since_stays_and_is_named(runs: Runs):
    runs.provision(BEFORE)
    run = runs.provision(AFTER)
    runs.provision(Host("a", Ssh("a"), labels={"tier": "c", "new": "1"}))
    planned = undo_cluster.plan(run.marks, node(runs.api))
    assert planned.left == (Left("kept", "tier=c of node a", "changed since the run"),)
    runs.undo(run)
    assert state(runs.api)[0] == {"rack": "7", OWN: "true", "tier": "c", "old": "1"}


def test_a_later_runs_taints_and_the_acceptance_stay_and_keep_their_notes(runs: Runs):
    first = runs.provision(BEFORE)
    second = runs.provision(Host("a", Ssh("a"), taints=("gpu=yes:NoSchedule", "lab:NoExecute")))
    runs.api.merge("Node", "a", {"metadata": {"annotations": {ACCEPTED: "{}"}}}, manager="gpunode")
    runs.undo(first)
    assert state(runs.api)[1:] == (["lab:NoExecute"], [links.TAINTS, ACCEPTED])
    assert node(runs.api).own_taints == ("lab:NoExecute",)
    runs.undo(second)
    assert state(runs.api)[1:] == ([], [ACCEPTED])


def test_a_plugin_that_the_undo_paused_goes_with_the_label_that_the_run_brought(runs: Runs):
    run = runs.provision(BEFORE)
    daemonset.pause(runs.api, "gpunode", node(runs.api), nodes.desired_labels(BEFORE), "us", lambda _: None)
    again = runs.provision(BEFORE)  # as a run goes on after its driver's change
    assert again.marks == ()
    daemonset.pause(runs.api, "gpunode", node(runs.api), nodes.desired_labels(BEFORE), "us", lambda _: None)
    runs.undo(run)
    assert state(runs.api) == ({"rack": "7"}, [], [])


@pytest.mark.parametrize(("status", "open_"), [("changed", True), ("failed", False)])
def test_an_undone_node_takes_pods_again_and_one_that_failed_stays_closed(
    runs: Runs, status: Literal["changed", "failed"], open_: bool
):
    run = runs.provision(BEFORE)
    cordon.cordon(runs.api, "a", "us")
    stage = undo_cluster.make_stage(mock.Mock(), runs.api, runs.begin(), run)
    (after,) = stage((Member(BEFORE, Outcome("a", status, there()), node(runs.api)),))
    assert after.reason is None
    assert (cordon.owners(runs.api) == {}) is open_


def stop_kubelet(runs: Runs, fake: FakeApi) -> None:
    item = runs.api.get("Node", "a") or {}
    item["status"]["conditions"][0]["status"] = "False"
    fake.put(item)


@pytest.fixture
def stuck(runs: Runs, fake: FakeApi, monkeypatch) -> links.Node:
    """Node a, cordoned, whose plugin's pod does not end."""
    monkeypatch.setattr(daemonset, "PAUSE_SECONDS", 0)
    runs.provision(BEFORE)
    cordon.cordon(runs.api, "a", "us")
    fake.put(pod("plugin", node="a", labels={daemonset.NAME_LABEL: daemonset.NAME}))
    return node(runs.api)


@pytest.mark.parametrize(
    ("ready", "applied", "status", "reason", "label"),
    [
        (True, (), "planned", "not changed: the device plugin did not leave", "true"),
        (False, (), "planned", None, "paused"),
        (True, (REMOVAL,), "failed", None, "paused"),
    ],
)
def test_forget_changes_no_host_whose_plugin_stays_unless_the_kubelet_is_down(
    runs: Runs,
    fake: FakeApi,
    stuck: links.Node,
    ready: bool,
    applied: tuple[Change, ...],
    status: str,
    reason: str | None,
    label: str,
):
    """Its pod could not be ended once its runtime is gone. What counts is the kubelet of now. One that is partly changed stays closed."""
    if not ready:
        stop_kubelet(runs, fake)
    member = Member(BEFORE, Outcome("a", "planned", applied=applied), stuck)
    after = forget._leave(runs.api, "gpunode", member, runs.begin(), False, lambda _: None)
    assert after.outcome.status == status
    assert after.reason is None if reason is None else after.reason and after.reason.what.startswith(reason)
    assert node(runs.api).labels[OWN] == label
    assert (cordon.TAINT in node(runs.api).taints) is (label == "paused")


@pytest.mark.parametrize(
    ("ready", "reason", "label"),
    [(True, "not changed: the device plugin did not leave", "true"), (False, None, "paused")],
)
def test_an_undo_removes_no_toolkit_while_the_plugin_stays_unless_the_kubelet_is_down(
    runs: Runs, fake: FakeApi, stuck: links.Node, monkeypatch, ready: bool, reason: str | None, label: str
):
    """Though its pod has no GPU open. A node that was uncordoned while its work ended is cordoned again."""
    if not ready:
        stop_kubelet(runs, fake)
    plan = Plan("a", (StepPlan("undo", (REMOVAL,)),))
    outcome = Outcome("a", "planned", there(nvidia_container_toolkit="2"), plan=plan)

    def wait_for_end(*_: object) -> work.End:
        cordon.uncordon(runs.api, "a")
        return work.End("", outcome)

    monkeypatch.setattr(work, "wait_for_end", wait_for_end)
    monkeypatch.setattr(work.converge, "probe_and_plan", lambda *_: outcome)
    session = mock.Mock(inventory=Inventory("", (), Cluster()))
    member = Member(BEFORE, outcome, stuck)
    after = work.clear(
        runs.api, session, member, mock.Mock(), runs.begin(), lambda _: None, stopped=lambda: None
    )
    assert after.reason is None if reason is None else after.reason and after.reason.what.startswith(reason)
    assert node(runs.api).labels[OWN] == label
    assert (cordon.TAINT in node(runs.api).taints) is (label == "paused")


@pytest.mark.parametrize(
    "outcome", [Outcome("a", "changed", applied=(REMOVAL,), left=()), Outcome("a", "right", left=()), None]
)
def test_a_plugin_that_stays_keeps_no_mark_of_a_host_that_is_forgotten(
    runs: Runs, stuck: links.Node, outcome: Outcome | None
):
    """Nor of one that has left the inventory."""
    session = mock.Mock(inventory=Inventory("", (), Cluster()))
    member = Member(BEFORE if outcome else Host("a", Ssh("a")), outcome, stuck)
    (after,) = forget._take_marks(runs.api, session, (member,), runs.begin(), False)
    assert after.reason is None
    assert state(runs.api) == ({"rack": "7"}, [], [])
    assert cordon.owners(runs.api) == {}


@pytest.mark.parametrize("way", ["undo", "forget"])
def test_a_node_is_taken_back_by_an_api_server_that_goes_away_meanwhile(runs: Runs, monkeypatch, way: str):
    """At any step. With its answer, a step may be made and not known to be."""
    send = Connection.send
    for cut in range(1, 99):
        run = runs.provision(BEFORE)
        cordon.cordon(runs.api, "a", "us")
        steps = itertools.count(1)

        def lose(*given: Any, steps: Iterator[int] = steps, cut: int = cut, **more: Any) -> Any:
            answer = send(*given, **more)
            if next(steps) == cut:
                raise ApiConnectionLost("it is away")
            return answer

        session, outcome = mock.Mock(inventory=Inventory("", (), Cluster())), Outcome("a", "right", left=())
        members = (Member(BEFORE, outcome, node(runs.api)),)
        monkeypatch.setattr(Connection, "send", lose)
        if way == "undo":
            (after,) = undo_cluster.make_stage(mock.Mock(), runs.api, runs.begin(), run)(members)
        else:
            (after,) = forget._take_marks(runs.api, session, members, runs.begin(), False)
        monkeypatch.setattr(Connection, "send", send)
        assert (after.reason, state(runs.api), cordon.owners(runs.api)) == (None, ({"rack": "7"}, [], []), {})
        if next(steps) <= cut:
            break


@pytest.mark.parametrize(
    ("applied", "waited"),
    [
        ((), False),
        ((WriteFile("/etc/x", "", "x"),), False),
        ((KernelModule("", unload=("nvidia",)),), True),
        ((REMOVAL,), True),
    ],
)
def test_a_node_whose_gpus_are_in_use_keeps_the_plugin_unless_changes_waited_for_that(
    runs: Runs, fake: FakeApi, applied: tuple[Change, ...], waited: bool
):
    run = runs.provision(BEFORE)
    before = state(runs.api)
    work_there: dict[str, Any] = pod("train", node="a", gpus=1)
    fake.put(work_there)
    _, member = runs.undo(run, *applied)
    if waited:
        assert (member.reason, state(runs.api)[0]) == (None, {"rack": "7"})
        return
    assert (member.reason.code, state(runs.api)) == (work.BUSY, before)
    assert batch.end_state(member)[0] == "skipped"


@pytest.mark.parametrize(
    ("before", "after"),
    [("joining", ""), ("20261125T230000Z-0c0d", "20261125T230000Z-0c0d")],
)
def test_the_taint_of_an_earlier_run_that_the_run_took_over_is_back(runs: Runs, before: str, after: str):
    """Nothing has proven the GPUs since. A kubelet's was of the run's own making."""
    runs.provision(BEFORE)
    taint.hold(runs.api, "a", before)
    made = runs.begin()
    run = batch.Run(mock.Mock(), runs.api, made, mock.Mock(), {}, prove=True, taint=True)
    for changing in (False, True):
        run.hold_taint(
            Member(BEFORE, Outcome("a", "right"), node(runs.api)), lambda _: None, changing=changing
        )
    assert taint.run_of(node(runs.api)) == made.id
    recorded = history.read(made.path)
    planned = undo_cluster.plan(recorded.marks, node(runs.api))
    assert (planned.lines, planned.left) == ((), ())
    runs.undo(recorded)
    assert taint.run_of(node(runs.api)) == after


CLASS = {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "handler": "nvidia"}
META = {"name": "nvidia", "labels": {"app.kubernetes.io/managed-by": "gpunode"}}


def runtime_class(text: str) -> dict[str, Any]:
    return {**CLASS, "metadata": {**META, "annotations": {"text": text}}}


def apply_recorded(runs: Runs, manifest: dict[str, Any], *hosts: str) -> record.RecordedRun:
    made = runs.begin(*hosts)
    made.cluster([change for change in apply.diff(runs.api, [manifest]) if change.action != "same"], {})
    apply.apply(runs.api, [manifest])
    return history.read(made.path)


def text(api: Api) -> str | None:
    live = api.get("RuntimeClass", "nvidia")
    return live["metadata"]["annotations"]["text"] if live else None


def undo_objects(runs: Runs, run: record.RecordedRun) -> tuple[record.RecordedRun, list[str]]:
    made, planned = runs.begin(), undo_cluster.plan_cluster(runs.api, run, (), objects=True)
    made.cluster(planned.changes, {})
    undo_cluster.restore_objects(runs.api, run, planned.objects, seconds=9, notify=lambda _: None)
    assert planned.known == {Title("RuntimeClass", "nvidia")}
    return history.read(made.path), [left.why for left in planned.left]


@pytest.mark.parametrize(
    ("others", "since", "texts", "why"),
    [
        (False, "", ["1", None, "1"], []),
        (True, "", ["1", "1", "1"], ["it serves b"]),
        (False, "3", ["3", "3", "3"], ["changed since the run"]),
    ],
)
def test_objects_are_as_before_and_stay_where_they_serve_others_or_were_changed_since(
    runs: Runs, fake: FakeApi, others: bool, since: str, texts: list[str | None], why: list[str]
):
    """The first run made it, the second changed it."""
    fake.minor = 36
    if others:
        add_node(fake, "b", labels={OWN: "true"})
    first, second = (apply_recorded(runs, runtime_class(each)) for each in "12")
    if since:
        apply.apply(runs.api, [runtime_class(since)])
    seen = []
    undo_objects(runs, second)
    seen.append(text(runs.api))
    undone, left = undo_objects(runs, first)
    seen.append(text(runs.api))
    if undone.objects:
        undo_objects(runs, undone)
    seen.append(text(runs.api))
    assert (seen, left) == (texts, why)


@pytest.mark.parametrize(("number", "why"), [(1, "changed since the run"), (0, "it serves b")])
def test_an_object_that_was_changed_or_serves_others_since_the_plan_stays(
    runs: Runs, fake: FakeApi, number: int, why: str
):
    fake.minor = 36
    made = [apply_recorded(runs, runtime_class(each)) for each in "12"[: number + 1]]
    shown = undo_cluster.plan_cluster(runs.api, made[number], (), objects=True).objects
    assert shown
    if number:
        apply.apply(runs.api, [runtime_class("3")])
    else:
        add_node(fake, "b", labels={OWN: "true"})
    now = text(runs.api)
    with pytest.raises(ClusterError, match=f"RuntimeClass nvidia stays: {why}"):
        undo_cluster.restore_objects(runs.api, made[number], shown, seconds=9, notify=lambda _: None)
    assert text(runs.api) == now


def test_others_fields_of_an_object_stay_as_they_are_now(runs: Runs, fake: FakeApi):
    """Fields that the run took away come back, and go with the undo of the undo."""
    fake.minor = 14

    def note(value: str) -> None:
        fields = {"metadata": {"annotations": {"note": value}}}
        runs.api.merge("RuntimeClass", "nvidia", fields, manager="kubectl")

    def notes() -> dict[str, str]:
        live = runs.api.get("RuntimeClass", "nvidia") or {}
        return dict(difference.as_manifest(live)["metadata"]["annotations"])

    own = runtime_class("1")
    own["metadata"]["annotations"]["gone"] = "1"
    apply_recorded(runs, own)
    note("before")
    second = apply_recorded(runs, runtime_class("2"))
    note("since")
    undone, _ = undo_objects(runs, second)
    assert notes() == {"text": "1", "gone": "1", "note": "since"}
    undo_objects(runs, undone)
    assert notes() == {"text": "2", "note": "since"}


def test_an_object_with_a_secret_is_not_recorded(runs: Runs, fake: FakeApi):
    fake.minor = 36
    assert apply_recorded(runs, runtime_class("a")).objects
    assert apply_recorded(runs, runtime_class("password=hunter2hunter2")).objects == ()


@pytest.mark.parametrize("ended", ["undone", "kept"])
def test_a_resumed_undo_has_the_objects_if_its_run_has_undone_the_other_hosts(
    runs: Runs, fake: FakeApi, tmp_path, monkeypatch, ended: record.State
):
    """Also after a second kill. Its record has how each of them ended."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    fake.minor = 36
    run = apply_recorded(runs, runtime_class("1"), "a", "b")
    inventory = Inventory(str(tmp_path / "i.yaml"), tuple(Host(name, Ssh(name)) for name in "ab"), Cluster())
    session = mock.Mock(inventory=inventory, hosts=inventory.hosts[1:])
    undo = runs.begin("a", "b")
    assert not undo_cluster.show_plan(session, runs.api, (), (), run, ()).objects
    undo.host("a", ended, "why")
    for _ in range(2):
        options = undoing.UndoOptions.of_recorded_run(history.read(undo.path), yes=True, now=0)
        assert (options.rest, [*options.undone]) == (("b",), ["a"])
        assert undo_cluster.show_plan(session, runs.api, (), (), run, options.undone).objects
        known = RunOptions(undo=run.id)
        undo = rollout.begin_record(session, (), known, rest=options.rest, undone=options.undone)
    progress = history.read(undo.path).hosts["a"]
    assert (progress.state, progress.why) == (ended, "why")


@pytest.mark.parametrize(("noted", "left"), [(False, ["its earlier state was not recorded"]), (True, [])])
def test_an_undo_names_labels_whose_state_before_no_record_has(runs: Runs, noted: bool, left: list[str]):
    """As of an older gpunode, which recorded no marks. Where there are some, a node without any was left as it is."""
    made = runs.begin()
    made.cluster([difference.labelling("a", {"tier": (None, "b")})], {"a": "a"})
    made.host("a", "proven")
    if noted:
        made.marks("b", "us", {}, {"tier": "b"})
    session = mock.Mock(inventory=Inventory("", (BEFORE,), Cluster()), hosts=(BEFORE,))
    undo_cluster.show_plan(session, None, (), (), history.read(made.path), ())
    assert [row[3] for row in session.reporter.rows.call_args.args[2]] == left


@pytest.mark.parametrize(("why", "refused"), [("", False), ("", True), ("it was paused", False)])
def test_objects_that_an_undo_could_not_restore_make_it_fail(
    runs: Runs, fake: FakeApi, why: str, refused: bool
):
    fake.minor = 36
    run = apply_recorded(runs, runtime_class("1"))
    changes = undo_cluster.plan_cluster(runs.api, run, (), objects=True).objects
    if refused:
        fake.fail("DELETE", "runtimeclasses/nvidia", Fault(403, "Forbidden", "no"))
    done = undo_cluster.restore(runs.api, mock.Mock(), why, (), run, changes)
    assert (done, text(runs.api)) == ((True, None) if not (why or refused) else (False, "1"))


@pytest.mark.parametrize(
    ("status", "first"),
    [("changed", "Undone: b. No change needed: a. "), ("failed", "No change needed: a. ")],
)
def test_the_end_of_an_undo_names_the_hosts_that_it_has_changed(
    status: Literal["changed", "failed"], first: str
):
    reporter = mock.Mock()
    partly = Member(Host("b", Ssh("b")), Outcome("b", status, applied=(REMOVAL,), left=()))
    undoing.report_undone((partly, Member(BEFORE, Outcome("a", "right", left=()))), (), reporter)
    assert str(reporter.note.call_args_list[0].args[0]).startswith(f"{first}An undo does not verify")


@pytest.mark.parametrize(
    ("labelled", "objects", "kept"),
    [(True, False, frozenset[str]()), (False, True, frozenset[str]()), (False, False, frozenset({"a"}))],
)
def test_a_host_whose_cluster_changes_is_undone_though_all_on_the_host_stays(
    runs: Runs, labelled: bool, objects: bool, kept: frozenset[str]
):
    """Its labels came with the run as its files did, and so did the cluster's objects."""
    stays = Outcome("a", "right", left=(Left("kept", "/etc/a", "changed since the run"),), kept=True)
    planned = undo_cluster.ClusterPlan(
        {"a": undo_cluster.NodePlan({}, ("-tier=a",) if labelled else (), ())},
        (mock.Mock(),) if objects else (),
    )
    assert undoing.kept_hosts((Member(BEFORE, stays, node(runs.api)),), planned) == kept
