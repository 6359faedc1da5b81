"""What this machine cannot run is skipped, with the reason at the end of the run."""

import functools
import gc
import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import forks

pytest_plugins = ["tests.workers", "tests.unchanged"]
TESTS = Path(__file__).parent
PROGRAMS = {"accept", "agent", "deviceplugin", "share"}
# Files of `make check`, and then of `make sim`, that are begun first, so that in the end no process is busy for long while the others
# are not.
LONGEST = (
    "accept/test_faults.py",
    "agent/test_changes_packages.py",
    "agent/test_changes_services.py",
    "agent/test_outside.py",
    "deviceplugin/test_mps_daemon.py",
    "agent/test_guard.py",
    "unit/test_cases.py",
    "unit/cluster/test_bring_up.py",
    "unit/cluster/test_commands.py",
    "unit/test_explain.py",
    "unit/test_cli_ends.py",
    "unit/test_image.py",
    "unit/cluster/test_apply.py",
    "unit/cluster/test_plugin.py",
    "agent/test_abort.py",
    "unit/test_image_registry.py",
    "agent/test_changes_runfile.py",
    "deviceplugin/test_health.py",
    "unit/cluster/test_vectoradd.py",
    "unit/test_ssh.py",
    "sim/test_kills.py",
    "sim/test_batches.py",
    "sim/test_faults.py",
    "sim/test_demo.py",
    "sim/test_in_force.py",
    "sim/test_every_day.py",
    "sim/test_standstill.py",
)


def pytest_collection() -> None:
    """What is imported and collected lasts to the end: it is searched for garbage neither now nor after each test."""
    gc.disable()


def pytest_collection_finish(session: pytest.Session) -> None:
    if session.config.option.workers:
        # Of what each worker would load itself.
        rooms = {item.path.relative_to(TESTS).parts[0] for item in session.items}
        if "agent" in rooms:
            forks.agents()
        if rooms & {"unit", "sim"}:
            import kubernetes.client  # noqa: F401

            from gpunode import explain

            explain.explain("no line of any table")
            forks.gpunode()
    gc.freeze()
    gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest come first; tests marked `gpu` need a real GPU and its driver."""
    order = {TESTS / name: number for number, name in enumerate(LONGEST)}
    items.sort(key=lambda item: order.get(item.path, len(LONGEST)))
    if Path("/dev/nvidia0").exists():
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(
                pytest.mark.skip(reason="no NVIDIA GPU on this machine: /dev/nvidia0 is not there")
            )


@pytest.fixture(autouse=True, scope="session")
def _own_records(tmp_path_factory) -> Iterator[None]:
    """Records of runs that tests make are not the user's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture(autouse=True, scope="session")
def _documented(request) -> None:
    """Every JSON line that a test's process writes is what docs/reference/json.md says of its kind.

    Programs of hosts and pods write none, and their tests do without what is imported for it.
    """
    if {item.nodeid.split("/")[1] for item in request.session.items} <= PROGRAMS:
        return
    import typer.testing

    from gpunode.report.lines import Lines
    from tests import jsonlines

    written, fits = Lines._write, functools.cache(lambda text: jsonlines.fits(json.loads(text)))

    def write(self: Lines, line: dict[str, Any]) -> None:
        fits(json.dumps(line, default=str))
        written(self, line)

    Lines._write = write
    # Typer builds the tree of commands for each invocation, which takes longer than most tests of a command.
    typer.testing._get_command = functools.cache(typer.testing._get_command)


@pytest.fixture
def sockets() -> Iterator[Path]:
    """A directory with a name short enough for Unix sockets."""
    path = Path(tempfile.mkdtemp(prefix="dp-", dir="/tmp"))
    yield path
    shutil.rmtree(path)
