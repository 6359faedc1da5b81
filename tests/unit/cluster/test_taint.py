"""The taint of nodes that are not proven: whose it is, who takes it over, who removes it."""

import time
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gpunode import report
from gpunode.acceptance.stamp import Stamp, read_stamp
from gpunode.cluster.api import Api
from gpunode.commands import provision
from gpunode.contract.condition import ACCEPTED
from gpunode.contract.times import DAY
from gpunode.engine import accepted, batch, cluster_diff, impact, rounds, work
from gpunode.engine import nodes as labelling
from gpunode.engine.batch import Run
from gpunode.engine.batch_order import Size
from gpunode.engine.member import Member, Members
from gpunode.engine.proof import Walk
from gpunode.errors import ApiConnectionLost, ClusterError, Problem
from gpunode.links import node as nodes
from gpunode.links.node import taint
from gpunode.links.plugin.other_owners import OTHER_OWNER
from gpunode.model import (
    Change,
    Cluster,
    Host,
    Inventory,
    LoadImage,
    Outcome,
    Plan,
    PluginImage,
    Reboot,
    Service,
    Ssh,
    StepPlan,
)
from tests import cases, tables

from .conftest import GPU_NODE, add_node
from .fake import FakeApi

RUN, EARLIER = "20261126T001546Z-ab12", "20261125T230000Z-0c0d"
OTHER = {"key": "dedicated", "value": "ml", "effect": "NoSchedule"}

INVENTORY = Inventory("inventory.yaml", (), Cluster())


def of(fake: FakeApi) -> list[dict[str, str]]:
    (node,) = fake.all("Node")
    return list(node["spec"].get("taints") or [])


def own(value: str, effect: str = "NoSchedule") -> dict[str, str]:
    return {"key": "gpunode.dev/unverified", "value": value, "effect": effect}


@pytest.mark.parametrize(
    ("before", "held", "released"),
    [
        ([], [own(RUN)], []),
        ([OTHER], [OTHER, own(RUN)], [OTHER]),
        ([own(EARLIER), OTHER], [OTHER, own(RUN)], [OTHER]),
        ([own("joining")], [own(RUN)], []),
        ([own(RUN)], [own(RUN)], []),
        ([own("burn-in")], [own("burn-in")], [own("burn-in")]),
        ([own(EARLIER, "NoExecute")], [own(EARLIER, "NoExecute"), own(RUN)], [own(EARLIER, "NoExecute")]),
    ],
)
def test_a_run_removes_only_its_own_taint(
    api: Api, fake: FakeApi, before: list[object], held: list[object], released: list[object]
):
    add_node(fake, "a")
    fake.update("Node", "a", spec={"taints": before})
    taint.hold(api, "a", RUN)
    assert of(fake) == held
    taint.release(api, "a", RUN)
    assert of(fake) == released


def test_a_taint_that_another_run_took_over_stays(api: Api, fake: FakeApi):
    add_node(fake, "a")
    taint.hold(api, "a", EARLIER)
    taint.hold(api, "a", RUN)
    taint.release(api, "a", EARLIER)
    assert of(fake) == [own(RUN)]


@pytest.mark.parametrize(("before", "after"), [([], []), ([own(EARLIER)], [own(RUN)])])
def test_a_node_that_is_not_changed_keeps_the_taint_of_an_earlier_run_alone(
    api: Api, fake: FakeApi, before: list[object], after: list[object]
):
    """No pod has proven its GPUs since."""
    add_node(fake, "a")
    fake.update("Node", "a", spec={"taints": before})
    member = Member(Host("a", Ssh("a")), node=nodes.parse(fake.all("Node")[0]))
    taint.hold(api, "a", RUN)
    why = Problem("busy", "its work goes on")
    assert work.lift_cordon(api, member, why, lambda _: None) == why
    assert of(fake) == after


IMAGE = LoadImage("plugin:2", "sha256:2", "plugin.tar", "containerd", "it is not there")
KUBELET = Service("kubelet.service", "its arguments change", restart=True)
CONTAINERD = Service("containerd.service", "its configuration changes", restart=True)
FABRIC = Service("nvidia-fabricmanager.service", "it does not run", restart=True)


@pytest.mark.parametrize(
    ("changes", "labels", "asked", "host", "expected"),
    [
        ([], {}, True, False, True),  # new: no plugin offers its GPUs yet
        ([IMAGE], {}, True, False, True),
        ([], GPU_NODE, True, False, False),  # it runs work already, and nothing changes
        ([IMAGE, KUBELET], GPU_NODE, True, True, False),  # what its GPUs do stays as it was proven
        ([IMAGE, CONTAINERD], GPU_NODE, True, False, True),
        ([FABRIC], GPU_NODE, True, False, True),
        ([Reboot("the driver")], GPU_NODE, False, True, True),  # by its inventory
        ([Reboot("the driver")], {}, False, False, False),
    ],
)
@pytest.mark.parametrize("done", [False, True])
def test_nodes_that_are_new_or_whose_gpus_change_are_tainted(
    api: Api,
    fake: FakeApi,
    changes: list[Change],
    labels: dict[str, str],
    asked: bool,
    host: bool,
    expected: bool,
    done: bool,
):
    """Other changes close no node to pods: with all GPUs in use it could not be proven, nor given back."""
    node, every = nodes.parse(add_node(fake, "a", labels=labels)), tuple(changes)
    outcome = (
        Outcome("a", "changed", applied=every)
        if done
        else Outcome("a", "planned", plan=Plan("a", (StepPlan("packages", changes=every),)))
    )
    member = Member(Host("a", Ssh("a"), taint_until_verified=host), outcome, node)
    assert work.is_tainted_until_proven(member, asked) is expected


def test_a_node_is_tainted_before_its_changes_by_an_api_server_that_goes_away_meanwhile(
    api: Api, fake: FakeApi, monkeypatch
):
    plan = Plan("a", (StepPlan("driver", (Reboot("the driver"),)),))
    member = Member(Host("a", Ssh("a")), Outcome("a", "planned", plan=plan), nodes.parse(add_node(fake, "a")))
    hold, away = taint.hold, iter([ApiConnectionLost("it is away")])

    def hold_or_fail(*given: Any) -> Any:
        for error in away:
            raise error
        return hold(*given)

    monkeypatch.setattr(taint, "hold", hold_or_fail)
    assert work.taint_until_proven(api, member, RUN, True, lambda _: None, changing=True) == member
    assert of(fake) == [own(RUN)]


def accepted_until(fake: FakeApi, until: float, **host: bool) -> Member:
    """A node that runs work, with an acceptance that the inventory requires."""
    stamp = Stamp("standard", "accepted", until - DAY, until, "580", "6.8", "i:1", ("GPU-a",))
    node = add_node(fake, "a", labels=GPU_NODE)
    node["metadata"].setdefault("annotations", {})[ACCEPTED] = stamp.text()
    wanted = {"taint_until_verified": True, "accept_required": True} | host
    return Member(Host("a", Ssh("a"), **wanted), Outcome("a", "right"), nodes.parse(node))


@pytest.mark.parametrize(
    ("ago", "host", "expected"),
    [
        (60.0, {}, True),
        (-60.0, {}, False),
        (-3 * DAY, {}, True),  # dated ahead
        (60.0, {"accept_required": False}, False),
        (60.0, {"taint_until_verified": False}, False),
    ],
)
def test_a_node_whose_required_acceptance_ran_out_is_tainted_again(
    api: Api, fake: FakeApi, ago: float, host: dict[str, bool], expected: bool
):
    """By the inventory alone; one by one, so that never more than a share of the cluster is closed."""
    (member,) = impact.locate(api, [accepted_until(fake, time.time() - ago, **host)], INVENTORY)
    assert work.is_tainted_until_proven(member, asked=True) is expected
    open_nodes = [
        Member(Host(name, Ssh(name)), Outcome(name, "right"), nodes.parse(add_node(fake, name)))
        for name in "bc"
    ]
    order = rounds.order_batches((member, *open_nodes))
    assert [host.name for part in order for host in part] == (
        ["b", "c", "a"] if expected else ["a", "b", "c"]
    )
    assert len(order) == (2 if expected else 1)


@pytest.mark.parametrize("required", [True, False])
def test_the_acceptance_says_whether_the_inventory_requires_one_now(api: Api, fake: FakeApi, required: bool):
    """The plugin's condition goes by it."""
    member = accepted_until(fake, 100.0, accept_required=not required)
    before = read_stamp(member.node.accepted)
    assert before is not None
    fake.update("Node", "a", metadata={"annotations": {ACCEPTED: member.node.accepted}})
    for host in (replace(member.host, accept_required=required), member.host):
        (node,) = nodes.fetch(api)
        labelling.apply_labels(api, [replace(member, host=host, node=node)])
        (node,) = nodes.fetch(api)
        assert read_stamp(node.accepted) == replace(before, required=host.accept_required)


def test_an_acceptance_that_ends_after_the_plan_closes_no_node_of_its_batches(
    api: Api, fake: FakeApi, monkeypatch
):
    """All of a fleet were accepted at once: the batches let no more nodes close than the plan found."""
    planned = [accepted_until(fake, 100.0)]
    monkeypatch.setattr(accepted, "closes_again", lambda *_: False)
    (member,) = impact.find_impact(api, "", planned, impact.locate(api, planned, INVENTORY), strict=True)
    monkeypatch.undo()
    work.taint_until_proven(api, member, RUN, True, lambda _: None, changing=False)
    assert of(fake) == []


@pytest.mark.parametrize(
    ("proves", "before", "after"),
    [(True, [], [own(RUN)]), (False, [], []), (False, [own(EARLIER)], [own(EARLIER)])],
)
def test_without_a_proof_no_node_is_tainted_by_its_inventory(
    api: Api, fake: FakeApi, monkeypatch, proves: bool, before: list[object], after: list[object]
):
    """Nothing would remove the taint, though the run ends well. That of an earlier run stays that run's."""
    add_node(fake, "a")
    fake.update("Node", "a", spec={"taints": before})

    def fail(walk: Walk, members: Members) -> Members:
        return tuple(member.exclude(Problem("failed", "no proof")) for member in walk.taint(members))

    monkeypatch.setattr(batch, "prove", fail)
    session = SimpleNamespace(reporter=report.make(json=True, quiet=True), inventory=None)
    record = SimpleNamespace(
        id=RUN, owner="ada", begun=(), lost="", host=lambda *_: None, marks=lambda *_: None
    )
    run = Run(cast(Any, session), api, cast(Any, record), cast(Any, None), {}, prove=proves)
    outcome = Outcome("a", "changed", applied=(Reboot("the driver"),))
    node = nodes.parse(next(iter(fake.all("Node"))))
    batch.finish(run, (Member(Host("a", Ssh("a"), taint_until_verified=True), outcome, node),))
    assert of(fake) == after


@pytest.mark.parametrize(
    ("proves", "left", "said"),
    [(True, RUN, "`gpunode resume"), (True, EARLIER, ""), (False, EARLIER, "`gpunode provision")],
)
def test_the_end_names_the_command_that_proves_tainted_nodes(
    api: Api, fake: FakeApi, capsys, proves: bool, left: str, said: str
):
    """A run without a proof is resumed without a proof."""
    add_node(fake, "a")
    taint.hold(api, "a", left)
    members = (Member(Host("a", Ssh("a")), Outcome("a", "right"), *nodes.fetch(api)),)
    record, reporter = cast(Any, SimpleNamespace(id=RUN)), report.make(json=True, quiet=True)
    provision._report_tainted(api, record, reporter, members, proves=proves)
    text = capsys.readouterr().out
    assert said in text
    assert bool(said) is ("until their GPUs are verified: a" in text)


@pytest.mark.parametrize(("proves", "taints"), [(True, 1), (False, 0)])
def test_a_plan_without_a_proof_has_no_taint(api: Api, fake: FakeApi, proves: bool, taints: int):
    add_node(fake, "a")
    host = Host("a", Ssh("a"), taint_until_verified=True)
    inventory = Inventory("inventory.yaml", (host,), Cluster(plugin=PluginImage("plugin:1")))
    outcome = Outcome("a", "right", replace(cases.facts("modern"), hostname="a"))
    reporter = report.make(json=True, quiet=True)
    shown = cluster_diff.plan(api, inventory, [Member(host, outcome)], reporter, run=proves)
    assert shown.tainted == taints


def test_hosts_whose_nodes_are_tainted_already_go_first(api: Api, fake: FakeApi):
    """Later, more nodes than a batch holds would be closed at once."""
    for name in "abc":
        add_node(fake, name, labels=GPU_NODE)
    taint.hold(api, "c", EARLIER)
    members = [
        Member(Host(node.name, Ssh(node.name)), Outcome(node.name, "right"), node)
        for node in nodes.fetch(api)
    ]
    order = rounds.order_batches(members, size=Size(1))
    assert [host.name for part in order for host in part] == ["c", "a", "b"]


ML, SPOT = "dedicated=ml:NoSchedule", "spot:PreferNoSchedule"
SPOTS = {"key": "spot", "effect": "PreferNoSchedule"}


def noted(fake: FakeApi) -> str | None:
    (node,) = fake.all("Node")
    return node["metadata"].get("annotations", {}).get("gpunode.dev/taints")


@pytest.mark.parametrize(
    ("before", "note", "desired", "after", "noted_after"),
    [
        ([], None, [ML, SPOT], [OTHER, SPOTS], f"{ML},{SPOT}"),
        ([own(RUN)], None, [ML], [own(RUN), OTHER], ML),
        ([OTHER, SPOTS], f"{ML},{SPOT}", [SPOT], [SPOTS], SPOT),
        ([OTHER], ML, [], [], None),
        ([OTHER], ML, ["dedicated=ai:NoSchedule"], [{**OTHER, "value": "ai"}], "dedicated=ai:NoSchedule"),
        ([OTHER], None, [ML], [OTHER], None),  # a user's own stays a user's
        ([OTHER], None, [], [OTHER], None),
        ([], ML, [ML], [OTHER], ML),  # a user took it off
        ([], ML, [], [], None),  # and the inventory, too: one that a user sets later is a user's
    ],
)
def test_taints_of_the_inventory_come_and_go_and_others_stay(
    api: Api,
    fake: FakeApi,
    before: list[object],
    note: str | None,
    desired: list[str],
    after: list[object],
    noted_after: str | None,
):
    add_node(fake, "a")
    annotations = {"gpunode.dev/taints": note} if note else {}
    fake.update("Node", "a", spec={"taints": before}, metadata={"annotations": annotations})
    (item,) = fake.all("Node")
    taint.write(api, nodes.parse(item), desired)
    assert (of(fake), noted(fake)) == (after, noted_after)
    (item,) = fake.all("Node")
    assert taint.compare(nodes.parse(item), desired) == ((), ())


def test_a_taint_that_another_client_set_otherwise_is_a_conflict(api: Api, fake: FakeApi):
    add_node(fake, "a")
    fake.update("Node", "a", spec={"taints": [OTHER]})
    (item,) = fake.all("Node")
    with pytest.raises(
        ClusterError, match="set the taint dedicated=ml:NoSchedule, the inventory has"
    ) as error:
        taint.write(api, nodes.parse(item), ["dedicated=ai:NoSchedule"])
    assert "kubectl taint node a dedicated=ml:NoSchedule-" in error.value.hint
    assert of(fake) == [OTHER]


@tables.rows("tainted-batches")
def test_a_batch_that_would_taint_too_many_nodes_is_not_begun(
    api: Api, fake: FakeApi, percent: int, tainted: str, batch: str, stopped: bool
):
    for name in "abcde":
        add_node(fake, name, labels={} if name == "e" else GPU_NODE)
    for name in tainted:
        taint.hold(api, name, EARLIER)
    known = {node.name: node for node in nodes.fetch(api)}
    members = tuple(
        Member(Host(name, Ssh(name)), Outcome(name, "changed", applied=(CONTAINERD,)), known[name])
        for name in batch
    )
    why = work.too_many_tainted(api, members, True, percent)
    assert bool(why) is stopped
    assert not why or f"cluster.max_tainted: {percent}%" in why


def test_the_question_has_the_taints():
    planned = Member(Host("a", Ssh("a")), Outcome("a", "planned"))
    assert "1 node tainted until verified" in rounds.costs([planned], 1, tainted=1)


@pytest.mark.parametrize(
    ("code", "run", "left"),
    [("", RUN, []), ("", "", [own(RUN)]), ("failed", RUN, [own(RUN)]), (OTHER_OWNER, RUN, [])],
)
def test_a_proven_node_loses_the_taint_and_one_that_a_dra_driver_owns(
    api: Api, fake: FakeApi, code: str, run: str, left: list[object]
):
    """Without pods nothing is proven; what is not gpunode's to prove is not kept from its owner's pods."""
    add_node(fake, "a")
    taint.hold(api, "a", RUN)
    (item,) = fake.all("Node")
    member = Member(Host("a", Ssh("a")), Outcome("a", "right"), nodes.parse(item))
    work.release(api, (member.exclude(Problem(code, "why") if code else None),), run)
    assert of(fake) == left
