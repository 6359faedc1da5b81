"""What `gpunode history` and `gpunode show` read out of records, whatever state these are in."""

import json
import os
import re
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from typer.testing import CliRunner

from gpunode import report
from gpunode.cli import app
from gpunode.cluster.objects.difference import Difference
from gpunode.commands import undo as undoing
from gpunode.engine import history, undo_cluster
from gpunode.engine.history import read, recent
from gpunode.engine.record import (
    CLUSTER,
    Progress,
    Record,
    RecordedMarks,
    RecordedRun,
    RunOptions,
    State,
)
from gpunode.engine.session import Session
from gpunode.errors import GpunodeError
from gpunode.local.files import runs_folder
from gpunode.model import Cluster, Host, Inventory, Plan, Reboot, Service, Ssh, StepPlan, Title, WriteFile
from gpunode.wording import few
from tests import jsonlines

FILE = WriteFile(
    "/etc/docker/daemon.json", '{"password": "hunter2hunter2", "a": 1}\n', "docker needs it", "{}\n"
)
RESTART = Service("docker.service", "daemon.json is newer", restart=True)
NONE, KEPT = "changed nothing", "nothing of it can be undone"
REBOOT = Reboot("the driver is new")


@pytest.fixture(autouse=True)
def records(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def run(*words: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, words)
    if isinstance(done.exception, GpunodeError):
        return done.exception.exit_code, str(done.exception)
    return done.exit_code, done.output


def lines(*words: str) -> list[dict[str, Any]]:
    code, text = run(*words, "--json")
    assert code == 0, text
    return jsonlines.parse(text)


def plan(host: str, *changes: Any) -> tuple[Plan, bool]:
    return Plan(host, (StepPlan("runtime", changes),)), False


def recorded() -> Record:
    """A run of three hosts: a is done, b failed behind its first change, c is being changed."""
    made = Record.begin(
        Path("inventory.yaml"), ["a", "b", "c"], RunOptions(), asked="3 hosts. Apply?", answered="yes"
    )
    made.plans({host: plan(host, FILE, RESTART) for host in "abc"})
    made.cluster(
        [Difference(Title("DaemonSet", "gpunode", "kube-system"), "created", ("+password: hunter2hunter2",))],
        {},
    )
    for host in "abc":
        made.host(host, "changing")
    made.plans({"a": plan("a", RESTART, REBOOT)})
    made.gate({"gate": "true", "hosts": ["a"], "status": 0, "seconds": 0.5, "output": ""})
    made.host("a", "proven", spent={"files": 1.0, "restarts": 70.0}, applied=[FILE, RESTART, REBOOT])
    made.host("b", "failed", "docker: token=hunter2hunter2", spent={"files": 2.0}, applied=[FILE])
    return made


def begin(inventory: Path, hosts: Sequence[str], undo: str | None = None) -> Record:
    """A run that has changed all of these hosts."""
    made = Record.begin(inventory, hosts, RunOptions(undo=undo))
    made.plans({host: plan(host, RESTART) for host in hosts})
    for host in hosts:
        made.host(host, "finished", applied=[RESTART])
    return made


def of_kind(documents: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [
        {key: value for key, value in line.items() if key != "type"}
        for line in documents
        if line["type"] == kind
    ]


def test_an_undo_names_hosts_that_have_left_the_inventory(capsys):
    """Those that the run has changed, or was changing; not one that had nothing to change."""
    made = recorded()
    inventory = Inventory("inventory.yaml", (Host("a", Ssh("a")),), Cluster())
    session = Session(inventory, (), {}, report.make(json=True, quiet=True), 1)
    undo_cluster._show_left(session, (), read(made.path), undo_cluster.ClusterPlan())
    idle = Record.begin(Path("inventory.yaml"), ["d"], RunOptions())
    idle.host("d", "cordoned")
    undo_cluster._show_left(session, (), read(idle.path), undo_cluster.ClusterPlan())
    left = of_kind(jsonlines.parse(capsys.readouterr().out), "left")
    assert [(line["host"], line["code"]) for line in left] == [("b", "kept"), ("c", "kept"), ("", "cluster")]


def test_an_undo_names_labels_that_stay_with_the_reason(capsys):
    """Not those of hosts that the run has not begun, nor those that this undo has taken back already."""
    made = Record.begin(Path("inventory.yaml"), list("abcd"), RunOptions())
    nodes = {f"node-{host}": host for host in "abcd"}
    made.cluster([Difference(Title("Node", node), "labelled", ("+x=1",)) for node in nodes], nodes)
    for host in "acd":
        made.marks(f"node-{host}", "w", {}, {"x": "1"})
        made.host(host, "proven")
    here = tuple(Host(host, Ssh(host)) for host in "abc")
    session = Session(
        Inventory("inventory.yaml", here, Cluster()), (), {}, report.make(json=True, quiet=True), 1
    )
    undo_cluster._show_left(session, (), read(made.path), undo_cluster.ClusterPlan(), {"c"})
    left = of_kind(jsonlines.parse(capsys.readouterr().out), "left")
    assert [(line["what"], line["why"]) for line in left if line["code"] == "cluster"] == [
        ("labelled Node node-a", "--limit excludes its host"),
        ("labelled Node node-d", "the host has left the inventory"),
    ]


def test_undo_last_takes_the_last_run_of_this_inventory(tmp_path, monkeypatch):
    """Never that of another one, where the newest run may be."""
    monkeypatch.chdir(tmp_path)
    for name in ("inventory.yaml", "other.yaml", "third.yaml"):
        Path(name).write_text("groups: {g: {hosts: [a]}}\n")
    mine = begin(Path("inventory.yaml"), ["a"]).id
    other = begin(Path("other.yaml"), ["a"]).id
    undone: list[str] = []
    monkeypatch.setattr(undoing, "undo", lambda _, run, __: undone.append(run.id) or 0)
    assert [run("undo", *words)[0] for words in (["last"], ["last", "other.yaml"], [other[:-1]])] == [0, 0, 0]
    assert undone == [mine, other, other]
    shown = [lines("show", "LAST", *words)[0]["run"] for words in ((), ("other.yaml",))]
    assert shown == [mine, other]
    for command in ("undo", "show"):
        code, text = run(command, "last", "third.yaml")
        assert (code, "no run of third.yaml" in text) == (2, True)


def test_show_last_shows_a_forget_too(tmp_path, monkeypatch):
    """Only undo and resume go on from the runs before it."""
    monkeypatch.chdir(tmp_path)
    Record.begin(Path("inventory.yaml"), ["a"], RunOptions())
    Path("inventory.yaml").touch()
    made = Record.begin(Path("inventory.yaml"), ["a"], RunOptions(command="forget"))
    assert lines("show", "last")[0]["run"] == made.id


@pytest.mark.parametrize(
    ("of", "changed"),
    [
        ({"planned": {"a": (0,), CLUSTER: (1,)}, "hosts": {"a": Progress("skipped", 0)}}, False),
        ({"planned": {"a": (0,)}, "hosts": {"a": Progress("unreachable", 0)}}, True),  # lost in its changes
        ({"planned": {"a": (0,)}, "hosts": {"a": Progress("skipped", 0, made=(0,))}}, True),
        ({"planned": {CLUSTER: (0,)}, "hosts": {"a": Progress("proven", 0)}}, True),
        ({"hosts": {"a": Progress("proven", 0)}}, False),
        ({"hosts": {"a": Progress("drained", 0)}}, True),
        ({"marks": (RecordedMarks("n", "w", {}, {"x": "1"}),)}, True),
        ({"version": ""}, True),
    ],
)
def test_a_run_changed_something_unless_it_ended_before_the_first_change(of: dict[str, Any], changed: bool):
    recorded = RecordedRun("4f1c", "inventory.yaml", 0, RunOptions(), version="1.0")
    assert replace(recorded, **of).changed is changed


@pytest.mark.parametrize(
    ("of", "changed"),
    [
        ({"planned": {"a": (0,)}, "hosts": {"a": Progress("changed", 0)}}, True),
        ({"planned": {"b": (0,)}, "hosts": {"a": Progress("changed", 0)}}, False),  # cut off before its proof
        ({"hosts": {"a": Progress("changed", 0)}, "version": ""}, True),
        ({"planned": {"a": (0,)}, "hosts": {"a": Progress("proven", 0, made=(0,))}}, True),
        ({"planned": {"a": (0,)}, "hosts": {"a": Progress("proven", 0)}}, False),
        ({}, False),
    ],
)
def test_a_run_changed_a_host_if_it_had_changes_for_it_and_began_them(of: dict[str, Any], changed: bool):
    recorded = RecordedRun("4f1c", "inventory.yaml", 0, RunOptions(), version="1.0")
    assert replace(recorded, **of).has_changed("a") is changed


@pytest.mark.parametrize(
    ("later", "passed"),
    [
        ([("forget", {"a": "forgotten"})], ["a `forget`"]),
        ([(None, {"a": "proven", "b": "in use"}), (2, {"a": "undone"}), (3, {"a": "undone"})], [NONE] * 3),
        ([(1, {"a": "kept", "b": "kept"})], [NONE, KEPT]),
        ([(None, {"a": "skipped, changed", "b": "skipped, changed"})], [NONE]),  # a closed gate
        ([(1, {"a": "kept"}), (1, {"b": "kept"})], [NONE, NONE]),  # neither had the cluster's objects
        ([(1, {"a": "kept", "b": "undone, changed"})], []),
        (
            [(1, {"a": "undone, changed", "b": "undone"}), (2, {"a": "kept", "b": "kept"})],
            [NONE, KEPT, KEPT],
        ),
    ],
)
def test_undo_last_passes_over_runs_that_changed_nothing_and_what_they_kept(
    tmp_path, monkeypatch, later: list[tuple[int | str | None, dict[str, str]]], passed: list[str]
):
    """`later`: the runs after two that changed a and b: which each undoes, or its command; and the states of its hosts. `passed`: why, the
    newest first."""
    monkeypatch.chdir(tmp_path)
    inventory = Path("inventory.yaml")
    inventory.write_text("groups: {g: {hosts: [a, b]}}\n")
    records = [begin(inventory, "ab"), begin(inventory, "ab")]
    shown: list[tuple[str, str]] = []
    monkeypatch.setattr(undoing, "undo", lambda _, run, how: shown.append((run.id, how.note)) or 0)
    for of, states in later:
        command = of if isinstance(of, str) else None
        undone = records[of].id if isinstance(of, int) else None
        made = Record.begin(inventory, list(states), RunOptions(undo=undone, command=command))
        records.append(made)
        for host, text in states.items():
            state: Any = text.partition(",")[0]
            made.plans({host: plan(host, RESTART)} if "changed" in text else {})
            made.host(host, state)
        made.end()
    chosen = len(records) - len(passed) - 1
    over = [f"{record.id} ({why})" for record, why in zip(reversed(records), passed, strict=False)]
    assert run("undo", "LAST")[0] == run("undo", records[0].id)[0] == 0
    note = f" Skips {few(over, 1)}." if over else ""
    assert shown == [(records[chosen].id, note), (records[0].id, "")]
    with records[1].path.open("a") as damaged:
        damaged.write('{"batch": 1}\n')
    assert (run("undo", "last")[0] == 0) == (chosen == 2)


def test_an_undo_of_hosts_that_the_run_did_not_touch_names_those_it_did(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("inventory.yaml").write_text("groups: {g: {hosts: [a, b]}}\n")
    earlier, made = (Record.begin(Path("inventory.yaml"), [name], RunOptions()) for name in ("b", "a"))
    monkeypatch.setattr(undoing, "undo", lambda *_: 0)
    code, text = run("undo", "last", "--limit", "b")
    assert (code, f"run {made.id} did not touch b" in text, "It has: a." in text) == (2, True, True)
    for record, host in ((earlier, "b"), (made, "a")):
        record.plans({host: plan(host, RESTART)})
        record.host(host, "proven", applied=[RESTART])
    _, text = run("undo", "last", "--limit", "b")
    assert f"The last run that did: `gpunode undo {earlier.id} --limit b`." in text
    assert run("undo", "last", "--limit", "g")[0] == 0


@pytest.mark.parametrize(
    ("state", "ended", "refused"),
    [("undone", True, False), ("undone", False, True), ("kept", False, True), ("skipped", True, True)],
)
def test_undo_last_does_not_take_an_unfinished_undo_back(
    tmp_path, monkeypatch, state: State, ended: bool, refused: bool
):
    """Who repeats the command after a kill wants the rest undone."""
    monkeypatch.chdir(tmp_path)
    Path("inventory.yaml").write_text("groups: {g: {hosts: [a]}}\n")
    first = begin(Path("inventory.yaml"), ["a"]).id
    second = begin(Path("inventory.yaml"), ["a"], first)
    second.host("a", state)
    if ended:
        second.end()
    undone: list[str] = []
    monkeypatch.setattr(undoing, "undo", lambda _, run, __: undone.append(run.id) or 0)
    code, text = run("undo", "last")
    assert (code, undone) == ((2, []) if refused else (0, [second.id]))
    assert not refused or second.id in text
    assert run("undo", first)[0] == run("undo", second.id)[0] == 0
    rest = Record.begin(Path("inventory.yaml"), ["a"], RunOptions(undo=first))  # it finishes that undo
    rest.host("a", "undone")
    rest.end()
    undone.clear()
    newest_change = rest if state == "skipped" else second  # of none, the newest run
    assert (run("undo", "last")[0], undone) == (0, [newest_change.id])


@pytest.mark.parametrize(("state", "code"), [("kept", 4), ("undone", 0)])
def test_a_resumed_undo_ends_as_one_that_was_not_interrupted(state: State, code: int):
    """What its first part could not put back is named again."""
    made = Record.begin(Path("inventory.yaml"), ["a", "b"], RunOptions())
    reporter = mock.MagicMock()
    session = Session(Inventory("inventory.yaml", (), Cluster()), (), {}, reporter, 1)
    undone = {"a": Progress(state, 0.0)}
    assert undoing.undo(session, read(made.path), undoing.UndoOptions(undone=undone)) == code
    assert ("Not undone: a: " in str(reporter.note.mock_calls)) == (code == 4)


def test_an_undo_says_which_run_it_takes_back(capsys):
    made = Record.begin(Path("inventory.yaml"), ["a"], RunOptions())
    session = Session(
        Inventory("inventory.yaml", (), Cluster()), (), {}, report.make(json=True, quiet=True), 1
    )
    undoing.undo(session, read(made.path), undoing.UndoOptions())
    (note, *_) = of_kind(jsonlines.parse(capsys.readouterr().out), "note")
    assert note["message"].startswith(f"Undoes run {made.id}: began ")
    assert "@" in note["message"]
    assert note["message"].endswith(f"of {Path('inventory.yaml').resolve()}.")


def test_a_run_is_shown_as_it_was():
    run_id = recorded().id
    shown = lines("show", "last")
    (head,) = of_kind(shown, "run")
    assert (head["run"], head["result"], head["ended"]) == (
        run_id,
        {"proven": 1, "failed": 1, "changing": 1},
        "",
    )
    assert (head["question"], head["answer"]) == ("3 hosts. Apply?", "yes")
    assert "@" in head["by"]
    hosts = {line["host"]: line for line in of_kind(shown, "recorded")}
    assert {
        host: [(change["step"], change["kind"], change["made"]) for change in line["changes"]]
        for host, line in hosts.items()
    } == {
        None: [("cluster", "created", None)],
        "a": [("runtime", "WriteFile", True), ("runtime", "Service", True), ("runtime", "Reboot", True)],
        "b": [("runtime", "WriteFile", True), ("runtime", "Service", False)],
        "c": [("runtime", "WriteFile", None), ("runtime", "Service", None)],
    }
    assert hosts["a"]["changes"][0]["why"] == "docker needs it"
    assert any(line.startswith("+") for line in hosts["a"]["changes"][0]["diff"])
    assert of_kind(shown, "phase") == [
        {"phase": "restarts", "seconds": 70.0, "hosts": 1, "slowest": "a", "most": 70.0},
        {"phase": "files", "seconds": 3.0, "hosts": 2, "slowest": "b", "most": 2.0},
    ]
    assert [line["status"] for line in of_kind(shown, "gate")] == [0]
    _, text = run("show", "last")
    assert "\n b  ✗ failed\n" in text
    assert "\n c  ? changing\n" in text


def test_users_see_hosts_that_ended_alike_once_and_diffs_when_they_ask():
    made = recorded()
    made.host("b", "proven", applied=[FILE, RESTART])
    made.host("c", "proven", applied=[FILE, RESTART])
    made.end()
    _, text = run("show", made.id[:-1])
    assert " b, c  ✓ verified" in text
    assert "3 hosts. Apply?" in text
    assert "1 min 10 s" in text
    assert text.count("change /etc/docker/daemon.json") == 2
    assert '"a": 1' not in text
    _, text = run("show", "last", "--diff")
    assert '"a": 1' in text
    assert "diff" not in of_kind(lines("show", "last", "--no-diff"), "recorded")[0]["changes"][0]


@pytest.mark.parametrize("others", ["skipped", "proven"])
def test_a_change_of_the_cluster_is_not_made_where_its_host_was_not_started(others: State):
    """One that is no host's is not made where none was started; else it is not known."""
    made = Record.begin(Path("inventory.yaml"), ["a", "b"], RunOptions())
    pods = [
        Difference(Title("Pod", node, "kube-system"), "replaced", node=node) for node in ("node-a", "node-b")
    ]
    labels, config = (
        Difference(Title("Node", "node-a"), "labelled"),
        Difference(Title("ConfigMap", "x"), "created"),
    )
    made.cluster([*pods, labels, config], {"node-a": "a", "node-b": "b"})
    made.host("a", "skipped")
    made.host("b", others)
    made.end()
    known = None if others == "proven" else False
    (line, *_) = of_kind(lines("show", "last"), "recorded")
    assert [change["made"] for change in line["changes"]] == [False, known, False, known]
    _, text = run("show", "last")
    assert " · replace Pod kube-system/node-a on node-a (not made)\n" in text
    assert (" ~ replaced Pod kube-system/node-b on node-b\n" in text) is (others == "proven")


def test_what_was_not_seen_to_be_made_before_a_host_was_lost_is_not_known():
    """Its apply goes on there. What was seen is made, and its node may be changed."""
    made = Record.begin(Path("inventory.yaml"), ["a"], RunOptions())
    made.plans({"a": plan("a", FILE, RESTART)})
    made.cluster([Difference(Title("Node", "node-a"), "labelled")], {"node-a": "a"})
    made.host("a", "unreachable", applied=[FILE])
    made.end()
    told = of_kind(lines("show", "last"), "recorded")
    assert [change["made"] for line in told for change in line["changes"]] == [None, True, None]


def test_an_annotation_of_a_node_is_the_deployments():
    """Its labels are its host's."""
    made = Record.begin(Path("inventory.yaml"), ["a"], RunOptions())
    titles = [Title("Node", "node-a"), Title("Node", "node-a", part="annotation x")]
    made.cluster([Difference(title, "removed") for title in titles], {"node-a": "a"})
    assert [change.of for change in read(made.path).changes.values()] == ["a", ""]


def test_a_gpunode_of_the_release_before_reads_an_object():
    """It requires the title as text."""
    made = Record.begin(Path("inventory.yaml"), ["a"], RunOptions())
    config = {"kind": "ConfigMap", "metadata": {"name": "x", "namespace": "gpunode"}}
    made.cluster([Difference(Title.of(config), "created", manifest=config)], {})
    written = [json.loads(line) for line in made.path.read_text().splitlines()]
    assert [line["object"]["what"] for line in written if "object" in line] == ["ConfigMap gpunode/x"]


def test_objects_of_an_older_record_have_their_titles():
    """It has them as text alone."""
    made = Record.begin(Path("inventory.yaml"), ["a"], RunOptions())
    titles = [
        Title("Node", "node-a"),
        Title("Node", "node-a", part="annotation gpunode.dev/device-plugin"),
        Title("DaemonSet", "p", "gpunode"),
        Title("RuntimeClass", "nvidia"),
    ]
    made.cluster([Difference(title, "created") for title in titles], {})
    lines = [json.loads(line) for line in made.path.read_text().splitlines()]
    made.path.write_text("".join(json.dumps({**line, "title": None}) + "\n" for line in lines))
    assert [change.title for change in read(made.path).changes.values()] == titles


def test_no_secret_is_in_a_record_and_a_change_is_there_once():
    path = recorded().path
    text = path.read_text()
    assert "hunter2" not in text
    assert text.count("docker needs it") == 1
    assert path.stat().st_mode & 0o777 == 0o600


def test_threads_that_note_plans_at_once_name_changes_that_are_written():
    """A number that another thread has just given is on the disk before a plan with it is."""
    hosts = [f"h{number}" for number in range(40)]
    made = Record.begin(Path("inventory.yaml"), hosts, RunOptions())
    shared = [WriteFile(f"/etc/{number}", "x\n", "why") for number in range(5)]
    go = threading.Barrier(len(hosts))

    def note(host: str):
        go.wait()
        made.plans({host: plan(host, *shared)})

    threads = [threading.Thread(target=note, args=(host,)) for host in hosts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seen = read(made.path)
    assert {host: len(numbers) for host, numbers in seen.planned.items()} == dict.fromkeys(hosts, 5)


def test_a_record_that_is_torn_anywhere_is_shown_up_to_there():
    """Each prefix of a record behind its first line is a record."""
    path = recorded().path
    whole = path.read_bytes()
    head = whole.index(b"\n") + 1
    for cut in range(head, len(whole), 97):
        path.write_bytes(whole[:cut])
        shown = of_kind(lines("show", "last"), "recorded")
        assert {"a", "b", "c"} <= {line["host"] for line in shown}


def old(folder: Path):
    """As gpunode wrote it before plans were in it."""
    head = {"format": 1, "inventory": "/i.yaml", "began": 10.0, "hosts": ["a"], "options": {"run": True}}
    end = {"host": "a", "state": "proven", "time": 70.0}
    text = "".join(f"{json.dumps(line)}\n" for line in (head, end, {"ended": 75.0}))
    (folder / "20200101T000000Z-0001.jsonl").write_text(text)


def test_an_older_record_is_shown_without_what_it_lacks():
    folder = runs_folder(Path("inventory.yaml"))
    folder.mkdir(parents=True)
    old(folder)
    (line,) = of_kind(lines("history"), "run")
    assert (line["by"], line["took"], line["result"], line["ended"]) == (
        "", 65.0, {"proven": 1}, "1970-01-01T00:01:15+00:00"
    )  # fmt: skip
    code, text = run("show", "2020")
    assert code == 0
    assert "older gpunode" in text


def foreign(folder: Path):
    (folder / "notes.jsonl").write_text('{"milk": 2}\n')


def folder_in_its_place(folder: Path):
    (folder / "notes.jsonl").mkdir()


def newer(folder: Path):
    (folder / "notes.jsonl").write_text('{"format": 2, "hosts": []}\n')


def unknown_numbers(folder: Path):
    head = {"format": 1, "inventory": "", "began": 1, "hosts": ["a"]}
    (folder / "notes.jsonl").write_text(f"{json.dumps(head)}\n" + '{"planned": {}, "hosts": 5}\n')


@pytest.mark.parametrize("broken", [foreign, folder_in_its_place, newer, unknown_numbers])
def test_a_record_that_cannot_be_read_hides_no_other(broken: Callable[[Path], None]):
    made = recorded()
    broken(made.path.parent)
    runs = lines("history")
    assert [line["run"] for line in of_kind(runs, "run")] == [made.id]
    (error,) = of_kind(runs, "error")
    assert "notes.jsonl" in error["error"]
    code, text = run("show", "notes")
    assert code != 0
    assert "notes.jsonl" in text


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads every file")
def test_a_record_of_another_user_is_named():
    path = recorded().path
    path.chmod(0)
    assert "Permission denied" in of_kind(lines("history"), "error")[0]["error"]


def test_a_name_that_means_no_run_or_several_is_refused():
    assert run("show", "last") == (2, run("show", "last")[1])
    assert "no run is recorded" in run("show", "last")[1]
    first, second = recorded(), recorded()
    code, text = run("show", "2")
    assert code == 2
    assert first.id in text
    assert second.id in text
    assert "no recorded run is 7" in run("show", "7")[1]
    assert (
        "friday.plan: no such file\n  `gpunode plan --out FILE` writes a plan"
        in run("show", "friday.plan")[1]
    )
    assert of_kind(lines("show", "last"), "run")[0]["run"] == second.id


def test_the_newest_runs_come_first_and_are_counted():
    made = [recorded().id for _ in range(3)]
    assert [line["run"] for line in of_kind(lines("history", "-n", "2"), "run")] == [made[2], made[1]]
    assert "earlier ones" in run("history", "-n", "2")[1]
    assert "earlier ones" not in run("history", "-n", "3")[1]


@pytest.mark.parametrize(("mode", "own"), [(0o700, True), (0o755, True), (0o777, False), (None, False)])
def test_records_are_beside_an_inventory_that_has_a_place_of_the_users(tmp_path, mode: int | None, own: bool):
    """A file, and a folder into which others may write, are none."""
    inventory, place = tmp_path / "inventory.yaml", tmp_path / ".gpunode"
    inventory.write_text("groups: {all: {hosts: [a]}}\n")
    if mode is None:
        place.touch()
    else:
        place.mkdir()
        place.chmod(mode)
    _, text = run("resume", str(inventory))
    assert (f"Records are in {place}/gpunode/runs" in text) is own


def test_a_bundle_has_the_last_runs_of_its_hosts():
    runs = [
        Record.begin(Path("inventory.yaml"), hosts, RunOptions()).path for hosts in (["a"], ["b"], ["a", "b"])
    ]
    assert recent(Path("inventory.yaml"), 5, hosts={"a"}) == [runs[2], runs[0]]
    assert recent(Path("inventory.yaml"), 2) == [runs[2], runs[1]]


@pytest.mark.parametrize(
    ("options", "command"), [({}, "provision"), ({"undo": "r1"}, "undo"), ({"command": "forget"}, "forget")]
)
def test_the_list_of_runs_fits_80_columns_and_names_their_commands(
    options: dict[str, str], command: str, monkeypatch, tmp_path
):
    monkeypatch.chdir(tmp_path)
    for name, value in (("FORCE_COLOR", "1"), ("NO_COLOR", "1"), ("COLUMNS", "80"), ("TERM", "xterm")):
        monkeypatch.setenv(name, value)
    inventory = tmp_path.parent / "a-folder-with-a-long-name" / "inventory.yaml"
    Record.begin(inventory, ["a", "b"], RunOptions(**options)).host("a", "proven")
    _, text = run("history")
    head, row = (
        line for line in re.sub(r"\x1b\[[0-9;]*m", "", text).splitlines() if "RUN" in line or command in line
    )
    assert head.split() == ["RUN", "COMMAND", "BEGAN", "TOOK", "INVENTORY", "RESULT"]
    assert max(map(len, (head, row))) <= 80
    assert "inventory.yaml  1 verified" in row
    (listed,) = of_kind(lines("history"), "run")
    assert (listed["command"], listed["undoes"]) == (command, options.get("undo", ""))


def test_a_host_is_taken_back_once_none_of_its_runs_is_left():
    """Also an undo can be undone, and a host provisioned again; a run that did not begin there changes nothing."""
    inventory = Path("inventory.yaml")

    def made(state: State, **options: Any) -> str:
        record = Record.begin(inventory, ["a"], RunOptions(**options))
        record.plans({"a": plan("a", FILE)})
        record.host("a", state, applied=[FILE] if state == "finished" else [])
        return record.id

    def back(*changed: str) -> list[str]:
        return [text.split()[0] for text in history.find_taken_back(inventory, ["a", "b"], changed).values()]

    first, second = made("finished"), made("finished")
    made("undone", undo=second)
    assert back() == []  # the first run's changes are left
    undone = made("undone", undo=first)
    made("refused")
    assert back() == ["undone"]
    made("undone", undo=undone)
    assert back() == []
    made("forgotten", command="forget")
    assert back() == ["forgotten"]
    assert back("a") == []  # its journal has entries since
    made("proven")  # set up from elsewhere
    made("undone", undo=made("finished"))
    assert back() == []
