"""An apply that is kept waiting, fails or is cut off on its way: nothing half done, and the next run ends it."""

import contextlib
import subprocess
from collections.abc import Callable, Iterator
from typing import IO

import pytest

from . import faults
from .api import Lab, Node
from .conftest import GPUNODE, Ran

pytestmark = [
    pytest.mark.lab,
    # The servers of packages that a fault stops are started again by this process, and outlive it on purpose.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture
def legacy(lab: Lab) -> Node:
    """The host that is changed: it has no driver yet, as an apply that failed early leaves it, too."""
    node = lab.node("legacy")
    if node.exec(["which", "nvidia-smi"], check=False).returncode == 0:
        node.reset()
    return node


@contextlib.contextmanager
def provisioning(lab: Lab) -> Iterator[tuple[subprocess.Popen[str], IO[str]]]:
    """`gpunode provision` of legacy while it runs, and the lines it writes."""
    words = ["provision", "--yes", "--json", "--no-run", "--limit", "legacy", str(lab.inventory)]
    with subprocess.Popen(
        [GPUNODE, *words], stdout=subprocess.PIPE, text=True, stdin=subprocess.DEVNULL
    ) as process:
        assert process.stdout is not None
        yield process, process.stdout


def test_a_locked_apt_is_waited_for_and_its_holder_named(lab: Lab, legacy: Node):
    """The run says who holds the lock, waits, and goes on when it is free."""
    with provisioning(lab) as (process, lines):
        with faults.apt_locked(legacy):
            waiting = next((line for line in lines if "waiting for apt" in line), "")
        rest = "".join(lines)

    assert "python3 (pid" in waiting
    assert process.returncode == 0, rest[-3000:]


def test_a_cut_connection_loses_nothing(lab: Lab, legacy: Node):
    """The work goes on on the host; the same run finds its way back and ends well."""
    with provisioning(lab) as (process, lines):
        next(line for line in lines if '"progress"' in line)
        faults.cut_ssh(legacy)
        rest = "".join(lines)

    assert process.returncode == 0, rest[-3000:]
    assert "connection lost" in rest


def test_a_host_that_goes_silent_is_noticed_and_found_again(lab: Lab, legacy: Node):
    """No packet comes any more, not even a reset: the run notices, and follows the work when the host is back."""
    with provisioning(lab) as (process, lines):
        next(line for line in lines if '"progress"' in line)
        with faults.address_silent(legacy):
            noticed = next((line for line in lines if "connection lost" in line), "")
        rest = "".join(lines)

    assert noticed
    assert process.returncode == 0, rest[-3000:]


def test_a_run_that_dies_is_followed_by_the_next(lab: Lab, legacy: Node, gpunode: Callable[..., Ran]):
    """gpunode killed in the middle of an apply: the next run follows that apply and converges."""
    with provisioning(lab) as (process, lines):
        next(line for line in lines if '"progress"' in line)
        process.kill()
    ran = gpunode("provision", "--yes", "--json", "--no-run", "--limit", "legacy")

    assert ran.code == 0, ran
    assert any("follow" in line["message"] for line in ran.of("stage", "legacy"))
    assert gpunode("plan", "--json", "--exit-code", "--limit", "legacy").code == 0
