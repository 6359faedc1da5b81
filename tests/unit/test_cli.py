"""The command line as a process: how it ends."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

INTERRUPTED = """
import os, signal, sys, time
from gpunode import cli, fleet
from gpunode.model import Host, Ssh

signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job is started with it ignored

def story(host, tell):
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(600)

@cli.app.command("hang")
def hang():
    list(fleet.run([Host("a", Ssh("a"))], story, forks=8))

sys.argv = ["gpunode", "hang"]
cli.main()
"""


def test_every_mistake_of_an_inventory_begins_with_its_place(tmp_path: Path) -> None:
    """As a compiler's do, the first like the others: editors jump to it."""
    (tmp_path / "inventory.yaml").write_text("groups: {a: {hosts: [x y, z z]}}\n")
    words = [sys.executable, "-m", "gpunode", "plan"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)

    assert done.returncode == 2
    *mistakes, last = done.stderr.splitlines()
    assert [line.split(": ")[0] for line in mistakes] == ["inventory.yaml:1:22", "inventory.yaml:1:27"]
    assert last == "2 mistakes, nothing was contacted."


def test_an_interrupt_ends_the_program_at_once() -> None:
    """Hosts at work go on by themselves; nobody has to wait for them, or press Ctrl-C twice."""
    done = subprocess.run([sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, check=False)

    assert done.returncode == 130
    assert "goes on there" in done.stderr


REPORT = """
import sys
from gpunode import cli
from gpunode.report import make

@cli.app.command("report")
def report():
    make(json=False, quiet=True).rows("label", ("node", "result"), [("gpu-01", "✓")])

sys.argv[1:] = ["report"]
cli.main()
"""


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_a_report_that_cannot_be_written_is_one_line() -> None:
    """A full disk is no bug of gpunode's, and needs no traceback."""
    with Path("/dev/full").open("w") as full:
        words = [sys.executable, "-c", REPORT]
        done = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, text=True, check=False)

    assert done.returncode == 1
    assert done.stderr == "gpunode: cannot write the report: No space left on device\n"


def test_an_encoding_without_a_sign_loses_only_the_sign() -> None:
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    words = [sys.executable, "-c", REPORT]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[1].rstrip() == "gpu-01  ?"
