"""If a scheduler does not come back, its earlier configuration is restored."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest

from gpunode.cluster import control_plane
from gpunode.commands import share_enable as share
from gpunode.commands import share_inspect as shares
from gpunode.commands import unscheduled_pods as strays
from gpunode.contract.usage import Gpu, User
from gpunode.engine.member import Member
from gpunode.errors import AgentFailed, ClusterError, Problem
from gpunode.links.plugin.usage import NodeUsage
from gpunode.links.scheduler import plan
from gpunode.links.scheduler.allocations import Mismatch, Real
from gpunode.links.scheduler.configuration import MANIFEST
from gpunode.model import Cluster, Host, Inventory, Outcome, SecondScheduler, Share, Ssh
from tests import cases
from tests.share.objects import MEM, pod
from tests.share.objects import node as memory_node
from tests.unit.test_schedulers import KUBEADM, WANTED, after, content, files


@pytest.mark.parametrize("end", ["it is not Ready yet", KeyboardInterrupt()], ids=["late", "Ctrl-C"])
def test_a_scheduler_that_does_not_come_back_is_put_back(monkeypatch, end: str | BaseException):
    """Byte for byte, also where the wait is interrupted; the words say so."""
    text = KUBEADM.replace("{minor}", "36")
    state = files(manifest=text)
    before = dict(state)
    changes, volume = plan.enable(state, 36, WANTED)
    notes: list[str] = []

    def again(_session: Any, each: Member) -> Member:
        assert each.outcome is not None
        assert each.outcome.facts is not None
        return replace(each, outcome=replace(each.outcome, facts=replace(each.outcome.facts, files=state)))

    def made(session: Any, each: Member) -> Member:
        nonlocal state
        state = after(state, each.changes)
        return again(session, each)

    def came_back(_api: Any, node: str, waited: str, _reporter: Any) -> str:
        assert (node, waited) == ("cp-1", volume)
        assert content(state, MANIFEST) != text
        if isinstance(end, BaseException):
            raise end
        return end

    monkeypatch.setattr(share, "_make", made)
    monkeypatch.setattr(share, "_inspect", again)
    monkeypatch.setattr(share.deployment, "wait_for_scheduler", came_back)
    facts = replace(cases.facts("modern"), files=state)
    member = share._with_plan(Member(cases.host("cp-1"), Outcome("cp-1", "refused", facts)), changes)
    session: Any = SimpleNamespace(reporter=SimpleNamespace(note=notes.append))
    api: Any = None
    with pytest.raises((AgentFailed, KeyboardInterrupt)) as caught:
        share._apply(session, api, member, volume)

    words = getattr(caught.value, "message", notes[-1])
    assert "its earlier configuration was restored" in words
    assert state == before


def test_every_scheduler_of_the_cluster_is_known():
    """By their pods, and by the labels of the control plane's nodes: one that was not inspected may ask the extender."""
    label = {"node-role.kubernetes.io/control-plane": ""}
    schedulers = {
        "Pod": [{"spec": {"nodeName": "cp-1"}}, {"spec": {}}],
        "Node": [
            {"metadata": {"name": "cp-3", "labels": label}},
            {"metadata": {"name": "gpu-1", "labels": {}}},
        ],
    }
    api: Any = SimpleNamespace(find=lambda kind, *_, **__: (schedulers[kind], ""))
    assert control_plane.schedulers(api) == {"cp-1", "cp-3"}


@pytest.mark.parametrize("there", [{"cp-1"}, {"cp-1", "cp-2"}])
def test_all_schedulers_are_changed_or_none(monkeypatch, there: set[str]):
    """One that is not among the hosts would go on asking an extender that is removed."""
    host = replace(cases.host("cp-1"), control_plane=True)
    facts = replace(cases.facts("modern"), files=files(manifest=KUBEADM))
    member = Member(host, Outcome("cp-1", "right", facts))
    monkeypatch.setattr(control_plane, "schedulers", lambda _api: there)
    node: Any = SimpleNamespace(name="cp-1")
    monkeypatch.setattr(
        share.nodes, "locate", lambda _api, members, **_: [replace(each, node=node) for each in members]
    )
    reporter = SimpleNamespace(failures=lambda _: None, note=None)
    session: Any = SimpleNamespace(
        for_each_host=lambda _: [member],
        reporter=reporter,
        inventory=Inventory("", (), Cluster(share=Share())),
    )
    api: Any = None
    if there == {"cp-1"}:
        assert [scheduler.host.name for scheduler in share._schedulers(session, api)[0]] == ["cp-1"]
    else:
        with pytest.raises(ClusterError, match="cp-2 were not inspected"):
            share._schedulers(session, api)


@pytest.mark.parametrize(
    ("there", "asking"), [((), ()), (("Deployment gpunode-share",), ()), ((), ("cp-1",))]
)
def test_disable_where_nothing_is_enabled_says_so_and_visits_no_host(
    monkeypatch, there: tuple[str, ...], asking: tuple[str, ...]
):
    """Objects in the cluster, or a scheduler that asks, are something."""

    def visited(_: object) -> Any:
        raise ClusterError("hosts are visited")

    monkeypatch.setattr(share.rights, "demand", lambda *_: None)
    monkeypatch.setattr(share.apply, "find_removable", lambda *_, **__: there)
    pods = [{"spec": {"nodeName": name, "volumes": [{"name": plan.VOLUME}]}} for name in asking]
    api: Any = SimpleNamespace(
        find=lambda *_, **__: (pods, ""), get=lambda *_: None, served=SimpleNamespace(has=lambda _: True)
    )
    reporter = mock.Mock()
    session: Any = SimpleNamespace(
        inventory=Inventory("", (), Cluster(share=Share())), reporter=reporter, for_each_host=visited
    )
    held: Any = None
    if there or asking:
        with pytest.raises(ClusterError, match="hosts are visited"):
            share._disable(session, api, held, yes=False)
        return
    assert share._disable(session, api, held, yes=False) == 0
    assert reporter.total.call_args.args[0].startswith("nothing to disable")


@pytest.mark.parametrize(
    ("simulated", "words"),
    [(True, "This cluster is simulated"), (False, "Add the hosts of the control plane")],
)
def test_where_no_host_has_a_scheduler_it_is_said_whether_one_could(monkeypatch, simulated: bool, words: str):
    """In a demo none can: what it shows of sharing is named."""
    monkeypatch.setattr(share.nodes, "locate", lambda _api, members, **_: members)
    reporter = SimpleNamespace(failures=lambda _: None, note=None)
    session: Any = SimpleNamespace(for_each_host=lambda _: [], reporter=reporter)
    api: Any = SimpleNamespace(simulated=simulated)
    with pytest.raises(ClusterError) as caught:
        share._schedulers(session, api)
    assert caught.value.hint.startswith(words)


@pytest.mark.parametrize(
    ("mismatches", "repair", "total"),
    [
        ([], False, "nothing is wrong; 1 of 4 nodes compared with their kubelets"),
        (
            [Mismatch(Problem("x", "y", subject="n1"), "a/b", {"k": "v"})],
            False,
            "1 finding; --repair can fix 1; 1 of 4 nodes",
        ),
        (
            [Mismatch(Problem("x", "y", subject="n1"), "a/b", {"k": "v"})],
            True,
            "1 finding; 1 repaired; 1 of 4 nodes",
        ),
        (
            [Mismatch(Problem("x", "y", subject="n2"))] * 2,
            True,
            "2 findings; none can be repaired by annotations",
        ),
    ],
)
def test_fsck_says_why_nodes_are_not_compared_and_what_repair_can_do(
    monkeypatch, mismatches: list[Mismatch], repair: bool, total: str
):
    """One kubelet has a record, one has none, a host is no node, and a node is of no host."""
    seen, totals = [], []
    reporter: Any = SimpleNamespace(
        rows=lambda *_: None, note=seen.append, total=lambda words, _: totals.append(words)
    )

    def member(name: str, *, node: bool = True, files: object = None) -> Any:
        return SimpleNamespace(
            host=SimpleNamespace(name=name),
            node=SimpleNamespace(name=name) if node else None,
            reason=None if node else Problem("no-node", "is no node", subject=name),
            facts=SimpleNamespace(files=files or {}),
        )

    placed = (
        member("n1", files={shares.RECORD: SimpleNamespace(exists=True)}),
        member("n2"),
        member("x", node=False),
    )
    there = [{"metadata": {"name": name}} for name in ("n1", "n2", "n3", "n4")]
    monkeypatch.setattr(shares.nodes, "connect", lambda _: None)
    monkeypatch.setattr(shares, "_read_allocations", lambda *_: ({"n1": object()}, placed))
    monkeypatch.setattr(shares, "_state", lambda _: (there, []))
    monkeypatch.setattr(shares, "_repair", lambda *_: True)
    monkeypatch.setattr(shares, "confirm", lambda *_, **__: None)
    monkeypatch.setattr(shares.allocations, "find_mismatches", lambda *_: tuple(mismatches))
    monkeypatch.setattr(strays, "note", lambda *_: None)
    monkeypatch.setattr(shares.other_owners, "list_others", lambda _: ())
    session: Any = SimpleNamespace(inventory=Inventory("", (), Cluster(share=Share())), reporter=reporter)

    shares.fsck(session, repair=repair, yes=True)

    assert totals[0].startswith(total)
    assert [words.removeprefix("Not compared with its kubelet: ").split(": ")[0] for words in seen] == [
        "x",
        "n2",
        "n3, n4",
    ]


@pytest.mark.parametrize(("share", "code"), [(Share(), 1), (None, 0)])
def test_without_the_extender_no_pod_needs_a_note(monkeypatch, share: Share | None, code: int):
    """There it is the plugin alone that chooses."""
    monkeypatch.setattr(shares.nodes, "connect", lambda _: None)
    monkeypatch.setattr(shares, "_read_allocations", lambda *_: ({}, ()))
    monkeypatch.setattr(shares, "_state", lambda _: ([memory_node("n1", 16)], [pod("a", 4, on="n1")]))
    monkeypatch.setattr(shares.other_owners, "list_others", lambda _: ())
    session: Any = SimpleNamespace(inventory=Inventory("", (), Cluster(share=share)), reporter=mock.Mock())
    assert shares.fsck(session, repair=False, yes=False) == code
    notes = str(session.reporter.note.call_args_list)
    assert ("The inventory has no `cluster.share`" in notes) == (share is None)


@pytest.mark.parametrize(("selected", "code"), [(False, 1), (True, 0)])
def test_with_a_limit_findings_on_other_nodes_do_not_count(monkeypatch, selected: bool, code: int):
    """The note is missing on n1; n2 is the selected host's, whether it answers or not."""
    host: Any = SimpleNamespace(name="n2")
    there = [memory_node("n1", 16), memory_node("n2", 16)]
    silent: Any = Member(host, Outcome("n2", "unreachable"))
    node: Any = SimpleNamespace(name="n2")
    monkeypatch.setattr(shares.nodes, "connect", lambda _: None)
    monkeypatch.setattr(
        shares.nodes, "locate", lambda _, members, **__: [replace(member, node=node) for member in members]
    )
    monkeypatch.setattr(shares, "_state", lambda _: (there, [pod("a", 4, on="n1")]))
    monkeypatch.setattr(shares.other_owners, "list_others", lambda _: ())
    reporter = mock.Mock()
    session: Any = SimpleNamespace(
        inventory=Inventory("", (), Cluster(share=Share())),
        reporter=reporter,
        for_each_host=lambda _: [silent],
    )

    assert shares.fsck(session, repair=False, yes=False, selected=selected) == code

    assert reporter.total.call_args.args[1]["nodes"] == 2 - selected


def asking(name: str, *, scheduler: str = "", phase: str = "Running", units: int = 4) -> Any:
    made = pod(name, units, on="n1", phase=phase)
    made["spec"] |= {"schedulerName": scheduler} if scheduler else {}
    return made


def test_pods_past_a_second_scheduler_are_named_with_the_fix():
    """Those that wait, too; not those that ask for no memory, and nobody where all schedulers ask the extender."""
    pods = [
        asking("own", scheduler="gpunode"),
        asking("ended", phase="Succeeded"),
        asking("small", units=0),
        asking("past"),
        asking("waits", scheduler="default-scheduler", phase="Pending"),
    ]
    notes: list[str] = []
    reporter: Any = SimpleNamespace(note=notes.append)
    for scheduler in (None, SecondScheduler("kube-scheduler:v1.36.0")):
        strays.note(Inventory("", (), Cluster(share=Share(scheduler=scheduler))), pods, reporter)
    (words,) = notes
    assert "2 pods ask for aliyun.com/gpu-mem without the scheduler gpunode" in words
    assert "default/past, default/waits" in words
    assert "Set `schedulerName: gpunode`" in words


@pytest.mark.parametrize("selected", [False, True])
def test_inspect_asks_plugins_where_no_host_answers_and_keeps_to_the_limit(monkeypatch, *, selected: bool):
    """One host was read, the other node's plugin is asked, or not shown at all."""
    there = [memory_node("n1", 10), memory_node("n2", 10)]
    asked: list[list[str]] = []

    def usage(_api: Any, _namespace: str, nodes: Any, _pods: Any) -> tuple[NodeUsage, ...]:
        asked.append([node["metadata"]["name"] for node in nodes])
        user = User("default/a", "c0", MEM, 4)
        return tuple(
            NodeUsage(name, (Gpu(f"GPU-{name}-0", "0", "A100", 1, users=(user,)),)) for name in asked[-1]
        )

    printed: list[Any] = []
    placed = (SimpleNamespace(node=SimpleNamespace(name="n1"), facts=None),)
    monkeypatch.setattr(shares.nodes, "connect", lambda _: None)
    monkeypatch.setattr(shares, "_read_allocations", lambda *_: ({"n1": Real(())}, placed))
    monkeypatch.setattr(shares, "_state", lambda _: (there, [pod("a", 4, on="n2")]))
    monkeypatch.setattr(shares, "read_usage", usage)
    monkeypatch.setattr(shares, "show", lambda rows, *_, **__: printed.extend(rows))
    session: Any = SimpleNamespace(
        inventory=Inventory("", (), Cluster()), reporter=SimpleNamespace(note=None)
    )
    shares.inspect(session, details=False, selected=selected)
    used = [(result.node, result.gpu, result.used) for result in printed]
    assert used == [("n1", "0", 0)] + ([] if selected else [("n2", "0", 4)])
    assert asked == ([] if selected else [["n2"]])

    monkeypatch.setattr(shares, "_read_allocations", None)  # without an inventory no host is dialled
    session.hosts = (Host("n2", Ssh("n2"), node="n2"),)
    shares.inspect(session, details=False, selected=selected, hosts=False)
    assert asked[-1] == (["n2"] if selected else ["n1", "n2"])


def test_why_a_pod_fits_nowhere_counts_nodes():
    assert (
        shares._format_why({"it offers no x": 2, "it is full": 1})
        == "2 nodes: it offers no x; 1 node: it is full"
    )
