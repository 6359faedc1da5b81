"""Files of tests run again where something that decides how they end has changed."""

import inspect
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from gpunode import explain
from gpunode.sim.forkserver import ForkServer
from tests import forks, unchanged

Run = Callable[..., tuple[int, set[str], str]]

READS_DATA = "from pathlib import Path\nX = Path(__file__).with_name('two.txt').read_text()\n"
FILES = {
    "pyproject.toml": "[tool.pytest.ini_options]\n",
    "unchanged.py": inspect.getsource(unchanged),
    **{f"{folder}/__init__.py": "" for folder in ("gpunode", "gpunode/data", "tests", "tests/unit")},
    "gpunode/one.py": "X = 1\n",
    "gpunode/data/two.py": READS_DATA,
    "gpunode/data/two.txt": "2",
    "tests/unit/test_one.py": "def test_one():\n    from gpunode.one import X\n    assert X\n",
    "tests/unit/test_two.py": "from gpunode.data import two\ndef test_two(): assert two.X == '2'\n",
    "tests/unit/test_skips.py": "import pytest\ndef test_skips(): pytest.skip('not here')\n",
    "tests/unit/test_all.py": "from pathlib import Path\nROOT = Path(__file__).parents[2]\ndef test_all(): pass\n",
}


@pytest.fixture
def checkout(tmp_path) -> Path:
    pytest.importorskip("grimp")
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / ".gitignore").write_text("__pycache__\n.pytest_cache\n")
    subprocess.run(["git", "init", "--quiet"], cwd=tmp_path, check=True)
    return tmp_path


@pytest.fixture(scope="module")
def server() -> ForkServer:
    return forks.ended_at_exit(ForkServer("import pytest, grimp", flags=(), environment={**os.environ}))


@pytest.fixture
def run(checkout: Path, server: ForkServer) -> Run:
    """The exit status of pytest there, the tests that ran, and what was printed."""

    def ran(*words: str) -> tuple[int, set[str], str]:
        done = forks.run(
            [sys.executable, "-m", "pytest", "-p", "unchanged", "-v", *(words or ("--unchanged=skip",))],
            server=server,
            cwd=checkout,
            env={"PATH": os.environ["PATH"], "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
            capture_output=True,
            text=True,
        )
        return (
            done.returncode,
            set(re.findall(r"(?m)^tests/unit/\w+\.py::test_(\w+) ", done.stdout)),
            done.stdout,
        )

    return ran


def test_what_passed_with_the_same_contents_does_not_run_again(checkout, run):
    assert run()[:2] == (0, {"one", "two", "skips", "all"})
    (checkout / "gpunode/one.py").write_text(FILES["gpunode/one.py"])  # later, and the same
    status, ran, printed = run()
    assert (status, ran) == (0, set())
    assert "did not run: 4." in printed
    (checkout / "gpunode/one.py").write_text("X = 3\n")
    assert run()[:2] == (0, {"one", "all"})
    assert run("--unchanged=run")[:2] == (0, {"one", "two", "skips", "all"})


def test_what_failed_or_was_edited_meanwhile_has_not_passed(checkout, run):
    data = checkout / "gpunode/data/two.txt"
    edit = "def test_edits(): open('gpunode/data/two.txt', 'w').write('3')\n"
    (checkout / "tests/unit/test_two.py").write_text(FILES["tests/unit/test_two.py"] + edit)
    assert run()[0] == 0
    data.write_text("2")
    assert run()[:2] == (0, {"two", "edits", "all"})
    for _ in range(2):
        assert run()[0] == 1


def test_some_tests_of_a_file_are_not_the_file(checkout, run):
    run("--unchanged=skip", "-k", "not two")
    assert run()[1] == {"one", "two", "skips", "all"}


def test_what_explain_reads_is_among_its_inputs():
    assert {*unchanged.READS["gpunode/explain/__init__.py"]} == {f"docs/{page}.md" for page in explain.PAGES}
