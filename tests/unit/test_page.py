"""`--html`: one file that tells of a run, from the same rows as the terminal's report."""

import errno
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest

from gpunode.cluster.objects.difference import Difference
from gpunode.engine.reporter import Brief, ForPrograms, Headline
from gpunode.errors import Problem
from gpunode.model import (
    Disturbance,
    Disturbed,
    Event,
    Host,
    Outcome,
    Plan,
    Reboot,
    Service,
    Ssh,
    StepPlan,
    Title,
    Verdict,
    WriteFile,
)
from gpunode.report import make
from gpunode.report.junit import JUnit, _add_gpu
from gpunode.report.page import Page
from tests import cases

HOSTS = ["gpu-1", "gpu-2", "gpu-3"]
VOID = {"meta", "input", "link", "br"}
EVIL = "<script>alert(1)</script> \x1b[31m password=hunter2"


class Tree(HTMLParser):
    """The tags, in order; raises where one is not closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.fixture
def page(tmp_path) -> Page:
    """A plan of four hosts: two that change alike, one that is right, one that is refused with words that are not nice."""
    written = Page(make(json=True, quiet=True), tmp_path / "report.html", "gpunode plan · inventory.yaml")
    hosts = [Host(name, Ssh(name)) for name in ("gpu-1", "gpu-2", "gpu-3", "gpu-4")]
    write = WriteFile("/etc/docker/daemon.json", '{"a": "<b>"}\n', "pods get GPUs", before="{}\n")
    steps = (StepPlan("docker", (write, Service("docker.service", "it reads it", restart=True))),)
    facts = cases.right()[1]
    outcomes = [
        *(Outcome(name, "planned", facts, plan=Plan(name, steps)) for name in ("gpu-1", "gpu-2")),
        Outcome("gpu-3", "right", facts),
        Outcome("gpu-4", "refused", problem=Problem("", EVIL, fix="Do <i>this</i>.")),
    ]
    with written.live(hosts):
        for outcome in outcomes:
            for text in ("reading <facts>", "probe"):
                written.event(Event("stage", outcome.host, text))
            written.outcome(outcome)
    written.plans(outcomes)
    written.cluster("prod", [Difference(Title("DaemonSet", "y", "x"), "changed", ("-a: <b>", "+a: <c>"))])
    written.problem(Problem("", "no <answer>", fix="Try again."))
    written.summary(
        [replace(outcome) for outcome in outcomes], cluster=1
    )  # as with another inventory than the usual one
    return written


def test_a_page_is_one_wellformed_file_that_needs_nothing_from_elsewhere(page: Page):
    """No link, no image, no font; and no text of a host's becomes markup or shows a secret."""
    text = page.text()
    tags = Tree(text).tags
    assert not [tag for tag, attrs in tags if {"src", "href"} & attrs.keys()]
    assert "url(" not in text
    assert "@import" not in text
    assert "default-src 'none'" in text
    assert len([tag for tag, _ in tags if tag == "script"]) == 1
    assert "&lt;script&gt;" in text
    assert "hunter2" not in text
    assert "\x1b" not in text


def test_memory_that_is_shared_with_the_host_is_said_in_words(tmp_path):
    """GB10 has none of its own."""
    page = Page(make(json=True, quiet=True), tmp_path / "report.html", "gpunode verify")
    facts = cases.right()[1]
    gpus = (replace(facts.gpus[0], memory_mib=None), *facts.gpus[1:])
    page.outcome(Outcome("a", "right", replace(facts, gpus=gpus)))
    assert "<td>shared with the host</td>" in page.text()
    assert "None" not in page.text()


def test_no_text_of_a_host_or_cluster_controls_the_page(tmp_path):
    """Wherever it stands: control characters, C1 and bidi ones are escaped, secrets are redacted."""
    evil = "x\x1b]52;c;\x07\x9b\u202e\u2066 password=hunter2 y"
    page = Page(make(json=True, quiet=True), tmp_path / "report.html", evil)
    facts = cases.right()[1]
    gpus = tuple(replace(gpu, name=evil, pci=evil, uuid=evil) for gpu in facts.gpus)
    outcome = Outcome(
        evil, "right", replace(facts, gpus=gpus, kernel=evil, os=replace(facts.os, pretty=evil))
    )
    failed = Outcome("b" + evil, "failed", problem=Problem("", evil, fix=evil))
    for member in (outcome, failed):
        page.event(Event("stage", member.host, "probe"))
        page.event(Event("stage", member.host, evil))
        page.outcome(member)
    page.plans([outcome, failed])
    page.links("c" + evil, [Verdict.broken("PCI", evil, cause=evil, fix=evil)])
    page.cluster(evil, [Difference(Title("DaemonSet", evil), "changed", (evil, f"-{evil}\n{evil}"))])
    page.rows(
        "verified",
        ["host", "node", "result", "proof", "layer", "code"],
        [[evil, evil, "verified", evil, "", ""]],
    )
    page.problem(Problem("", evil, fix=evil))
    page.note(evil)
    page.total(evil, {})
    text = page.text()
    Tree(text)
    assert not re.findall("[^\\n\x20-\x7e·✓✗–…×]", text)
    assert "hunter2" not in text
    assert text.count(r"\x1b]52;c;\x07\x9b\u202e\u2066") > 20


def test_the_fleet_is_reported_by_cause_the_bad_ones_first(page: Page):
    rows = re.findall(
        r"<tr><td data-name=\"hosts\">(\d)</td><td data-name=\"result\" class=\"(\w+)\">([\w ]+)</td><td data-name=\"cause\">(.*?)</td><td data-name=\"fix\">(.*?)</td><td data-name=\"names\">(.*?)</td></tr>",
        page.text(),
    )
    names = [re.sub(r"<.*?>", "", row[5]).strip() for row in rows]
    assert [(*row[:3], name) for row, name in zip(rows, names, strict=True)] == [
        ("1", "red", "refused", "gpu-4"),
        ("2", "yellow", "to change", "gpu-1, gpu-2"),
        ("1", "green", "up to date", "gpu-3"),
    ]
    assert rows[1][3] == "docker"
    assert page.text().count('<span class="red">✗ refused</span>') == 1


def test_each_host_has_its_diff_its_gpus_and_its_timeline(page: Page):
    text = page.text()
    card = text.split("<b>gpu-1, gpu-2</b>")[1].split('<details class="host"')[0]
    assert "/etc/docker/daemon.json" in card
    assert '<span class="green">' in card
    assert cases.right()[1].gpus[0].uuid in card
    assert "reading &lt;facts&gt;" in card
    assert "4 hosts in " in text
    assert "+a: &lt;c&gt;" in text
    assert "no &lt;answer&gt;</span><br>Try again." in text


def test_verify_shows_the_chain_and_the_first_broken_link_as_the_cause(tmp_path, capsys):
    """A missing right is a cause, too, and its host is not OK."""
    page = Page(make(json=True, quiet=True), tmp_path / "v.html", "gpunode verify")
    junit = JUnit(page, tmp_path / "v.xml", "gpunode verify")
    page.links(
        "gpu-1",
        [
            Verdict.ok("PCI", "2 GPUs"),
            Verdict.broken(
                "module", "none", cause="not loaded", fix="gpunode provision --limit gpu-1   # 1 reboot"
            ),
        ],
    )
    page.links("gpu-2", [Verdict.ok("PCI", "2 GPUs")])
    unread = Verdict.unknown("node", "not judged", Problem("no-rights", "x", cause="user lacks 7 rights"))
    junit.links("gpu-3", [Verdict.ok("PCI", "2 GPUs"), unread, Verdict.unknown("pod")])
    page.total("1 of 2 hosts broken", {})
    text = page.text()
    assert (
        'class="red">broken</td><td data-name="cause">module: not loaded</td><td data-name="fix"><code>gpunode provision --limit gpu-1</code>   # 1 reboot</td><td data-name="names"><span class="name">gpu-1</span>'
        in text
    )
    assert 'class="green">OK</td>' in text
    assert (
        text.count('<span class="line" style="--in: 19ch">') == 3
    )  # cause and fix: wrapped, they go on below their text
    assert 'class="dim">partly checked</td><td data-name="cause">node: user lacks 7 rights</td>' in text
    assert json.loads(capsys.readouterr().out.splitlines()[-3])["code"] == "no-rights"
    assert 'message="not checked: a link before it is broken or not judged"' in junit.text()
    assert 'tests="3" failures="0" errors="1" skipped="1"' in junit.text()
    assert '<error type="no-rights" message="not judged">user lacks 7 rights</error>' in junit.text()
    assert "<p>1 of 2 hosts broken</p>" in text


def test_a_page_is_light_or_dark_as_its_reader_likes_and_can_be_printed(page: Page):
    text = page.text()
    assert "color-scheme: light dark" in text
    assert "prefers-color-scheme: dark" in text
    assert "@media print" in text
    names = set(re.findall(r'class="(\w+)"', text)) - {"host", "status", "gpus", "time", "mono", "idle"}
    assert all(f".{name} " in text for name in names), names  # every style that is used is defined


def test_a_file_that_cannot_be_written_leaves_the_old_one(page: Page, tmp_path, monkeypatch):
    page.write()
    before = page.text()
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]

    def full(self: Path, text: str, **_: str) -> None:
        self.write_bytes(text[:99].encode())
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(OSError, match="No space left"):
        page.write()
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]
    assert (tmp_path / "report.html").read_text() == before


def test_the_costs_are_on_top_and_commands_are_code(page: Page):
    page.note(Headline("2 hosts: 0 pods disturbed, about 1 min"))
    page.note("Run `gpunode provision` <soon>.")
    text = page.text()
    assert text.index("about 1 min") < text.index("Results")
    assert "<p>Run <code>gpunode provision</code> &lt;soon&gt;.</p>" in text
    assert "cluster prod" in text.split("</p>")[0]


def test_equal_plans_are_shown_once_and_open(page: Page):
    """And what is bad is open; a host that is right is closed. Each host of a group keeps its GPUs and its timeline."""
    text = page.text()
    opened = re.findall(r'<details class="host"[^>]*?( open)?>\s*<summary><b>([\w, -]+)</b>', text)
    assert [name for is_open, name in opened if is_open] == ["gpu-4", "gpu-1, gpu-2"]
    assert text.count("/etc/docker/daemon.json") == 1
    assert "<details><summary>gpu-1</summary>" in text
    assert "<details><summary>gpu-2</summary>" in text


def test_a_table_has_no_empty_column_and_a_long_one_is_folded(page: Page):
    columns = ["batch", "hosts", "changes", "disturbed", "words"]
    page.rows("batch", columns, [[1, HOSTS, HOSTS, [], []], [2, ["x"], ["x"], ["x"], ["reboot"]]])
    columns = ["node", "uuid", "gpu", "result", "pods", "seconds", "why"]
    page.rows(
        "vectoradd", columns, [[f"gpu-{number}", "U", "H100", "failed", 1, 2.0, ""] for number in range(50)]
    )
    text = page.text()
    assert "<h2>Batches</h2>" in text
    assert ">gpu-[1:3]</td><td" in text
    assert "<th>hosts</th><th>disturbed</th><th>effect</th></tr>" in text
    assert "<th>seconds</th></tr>" in text
    assert "<summary>50 rows</summary>" in text


def test_a_figure_that_was_not_measured_is_not_in_a_gpus_case():
    suite = ElementTree.Element("testsuite", name="gpu-1")
    _add_gpu(suite, {"index": None, "uuid": "GPU-1", "result": "accepted", "temp": None, "remarks": ""}, ())
    assert suite.findtext("*/system-out") == "uuid: GPU-1\nresult: accepted"


def test_a_run_says_of_each_plan_whether_it_was_made(page: Page):
    """As after a pause: the plans of hosts that were not started are on the page, too. Its last words are how to go on."""
    planned = next(card.shown for card in page._cards.values() if card.name == "gpu-1")
    assert planned
    assert planned.plan
    changes = planned.plan.changes
    page.outcome(replace(planned, status="changed", applied=changes))
    proofs = [
        ("gpu-1", "n", "verified", "4 GPUs", "", ""),
        ("gpu-2", "n", "not verified", "skipped: the run was paused", "", "paused"),
    ]
    page.rows("verified", ("host", "node", "result", "proof", "layer", "code"), proofs)
    page.summary([], after="`gpunode resume` continues.")
    made, left = (
        next(card for card in page._cards.values() if card.name == name) for name in ("gpu-1", "gpu-2")
    )
    assert made.lines()[0].parts[0].text.strip() == "these changes were made"
    assert left.lines()[0].parts[0].text.strip() == "none of these changes was made"
    assert "<code>gpunode resume</code> continues." in page.text()


PROOF = ("host", "node", "result", "proof", "layer", "code")
BATCH = {
    "run": "1",
    "state": "running",
    "hosts": 3,
    "finished": 0,
    "bad": 0,
    "since": 0.0,
    "batch": 1,
    "batches": 5,
    "left": 9.0,
}


def end_of_run(tmp_path, second: tuple[str, ...], kind: type[Page] = Page) -> Page:
    """A run of three right hosts in five batches: the first is verified, `second` is the second's row, the run was paused before the third."""
    page = kind(make(json=True, quiet=True), tmp_path / "report.html", "gpunode provision · inventory.yaml")
    facts = cases.right()[1]
    outcomes = [Outcome(name, "right", facts) for name in HOSTS]
    page.note(Headline("3 hosts: about 2 min"))
    for outcome in outcomes:
        page.event(Event("stage", outcome.host, "probe"))
        page.outcome(outcome)
    page.plans(outcomes)
    page.event(Event("stage", None, "batch 1 of 5", BATCH))
    page.event(Event("stage", "gpu-1", "waiting for the plugin"))
    page.note(Brief("Skipped: gpu-3 and 9 more: the run was paused."))
    skipped = (
        "gpu-3",
        "",
        "not verified",
        "skipped: the run was paused",
        ForPrograms(""),
        ForPrograms("run-paused"),
    )
    page.rows("verified", PROOF, [("gpu-1", "gpu-1", "verified", "4 GPUs", "", ""), second, skipped])
    page.resume = "gpunode resume lab.yaml"
    page.summary(outcomes, after="Not done: gpu-2 and 9 more.")
    return page


def test_a_host_in_a_runs_junit_file_has_the_seconds_of_its_changes(tmp_path):
    junit = JUnit(make(json=True, quiet=True), tmp_path / "v.xml", "gpunode provision")
    junit.rows("time", ("host", "seconds", "phases"), [("a", 12.5, {"packages": 12.5})])
    junit.rows("verified", PROOF, [(name, name, "verified", "4 GPUs", "", "") for name in "ab"])
    ends = ElementTree.fromstring(junit.text()).findall("*/testcase")
    assert [(case.get("classname"), case.get("time")) for case in ends] == [("a", "12.5"), ("b", None)]


def test_a_paused_runs_junit_file_has_the_proofs_and_skips_hosts_not_begun(tmp_path):
    failed = ("gpu-2", "gpu-2", "not verified", "failed", "", "")
    suites = ElementTree.fromstring(end_of_run(tmp_path, failed, JUnit).text())
    ends = [(end.tag, end.get("message") or end.text) for end in suites.findall("*/*/*")]
    paused = ("skipped", "skipped: the run was paused")
    assert ends == [("system-out", "verified: 4 GPUs"), ("failure", "failed"), paused]


def test_a_paused_run_has_that_and_the_next_command_on_top(tmp_path):
    """Then how its hosts ended, each with one state on the whole page; what it would cost was planned."""
    skipped = ("gpu-2", "", "not verified", "skipped: the run was paused", "", ForPrograms("run-paused"))
    text = end_of_run(tmp_path, skipped).text()
    body = text[text.index("</h1>") :]
    first = "Paused after batch 1 of 5: 1 host verified, 2 not begun. <code>gpunode resume lab.yaml</code> continues."
    assert body.startswith(f'</h1>\n<p class="bold">{first}</p>')
    assert "1 verified, 2 not verified in this run</p>" in body
    assert "<p>Planned: 3 hosts: about 2 min</p>" in body
    assert body.index("3 hosts in ") < body.index("Planned:") < body.index("Results")
    assert "up to date" not in body
    assert not re.search(r'class="(\w+ )?red"', body)
    assert not re.search("not verified(?! in this run)", body)
    assert " more" not in body
    assert body.count('class="time"') == 1  # a host that did not begin has no timeline


def test_a_failed_run_has_that_on_top(tmp_path):
    failed = ("gpu-2", "gpu-2", "not verified", "gpu-2 is NotReady", "node", ForPrograms("node-not-ready"))
    page = end_of_run(tmp_path, failed)
    page._cards["gpu-3"].code = "stopped"
    assert (
        "Failed in batch 1 of 5: 1 host verified, 1 not verified, 1 not begun. Fix the cause, then <code>"
        in page.text()
    )


def test_no_batch_failed_where_a_host_was_refused_before_it(tmp_path):
    page = end_of_run(tmp_path, ("gpu-2", "gpu-2", "verified", "4 GPUs", "", ""))
    page.outcome(Outcome("gpu-3", "refused", problem=Problem("no-gpu", "no NVIDIA GPU on the PCI bus")))
    assert "2 hosts verified, 1 refused. Fix the cause, then <code>" in page.text()
    assert "Failed" not in page.text()


def test_plans_that_fill_more_than_a_screen_are_brief(page: Page):
    """Equal plans are one, whichever processes use the GPUs; reasons and diffs are a click away. A line that wraps goes on under its text."""
    facts = cases.right()[1]
    assert "Reasons and diffs" not in page.text()
    for number in range(20):
        text = "".join(f"{number % 2} {line}\n" for line in range(40))
        write = WriteFile("/etc/x", text, f"used by python3 (pid {number})", before="")
        steps = (StepPlan("docker", (write,)),)
        page.plans([Outcome(f"new-{number:02}", "planned", facts, plan=Plan("a", steps))])
    html = page.text()
    assert html.count("Reasons and diffs</summary>") == 2
    assert html.count("Each of 10 hosts</summary>") == 2
    assert '<span class="line" style="--in: 8ch">' in html


def test_an_aborted_run_has_that_on_top(page: Page):
    page._ended = False
    page.event(Event("stage", None, "batch 2 of 5", {**BATCH, "batch": 2}))
    assert '<p class="bold">Aborted in batch 2 of 5: ' in page.text()


def test_a_reload_of_the_modules_is_called_so_wherever_it_is(tmp_path):
    page = Page(make(json=True, quiet=True), tmp_path / "report.html", "t")
    steps = (StepPlan("reboot", (Reboot("the new driver is used then"),)),)
    disturbed = Disturbed(Disturbance(reboot=True), reload=True)
    page.plans([Outcome("a", "planned", cases.right()[1], plan=Plan("a", steps), disturbs=disturbed)])
    text = page.text()
    assert '<td data-name="changes">modules</td>' in text
    assert not re.search(">reboot ", text)


def test_on_a_narrow_screen_a_uuid_ends_after_eight_digits(page: Page):
    """The rest is there for a wider one, and for whoever copies or filters."""
    page.rows(
        "deviation",
        ("host", "code", "what"),
        [("GPU-af074ce5-6e61-5c60-b411-a56ae528fe38", "plan", "a <b> of GPU-1")],
    )
    text = page.text()
    assert '><span class="uuid">GPU-af074ce5<span>-6e61-5c60-b411-a56ae528fe38</span></span></td>' in text
    assert ">a &lt;b&gt; of GPU-1</td>" in text


def test_a_page_says_nothing_twice(tmp_path):
    """Objects are in the cluster's plan; a node with its host's name is its host."""
    page = Page(make(json=False, quiet=True), tmp_path / "report.html", "t")
    rows = [("a", "a", "verified", "1 GPU"), ("b", "b", "verified", "1 GPU")]
    page.rows("object", ("action", "object"), [("created", "Namespace x")])
    page.rows("verified", ("host", "node", "result", "proof"), rows)
    assert "Made in the cluster" in page.text()
    assert 'data-name="cause"' not in page.text()  # all are verified
    assert "<th>node</th>" not in page.text()
    page.cluster("prod", [])
    page.rows("object", ("action", "object"), [("created", "Namespace y")])
    page.rows("verified", ("host", "node", "result", "proof"), [*rows, ("c", "n", "verified", "1 GPU")])
    columns = ("node", "uuid", "gpu", "result", "pods", "seconds", "why")
    for node, end in (("a", "passed"), ("b", "failed")):
        page.rows(
            "vectoradd", columns, [(node, f"U{n}", "H100", (end, "passed")[n], 1, n, "") for n in (0, 1)]
        )
    assert (page.text().count(">passed<"), page.text().count(">failed<")) == (0, 1)
    assert "Namespace y" not in page.text()
    assert "<th>node</th>" in page.text()
