"""`gpunode status`: what people read of it, and what programs."""

import io
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest

from gpunode.commands import status as overlook
from gpunode.commands import status as processes
from gpunode.commands.status import COLUMNS, by_model, find_differences, row, sentence, shares, totals
from gpunode.contract import status, usage
from gpunode.engine.exit_codes import REFUSED
from gpunode.engine.member import Member
from gpunode.engine.record import Progress, RecordedRun, RunOptions
from gpunode.errors import Problem
from gpunode.links.node import GPU_LABEL
from gpunode.links.plugin.daemonset import NAME, NAME_LABEL
from gpunode.links.plugin.usage import NodeUsage
from gpunode.links.plugin.usage import read_usage as of_cluster
from gpunode.links.scheduler.allocations import Row, Use
from gpunode.model import Cluster, GpuUser, Host, Inventory, Outcome, Share, Ssh
from gpunode.report.human import Human
from gpunode.report.lines import Lines
from tests.share.objects import node, pod

GIB = 1024**3
MEM = "aliyun.com/gpu-mem"
USERS = tuple(usage.User(f"ml/web-{n}", "c", "nvidia.com/gpu", 1) for n in range(1, 6))
BUSY = usage.Gpu("GPU-a", "0", "H100", 80 * GIB, 31 * GIB, 64, 61, 5, users=USERS, driver="615.36.01")
LOST = usage.Gpu(
    "GPU-b",
    "1",
    "H100",
    80 * GIB,
    unhealthy=status.Reason("xid-79", "Xid 79: off the bus"),
    since="2026-01-02T03:04:05+00:00",
)
OUTSIDE = usage.Gpu("GPU-c", "0", "P100", 16 * GIB, GIB // 2, 0, 30, 2, users=())
NODES = (
    NodeUsage("gpu-11", (BUSY, LOST)),
    NodeUsage("gpu-12", (OUTSIDE,)),
    NodeUsage("gpu-13", reason=Problem("no-plugin", "not there"), holders=("ml/x",)),
)
WITHOUT = status.Reason("nvml", "NVML: no library")
ROWS = [row(node, gpu) for node in NODES for gpu in node.gpus]


def test_memory_that_is_shared_with_the_host_is_not_zero():
    """GB10 has none of its own."""
    cells = dict(zip(COLUMNS, row(NodeUsage("n"), replace(BUSY, memory=None, used=None)), strict=True))
    assert (cells["memory"], cells["used"]) == ("shared with the host", None)


def test_processes_outside_kubernetes_are_named_by_their_hosts():
    """Only hosts of nodes on which there are some are asked; a pod's process is the pod's row."""
    users = (
        GpuUser(4242, "python3", gpus=("0000:3b:00.0",)),
        GpuUser(5, "x", pod="uid", name="ml/x"),
    )
    hosts = [Host(name, Ssh(name)) for name in ("a", "b", "c")]
    asked: list[str] = []

    def located(_: object, members: list[Member], **__: object) -> list[Member]:
        there = {"a": "gpu-11", "b": "gpu-12"}
        return [
            replace(member, node=SimpleNamespace(name=there[member.host.name]))
            for member in members
            if member.host.name in there
        ]

    def probed(_: object, members: list[Member], *, plans: bool) -> list[Member]:
        assert not plans
        asked.extend(member.host.name for member in members)
        facts = SimpleNamespace(gpu_users=users)
        outcomes = [Outcome(host.host.name, "right", facts=facts) for host in members]
        return [replace(each, outcome=outcome) for each, outcome in zip(members, outcomes, strict=True)]

    reporter = mock.Mock()
    session = SimpleNamespace(hosts=hosts, for_each_host=probed, reporter=reporter)
    names = processes.nodes_with_processes(NODES)
    assert names == ("gpu-12",)
    with mock.patch.object(processes.nodes, "locate", located):
        processes.show_processes(mock.Mock(), session, names)
    assert asked == ["b"]
    reporter.rows.assert_called_once_with(
        "process", processes.PROCESS_COLUMNS, [("gpu-12", 4242, "python3", "", "0000:3b:00.0")]
    )


def sharing(gpu: str, *uses: tuple[str, int], total: int | None = 16) -> Row:
    """What is promised of a GPU's memory, by pod."""
    made = tuple(Use(pod, "c", units, None) for pod, units in uses)
    return Row("n", gpu, f"GPU-{gpu}", MEM, total, sum(units for _, units in uses), None, made)


def using(index: str, *uses: tuple[str, int]) -> usage.Gpu:
    users = tuple(usage.User(pod, "c", MEM, units) for pod, units in uses)
    return usage.Gpu(f"GPU-{index}", index, "P100", 16 * GIB, users=users)


def test_people_read_units_the_first_pods_and_no_uuid(capsys):
    Human(quiet=False).rows("gpu", COLUMNS, ROWS)
    busy, lost, outside = capsys.readouterr().out.splitlines()[1:]
    assert "H100   615.36.01  31.0 GiB  80.0 GiB  64 %  61 °C  ok" in busy
    assert busy.rstrip().endswith("ml/web-1, ml/web-2, ml/web-3 and 2 more")
    assert "unhealthy  2026-01-0" in lost
    assert outside.split()[-1] == "2"  # processes of no pod
    assert not any("GPU-" in line for line in (busy, lost, outside))


def test_programs_read_numbers_codes_and_every_pod(capsys):
    Lines(quiet=False).rows("gpu", COLUMNS, ROWS)
    busy, lost, _ = map(json.loads, capsys.readouterr().out.splitlines())
    assert (busy["uuid"], busy["used"], busy["util"], busy["temp"]) == ("GPU-a", 31 * GIB, 64, 61)
    assert busy["pods"] == [f"ml/web-{n}" for n in range(1, 6)]
    assert (busy["driver"], lost["driver"]) == ("615.36.01", "")
    assert (lost["code"], lost["since"], lost["used"]) == ("xid-79", LOST.since, None)


def test_promises_stand_beside_what_the_kubelet_allocated(capsys):
    """Where memory is shared; a pod that starts has none yet."""
    rows = [
        row(NodeUsage("n"), using("0", ("a/x", 4)), sharing("0", ("a/x", 4), ("a/late", 5))),
        row(NodeUsage("n"), OUTSIDE),
    ]
    Human(quiet=False).rows("gpu", COLUMNS, rows)
    first = capsys.readouterr().out.splitlines()[1]
    assert first.split()[-4:] == ["9/16", "4", "ok", "a/x"]
    Lines(quiet=False).rows("gpu", COLUMNS, rows)
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    keys = ("promised", "units", "allocated")
    assert [[each[key] for key in keys] for each in lines] == [[9, 16, 4], [None, None, None]]


@pytest.mark.parametrize(
    ("share", "promised", "noted"),
    [(Share(), 0, ["n: no note of the GPU of default/a"]), (None, 4, [])],
)
def test_without_the_extender_a_pod_was_promised_what_it_has(
    monkeypatch, share: Share | None, promised: int, noted: list[str]
):
    """Nobody notes it there, and nobody misses it."""
    there = node("n", 16)
    there["metadata"]["uid"] = "n"
    api = SimpleNamespace(
        find=lambda kind: ([there] if kind == "Node" else [pod("a", 4, on="n")], ""),
        served=SimpleNamespace(has=lambda _: False),
    )
    monkeypatch.setattr(overlook.nodes, "connect", lambda _: api)
    monkeypatch.setattr(overlook, "read_usage", lambda *_: (NodeUsage("n", (using("0", ("default/a", 4)),)),))
    reporter = mock.Mock()
    session = SimpleNamespace(reporter=reporter, inventory=Inventory("", (), Cluster(share=share)))
    overlook.show_status(session, selected=False, hosts=False)
    (shown,) = reporter.rows.call_args.args[2]
    assert shown[COLUMNS.index("promised")] == promised
    *notes, scope = (call.args[0] for call in reporter.note.call_args_list)
    assert [text.rpartition(":")[0] for text in notes] == noted
    assert (
        scope
        == "Device plugins report this. `gpunode verify` also checks library versions, runtimes and new pods."
    )


def test_a_right_that_is_missing_for_all_nodes_is_named_once(monkeypatch):
    api = SimpleNamespace(find=lambda _: ([], ""), served=SimpleNamespace(has=lambda _: False))
    refused = tuple(NodeUsage(name, reason=Problem("forbidden", "this user may not")) for name in "abcd")
    monkeypatch.setattr(overlook.nodes, "connect", lambda _: api)
    monkeypatch.setattr(overlook, "read_usage", lambda *_: refused)
    reporter = mock.Mock()
    session = SimpleNamespace(reporter=reporter, hosts=(), inventory=Inventory("", (), Cluster()))
    assert overlook.show_status(session, selected=False, hosts=False) == REFUSED
    (call,) = reporter.problem.call_args_list
    assert str(call.args[0]) == "a, b, c, d: this user may not"
    Lines(quiet=False, out=(out := io.StringIO())).problem(*call.args)
    assert json.loads(out.getvalue())["hosts"] == [*"abcd"]
    assert not reporter.note.called  # `verify` would find no broken link
    other = NodeUsage("e", reason=Problem("no-plugin", "none runs there"))
    monkeypatch.setattr(overlook, "read_usage", lambda *_: (*refused[:2], other))
    reporter.problem.reset_mock()
    assert overlook.show_status(session, selected=False, hosts=False) == 1
    shown = [str(call.args[0]) for call in reporter.problem.call_args_list]
    assert shown == ["e: none runs there", "a, b: this user may not"]
    assert "`gpunode verify --limit e`" in reporter.note.call_args.args[0]


def test_hosts_of_the_inventory_that_are_no_nodes_are_named(monkeypatch):
    monkeypatch.setattr(overlook, "_nodes_of", lambda *_: {"h1": None})
    overlook._note_strangers(mock.Mock(), session := mock.Mock(), HOSTS)
    words = "No node of the cluster is known for h2. `gpunode status --limit h2` asks why."
    session.reporter.note.assert_called_once_with(words)


def test_the_fix_of_a_plugin_that_a_run_took_away_is_to_resume_it(monkeypatch):
    """No other command, beside the note that names this one. Other reasons keep their fix."""
    states = {"h1": Progress("changing", 0), "h2": Progress("proven", 0)}
    run = RecordedRun("4f1c", "inventory.yaml", 0, RunOptions(), states, folder=Path("nowhere"))
    monkeypatch.setattr(overlook.history, "find_current", lambda _: run)
    monkeypatch.setattr(overlook.nodes, "locate", lambda _, members, **__: [*map(placed, members)])
    session = SimpleNamespace(reporter=mock.Mock(), hosts=HOSTS, inventory=Inventory("", HOSTS, Cluster()))
    silent = [NodeUsage(name, reason=Problem(code, "why", fix=code)) for name, code in SILENT]
    usages = overlook._note_run(mock.Mock(), session, tuple(silent))
    resume = "`gpunode resume` continues the run that was cut off there."
    fixes = [resume, resume, "forbidden", "no-plugin"]
    assert [str(usage.reason and usage.reason.fix) for usage in usages] == fixes
    note = "Run 4f1c was cut off: 1 of 2 hosts done. `gpunode resume` continues it."
    session.reporter.note.assert_called_once_with(note)

    monkeypatch.setattr(overlook.history, "is_running", lambda _: True)
    reasons = [usage.reason for usage in overlook._note_run(mock.Mock(), session, tuple(silent))]
    goes_on = "run 4f1c has not finished it yet"
    assert [str(reason and reason.what) for reason in reasons] == [goes_on, goes_on, "why", "why"]


HOSTS = (Host("h1", Ssh("h1")), Host("h2", Ssh("h2")))
SILENT = (("n1", "no-plugin"), ("n1", "paused"), ("n1", "forbidden"), ("n2", "no-plugin"))


def placed(member: Member) -> Any:
    node = SimpleNamespace(name=f"n{member.host.name[1:]}", labels={})
    return SimpleNamespace(host=member.host, node=node)


def test_a_host_that_was_forgotten_is_neither_unknown_nor_a_failure(monkeypatch):
    silent = NodeUsage("n1", reason=Problem("no-plugin", "none runs there"))
    back = mock.Mock(return_value={"h1": "forgotten 27 Nov"})
    monkeypatch.setattr(overlook.history, "find_taken_back", back)
    monkeypatch.setattr(overlook.nodes, "locate", lambda _, members, **__: [*map(placed, members)])
    session = SimpleNamespace(hosts=HOSTS, inventory=Inventory("", HOSTS, Cluster()))
    usages = overlook.leave_taken_back(mock.Mock(), session, (silent, NodeUsage("n2")))
    assert usages == ((NodeUsage("n2"),), {"h1": "forgotten 27 Nov"})
    assert back.call_args.args[1] == ["h1"]  # of others no record is read


def test_a_host_that_another_inventory_set_up_since_is_not_called_forgotten(monkeypatch):
    """A forget and an undo take the label from its node."""
    silent = NodeUsage("n1", reason=Problem("no-plugin", "none runs there"))
    monkeypatch.setattr(overlook.history, "find_taken_back", mock.Mock(side_effect=AssertionError))
    labelled = SimpleNamespace(host=HOSTS[0], node=SimpleNamespace(name="n1", labels={GPU_LABEL: "true"}))
    monkeypatch.setattr(overlook.nodes, "locate", lambda *_, **__: [labelled])
    session = SimpleNamespace(hosts=HOSTS, inventory=Inventory("", HOSTS, Cluster()))
    assert overlook.leave_taken_back(mock.Mock(), session, (silent,)) == ((silent,), {})


@pytest.mark.parametrize(
    ("promised", "used", "words"),
    [
        ({"0": [("a/x", 4)]}, {"0": [("a/x", 4)]}, []),
        ({"0": [("a/x", 4)]}, {}, []),  # it starts
        ({"0": [("a/x", 4)]}, {"1": [("a/x", 4)]}, ["a/x got another GPU than was promised"]),
        ({"0": [("a/x", 2)], "1": [("a/x", 2)]}, {"1": [("a/x", 4)]}, ["a/x got another GPU"]),
        ({"?": [("a/x", 4)]}, {"1": [("a/x", 4)]}, ["no note of the GPU of a/x"]),
    ],
)
def test_pods_whose_gpu_is_not_the_promised_one_are_named(
    promised: dict[str, list[tuple[str, int]]], used: dict[str, list[tuple[str, int]]], words: list[str]
):
    node = NodeUsage("n", tuple(using(index, *used.get(index, ())) for index in "01"))
    rows = {("n", gpu): sharing(gpu, *uses) for gpu, uses in promised.items()}
    differences = list(find_differences(node, MEM, rows))
    assert len(differences) == len(words)
    for each, expected in zip(differences, words, strict=True):
        assert expected in each
        assert "gpunode share fsck" in each


def test_the_last_line_counts_gpus_and_what_is_not_known():
    numbers = totals(NODES)
    assert numbers == {
        "nodes": 3, "unknown": 1, "gpus": 3, "used": 1, "free": 1, "unseen": 0, "unhealthy": 1,
    }  # fmt: skip
    assert (
        sentence(numbers) == "3 GPUs on 2 nodes: 1 in use, 1 free, 1 unhealthy; GPUs of 1 more node unknown"
    )
    models = by_model(NODES)
    assert models == {"H100": 2, "P100": 1}
    assert sentence(numbers, models=models).endswith(
        "1 unhealthy; GPUs of 1 more node unknown; 2x H100, 1x P100"
    )
    assert sentence(totals(NODES[2:])) == "GPUs of 1 node unknown"
    assert sentence(totals(())) == "No node offers GPUs yet."


def test_a_gpu_of_which_the_kubelet_says_nothing_is_not_free():
    """As kubelets before 1.20."""
    numbers = totals([NodeUsage("n", (BUSY, replace(OUTSIDE, users=None)))])
    assert (numbers["used"], numbers["free"], numbers["unseen"]) == (1, 0, 1)
    assert sentence(numbers) == "2 GPUs on 1 node: 1 in use, 0 free, 1 not reported by the kubelet"


def test_what_is_free_of_shared_gpus_is_counted_in_shares():
    """Every GPU may be in use, and still have room; whole GPUs are counted already, and those of a node that is not known are not."""
    offers = {
        "slices": {"nvidia.com/gpu": "8"},
        "memory": {MEM: "16", "aliyun.com/gpu-count": "1"},
        "whole": {"nvidia.com/gpu": "1"},
        "mig": {"nvidia.com/gpu": "1", "nvidia.com/mig-1g.10gb": "7"},
        "silent": {"nvidia.com/gpu": "8"},
    }
    there = [
        {"metadata": {"name": name, "uid": name}, "status": {"capacity": some, "allocatable": some}}
        for name, some in offers.items()
    ]
    gpus = {"slices": (BUSY, BUSY), "memory": (BUSY,), "whole": (BUSY,), "mig": (BUSY, BUSY)}
    usages = [NodeUsage(name, gpu) for name, gpu in gpus.items()]
    usages.append(NodeUsage("silent", reason=Problem("no-plugin", "not there")))
    slices = pod("s", on="slices")
    slices["spec"]["containers"] = [{"name": "c", "resources": {"limits": {"nvidia.com/gpu": "2"}}}]
    running = [slices, pod("m", 4, 8, on="memory"), pod("over", 4, on="memory", phase="Succeeded")]
    parts = shares(usages, there, running, MEM)
    assert parts == {"nvidia.com/gpu": [6, 8], MEM: [4, 16], "nvidia.com/mig-1g.10gb": [7, 7]}
    assert sentence(totals(usages[:2]), {MEM: [4, 16]}) == (
        "3 GPUs on 2 nodes: 3 with pods, 0 without; shares free: 4 of 16 aliyun.com/gpu-mem"
    )


def plugin_on_a_node() -> tuple[dict[str, Any], dict[str, Any]]:
    there = node("gpu-01", 8)
    there["metadata"]["uid"] = "1"
    there["status"]["conditions"] = [{"type": "Ready", "status": "True"}]
    plugin = pod("plugin-x", on="gpu-01", phase="Running")
    meta = {"namespace": "gpunode", "labels": {NAME_LABEL: NAME}, "creationTimestamp": "2026-01-01T00:00:00Z"}
    plugin["metadata"] |= meta
    return there, plugin


def test_a_plugin_newer_than_this_gpunode_is_not_to_be_replaced():
    """Its page's version says so; `plugin deploy` would bring an older one."""
    there, plugin = plugin_on_a_node()
    plugin["status"]["containerStatuses"] = [{"state": {"running": {}}}]
    api = mock.Mock()
    api.health.return_value = (200, '{"version": 3, "gpus": []}')
    (state,) = of_cluster(api, "gpunode", [there], [plugin])
    assert state.reason.code == "plugin-newer"
    assert "version 3" in str(state.reason.what)
    assert str(state.reason.fix) == "Update gpunode on this computer."


@pytest.mark.parametrize("ready", [False, True])
def test_a_plugin_that_finds_no_gpu_as_its_container_got_none_leaves_them_unknown(*, ready: bool):
    """Such as without the nvidia runtime. One that is ready has counted: a node of none has none."""
    there, plugin = plugin_on_a_node()
    plugin["status"]["containerStatuses"] = [{"state": {"running": {}}}]
    plugin["status"]["conditions"] = [{"type": "Ready", "status": str(ready)}]
    seen = status.Status("now", status.Configuration("none", "none", ("envvar",)), not_ready=WITHOUT)
    api = mock.Mock()
    api.health.return_value = (200, '{"version": 2, "gpus": []}')
    api.log.return_value = f"T INFO {status.MARK} {status.dumps(seen)}\n"
    (state,) = of_cluster(api, "gpunode", [there], [plugin])
    assert (state.gpus, state.reason is None) == ((), ready)
    if state.reason is not None:
        assert str(state.reason.what) == "the plugin is not ready: NVML: no library"
    assert totals([state])["unknown"] == int(not ready)


def test_a_node_without_the_plugin_is_fixed_by_provision_unless_a_run_has_paused_it():
    """Its host may lack the driver, too: `plugin deploy` installs none."""
    there, _ = plugin_on_a_node()
    (state,) = of_cluster(mock.Mock(), "gpunode", [there], [])
    assert f"`gpunode provision --limit {state.node}`" in str(state.reason.fix)
    there["metadata"]["labels"] = {"gpunode.dev/gpu": "paused"}
    (state,) = of_cluster(mock.Mock(), "gpunode", [there], [])
    assert state.reason.code == "paused"  # a run changes the driver now


def test_a_plugin_of_another_namespace_is_named_with_it():
    """`-n` of another one: nobody should deploy a second plugin beside it."""
    there, plugin = plugin_on_a_node()
    (state,) = of_cluster(mock.Mock(), "typo", [there], [plugin])
    assert (state.reason.code, str(state.reason.what)) == (
        "no-plugin",
        "its device plugin is in namespace gpunode, not in typo",
    )
    assert "-n gpunode" in str(state.reason.fix)
