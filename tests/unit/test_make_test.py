"""`make test` from its start to its end, however that comes: what becomes of the labs that come up meanwhile."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.agent.conftest import wait_until

CHECKOUT = Path(__file__).parents[2]
RUN = """
import sys
from pathlib import Path
from tests.lab import beside

here = Path(sys.argv[1])
sys.exit(beside.run([str(here / "make")], [str(here / "up")], here / "log", (here / "downed").touch))
"""


class Run:
    """A run whose `make` and `up` are small scripts."""

    def __init__(self, folder: Path, *, up: str, check: str, lab_test: str = "") -> None:
        self.folder = folder
        self.script("up", f"echo $$ > {folder}/up.pid; {up}")
        goals = f'"check sim") {check};; lab-test) {lab_test};;'
        self.script("make", f'echo "make $*"; echo $$ > {folder}/make.pid; case "$*" in {goals} esac')
        self.process = subprocess.Popen(
            [sys.executable, "-c", RUN, folder], stdout=subprocess.PIPE, text=True, cwd=CHECKOUT
        )

    def script(self, name: str, lines: str) -> None:
        (self.folder / name).write_text(f"#!/bin/sh\n{lines}\n")
        (self.folder / name).chmod(0o755)

    def pid(self, name: str) -> int:
        """The process of a script, as soon as there is one."""
        file = self.folder / f"{name}.pid"
        wait_until(lambda: file.exists() and file.read_text().endswith("\n"))
        return int(file.read_text())

    def end(self) -> tuple[int, str, bool]:
        """Exit status, stdout, and whether labs were taken down."""
        said, _ = self.process.communicate()
        return self.process.returncode, said, (self.folder / "downed").exists()


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def test_lab_tests_begin_when_the_checks_are_done_and_the_labs_are_up(tmp_path: Path) -> None:
    """What was said of the labs is told between them."""
    fifo = tmp_path / "checked"
    os.mkfifo(fifo)
    run = Run(tmp_path, up=f"read -r line < {fifo}; echo they are up", check=f"echo now > {fifo}")
    assert run.end() == (0, "make check sim\nthey are up\nmake lab-test\n", False)


def test_a_lab_test_that_fails_leaves_the_labs_to_look_into(tmp_path: Path) -> None:
    """Its status is that of the run."""
    run = Run(tmp_path, up="true", check="true", lab_test="exit 3")
    assert run.end() == (3, "make check sim\nmake lab-test\n", False)


def test_a_check_that_fails_takes_the_labs_along(tmp_path: Path) -> None:
    """Whatever comes them up is ended first."""
    run = Run(
        tmp_path, up="exec sleep 600", check=f"while [ ! -s {tmp_path}/up.pid ]; do sleep 0.1; done; exit 2"
    )
    assert run.end() == (2, "make check sim\n", True)
    assert gone(run.pid("up"))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("goal", ["check", "lab_test"])
def test_a_run_that_is_ended_takes_the_labs_along(tmp_path: Path, number: signal.Signals, goal: str) -> None:
    """And what it was about; asking twice changes nothing."""
    hang = f"touch {tmp_path}/hangs; exec sleep 600"
    run = Run(tmp_path, **{"up": "exit 0" if goal == "lab_test" else hang, "check": "true", goal: hang})
    wait_until((tmp_path / "hangs").exists)
    at_work = [run.pid(name) for name in ("up", "make")]
    for _ in range(2):
        run.process.send_signal(number)
    status, _, downed = run.end()
    assert (status, downed) == (130, True)
    assert all(map(gone, at_work))
