"""The documents as a site, on a web server and in a real browser: search, narrow screens, nothing from elsewhere."""

import functools
import os
import subprocess
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect
from playwright.sync_api import Page as Tab

ROOT = Path(__file__).parents[2]
PAGES = ("index", "tutorial", "articles", "support", "reference/inventory", "reference/json")
SENTENCES = 200  # pixels of a column with sentences
NARROW = """() => [...document.querySelectorAll('article tr > td:last-child:nth-child(n + 3)')]
  .filter(cell => cell.getBoundingClientRect().width < %d).map(cell => cell.textContent)"""
CUT = """() => [...document.querySelectorAll('article table:not([class])')]
  .filter(table => table.offsetWidth > table.closest('.md-typeset__scrollwrap').clientWidth).map(table => table.textContent)"""

pytestmark = pytest.mark.browser


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Iterator[str]:
    """Its address."""
    if not (ROOT / ".venv/bin/zensical").exists():
        pytest.skip("zensical needs Python 3.11")
    folder = tmp_path_factory.mktemp("site") / "site"
    environment = {key: value for key, value in os.environ.items() if key != "MAKEFLAGS"}
    subprocess.run(["make", "-C", str(ROOT), "docs", f"SITE={folder}"], check=True, capture_output=True, env=environment)  # fmt: skip
    with ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=folder / "html")) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture
def tab(browser: Browser, site: str) -> Iterator[Tab]:
    """A narrow window; in the end nothing was asked for elsewhere, and nothing was missing."""
    wrong: list[str] = []
    tab = browser.new_page(viewport={"width": 400, "height": 800})
    tab.on(
        "request", lambda sent: wrong.append(sent.url) if not sent.url.startswith((site, "blob:")) else None
    )
    tab.on("response", lambda each: wrong.append(each.url) if each.status >= 400 else None)
    tab.on("pageerror", lambda error: wrong.append(str(error)))
    yield tab
    tab.close()
    assert wrong == []


@pytest.mark.parametrize("page", PAGES)
def test_a_page_can_be_read_on_a_narrow_screen(tab: Tab, site: str, page: str):
    """Tables scroll, the page does not; a column of sentences has room for some words a line."""
    tab.goto(f"{site}/{page}.html")
    assert tab.evaluate("() => document.documentElement.scrollWidth") <= 400
    assert tab.evaluate(NARROW % SENTENCES) == []


@pytest.mark.parametrize("width", [390, 1280, 1920])
@pytest.mark.parametrize("page", ["troubleshooting", "failures", "reference/codes", "reference/inventory"])
def test_tables_with_long_codes_are_read_without_scrolling(tab: Tab, site: str, page: str, width: int):
    tab.set_viewport_size({"width": width, "height": 800})
    tab.goto(f"{site}/{page}.html")
    assert tab.evaluate(CUT) == []


def test_words_are_found(tab: Tab, site: str):
    tab.set_viewport_size({"width": 1280, "height": 800})
    tab.goto(f"{site}/index.html")
    tab.locator(".md-search__button").click()
    search = tab.locator("input:focus")
    search.wait_for()
    search.fill("work on the GPUs")
    expect(tab.get_by_text("Work on the GPUs").first).to_be_visible(timeout=60_000)
