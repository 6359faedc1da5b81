"""`--html` in a real browser: what a reader sees, types, prints, by day and by night, on a wide screen and a narrow one."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Request
from playwright.sync_api import Page as Tab

from gpunode.cluster.objects.difference import Difference
from gpunode.errors import Problem
from gpunode.model import Event, Host, Outcome, Plan, Service, Ssh, StepPlan, Title, WriteFile
from gpunode.report import make
from gpunode.report.page import Page
from tests import cases

pytestmark = pytest.mark.browser

READABLE = 4.5  # contrast of text, WCAG 2.2, level AA
# Each element's own text: its colour on the nearest background that is not transparent.
CONTRASTS = """() => {
  const numbers = colour => colour.match(/[\\d.]+/g).map(Number);
  const light = colour => { const [r, g, b] = numbers(colour).slice(0, 3)
    .map(c => c / 255).map(c => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
  const back = one => { for (; one; one = one.parentElement) { const colour = getComputedStyle(one).backgroundColor;
    if ((numbers(colour)[3] ?? 1) > 0) return colour; } return "rgb(255, 255, 255)"; };
  const found = {};
  for (const one of document.body.querySelectorAll("*")) {
    if (![...one.childNodes].some(n => n.nodeType === 3 && n.textContent.trim()) || one.tagName === "SCRIPT") continue;
    const [a, b] = [light(getComputedStyle(one).color), light(back(one))].sort((x, y) => y - x);
    found[`${one.tagName}.${one.className}`] = (a + 0.05) / (b + 0.05);
  }
  return found;
}"""


# Words of tables of at most 20 letters that stand on more than one line.
BROKEN = """() => {
  const found = [];
  for (const cell of document.querySelectorAll("td, th")) {
    const walk = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT);
    for (let node; node = walk.nextNode();) for (const word of node.data.matchAll(/[A-Za-z]{2,20}/g)) {
      const range = document.createRange(); range.setStart(node, word.index); range.setEnd(node, word.index + word[0].length);
      if (new Set([...range.getClientRects()].map(box => Math.round(box.top))).size > 1) found.push(word[0]);
    }
  }
  return found;
}"""


@pytest.fixture(scope="module")
def report(tmp_path_factory) -> Path:
    """Twenty hosts: most change, some are right, one is refused; with a long path, the cluster's part, and an error."""
    file = tmp_path_factory.mktemp("report") / "report.html"
    page = Page(make(json=True, quiet=True), file, "gpunode plan · inventory.yaml")
    hosts = [Host(f"gpu-{number:02}", Ssh("10.0.0.1")) for number in range(1, 21)]
    long = f"/etc/{'docker-' * 30}daemon.json"
    write = WriteFile(long, '{"a": 1}\n', "pods get GPUs", before="{}\n")
    steps = (StepPlan("docker", (write, Service("docker.service", "it reads it", restart=True))),)
    facts = cases.right()[1]
    with page.live(hosts):
        for number, host in enumerate(hosts):
            for text in ("reading facts", "probe"):
                page.event(Event("stage", host.name, text))
            if number == 0:
                page.outcome(
                    Outcome(
                        host.name, "refused", problem=Problem("", "no <b>NVIDIA</b> GPU", fix="Take it out.")
                    )
                )
            elif number < 15:
                page.outcome(Outcome(host.name, "planned", facts, plan=Plan(host.name, steps)))
            else:
                page.outcome(Outcome(host.name, "right", facts))
    page.cluster("prod", [Difference(Title("DaemonSet", "y", "x"), "changed", ("-a: 1", "+a: 2"))])
    for host in hosts[:2]:
        columns = ("node", "uuid", "gpu", "result", "pods", "seconds", "why")
        page.rows("vectoradd", columns, [(host.name, "GPU-1", "H100", "failed", 1, 2.0, "")])
    page.problem(Problem("", "the API server does not answer", fix="Try again."))
    page.write()
    return file


@pytest.fixture(params=["light", "dark"])
def tab(request, browser: Browser, report: Path) -> Iterator[Tab]:
    """The report, open; in the end nothing was said on the console and nothing asked for elsewhere."""
    said: list[str] = []
    tab = browser.new_page(color_scheme=request.param, viewport={"width": 1200, "height": 900})

    def elsewhere(each: Request) -> None:
        if each.url != report.as_uri():
            said.append(each.url)

    tab.on("console", lambda message: said.append(message.text))
    tab.on("pageerror", lambda error: said.append(str(error)))
    tab.on("request", elsewhere)
    tab.goto(report.as_uri())
    yield tab
    tab.close()
    assert said == []


def visible(tab: Tab) -> list[str]:
    """The hosts that are shown."""
    return [card.locator("b").inner_text() for card in tab.locator("details.host").all() if card.is_visible()]


def test_the_worst_comes_first_and_is_open(tab: Tab):
    """What failed stands above all hosts. The host that cannot go on says why without a click; equal plans are one, and open."""
    assert visible(tab) == ["gpu-01", "gpu-[02:15]", "gpu-[16:20]"]
    assert tab.get_by_text("no <b>NVIDIA</b> GPU").last.is_visible()
    reasons = tab.get_by_text("pods get GPUs")
    assert reasons.count() == 1
    assert reasons.is_visible()
    error, first = tab.get_by_text("the API server does not answer"), tab.locator("details.host").first
    assert error.bounding_box()["y"] < first.bounding_box()["y"]
    tab.locator("details.host > summary").nth(1).click()
    assert not reasons.is_visible()


def test_a_reader_finds_hosts_by_words_and_by_result(tab: Tab):
    search = tab.get_by_label("Show only hosts with this text")
    search.fill("gpu-12 DAEMON.json")
    assert visible(tab) == ["gpu-[02:15]"]
    search.fill("")
    tab.get_by_label("to change").uncheck()
    assert visible(tab) == ["gpu-01", "gpu-[16:20]"]
    tab.get_by_label("to change").check()
    assert len(visible(tab)) == 3


def test_all_text_can_be_read(tab: Tab):
    """By day and by night, the filter's hint and every colour of a diff included."""
    for each in tab.locator("details").all():
        each.evaluate("one => one.open = true")
    texts = tab.evaluate(CONTRASTS)
    assert len(texts) > 10
    assert {name: value for name, value in texts.items() if value < READABLE} == {}


@pytest.mark.parametrize("width", [360, 800, 1600])
def test_nothing_sticks_out_of_the_window(tab: Tab, width: int):
    """Whatever the length of a path."""
    tab.set_viewport_size({"width": width, "height": 700})
    for each in tab.locator("details").all():
        each.evaluate("one => one.open = true")
    assert tab.evaluate("() => document.documentElement.scrollWidth") <= width


def test_a_line_that_wraps_goes_on_under_its_text(tab: Tab):
    """Its first letter stands left of all its other lines."""
    tab.set_viewport_size({"width": 360, "height": 700})
    for each in tab.locator("details").all():
        each.evaluate("one => one.open = true")
    wrapped = """() => [...document.querySelectorAll(".line")].map(line => {
      const text = document.createRange(); text.selectNodeContents(line.lastChild);
      const lefts = [...text.getClientRects()].map(box => box.left);
      return lefts.slice(1).map(left => left - line.getBoundingClientRect().left);
    }).filter(lefts => lefts.length)"""
    lines = tab.evaluate(wrapped)
    assert lines
    assert min(left for lefts in lines for left in lefts) > 10


def test_a_phone_scrolls_down_alone(tab: Tab):
    """No table has a part that is only reached sideways."""
    tab.set_viewport_size({"width": 390, "height": 844})
    for each in tab.locator("details").all():
        each.evaluate("one => one.open = true")
    assert tab.locator(".wide").count() > 1
    wider = "() => [...document.querySelectorAll('.wide')].filter(one => one.scrollWidth > one.clientWidth).map(one => one.innerText)"
    assert tab.evaluate(wider) == []


def test_hosts_of_a_cause_are_named_by_ranges(tab: Tab):
    """And on a phone no word is broken in its middle, but for paths that are wider than the phone."""
    assert "gpu-[02:15]" in tab.locator("#causes").inner_text()
    tab.set_viewport_size({"width": 360, "height": 700})
    for each in tab.locator("details").all():
        each.evaluate("one => one.open = true")
    assert tab.evaluate(BROKEN) == []


def test_on_paper_everything_is_there_but_the_filter(tab: Tab):
    tab.emulate_media(media="print")
    tab.evaluate("() => dispatchEvent(new Event('beforeprint'))")
    assert not tab.get_by_label("Show only hosts with this text").is_visible()
    assert tab.get_by_text("pods get GPUs").last.is_visible()
    assert len(visible(tab)) == 3
    assert tab.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert tab.pdf(format="A4").startswith(b"%PDF")


def test_tables_of_one_kind_are_one(tab: Tab):
    """They come host by host."""
    assert tab.get_by_role("heading", name="GPUs that are not proven").count() == 1
    assert tab.get_by_role("row").filter(has_text="failed").count() == 2
