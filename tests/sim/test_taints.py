"""Taints of the inventory: planned, set, tolerated by gpunode's pods, and removed when they are taken out."""

import pytest

from gpunode.sim.host import kinds
from gpunode.sim.process import Demo

from . import operators
from .jobs import client, describe
from .operators import run

pytestmark = pytest.mark.usefixtures("records")
HOST = "h100-1"
MINE = {"key": "mine", "value": "1", "effect": "NoSchedule"}
MERGE = "application/merge-patch+json"


def test_taints_of_the_inventory_come_and_go():
    with Demo([kinds.new_host(HOST, count=1)]) as demo:
        api, node = client(demo), f"/api/v1/nodes/{HOST}"
        code, _ = run(demo, "provision", "inventory.yaml", "--yes")
        assert code == 0, operators.output(demo)
        assert api.ask("PATCH", node, {"spec": {"taints": [MINE]}}, MERGE)[0] == 200
        describe(demo, taints=["nvidia.com/gpu=present:NoSchedule"])
        code, seen = run(demo, "provision", "inventory.yaml", "--yes")
        assert code == 0, operators.output(demo)
        assert any(
            "+nvidia.com/gpu=present:NoSchedule" in str(line) for line in seen if line["type"] == "cluster"
        )
        taints = api.ask("GET", node)[1]["spec"]["taints"]
        assert taints == [MINE, {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}]
        code, _ = run(demo, "plan", "inventory.yaml", "--exit-code")
        assert code == 0, operators.output(demo)

        describe(demo, taints=[])
        code, seen = run(demo, "plan", "inventory.yaml", "--exit-code")
        assert code == 5, operators.output(demo)
        assert any(
            "-nvidia.com/gpu=present:NoSchedule" in str(line) for line in seen if line["type"] == "cluster"
        )
        code, _ = run(demo, "provision", "inventory.yaml", "--yes")
        assert code == 0, operators.output(demo)
        assert api.ask("GET", node)[1]["spec"]["taints"] == [MINE]
