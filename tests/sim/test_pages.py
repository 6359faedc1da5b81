"""The commands of the documents' pages, on a demo of two hosts: page by page, in the order of the table of contents.

A block in ```sh is one script. `# exit code N` after a command is what it ends with. A comment above the block may say
`not run: WHY`; `run: COMMAND` in one is what the text asks the reader to do in another way.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from gpunode.sim.host import kinds
from gpunode.sim.process import Demo
from tests import forks

DOCS = Path(__file__).parents[2] / "docs"
PAGES = (
    "tutorial.md",
    "troubleshooting.md",
    *sorted(f"howto/{path.name}" for path in DOCS.glob("howto/*.md")),
)
PART = re.compile(
    r"^ *<!-- (?P<what>run|not run): (?P<words>.+?) -->$|^(?P<indent> *)```sh\n(?P<script>.*?)^ *```$",
    re.DOTALL | re.MULTILINE,
)
EXIT_CODE = re.compile(r"^(.*?)  +# exit code (\d+)$", re.MULTILINE)


def scripts(text: str) -> Iterator[str]:
    """What is to be run, in order."""
    skipped = ""
    for part in PART.finditer(text):
        if part["what"] == "run":
            yield part["words"]
        elif part["what"]:
            skipped = part["words"]
        elif skipped:
            skipped = ""
        else:
            yield EXIT_CODE.sub(r"ended=0; \1 || ended=$?; test $ended = \2", part["script"])


@pytest.fixture(scope="module")
def demo(tmp_path_factory) -> Iterator[Demo]:
    """As `gpunode demo start` and a first provision leave it."""
    programs = forks.program(tmp_path_factory.mktemp("bin"), "tests.sim.operators", "{}")
    with (
        programs as first,
        pytest.MonkeyPatch.context() as patch,
        Demo([kinds.old_host("p100-01"), kinds.new_host("h100-01")]) as made,
    ):
        patch.setenv(
            "PATH", os.pathsep.join((str(first), str(Path(sys.executable).parent), os.environ["PATH"]))
        )
        done = run(made.folder, "gpunode provision inventory.yaml --yes -q")
        assert done.returncode == 0, done.stdout
        shutil.copy(made.folder / "known_hosts", made.folder / "known_hosts.old")
        yield made


def run(folder: Path, script: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-ec", script],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        stdin=subprocess.DEVNULL,
        check=False,
        env={**os.environ, "XDG_STATE_HOME": str(folder / "state")},
    )


@pytest.mark.parametrize("page", PAGES)
def test_the_commands_of_a_page_do_what_it_says(demo: Demo, page: str):
    """Each block ends with 0, or as its comments say; the next page begins with the same inventory."""
    inventory = demo.folder / "inventory.yaml"
    before = inventory.read_text()
    try:
        for script in scripts((DOCS / page).read_text()):
            done = run(demo.folder, script)
            assert done.returncode == 0, f"{script}\n{done.stdout}"
    finally:
        inventory.write_text(before)


@pytest.mark.parametrize("page", PAGES)
def test_a_page_has_something_that_is_run_or_says_why_not(page: str):
    """Each `not run` stands above a block, and no block of commands hides behind another word."""
    text = (DOCS / page).read_text()
    blocks = re.findall(r"^ *```(\w*)$", text, re.MULTILINE)[::2]
    assert "sh" in blocks
    assert set(blocks) <= {"sh", "yaml", "ini"}
    marks = [part["what"] or "sh" for part in PART.finditer(text)]
    assert all(after == "sh" for before, after in pairwise(marks) if before == "not run")
