"""Which hosts are worked on together."""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType, SimpleNamespace
from typing import Any, Literal
from unittest import mock

import pytest

from gpunode.engine import batch, exit_codes, impact, proof, rounds, work
from gpunode.engine import chain as pipeline
from gpunode.engine.batch_order import Size, split_batches
from gpunode.engine.chain import decide
from gpunode.engine.member import Member
from gpunode.errors import UsageError
from gpunode.links.driver.plan import later_driver
from gpunode.links.node import cordon, drain
from gpunode.links.node.drain import Work
from gpunode.links.pod.link import judge_pod
from gpunode.links.pod.vectoradd import NodeResult
from gpunode.model import (
    Change,
    Disturbed,
    DriverSpec,
    GpuUser,
    Host,
    InstallDriver,
    KernelModule,
    LoadImage,
    Outcome,
    Packages,
    PackageSpec,
    Plan,
    Reboot,
    Service,
    Ssh,
    Status,
    StepPlan,
    UninstallDriver,
    Verdict,
    WriteFile,
)
from gpunode.report import make
from tests import cases

from .test_init import BARE


def fleet(**groups: int) -> list[Host]:
    return [
        Host(f"{group}{number}", Ssh("x"), groups=(group,))
        for group, count in groups.items()
        for number in range(1, count + 1)
    ]


def names(parts: tuple[tuple[Host, ...], ...]) -> list[str]:
    return [" ".join(host.name for host in part) for part in parts]


HOSTS = fleet(a=3, b=2)
ALL = {host.name for host in HOSTS}


@pytest.mark.parametrize(
    ("disturbing", "size", "canary", "expected"),
    [
        (set(), None, 0, ["a1 a2 a3 b1 b2"]),
        (ALL, None, 0, ["a1 b1", "a2 b2", "a3"]),
        ({"a2", "a3"}, None, 0, ["a1 b1 b2", "a2", "a3"]),
        (ALL, "2", 0, ["a1 b1", "a2 b2", "a3"]),
        (ALL, "1", 0, ["a1", "b1", "a2", "b2", "a3"]),
        (set(), "2", 0, ["a1 a2", "a3 b1", "b2"]),
        (set(), "50%", 0, ["a1 a2", "a3 b1", "b2"]),
        (set(), "1%", 0, ["a1", "a2", "a3", "b1", "b2"]),
        (set(), "100%", 0, ["a1 a2 a3 b1 b2"]),
        (set(), "9", 0, ["a1 a2 a3 b1 b2"]),
        (set(), None, 1, ["a1", "a2 a3 b1 b2"]),
        (ALL, None, 1, ["a1", "b1", "a2 b2", "a3"]),
        (ALL, "3", 2, ["a1 b1", "a2 b2 a3"]),
        (set(), "40%", 1, ["a1", "a2 a3", "b1 b2"]),
        (set(), None, 9, ["a1 a2 a3 b1 b2"]),
    ],
)
def test_hosts_are_worked_on_in_batches(
    disturbing: set[str], size: str | None, canary: int, expected: list[str]
):
    """Every host once; those that disturb work one at a time a group, unless a size says otherwise."""
    chosen = Size.parse(size) if size else None
    assert names(split_batches(HOSTS, disturbing, size=chosen, canary=canary)) == expected


@pytest.mark.parametrize(
    ("begun", "size", "expected"),
    [
        (set(), "2", ["a2", "a1 b1", "b2 a3"]),
        (set(), None, ["a2", "a1 b1", "b2", "a3"]),
        ({"b1"}, "2", ["b1", "a1 a2", "b2 a3"]),
    ],
)
def test_a_canary_is_a_host_with_changes(begun: set[str], size: str | None, expected: list[str]):
    """Or one that an earlier run has begun. Else the first batch that changes hosts would be a whole one."""
    chosen = Size.parse(size) if size else None
    changing = {"a2", "a3", "b2"}
    batches = split_batches(
        HOSTS, changing, unchanged=ALL - changing - begun, begun=begun, size=chosen, canary=1
    )
    assert names(batches) == expected
    batches = split_batches(HOSTS, changing, unchanged=ALL - changing, begun={"b1"}, canary=1)
    assert (
        names(batches)[0] == "a2"
    )  # b1's node is tainted until it is proven, and nothing is to be changed there


def test_a_host_of_several_groups_is_disturbed_in_the_turn_of_its_first():
    hosts = [Host(name, Ssh("x"), groups=("a", name)) for name in ("b", "c")]
    assert names(split_batches(hosts, {"b", "c"})) == ["b", "c"]


@pytest.mark.parametrize(
    ("size", "canary", "expected"),
    [
        (None, 0, ["a2 a3", "b1", "a1", "b2"]),
        ("9", 0, ["a2 a3 b1", "a1", "b2"]),
        ("1", 2, ["a2 a3", "b1", "a1", "b2"]),
    ],
)
def test_hosts_of_the_control_plane_go_alone_after_all_others(
    size: str | None, canary: int, expected: list[str]
):
    """Over all groups, whatever the size of batches."""
    chosen = Size.parse(size) if size else None
    batches = split_batches(HOSTS, {"a1", "b1"}, alone={"a1", "b2"}, size=chosen, canary=canary)
    assert names(batches) == expected


@pytest.mark.parametrize(
    ("disturbing", "size", "canary", "expected"),
    [
        (ALL, None, 0, ["a3", "a2 b2", "a1 b1"]),
        (ALL, "2", 0, ["a3", "a2 b2", "a1 b1"]),
        ({"a1", "a2", "b2"}, "2", 0, ["a3", "a2 b2", "b1 a1"]),
        ({"a1", "a2", "b2"}, "2", 1, ["a3", "a2", "b2 b1", "a1"]),
    ],
)
def test_hosts_that_an_earlier_run_has_begun_go_first(
    disturbing: set[str], size: str | None, canary: int, expected: list[str]
):
    """They are disturbed already: beside another batch there would be more than its size. So with those that go alone."""
    chosen = Size.parse(size) if size else None
    begun = {"a2", "b2", "a3"}
    batches = split_batches(HOSTS, disturbing, alone={"a3"}, begun=begun, size=chosen, canary=canary)
    assert names(batches) == expected


NODE = replace(BARE, name="n")
BUSY = NodeResult("n", (), ("GPU-1",), ("ml/train (1 nvidia.com/gpu)",), "none is free", busy=True)


def test_only_a_pod_proves_a_host():
    """Without one its run has finished it, and there is nothing to resume."""
    bare = Member(HOSTS[0], Outcome("a1", "changed"), NODE)
    assert [batch.end_state(end)[0] for end in (bare, replace(bare, result=NodeResult("n", (), (), ())))] == [
        "finished",
        "proven",
    ]
    assert exit_codes.of_run([bare]) == 0


@pytest.mark.parametrize(
    ("status", "taints", "result", "others", "state", "code"),
    [
        ("right", (), BUSY, (), "in use", 0),
        ("changed", (), BUSY, (), "in use", 0),
        ("changed", (), BUSY, (Verdict.unknown("capacity", "not known"),), "failed", 1),
        ("changed", (cordon.TAINT,), BUSY, (), "failed", 1),
        ("right", (cordon.TAINT,), BUSY, (), "failed", 1),
        ("right", (), replace(BUSY, busy=False), (), "failed", 1),
    ],
    ids=[
        "nothing to do",
        "changed beside its work",
        "another link is not known",
        "changed after its work",
        "changed by an earlier run",
        "no pod could be made",
    ],
)
def test_a_host_whose_gpus_are_in_use_ends_neither_badly_nor_proven_if_it_disturbed_no_work(
    status: Status,
    taints: tuple[Mapping[str, str], ...],
    result: NodeResult,
    others: tuple[Verdict, ...],
    state: str,
    code: int,
):
    """It stops no batch and leaves nothing to resume. A host that was cordoned for its changes owes its proof."""
    each = Member(HOSTS[0], Outcome("a1", status), replace(NODE, taints=taints), result=result)
    each = replace(each, verdicts=(*others, judge_pod(result)))
    assert batch.end_state(each) == (state, "none is free")
    assert exit_codes.of_run([each]) == code
    assert not each.proven
    assert proof.describe_proof(each)[0] == ("in use" if state == "in use" else "not verified")
    assert ("not verified now" in proof.describe_proof(each)[1]) is (state == "in use")
    assert proof.describe_proof(each)[1].startswith("changed;") is (state == "in use" and status == "changed")


def waiting(
    host: Host,
    *changes: Change,
    reload: bool = False,
    pods: dict[str, dict[str, int]] | None = MappingProxyType({}),
) -> Member:
    what = impact.disturbance_of(changes)
    plan = Plan(host.name, (StepPlan("x", changes),))
    disturbs = Disturbed(what, pods=None if pods is None else dict(pods), reload=reload)
    return Member(host, Outcome(host.name, "planned", plan=plan, disturbs=disturbs))


def test_the_batches_are_shown_before_the_question(capsys):
    """Each with the hosts that change and what that interrupts; of many the first ones, and how large the others are."""
    a1, a2, a3, b1, b2 = HOSTS
    restart, file = Service("docker.service", "why", restart=True), WriteFile("/etc/x", "", "why")
    members = [
        waiting(a1, file),
        waiting(a2, restart),
        waiting(a3, Reboot("why")),
        waiting(b2, Reboot("w"), reload=True),
    ]
    order = [(a1, b1), (a2,), (a3, b2)]

    rows = rounds.batch_rows(order, members)

    assert rows == [
        (1, ["a1", "b1"], ["a1"], [], []),
        (2, ["a2"], ["a2"], ["a2"], ["restart of docker"]),
        (3, ["a3", "b2"], ["a3", "b2"], ["a3", "b2"], ["reboot", "driver reload (reboot if that fails)"]),
    ]
    assert (
        rounds.costs(members, 2, len(rows))
        == "4 hosts and the cluster: 1 reboot, 1 driver reload (reboot if that fails), 1 restart of docker, "
        "0 pods disturbed, 3 batches"
    )
    report = make(json=False, quiet=True)
    report.rows("batch", ("batch", "hosts", "changes", "disturbed", "words"), rows)
    assert capsys.readouterr().out == (
        " batches   1.  a1\n"
        "           2.  a2: restart of docker\n"
        "           3.  a3, b2: reboot; driver reload (reboot if that fails)\n"
    )
    idle = rounds.batch_rows([(a1,), (b1,), (a3,)], members)
    report.rows("batch", ("batch", "hosts", "changes", "disturbed", "words"), idle)
    assert capsys.readouterr().out == (
        " batches   1.  a1\n           3.  a3: reboot\n           without changes: 2\n"
    )
    canary = rounds.batch_rows([(a2,), (a1, a3)], members, canary=(a2,))
    report.rows("batch", ("batch", "hosts", "changes", "disturbed", "words"), canary)
    assert capsys.readouterr().out.splitlines()[0] == " batches   1.  a2: canary; restart of docker"
    many = [(number, ["a", "b"], ["a", "b"], [], []) for number in range(1, 9)]
    report.rows("batch", ("batch", "hosts", "changes", "disturbed", "words"), many)
    assert capsys.readouterr().out.splitlines()[5] == "           and 3 more batches, 2 hosts each at most"


@pytest.mark.parametrize("order", [(), (HOSTS[:2],), (HOSTS[:1], HOSTS[1:2])])
def test_where_all_changes_are_made_at_once_no_batches_are_shown(order: tuple[list[Host], ...]):
    members = [waiting(HOSTS[0], Reboot("why"))]
    assert rounds.batch_rows(order, members) == []
    assert rounds.costs(members, 0) == "1 host: 1 reboot, 0 pods disturbed"
    outlived = waiting(HOSTS[0], Service("containerd.service", "w", restart=True), pods={"ml/a": {}})
    assert rounds.costs([outlived], 0) == "1 host: 1 restart of containerd, 0 pods disturbed"
    assert (
        rounds.costs(members, 2, replaced=2)
        == "1 host and the cluster: 1 reboot, 0 pods disturbed, 2 pods of the plugin replaced"
    )


def test_a_downgrade_of_the_driver_is_called_so():
    driver = DriverSpec(590, "open", "", (), (), (), "")
    facts = SimpleNamespace(modules={"nvidia": SimpleNamespace(version="595.91.07")})
    assert later_driver(facts, driver) == "595.91.07"
    assert not later_driver(facts, replace(driver, branch=595))
    assert later_driver(facts, replace(driver, branch=595, version="595.71.05"))
    member = waiting(HOSTS[0], Reboot("why"))
    assert member.outcome
    outcome: Any = replace(member.outcome, facts=facts, desired=SimpleNamespace(driver=driver))
    member = replace(member, outcome=outcome)
    assert rounds.costs([member], 0) == "1 host: 1 downgrade of the driver, 1 reboot, 0 pods disturbed"


def test_the_question_counts_what_the_plans_cost():
    """Pods and processes only where they are disturbed; hosts whose pods are not known are named as such."""
    a1, a2, a3, b1, _ = HOSTS
    docker, kubelet = (Service(f"{unit}.service", "why", restart=True) for unit in ("docker", "kubelet"))
    members = [
        waiting(a1, docker, kubelet, pods={"ml/a": {}, "ml/b": {}}),
        waiting(a2, docker, pods={"ml/c": {}}),
        waiting(a3, kubelet, pods=None),
        waiting(b1, WriteFile("/etc/x", "", "why"), pods={"ml/d": {}}),
    ]
    costs = "2 restarts of docker, 2 restarts of kubelet, 3 pods disturbed, pods unknown on 1 host"
    assert rounds.costs(members, 0) == f"4 hosts: {costs}"
    outside = Disturbed(impact.disturbance_of([Reboot("why")]), pods={}, users=(GpuUser(1, "python3"),))
    (busy,) = (
        replace(host, outcome=replace(host.outcome, disturbs=outside))
        for host in [waiting(a1)]
        if host.outcome
    )
    assert rounds.costs([busy], 0) == "1 host: 1 reboot, 1 process disturbed"
    assert rounds.costs([members[3]], 0) == "1 host: 0 pods disturbed"


@pytest.mark.parametrize(("live_restore", "stops"), [(False, " (12 containers stop)"), (True, "")])
def test_containers_that_stop_with_docker_are_counted(live_restore: bool, stops: str):
    """Those of no pod, too."""
    member = waiting(HOSTS[0], Service("docker.service", "why", restart=True))
    seen = SimpleNamespace(containers_running=12, live_restore=live_restore)
    facts: Any = SimpleNamespace(docker=seen, gpu_users=(), modules={})
    assert member.outcome
    member = replace(member, outcome=replace(member.outcome, facts=facts))
    assert rounds.costs([member], 0) == f"1 host: 1 restart of docker{stops}, 0 pods disturbed"


def test_many_batches_name_the_way_to_fewer():
    """Not where the user has chosen a size."""
    rows = [(number, ["a"], ["a"], ["a"], []) for number in range(1, 7)]
    words = "6 batches, one after the other: `gpunode provision --batch 25%` is faster, and disturbs more hosts at once."
    assert rounds.faster_way(rows, None) == words
    assert rounds.faster_way(rows[:5], None) == rounds.faster_way(rows, Size(1)) == ""


def test_no_hosts_are_no_batches():
    assert split_batches([], set(), canary=2) == ()


@pytest.mark.parametrize("text", ["0", "-1", "0%", "101%", "x", "", "%", "1.5", "²", "٣"])
def test_a_size_that_is_none_is_refused(text: str):
    with pytest.raises(UsageError, match="not a number of hosts or a percentage"):
        Size.parse(text)


@pytest.mark.parametrize(
    ("changes", "disturbs", "ends_gpu_work"),
    [
        ([WriteFile("/etc/x", "", "why")], False, False),
        ([LoadImage("x", "sha256:1", "x.tar", "docker", "why")], False, False),
        ([Reboot("why")], True, True),
        ([Service("docker.service", "why", restart=True)], True, True),
        ([Service("nvidia-fabricmanager.service", "why", restart=True)], True, True),
        ([Service("containerd.service", "why", restart=True)], True, False),
        ([Service("kubelet.service", "why", enable=True)], False, False),
        ([Service("gpunode-dev-char.service", "why", restart=True)], False, False),
        ([Service("nvidia-cdi-refresh.service", "why", restart=True)], False, False),
        ([Service("nvidia-cdi-refresh.path", "why", enable=True, loses=True)], True, True),
        ([KernelModule("why", load=("nvidia",))], False, False),
        ([KernelModule("why", unload=("nvidia",), load=("nvidia",))], True, True),
        ([Packages("why", install=(PackageSpec("nvidia-open", "595.*"),))], True, True),
        ([Packages("why", install=(PackageSpec("nvidia-container-toolkit"),))], False, False),
        ([Packages("why", hold=("nvidia-open",))], False, False),
        ([UninstallDriver("580.178.04", "why")], True, True),
        ([InstallDriver("580.178.04", "feed", "open", "why")], False, False),
    ],
)
def test_what_a_change_disturbs(changes: list[object], disturbs: bool, ends_gpu_work: bool):
    """Packages disturb where they replace those of the driver that is there."""
    disturbance = impact.disturbance_of(changes, driver=["nvidia-open"])
    assert (bool(disturbance), disturbance.ends_gpu_work) == (disturbs, ends_gpu_work)


def test_what_was_not_shown_is_named():
    """Packages and units by name; other files are no other kind of act."""
    shown = impact.acts([WriteFile("/a", "", "why"), Packages("why", install=(PackageSpec("x"),))])
    later = [
        WriteFile("/b", "", "why"),
        Packages("why", install=(PackageSpec("x", "2"), PackageSpec("y"))),
        Reboot("why"),
    ]
    assert impact.describe_unaccepted(later, shown) == "install y, reboot"
    assert impact.describe_unaccepted([WriteFile("/b", "", "why")], shown) == ""


def test_an_accepted_reboot_covers_restarts_and_modules_that_come_after_it():
    later = [Service("kubelet.service", "why", restart=True), KernelModule("nvidia", "why")]
    assert impact.describe_unaccepted(later, {("reboot", "")}) == ""
    assert impact.describe_unaccepted(later, {("write", "files")}) == "load modules, restart kubelet.service"


def test_what_comes_with_the_drivers_packages_is_shown_before_they_are_installed():
    """The persistence daemon's unit is not there yet; its drop-in would be a file that nobody has accepted."""
    host, seen = cases.host("modern"), cases.facts("modern")
    for _ in range(3):
        seen = cases.applied(seen, pipeline.plan(host, seen, decide(host, seen, None)).changes)
    seen = cases.overlaid(seen, {"packages": {"nvidia-open": "gone"}, "modules": {"nvidia": "gone"}})
    seen = replace(seen, library_version=None)
    shown = pipeline.plan(host, seen, decide(host, seen, None)).changes
    seen = cases.applied(seen, shown)
    seen = cases.overlaid(seen, {"units": {"nvidia-persistenced.service": "active"}})
    later = pipeline.plan(host, seen, decide(host, seen, None)).changes
    assert impact.describe_unaccepted(later, impact.acts(shown)) == ""


def test_daemons_of_the_driver_are_no_work():
    """Nor are pods of DaemonSets; everything else that has a GPU open is named."""
    users = [
        GpuUser(1, "nvidia-persistenced"),
        GpuUser(2, "python3", container="c" * 64, pod="service"),
        GpuUser(3, "python3", container="d" * 64, pod="job", name="ml/train"),
        GpuUser(4, "Xorg"),
    ]
    assert work.users_of(users, {"service"}) == "python3 (pid 3, pod ml/train), Xorg (pid 4)"
    assert work.users_of(users, {"service", "ml/train"}) == "Xorg (pid 4)"
    assert work.users_of(users, None) == "Xorg (pid 4)"


WORKER = GpuUser(7, "python3", container="c" * 64)


@pytest.mark.parametrize(
    ("changes", "work_", "anybody", "processes"),
    [
        ([WriteFile("/etc/x", "", "why")], "stays", False, ()),
        ([Service("containerd.service", "why", restart=True)], "stays", True, (WORKER,)),
        ([Reboot("why")], "drain", True, (WORKER,)),
    ],
)
def test_a_host_whose_pods_are_not_known_counts_as_busy(
    changes: list[Change], work_: str, anybody: bool, processes: tuple[GpuUser, ...]
):
    """Without a cluster only its processes are known; nobody is where nothing is disturbed."""
    facts = cases.facts("modern", {"gpu_users": [{"pid": 7, "command": "python3", "container": "c" * 64}]})
    plan = Plan("h", (StepPlan("x", tuple(changes)),))
    member = Member(Host("h", Ssh("h"), work="drain"), Outcome("h", "planned", facts, plan=plan))
    (after,) = impact.find_impact(None, "gpunode", [member], [], strict=True)
    disturbs = after.disturbs
    assert (disturbs.work, disturbs.anybody, disturbs.processes) == (work_, anybody, processes)


@pytest.mark.parametrize(
    ("seen", "node", "bare"),
    [
        ({"kubelet": {"arguments": ""}, "containers": 0}, None, True),
        ({"kubelet": None, "containers": 0}, None, True),
        ({"kubelet": {"arguments": ""}, "containers": 3}, None, False),
        ({"kubelet": {"arguments": ""}, "containers": None}, None, False),
        ({"kubelet": {"arguments": "/usr/bin/kubelet"}, "containers": 0}, None, False),
        ({"kubelet": None, "containers": 0, "errors": {"kubelet": "no answer"}}, None, False),
        ({"kubelet": {"arguments": ""}, "containers": 0}, "h", False),
    ],
    ids=["stopped", "missing", "containers run", "containers unknown", "runs", "unknown", "is a node"],
)
def test_a_host_without_kubelet_node_and_containers_has_no_pods(
    seen: dict[str, object], node: str | None, bare: bool, monkeypatch
):
    """Such hosts are one batch; in doubt a host's pods are not known, and it goes alone. Of a node the API server knows."""
    monkeypatch.setattr(drain, "work_on", lambda *_, **__: (Work("ml/x", "x", asks={}, service=False),))
    facts = cases.facts("modern", seen)
    plan = Plan("h", (StepPlan("x", (Service("containerd.service", "why", restart=True),)),))
    member = Member(Host("h", Ssh("h")), Outcome("h", "planned", facts, plan=plan))
    there = [replace(member, node=mock.Mock())] if node else []
    (after,) = impact.find_impact(mock.Mock(), "gpunode", [member], there, strict=True)
    assert after.disturbs.anybody is not bare
    assert (after.disturbs.pods == {}) is bare


PLUGIN = {"pid": 8, "command": "python3", "container": "e" * 64, "pod": "plugin", "name": "gpunode/plugin-1"}
OTHERS = {"pid": 9, "command": "dcgm-exporter", "container": "f" * 64, "pod": "dcgm", "name": "gpu/dcgm-1"}
JOB = {"pid": 7, "command": "python3", "container": "c" * 64, "pod": "job", "name": "ml/train"}
XORG = {"pid": 10, "command": "Xorg"}


@pytest.mark.parametrize(
    ("users", "mode", "reload"),
    [
        ([PLUGIN], "wait", True),
        ([PLUGIN], "kill", True),
        ([PLUGIN, JOB, XORG], "wait", True),
        ([PLUGIN, JOB], "drain", True),
        ([PLUGIN, JOB], "kill", False),
        ([PLUGIN, OTHERS], "wait", False),
    ],
    ids=lambda value: (
        " ".join(entry["name"] if "name" in entry else entry["command"] for entry in value)
        if isinstance(value, list)
        else str(value)
    ),
)
def test_a_reboot_only_for_users_that_make_way_is_shown_as_a_reload(
    users: list[dict[str, object]], mode: Literal["wait", "drain", "kill"], reload: bool
):
    """Jobs are waited for, gpunode's own plugin leaves; DaemonSets of others stay, and so does who is to be killed."""
    host = replace(cases.host("modern"), work=mode)
    old = "550.163.01"
    modules = {name: {"version": old, "refcnt": 7} for name in ("nvidia", "nvidia_uvm", "nvidia_modeset")}
    packages = {"cuda-drivers-550": f"{old}-1"}
    more = {"modules": modules, "library_version": old, "packages": packages}
    seen = cases.facts("modern", {"gpu_users": users, **more})
    wish = decide(host, seen, None)
    plan = pipeline.plan(host, seen, wish)
    member = Member(host, Outcome(host.name, "planned", seen, wish, plan))
    assert impact.disturbance(member).reboot
    pods = [
        Work("ml/train", "job", asks={"nvidia.com/gpu": 1}, service=False),
        Work("gpunode/plugin-1", "plugin", asks={}, service=True),
        Work("gpu/dcgm-1", "dcgm", asks={}, service=True),
    ]
    assert impact._reloads(member, pods, {"plugin"}) == reload


@pytest.mark.parametrize(
    ("restored", "paused", "code"), [(True, True, 0), (False, True, 8), (False, False, 1)]
)
def test_an_undo_that_is_paused_before_the_clusters_objects_has_a_pauses_exit_code(
    restored: bool, paused: bool, code: int
):
    assert exit_codes.of_undo([], restored=restored, paused=paused, kept=False) == code
