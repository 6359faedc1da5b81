"""What a command says last, and its exit code: no more than was done, and no less than was found."""

import errno
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner, Result

from gpunode import cli, inventory
from gpunode.cli import app
from gpunode.cluster.lease import Held
from gpunode.commands import verify
from gpunode.engine import cluster_diff, converge, impact, nodes, plan_file, work
from gpunode.engine.fleet import Visit
from gpunode.engine.member import Member
from gpunode.engine.record import RunOptions
from gpunode.errors import ClusterError, Declined, KubeconfigUnusable, Problem, StalePlan, UsageError
from gpunode.local import files
from gpunode.local.files import STATE
from gpunode.model import Host, Outcome, Plan, Reboot, Ssh, Status, StepPlan, Verdict, WriteFile
from tests import cases, forks, tables

Command = Callable[..., Result]
REFUSED = Member(Host("a", Ssh("a")), reason=Problem(nodes.CONFLICT, "no"))
WAITS = Plan("h", (StepPlan("reboot", (Reboot("because"),)),))
BARE = "groups: {all: {hosts: [right, broken, planned, refused, unreachable, failed]}}\n"
WITH_PLUGIN = f"cluster: {{plugin: {{image: 'plugin:1'}}}}\n{BARE}"


@pytest.fixture
def command(tmp_path, monkeypatch) -> Command:
    """Runs gpunode in a folder of its own; a host's name says how its story ends."""

    def look(visit: Visit, _: Any) -> Outcome:
        status: Status = visit.host.name
        if status == "right":
            return Outcome(status, status, cases.right()[1])
        if status == "broken":
            return Outcome(status, "right", cases.overlaid(cases.right()[1], {"smi_error": "GPU is lost"}))
        error = None if status == "planned" else "so it is"
        return Outcome(
            status,
            status,
            plan=WAITS if status == "planned" else None,
            problem=Problem("", error, fix="do this") if error else None,
        )

    monkeypatch.setattr(converge, "probe_and_plan", look)
    monkeypatch.chdir(tmp_path)

    def run(*words: str, text: str = BARE) -> Result:
        Path("inventory.yaml").write_text(text)
        return CliRunner().invoke(app, [*words])

    return run


def suites(file: str) -> dict[str, ElementTree.Element]:
    """Of a JUnit file, by name."""
    return {suite.attrib["name"]: suite for suite in ElementTree.parse(file).getroot()}


def last(result: Result) -> dict[str, Any]:
    """The last JSON line."""
    return dict(json.loads(result.stdout.splitlines()[-1]))


@tables.rows("drift-beside-other-hosts")
def test_drift_is_reported_where_other_hosts_cannot_be_judged(
    command: Command, hosts: str, plain: int, code: int
):
    """5 where it is all there is to tell, 6 beside hosts that are away, refused or broken; the summary counts the same."""
    assert command("plan", "--limit", hosts).exit_code == plain
    drifted = command("plan", "--limit", hosts, "--exit-code", "--json")
    assert drifted.exit_code == code
    counted = {name: last(drifted)[name] for name in hosts.split(",")}
    assert counted == dict.fromkeys(hosts.split(","), 1)


def test_a_plan_says_why_where_it_is_asked(command: Command):
    """A line for each choice, by its code; none for hosts that were not seen."""
    told = command("plan", "--limit", "right,unreachable", "--why", "--json").stdout.splitlines()
    reasons = [line for line in map(json.loads, told) if line["type"] == "why"]
    assert {line["host"] for line in reasons} == {"right"}
    assert [line["code"] for line in reasons][:2] == ["system", "gpu"]
    assert all(line["chosen"] and line["why"] for line in reasons)
    assert '"why"' not in "".join(command("plan", "--limit", "right", "--json").stdout)


@pytest.mark.parametrize(
    ("host", "objects", "conflict", "code"),
    [
        ("right", 0, False, 0),
        ("right", 2, False, 5),
        ("unreachable", 2, False, 6),
        ("right", 2, True, 6),
        ("right", 0, True, 1),
        ("right", None, False, 1),
        ("planned", None, False, 6),
    ],
)
def test_drift_of_the_cluster_is_reported_as_that_of_hosts(
    command: Command, monkeypatch, host: str, objects: int | None, conflict: bool, code: int
):
    """Also where a label of one host is refused. A cluster that does not answer (None) was not checked."""

    proofs: list[tuple[bool, bool]] = []

    def waiting(*_: object, tainted: bool, run: bool, **__: object) -> cluster_diff.ClusterPlan:
        proofs.append((tainted, run))
        if objects is None:
            raise ClusterError("it does not answer")
        return cluster_diff.ClusterPlan(objects, (REFUSED,) if conflict else ())

    monkeypatch.setattr(nodes, "connect", lambda _: SimpleNamespace(find=lambda *_, **__: ([], "")))
    monkeypatch.setattr(nodes, "check_kubeconfig", lambda _: None)
    monkeypatch.setattr(impact, "locate", lambda *_: ())
    monkeypatch.setattr(cluster_diff, "plan", waiting)
    ended = command("plan", "--limit", host, "--exit-code", "--json", text=WITH_PLUGIN)
    assert ended.exit_code == code
    assert last(ended)["cluster"] == objects
    told = command("plan", "--limit", host, text=WITH_PLUGIN).output
    assert ("cluster not checked" in told) == (objects is None)
    for option in ("--taint-until-verified", "--no-run"):
        command("plan", "--limit", host, option, text=WITH_PLUGIN)
    assert proofs[1:] == [(False, True), (True, True), (False, False)]


@pytest.mark.parametrize("verb", ["plan", "provision"])
def test_without_a_plugin_the_cluster_is_said_to_be_left_out(command: Command, verb: str):
    """The reason and the way out, and a last line that claims nothing of the cluster."""
    words = [verb, "--limit", "right", *(["--yes"] if verb == "provision" else [])]
    told = command(*words).output
    assert "The inventory has no `cluster.plugin`" in told
    assert "plugin: {archive: plugin.tar}" in told
    assert told.splitlines()[-1].endswith("1 up to date; cluster not checked")
    assert last(command(*words, "--json"))["cluster"] is None


def test_provision_says_before_it_asks_that_the_cluster_is_left_out(command: Command):
    """Who says yes knows to what."""
    told = command("provision", "--limit", "planned").output
    assert "The inventory has no `cluster.plugin`" in told


def test_hosts_that_the_plan_could_not_take_are_gone_on_with(command: Command, tmp_path, monkeypatch):
    """They are not done: `@failed` has them, `resume` tries them again, until they are right."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    bad = ["refused", "unreachable", "failed"]

    def ends(*words: str) -> dict[str, str]:
        told = map(json.loads, command(*words, "--json").stdout.splitlines())
        return {line["host"]: line["status"] for line in told if line["type"] == "outcome"}

    assert command("provision", "--limit", ",".join(["right", *bad]), "--yes").exit_code == 1
    assert ends("plan", "--limit", "@failed") == dict(zip(bad, bad, strict=True))
    assert ends("plan", "--limit", "@not-done") == dict(zip(bad, bad, strict=True))
    assert ends("resume", "--limit", "refused,failed", "--yes") == {"refused": "refused", "failed": "failed"}
    assert ends("plan", "--limit", "@not-done") == dict(zip(bad, bad, strict=True))

    # The user fixed them.
    monkeypatch.setattr(
        converge, "probe_and_plan", lambda visit, _: Outcome(visit.host.name, "right", cases.right()[1])
    )
    page = tmp_path / "resume.html"
    assert ends("resume", "--yes", "--html", str(page)) == dict.fromkeys(bad, "right")
    assert all(host in page.read_text() for host in bad)
    done = command("resume")
    assert (done.exit_code, "nothing to resume" in done.output) == (0, True)


def test_a_resume_says_that_a_run_before_the_last_one_left_hosts(command: Command):
    """In words and by its exit code: the last run has finished its own."""
    command("provision", "--limit", "right,failed", "--yes")
    command("provision", "--limit", "right", "--yes")
    done = command("resume")
    assert (done.exit_code, "Earlier runs left failed unfinished" in done.stderr) == (8, True)


@pytest.mark.parametrize(
    ("hosts", "code"),
    [("right", 0), ("broken", 1), ("unreachable", 3), ("right,unreachable", 3), ("broken,unreachable", 1)],
)
def test_verify_ends_with_3_only_where_nothing_else_is_wrong(command: Command, hosts: str, code: int):
    assert command("verify", "--limit", hosts).exit_code == code


def test_a_program_is_not_asked_and_nothing_is_changed(command: Command):
    """`--json` without `--yes`: declined."""
    assert isinstance(command("provision", "--json", "--limit", "planned").exception, Declined)


def test_verify_counts_what_it_did_not_look_at(command: Command):
    """In its last line and in JSON."""
    told = command("verify", "--limit", "right")
    assert told.exit_code == 0
    assert told.output.splitlines()[-1] == (
        " 1 host OK: 7 of 11 links checked; not checked: node, plugin, capacity, pod"
    )
    counted = last(command("verify", "--limit", "right", "--json"))
    assert counted.pop("seconds") >= 0
    assert counted == {
        "type": "summary",
        "hosts": 1,
        "broken": 0,
        "pending": 0,
        "links": 11,
        "checked": 7,
        "not_checked": {"node": 1, "plugin": 1, "capacity": 1, "pod": 1},
    }


def ok(*layers: str) -> list[Verdict]:
    return [Verdict.ok(layer, "fine") for layer in layers]


WHOLE = ok(*verify.CHAIN)
UNRUN = [*WHOLE[:-1], Verdict.unknown("pod", "vectoradd was not run: no GPU is free")]
BROKEN = [
    *WHOLE[:1],
    Verdict.broken("module", "none"),
    *(Verdict.unknown(layer) for layer in verify.CHAIN[2:]),
]


@pytest.mark.parametrize(
    ("chains", "text"),
    [
        ({"a": WHOLE, "b": WHOLE}, "2 hosts OK: 11 of 11 links checked"),
        ({"a": WHOLE[:-1]}, "1 host OK: 10 of 11 links checked; not checked: pod"),
        ({"a": [*ok("ssh"), *WHOLE]}, "1 host OK: 11 of 11 links checked"),
        (
            {"a": WHOLE, "b": UNRUN, "c": UNRUN},
            "3 hosts OK: a: 11 of 11 links checked; b, c: 10 of 11 links checked, not checked: pod",
        ),
        ({"a": WHOLE, "b": BROKEN}, "1 of 2 hosts broken: b (module); 1 host OK: 11 of 11 links checked"),
        ({"a": [Verdict.broken("ssh", "away")]}, "1 of 1 host broken: a (ssh)"),
        (
            {"a": [*WHOLE[:-1], Verdict.pending("pod", "works", "another driver", "gpunode provision")]},
            "1 host OK: 11 of 11 links checked; changes pending on a: `gpunode provision` makes them",
        ),
    ],
)
def test_a_fleet_is_reported_in_one_sentence(chains: Mapping[str, list[Verdict]], text: str):
    assert verify.summarize(chains) == text


@pytest.mark.parametrize(
    ("words", "way"),
    [
        ("verify", "verify FILE"),
        ("label --accelerator", "label --accelerator FILE"),
        ("plugin deploy", "plugin deploy FILE"),
        ("abort inventory.yaml --limit a", "abort --limit a FILE"),
        ("verify inventory.yaml --no-run", "verify --no-run FILE"),
        ("verify --html inventory.yaml", "verify --html inventory.yaml FILE"),
        ("forget h1", "forget h1 -i FILE"),
    ],
)
def test_a_command_without_an_inventory_names_the_way_out(tmp_path, monkeypatch, words: str, way: str):
    """Its own line with a file, which takes the place of the inventory's name alone; and an inventory to copy."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["gpunode", *words.split()])
    error = CliRunner().invoke(app, words.split()).exception
    assert isinstance(error, UsageError)
    assert "no inventory.yaml" in error.message
    assert f"`gpunode {way}`" in error.hint
    written = re.search(r"cat > inventory.yaml <<'END'\n(.*?\n)END\n", f"{error}\n", re.DOTALL)
    assert written
    Path("inventory.yaml").write_text(written[1])
    assert inventory.load(Path("inventory.yaml")).hosts


def test_the_usual_inventory_is_the_one_of_the_environment_and_an_argument_comes_first(
    command: Command, monkeypatch
):
    """An explicit argument, then $GPUNODE_INVENTORY, then ./inventory.yaml."""
    Path("mine.yaml").write_text("groups: {all: {hosts: [failed]}}\n")
    Path("named.yaml").write_text("groups: {all: {hosts: [unreachable]}}\n")
    usual = "groups: {all: {hosts: [planned]}}\n"

    def host(*words: str) -> str:
        lines = map(json.loads, command("plan", *words, "--json", text=usual).stdout.splitlines())
        return next(str(line["host"]) for line in lines if line["type"] == "plan")

    assert host() == "planned"
    monkeypatch.setenv("GPUNODE_INVENTORY", "mine.yaml")
    assert host() == "failed"
    assert host("named.yaml") == "unreachable"

    monkeypatch.setenv("GPUNODE_INVENTORY", "gone.yaml")
    error = command("plan").exception
    assert "gone.yaml: no such file" in str(error)
    assert "(named by $GPUNODE_INVENTORY)" in str(error)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("pause", "there is no inventory.yaml in this folder, and a run is found by its inventory"),
        ("resume", "there is no inventory.yaml in this folder, and a run is found by its inventory"),
        ("provision friday.plan", "friday.plan: no such file, neither an inventory nor a plan"),
    ],
)
def test_a_file_that_is_not_there_is_named_as_what_it_was_to_be(
    tmp_path, monkeypatch, words: str, message: str
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["program"])
    error = CliRunner().invoke(app, words.split()).exception
    assert isinstance(error, UsageError)
    assert error.message == message
    assert " " in words or f"`gpunode {words} FILE`" in error.hint


@pytest.mark.parametrize(
    "words", ["plugin remove --yes", "plugin status", "run vectoradd", "run nvidia-smi", "status"]
)
@pytest.mark.parametrize("source", ["typed", "environment"])
def test_an_inventory_that_is_named_and_not_there_is_no_kubeconfigs_cluster(
    tmp_path, monkeypatch, words: str, source: str
):
    """Also where its name is the usual one: without a name, the kubeconfig's current context is taken."""

    def connect(*_: object) -> None:
        raise KubeconfigUnusable("the cluster was asked")

    monkeypatch.setattr(nodes, "connect", connect)
    monkeypatch.chdir(tmp_path)
    name = ["inventory.yaml"] if source == "typed" else []
    if source == "environment":
        monkeypatch.setenv("GPUNODE_INVENTORY", "inventory.yaml")
    error = CliRunner().invoke(app, [*words.split(), *name]).exception
    assert isinstance(error, UsageError)
    assert (error.exit_code, error.message) == (2, "there is no inventory.yaml in this folder")

    monkeypatch.delenv("GPUNODE_INVENTORY", raising=False)
    unnamed = CliRunner().invoke(app, words.split()).exception
    if "--yes" not in words:
        assert isinstance(unnamed, KubeconfigUnusable)
        return
    assert isinstance(unnamed, UsageError)
    assert "nothing names the cluster" in unnamed.message
    named = CliRunner().invoke(app, [*words.split(), "--context", "prod"]).exception
    assert isinstance(named, KubeconfigUnusable)


@pytest.mark.parametrize("words", [("plan",), ("verify", "--no-run"), ("provision", "--yes")], ids=" ".join)
def test_an_inventory_of_the_environment_is_named_where_another_is_in_the_folder(
    command: Command, monkeypatch, words: tuple[str, ...]
):
    """Not where the command line names it, nor where both are one."""
    note = "The inventory is mine.yaml, named by $GPUNODE_INVENTORY; ./inventory.yaml is not used."
    Path("mine.yaml").write_text(BARE)
    assert note not in command(*words).stderr
    monkeypatch.setenv("GPUNODE_INVENTORY", "mine.yaml")
    assert note in " ".join(command(*words).stderr.split())
    assert "is not used" not in command(*words, "mine.yaml").stderr
    monkeypatch.setenv("GPUNODE_INVENTORY", str(Path("inventory.yaml").absolute()))
    assert "is not used" not in command(*words).stderr


def test_the_question_names_the_inventory(command: Command, monkeypatch):
    asked: list[str] = []
    monkeypatch.setattr("gpunode.report.human.Human.ask", lambda _, question: asked.append(question))
    Path("mine.yaml").write_text("groups: {all: {hosts: [planned]}}\n")
    command("provision", "mine.yaml")
    assert asked == [
        "1 host: 1 reboot, pods unknown on 1 host, about 3 min (typical times). Apply mine.yaml?"
    ]


@pytest.fixture
def asked(monkeypatch) -> list[str]:
    """The questions, all answered with no; where none is asked, "begun" is raised before anything begins."""
    questions: list[str] = []
    monkeypatch.setattr("gpunode.report.human.Human.ask", lambda _, question: questions.append(question))

    def begin(*_: object, **__: object) -> None:
        raise Declined("begun")

    monkeypatch.setattr("gpunode.engine.rollout.begin_record", begin)
    return questions


def test_a_plan_says_what_it_costs(command: Command):
    costs = "1 host: 1 reboot, pods unknown on 1 host, about 3 min (typical times)\n"
    assert costs in command("plan", "--limit", "planned,right").stdout
    assert "about" not in command("plan", "--limit", "right").stdout


@pytest.mark.parametrize("options", [(), ("--yes",)])
def test_a_reviewed_plan_is_applied_without_a_question(
    command: Command, asked: list[str], options: tuple[str, ...]
):
    """What it does and costs is shown, as of any run."""
    planned = command("plan", "--limit", "planned,right", "--out", "friday.plan")
    assert "provision friday.plan" in planned.stderr
    done = command("provision", "friday.plan", *options)
    assert str(done.exception).startswith("begun")
    assert (asked, "reboot" in done.stdout) == ([], True)
    assert "The plan matches the reviewed plan of" in done.stderr
    assert done.stdout.count(" 1 host: 1 reboot, pods unknown on 1 host, about 3 min") == 1


def test_a_plans_file_is_told_from_an_inventory_and_belongs_to_its_folder(command: Command):
    for words in ("applies exactly this plan.\n", "The earlier plan there is replaced.\n"):
        assert words in command("plan", "--limit", "right", "--out", "friday.plan").stderr
    assert "friday.plan is a reviewed plan, not an inventory" in str(command("plan", "friday.plan").exception)
    reviewed = plan_file.read(Path("friday.plan"))
    assert reviewed is not None
    plan_file.write(Path("friday.plan"), replace(reviewed, inventory="gone.yaml"))
    refused = str(command("provision", "friday.plan").exception)
    assert "the plan is of gone.yaml, which is not in this folder" in refused


def test_a_plan_of_another_folder_is_recorded_beside_its_inventory(
    command: Command, asked: list[str], tmp_path
):
    """Not beside the plan's file, which may be in the folder of a demo."""
    demo, env = tmp_path / "demo", dict(os.environ)
    (demo / STATE).mkdir(mode=0o700, parents=True)
    command("plan", "--limit", "right", "--out", "demo/friday.plan")
    command("provision", "demo/friday.plan")
    assert (asked, dict(os.environ), list((demo / STATE).iterdir())) == ([], env, [])
    (tmp_path / STATE).mkdir(mode=0o700)
    assert files.runs_folder(tmp_path / "inventory.yaml") == tmp_path / STATE / "gpunode/runs"
    assert demo not in files.runs_folder(tmp_path / "other/inventory.yaml").parents


@pytest.mark.parametrize(
    "words", [("provision", "other/inventory.yaml"), ("forget", "right", "-i", "other/inventory.yaml")]
)
def test_a_run_is_recorded_beside_its_inventory_however_that_is_named(
    command: Command, tmp_path, monkeypatch, words: Sequence[str]
):
    monkeypatch.setenv("XDG_STATE_HOME", "usual")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / STATE).mkdir(mode=0o700)
    (tmp_path / "other" / "inventory.yaml").write_text("groups: {all: {hosts: [right]}}\n")
    command(*words, "--yes")
    assert len([*(tmp_path / "other" / STATE).rglob("*.jsonl")]) == 1


@pytest.mark.parametrize("verb", ["plan", "provision"])
def test_a_plan_shows_the_batches_that_a_provision_with_its_options_would_have(
    command: Command, monkeypatch, verb: str
):
    monkeypatch.setattr(
        converge, "probe_and_plan", lambda visit, _: Outcome(visit.host.name, "planned", plan=WAITS)
    )
    ran = command(verb, "--canary", "1", "--batch", "2", "--json", text="groups: {g: {hosts: [a, b, c]}}\n")
    lines = map(json.loads, ran.stdout.splitlines())
    assert [line["hosts"] for line in lines if line["type"] == "batch"] == [["a"], ["b", "c"]]


@pytest.mark.parametrize(
    ("planned", "differs"),
    [
        ("--no-run --batch 1 --canary 1", "--batch 2"),
        ("--no-run --batch 1 --canary 1", "--canary 0"),
        ("--batch 1 --canary 1 --taint-until-verified", "--no-run"),
        ("--no-run", "--run"),
        ("", "--taint-until-verified"),
    ],
)
def test_a_reviewed_plan_is_applied_with_its_options(
    command: Command, monkeypatch, planned: str, differs: str
):
    """The same options again are fine, others are refused."""
    text, begun = "groups: {g: {hosts: [a, b, c]}}\n", list[RunOptions]()
    mild = Plan("h", (StepPlan("runtime", (WriteFile("/etc/x", "", "w"),)),))
    monkeypatch.setattr(
        converge, "probe_and_plan", lambda visit, _: Outcome(visit.host.name, "planned", plan=mild)
    )

    def begin(*values: object, **_: object) -> None:
        begun.extend(value for value in values if isinstance(value, RunOptions))
        raise Declined("begun")

    monkeypatch.setattr("gpunode.engine.rollout.begin_record", begin)
    batches = [
        [line for line in ran.stdout.splitlines() if '"batch"' in line]
        for words in (
            ("plan", "--out", "f.plan", *planned.split()),
            ("provision", "f.plan"),
            ("provision", "f.plan", *planned.split()),
        )
        for ran in [command(*words, "--json", *(["--yes"] if words[0] == "provision" else []), text=text)]
    ]
    assert batches[0] == batches[1] == batches[2]
    assert len(batches[0]) == (3 if "--batch" in planned else 0)
    assert [plan_file.write_options(options) for options in begun] == [planned, planned]
    assert (f" with {planned}. " in command("show", "f.plan", text=text).stderr) == bool(planned)
    refused = command("provision", "f.plan", *differs.split(), "--yes", text=text).exception
    assert isinstance(refused, UsageError)
    assert (
        refused.message
        == f"{differs.split(maxsplit=1)[0]}: f.plan was reviewed with {planned or 'no options'}"
    )


def test_what_changed_since_the_review_is_asked_for_and_refused_with_yes(command: Command, asked: list[str]):
    command("plan", "--limit", "right", "--out", "friday.plan")
    reviewed = plan_file.read(Path("friday.plan"))
    assert reviewed is not None
    hosts = (replace(reviewed.hosts[0], name="planned"),)
    plan_file.write(Path("friday.plan"), replace(reviewed, hosts=hosts, options=RunOptions(canary=1)))

    done = command("provision", "friday.plan")
    assert str(done.exception).startswith("cancelled")
    assert isinstance(done.exception, Declined)
    again = "Plan again: `gpunode plan --limit planned --canary 1 --out friday.plan`, review it with `gpunode show friday.plan`, then `gpunode provision friday.plan`."
    assert done.exception.hint == again
    assert len(asked) == 1
    _, deviations = done.stdout.split(" Different from the reviewed plan:\n")
    assert deviations.startswith("   planned\n     new: reboot")
    done = command("provision", "friday.plan", "--yes")
    assert isinstance(done.exception, StalePlan)
    assert (done.exception.exit_code, done.exception.hint) == (4, again)
    lines = [json.loads(line) for line in command("provision", "friday.plan", "--json").stdout.splitlines()]
    assert [line["code"] for line in lines if line["type"] == "deviation"] == ["plan"]
    assert [line["host"] for line in lines if line["type"] == "plan"] == ["planned"]


@pytest.mark.parametrize("words", [("plan",), ("verify", "--no-run"), ("provision", "--yes")], ids=" ".join)
def test_the_report_is_also_a_file_where_one_is_named(command: Command, words: tuple[str, ...]):
    """With every host, beside what is printed; a place where none can be written is found before a host is asked."""
    code = command(*words).exit_code
    assert command(*words, "--html", "report.html").exit_code == code
    text = Path("report.html").read_text()
    assert all(f"<b>{name}</b>" in text for name in ("right", "planned", "refused", "unreachable", "failed"))

    error = command(*words, "--html", "gone/report.html").exception
    assert isinstance(error, UsageError)
    assert "no file can be written there" in error.message


def test_the_links_are_also_a_junit_file(command: Command):
    """A suite for each host, a case for each link; beside a page, and never in place of a file of somebody else's."""
    ran = command("verify", "--no-run", "--junit", "links.xml", "--html", "report.html")
    assert ran.exit_code == command("verify", "--no-run").exit_code
    assert Path("report.html").exists()
    written = suites("links.xml")
    assert {"right", "planned", "refused", "unreachable", "broken"} <= set(written)
    for name, suite in written.items():
        failed = [case.attrib["name"] for case in suite if case.find("failure") is not None]
        assert (len(failed), suite.attrib["tests"]) == (int(suite.attrib["failures"]), str(len(suite)))
        assert bool(failed) == (name != "right")
    failures = {name: suite.find("*/failure") for name, suite in written.items() if name != "right"}
    assert all(failure is not None and failure.attrib["message"] for failure in failures.values())
    assert any("Fix: " in (failure.text or "") for failure in failures.values() if failure is not None)

    refused = command("verify", "--no-run", "--junit", "inventory.yaml").exception
    assert isinstance(refused, UsageError)
    assert "--junit inventory.yaml: there is a file that gpunode did not write" in refused.message
    assert command("verify", "--no-run", "--junit", "links.xml").exit_code == ran.exit_code


@pytest.mark.parametrize("verb", ["provision", "resume"])
def test_the_ends_of_a_run_are_also_a_junit_file(command: Command, verb: str):
    hosts = ("--limit", "right,refused,unreachable")
    command("provision", "--yes", *hosts)
    command(verb, "--yes", "--junit", "run.xml", *(hosts if verb == "provision" else ()))
    for name in ("refused", "unreachable"):
        (failure,) = suites("run.xml")[name].findall("testcase/failure")
        assert (failure.attrib["type"], bool(failure.attrib["message"])) == (name, True)
        assert "do this" in (failure.text or "")


def test_hosts_of_a_declined_run_are_skipped_in_its_junit_file(command: Command):
    command("provision", "--limit", "planned,right", "--junit", "run.xml")
    written = suites("run.xml")
    assert [written[name].attrib["skipped"] for name in ("planned", "right")] == ["1", "0"]


def test_a_resume_without_hosts_left_writes_its_junit_file(command: Command):
    command("provision", "--yes", "--limit", "right")
    done = command("resume", "--yes", "-K", "--junit", "run.xml")  # no host, so no password
    assert (done.exit_code, Path("run.xml").exists()) == (0, True)
    assert "there is nothing to resume" in done.stderr


def test_forget_asks_about_the_hosts_that_it_can_forget(command: Command):
    asked = command("forget", "planned", "unreachable", "refused", "right").stderr
    assert "Forget planned? no" in asked


@pytest.mark.parametrize("verb", ["plan", "verify", "provision"])
def test_a_context_that_is_not_in_the_kubeconfig_is_reported_before_a_host_is_asked(
    command: Command, verb: str
):
    """It is a mistake of the inventory's: exit code 2."""
    Path("config").write_text("{contexts: [{name: prod, context: {}}], current-context: prod}\n")
    text = "cluster: {kubeconfig: config, context: prd, plugin: {image: 'plugin:1'}}\n" + BARE
    ran = command(verb, "--limit", "right", "--json", text=text)
    assert isinstance(ran.exception, KubeconfigUnusable)
    assert ran.exception.exit_code == 2
    assert "has no context `prd`" in ran.exception.message
    assert ran.output == ""


def test_lint_gives_no_all_clear_for_hosts_that_it_did_not_see(command: Command):
    ran = command("lint", "--target", "1.36", "--limit", "unreachable")
    assert ran.exit_code == 3
    assert "no host could be judged" in ran.output
    assert "nothing is known" not in ran.output


@pytest.mark.parametrize("words", [("plan",), ("verify", "--no-run"), ("provision", "--yes")], ids=" ".join)
@pytest.mark.parametrize("text", [None, "", "<!doctype html>\n<html>\nof somebody's\n"])
def test_a_report_replaces_only_a_report(command: Command, words: tuple[str, ...], text: str | None):
    """Not the inventory, nor another page; known before a host is asked. An earlier report is replaced."""
    place = Path("inventory.yaml" if text is None else "other.html")
    if text is not None:
        place.write_text(text)
    done = command(*words, "--html", str(place))
    assert isinstance(done.exception, UsageError)
    assert f"--html {place}: there is a file that gpunode did not write" in done.exception.message
    assert done.stdout == ""
    assert place.read_text() == (BARE if text is None else text)

    code = command(*words, "--html", "report.html").exit_code
    first = Path("report.html").stat().st_ino
    assert command(*words, "--html", "report.html").exit_code == code
    assert Path("report.html").stat().st_ino != first


@pytest.mark.parametrize(
    ("words", "status"), [(("plan",), "planned"), (("verify", "--no-run"), "differs")], ids=["plan", "verify"]
)
def test_only_a_command_that_plans_says_planned(command: Command, words: tuple[str, ...], status: str):
    """Of the same host: `verify` shows where its chain breaks, and has no plan."""
    told = map(json.loads, command(*words, "--limit", "planned", "--json").stdout.splitlines())
    assert [line["status"] for line in told if line["type"] == "outcome"] == [status]


@pytest.mark.parametrize(("words", "seconds"), [(("-w", "0.5"), 0.5), (("--watch", "--json"), 2)])
def test_a_watched_status_ends_in_silence(command: Command, monkeypatch, words: tuple[str], seconds: float):
    """Ctrl-C is its way out: nothing was interrupted."""
    order: list[str] = []
    waits: list[float] = []
    monkeypatch.setattr("gpunode.cli.inspection.time.sleep", waits.append)

    def overlook(work: Any, *, fresh: Callable[[], None] = lambda: None, **_: object) -> int:
        order.append("asked")
        fresh()
        if order.count("asked") == 3:
            raise KeyboardInterrupt
        print("table")
        return 1

    monkeypatch.setattr("gpunode.commands.status.show_status", overlook)
    done = command("status", *words)
    assert (done.exit_code, done.stderr, waits) == (0, "", [seconds] * 2)
    assert done.stdout == "table\ntable\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_after_the_report_changes_no_exit_code(number: signal.Signals):
    """Python's own end takes a moment, and has no handlers."""
    late = f"class Late:\n def __del__(self): os.kill(os.getpid(), {int(number)})\nlate = Late()"
    program = f"import os, sys\n{late}\nfrom gpunode.cli import main\nsys.argv[1:] = ['--version']\nmain()"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("gpunode ")


@pytest.mark.parametrize("later", ["as reviewed", "another"])
@pytest.mark.parametrize("waits", ["lease", "work"])
def test_a_reviewed_plan_that_is_another_after_a_wait_is_not_applied(
    command: Command, monkeypatch, waits: str, later: str
):
    """Whether the run waited for its Lease, or for the end of work before a reboot. The reboot's other reason is no difference."""
    seen, applied, cleared = [], [], []
    reboot, wait_for_end = Reboot("because"), work.wait_for_end

    def look(visit: Visit, _: Any) -> Outcome:
        seen.append(visit.host.name)
        content = "as reviewed" if len(seen) < 3 else later
        file = WriteFile("/etc/docker/daemon.json", content, "because", before="")
        steps = (StepPlan("toolkit", (file,)), StepPlan("reboot", (replace(reboot, why=str(len(seen))),)))
        return Outcome(visit.host.name, "planned", plan=Plan("h", steps))

    def apply(visit: Visit, outcome: Outcome, *_: Any) -> Outcome:
        applied.append(outcome.plan)
        return replace(outcome, status="failed", problem=Problem("", "applied"))

    def clear(*arguments: Any) -> work.End:
        cleared.append(waits)
        return wait_for_end(*arguments)

    held = Held("us")
    held.waited = waits == "lease"
    monkeypatch.setattr("gpunode.engine.rollout.Held", lambda _: held)
    monkeypatch.setattr(converge, "probe_and_plan", look)
    monkeypatch.setattr(converge, "apply", apply)
    monkeypatch.setattr(work, "wait_for_end", clear)
    command("plan", "--limit", "planned", "--out", "friday.plan")
    done = command("provision", "friday.plan", "--yes")
    assert done.exit_code == 1
    assert bool(applied) == (later == "as reviewed")
    named = "different: change /etc/docker/daemon.json" in " ".join(done.output.split())
    assert named == (later == "another")
    assert bool(cleared) == (
        waits == "work" or bool(applied)
    )  # no work is ended for a plan that is not applied


@pytest.mark.parametrize(("path", "blamed"), [(None, True), ("i.yaml", True), ("/etc/i.yaml", False)])
def test_a_folder_that_was_removed_is_not_blamed_for_paths_elsewhere(
    path: str | None, blamed: bool, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    tmp_path.rmdir()
    assert cli._is_folder_gone(FileNotFoundError(errno.ENOENT, "not there", path)) == blamed


@pytest.mark.parametrize("words", ["history", "show last"])
def test_a_folder_that_was_removed_is_no_bug(words: str, tmp_path):
    """As that of a demo, once it was stopped from there."""
    program = f"import os, sys\nfrom gpunode.cli import main\nos.rmdir(os.getcwd())\nsys.argv[1:] = {words.split()}\nmain()"
    done = forks.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert (
        done.stderr
        == "gpunode: this folder no longer exists\n  Change to another folder, then run it again.\n"
    )
