"""A plan as a file: what is in it, what is refused, and which changes since its review are found."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from gpunode.cli import app
from gpunode.cluster.objects.difference import Difference
from gpunode.engine import plan_file
from gpunode.engine.member import Member
from gpunode.engine.plan_file import PlanFile
from gpunode.errors import Problem, UsageError
from gpunode.model import Outcome, Packages, PackageSpec, Reboot, Service, Title, WriteFile
from gpunode.report.human import Human
from tests import cases
from tests.unit.test_batches import HOSTS, waiting

A, B, *_ = HOSTS
GPU = "nvidia.com/gpu"
SECRET = "hunter2hunter2"
FILE = WriteFile("/etc/x", f"password = {SECRET}\nsize = 1\n", "because", before="size = 0\n")
PACKAGES = Packages("because", install=(PackageSpec("nvidia-open", "595.*"),))
DOCKER = Service("docker.service", "because", restart=True)
CONTAINERD = Service("containerd.service", "w", restart=True)
LABEL = Difference(Title("Node", "a1"), "labelled", ("+gpunode.dev/gpu=true",))


@pytest.fixture
def inventory(tmp_path) -> Path:
    path = tmp_path / "inventory.yaml"
    path.write_text("groups: {}\n")
    return path


def plan(inventory: Path, *members: Member, cluster: Sequence[Difference] = ()) -> PlanFile:
    return plan_file.make(inventory, members, cluster)


def on(member: Member, **facts: Any) -> Member:
    assert member.outcome
    return replace(member, outcome=replace(member.outcome, facts=replace(cases.facts("modern"), **facts)))


def test_a_written_plan_is_read_as_it_was_and_has_no_secret(inventory: Path, tmp_path):
    path = tmp_path / "friday.plan"
    made = plan(inventory, waiting(A, FILE, PACKAGES, DOCKER), cluster=[LABEL])
    plan_file.write(path, made)
    assert plan_file.read(path) == made
    text = path.read_text()
    assert SECRET not in text
    assert all(
        line in text for line in ("-size = 0", "+size = 1", "install nvidia-open 595.*", "restart docker")
    )
    assert plan_file.read(inventory) is None
    assert plan_file.read(tmp_path / "gone.yaml") is None


def cut(text: str) -> str:
    return text[: len(text) // 2]


def edited(text: str) -> str:
    return text.replace("restart docker", "restart podman")


def newer(text: str) -> str:
    return text.replace('"gpunode_plan": 3', '"gpunode_plan": 4')


def older(text: str) -> str:
    """Without the options of its provision."""
    return text.replace('"gpunode_plan": 3', '"gpunode_plan": 2')


def bare(text: str) -> str:
    return '{"gpunode_plan": 3}' if text else ""


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (cut, "is damaged"),
        (edited, "changed after it was written"),
        (newer, "of format 4"),
        (older, "of format 2"),
        (bare, "is damaged"),
    ],
)
def test_a_damaged_plan_or_one_of_another_format_is_refused(
    damage: Any, words: str, inventory: Path, tmp_path
):
    path = tmp_path / "friday.plan"
    plan_file.write(path, plan(inventory, waiting(A, DOCKER)))
    path.write_text(damage(path.read_text()))
    with pytest.raises(UsageError, match=words) as refused:
        plan_file.read(path)
    assert refused.value.hint


def test_no_file_but_a_plan_is_replaced(inventory: Path, tmp_path):
    with pytest.raises(UsageError, match="no plan"):
        plan_file.check_place(inventory)
    with pytest.raises(UsageError, match="no file can be written"):
        plan_file.check_place(tmp_path / "gone" / "plan")
    path = tmp_path / "friday.plan"
    plan_file.check_place(path)
    plan_file.write(path, plan(inventory))
    plan_file.check_place(path)


SAME = waiting(A, FILE, DOCKER)
BUSY = waiting(A, FILE, DOCKER, pods={"ml/a": {}})


@pytest.mark.parametrize(
    ("before", "after", "codes"),
    [
        (SAME, SAME, []),
        (SAME, waiting(A, replace(FILE, why="other words"), replace(DOCKER, note="3 pods", ends=("7",))), []),
        (SAME, waiting(A), []),  # done meanwhile
        (SAME, waiting(A, FILE, DOCKER, PACKAGES), ["plan"]),
        (SAME, waiting(A, FILE), ["plan"]),
        (SAME, waiting(A, DOCKER, FILE), ["plan"]),
        (SAME, waiting(A, replace(FILE, content="size = 2\n"), DOCKER), ["plan"]),
        (waiting(A, Reboot("w"), reload=True), waiting(A, Reboot("w")), ["plan"]),
        (SAME, BUSY, ["disturbs"]),
        (SAME, waiting(A, FILE, DOCKER, pods=None), ["disturbs"]),
        (BUSY, SAME, []),
        (waiting(A, CONTAINERD), waiting(A, CONTAINERD, pods={"ml/a": {"nvidia.com/gpu": 1}}), []),  # it keeps running
        (on(SAME), on(SAME), []),
        (on(SAME, machine_id="1"), on(SAME, machine_id="2"), ["machine"]),
        (SAME, waiting(B, FILE, DOCKER), ["host"]),
    ],
)  # fmt: skip
def test_what_was_not_reviewed_deviates(before: Member, after: Member, codes: list[str], inventory: Path):
    deviations = plan_file.compare(plan(inventory, before), plan(inventory, after))
    assert [deviation.code for deviation in deviations] == codes
    assert all(deviation.what for deviation in deviations)


def test_each_change_of_a_node_is_reviewed(inventory: Path):
    """Though several have the same title and action."""
    feature, taint = (
        replace(LABEL, lines=(f"+{text}",)) for text in ("gpu.count=2", "dedicated=ml:NoExecute")
    )
    before = plan(inventory, SAME, cluster=[LABEL, feature])
    assert plan_file.compare(before, plan(inventory, SAME, cluster=[LABEL])) == []
    (new,) = plan_file.compare(before, plan(inventory, SAME, cluster=[LABEL, taint, feature]))
    assert (new.code, new.what, new.lines) == (
        "cluster",
        "new: label Node a1",
        ("  +dedicated=ml:NoExecute",),
    )


@pytest.mark.parametrize(
    ("reviewed", "now", "what", "lines"),
    [
        (["+gpu"], ["+gpu", "+taint"], "new: label Node a1", ("  +taint",)),
        (["+gpu", "+old"], ["+gpu", "+new"], "different: label Node a1", ("  reviewed  +old", "  now       +new")),
        (["@@ -1 @@\n+a"], ["@@ -2 @@\n+a"], "different: label Node a1", ()),
    ],
)  # fmt: skip
def test_a_change_of_a_node_is_compared_with_none_that_stays(
    inventory: Path, reviewed: list[str], now: list[str], what: str, lines: tuple[str, ...]
):
    before, after = (
        plan(inventory, SAME, cluster=[replace(LABEL, lines=tuple(text.split("\n"))) for text in texts])
        for texts in (reviewed, now)
    )
    (deviation,) = plan_file.compare(before, after)
    assert (deviation.what, deviation.lines) == (what, lines)


def test_nodes_that_get_another_label_than_reviewed_differ_together(inventory: Path):
    """With what was reviewed, and what is planned now."""
    both = [Difference(Title("Node", name), "labelled", ("+pool=a",)) for name in ("a1", "a2")]
    now = [replace(each, lines=("+pool=b",)) for each in both]
    before, after = (plan(inventory, SAME, cluster=some) for some in (both, now))
    (deviation,) = plan_file.compare(before, after)
    assert deviation.what == "different: label Node a1, a2"
    assert deviation.lines == ("  reviewed  +pool=a", "  now       +pool=b")


def test_a_plan_is_bound_to_inventory_version_and_cluster(inventory: Path):
    before = plan(inventory, SAME, cluster=[LABEL])
    assert plan_file.compare(before, plan(inventory, SAME)) == []  # labelled meanwhile
    inventory.write_text("groups: {all: {}}\n")
    more = Difference(Title("DaemonSet", "gpunode-device-plugin", "gpunode"), "changed", ("-a", "+b"))
    pods = [
        Difference(Title("Pod", f"plugin-{name}", "gpunode"), "replaced", node="a1") for name in ("x", "y")
    ]
    after = plan(inventory, SAME, cluster=[LABEL, more, pods[0]])
    differences = plan_file.compare(replace(before, version="0.0.1"), after)
    assert [problem.code for problem in differences] == ["version", "inventory", "cluster", "cluster"]
    again = replace(after, cluster=plan(inventory, SAME, cluster=[LABEL, more, pods[1]]).cluster)
    assert plan_file.compare(after, again) == []


REBOOT = Reboot("w")
RELOADED = waiting(A, FILE, REBOOT, reload=True)


@pytest.mark.parametrize(
    ("before", "now", "stops"),
    [
        (RELOADED, (FILE, REBOOT), False),
        (RELOADED, (FILE, DOCKER), False),  # in the place of the reboot
        (RELOADED, (FILE,), False),
        (RELOADED, (replace(FILE, content="size = 2\n"), REBOOT), True),
        (RELOADED, (FILE, PACKAGES), True),
        (SAME, (FILE, CONTAINERD), True),
    ],
)
def test_after_the_end_of_work_a_plan_may_do_less(
    before: Member, now: tuple[Any, ...], stops: bool, inventory: Path
):
    after = waiting(A, *now)
    assert after.outcome
    after = replace(after, outcome=replace(after.outcome, disturbs=None))
    assert bool(plan_file.describe_unaccepted(plan(inventory, before), after)) is stops


@pytest.mark.parametrize("words", [(), ("--diff",), ("--no-diff",)])
def test_a_plan_in_a_file_is_shown_as_plan_shows_it(
    words: tuple[str, ...], inventory: Path, tmp_path, monkeypatch, capsys
):
    """Signs, what the hosts are, whom it disturbs, what it noted, the cluster, the costs. No connection is opened."""
    monkeypatch.chdir(tmp_path)
    busy = on(waiting(A, replace(DOCKER, note="2 containers stop with it"), pods={"ml/a": {GPU: 1}}))
    problem = Problem("busy", "its work goes on", fix="Wait.")
    refused = Member(HOSTS[2], Outcome(HOSTS[2].name, "refused", problem=problem))
    alike = [on(waiting(host, FILE, PACKAGES)) for host in HOSTS[3:5]]
    members, costs = (busy, waiting(B, FILE), *alike, refused), "1 host: 1 restart, about 10 s"
    made = plan_file.make(inventory, members, [LABEL], "simulated", costs)
    plan_file.write(Path("friday.plan"), made)

    shown = CliRunner().invoke(app, ["show", "friday.plan", *words])

    assert shown.exit_code == 0, shown.output
    diff = {"--diff": True, "--no-diff": False}.get("".join(words))
    human = Human(quiet=False)
    human.plans([member.outcome for member in members if member.outcome], diff=diff)
    planned = capsys.readouterr().out
    human.cluster("simulated", [LABEL], diff=diff)
    cluster = capsys.readouterr().out
    assert planned in shown.stdout
    assert cluster in shown.stdout
    assert "Debian" in planned
    assert f" {costs}\n" in shown.stdout
    assert "5 hosts: 4 to change, 1 without a plan; 1 change to make in the cluster." in shown.stderr
    assert "`gpunode provision friday.plan` applies it." in shown.stderr
    lines = CliRunner().invoke(app, ["show", "friday.plan", "--json"]).output.splitlines()
    host = next(json.loads(line) for line in lines if '"reviewed"' in line)
    assert host["disturbs"]["pods"][0]["name"] == "ml/a"


def test_a_file_that_changes_otherwise_deviates_by_its_diff(inventory: Path):
    after = waiting(A, replace(FILE, content="size = 2\n"), Reboot("w"))
    (deviation,) = plan_file.compare(plan(inventory, SAME), plan(inventory, after))
    assert deviation.what.splitlines() == ["new: reboot", "different: change /etc/x"]
    assert deviation.lines[-2:] == ("  now       +size = 2", "no longer planned: restart docker")
