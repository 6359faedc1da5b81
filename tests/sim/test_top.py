"""`gpunode top` in a terminal of its own, while a run goes on in another process."""

import sys

import pytest

from gpunode.sim.host import kinds
from gpunode.sim.process import Demo
from tests import terminal

from . import operators
from .clusters import until
from .operators import of_kind

pytestmark = pytest.mark.usefixtures("records")


def test_a_run_is_watched_paused_after_its_batch_and_resumed():
    top = [sys.executable, "-m", "gpunode", "top", "inventory.yaml", "--interval", "0.5"]
    with (
        Demo([kinds.old_host("gpu-1"), kinds.old_host("gpu-2")]) as demo,
        terminal.started(top, size=(100, 20), cwd=demo.folder) as shown,
    ):
        shown.wait_for(r"\? gpu-1 .*no plugin")
        with operators.begin(demo, "provision", "inventory.yaml", "--yes", "--batch", "1") as run:
            shown.wait_for(r"batch 1 of 2 .* 0 of 2 hosts · about")
            shown.press("b")
            shown.wait_for("pausing after this batch")
            shown.wait_for(r"provision ended .* 1 of 2 hosts done · `gpunode resume` continues")
            assert run.wait() == 8
        *_, note, last = operators.lines(demo)
        assert note["message"] == "Not done: gpu-2. `gpunode resume` continues with it."
        assert last["type"] == "summary"
        shown.wait_for(r"✓ gpu-1 +\d/2 ")
        shown.press("\x1b[H\r")
        shown.wait_for("gpunode verify --no-run inventory.yaml --limit gpu-2")
        shown.wait_for("✗ module")
        shown.wait_for("press a key")
        shown.press("q")
        shown.wait_for("· gpu-2 skipped")
        shown.resize(60, 12)
        assert "1/2 hosts done" in shown.wait_for(terminal.frame(12, "q quit"))
        shown.press("q")
        assert (shown.wait(), shown.restored) == (0, True)

        resumed = operators.gpunode(demo.folder, "resume", "inventory.yaml", "--yes", "--json")
        assert [line["host"] for line in of_kind(resumed, "plan")] == ["gpu-2"]
        assert resumed.returncode == 0

        def piped() -> str:
            """As status has it, once no test pod is still ending."""
            shown = [operators.gpunode(demo.folder, name, "inventory.yaml") for name in ("top", "status")]
            return shown[0].stdout if (shown[0].stdout, 0) == (shown[1].stdout, shown[0].returncode) else ""

        assert "gpu-2" in until(piped)
