"""A run is found again by `history`, and `show` has what its plan showed."""

import pytest

from gpunode.sim.host import kinds
from gpunode.sim.process import Demo

from . import operators
from .operators import of_kind, worked

pytestmark = pytest.mark.usefixtures("records")
KEYS = ("step", "kind", "what", "why", "diff")


def test_history_names_a_run_and_show_has_its_plan_its_ends_and_its_times():
    with Demo([kinds.old_host("gpu-1")]) as demo:
        done = worked(operators.gpunode(demo.folder, "provision", "inventory.yaml", "--yes", "--json"))
        listed = operators.gpunode(demo.folder, "history", "--json")
        (run,) = of_kind(listed, "run")
        shown = operators.gpunode(demo.folder, "show", run["run"][:-1], "--json")
        text = operators.gpunode(demo.folder, "show", "last")
    assert run["result"] == {"proven": 1}
    assert run["ended"]
    assert run["answer"] == "--yes"
    (plan,) = of_kind(done, "plan")
    cluster, host = of_kind(shown, "recorded")
    asked = [[change[key] for key in KEYS] for change in plan["changes"]]
    kept = [[change[key] for key in KEYS] for change in host["changes"]]
    assert kept[: len(asked)] == asked
    assert {change["made"] for change in host["changes"]} == {True}
    for line in of_kind(done, "cluster"):
        assert any(
            change["diff"] == line["diff"] and line["object"] in change["what"]
            for change in cluster["changes"]
        )
    assert {line["host"]: line["phases"] for line in of_kind(shown, "time")} == {
        line["host"]: line["phases"] for line in of_kind(done, "time")
    }
    assert "gpu-1  ✓ verified" in text.stdout
