"""A host's GPUs are cut by MIG as its inventory has it, and offered so, also after a reboot."""

import json

import pytest
import yaml

from gpunode.sim.host import kinds, systemd
from gpunode.sim.process import Demo

from . import operators
from .clusters import until
from .jobs import JOBS, client, describe
from .operators import run

pytestmark = pytest.mark.usefixtures("records")
HOST, SEVENTH, HALF = "h100-1", "nvidia.com/mig-1g.10gb", "nvidia.com/mig-3g.40gb"


def work_stays(demo: Demo) -> None:
    """A pod that has a MIG device keeps it: the plan names it, and a run that may not wait for it cuts nothing."""
    api, container = (
        client(demo),
        {"name": "c", "image": "gpunode-deviceplugin:demo", "command": ["sleep", "600"]},
    )
    spec = {"nodeName": HOST, "containers": [container | {"resources": {"limits": {HALF: "1"}}}]}
    api.ask("POST", JOBS, {"kind": "Pod", "metadata": {"name": "train"}, "spec": spec})
    until(lambda: api.ask("GET", f"{JOBS}/train")[1]["status"].get("phase") == "Running")
    describe(demo, mig="all-1g.10gb", work_timeout="1s")
    _, seen = run(demo, "plan", "inventory.yaml")
    (plan,) = [line for line in seen if line["type"] == "plan"]
    assert plan["disturbs"]["mig"]
    assert [pod["name"] for pod in plan["disturbs"]["pods"]] == ["default/train"]
    code, _ = run(demo, "provision", "inventory.yaml", "--yes")
    assert code != 0
    assert "not changed: after 1 s" in operators.output(demo)
    assert list(demo.states[HOST].now().mig.values()) == [["3g.40gb"] * 2]
    api.ask("DELETE", f"{JOBS}/train")


@pytest.mark.timeout(900)
def test_a_layout_is_made_offered_and_made_again_at_a_boot():
    """From bare; then another one; a reboot takes mode and devices of this GPU; and off again."""
    with Demo([kinds.new_host(HOST, count=1)]) as demo:
        file = demo.folder / "inventory.yaml"
        inventory = yaml.safe_load(file.read_text())
        inventory["cluster"]["plugin"]["config"] = "plugin.yaml"
        (demo.folder / "plugin.yaml").write_text("version: v1\nflags: {migStrategy: mixed}\n")

        def provision(layout: str) -> None:
            inventory["defaults"]["mig"] = layout
            file.write_text(json.dumps(inventory))
            code, _ = run(demo, "provision", "inventory.yaml", "--yes")
            assert code == 0, operators.output(demo)

        def offered() -> dict[str, str]:
            status = client(demo).ask("GET", f"/api/v1/nodes/{HOST}")[1]["status"]["allocatable"]
            return {name: n for name, n in status.items() if name.startswith("nvidia.com/") and n != "0"}

        provision("all-3g.40gb")
        assert offered() == {HALF: "2"}
        work_stays(demo)
        provision("all-1g.10gb")
        assert offered() == {SEVENTH: "7"}
        assert run(demo, "plan", "inventory.yaml", "--exit-code")[0] == 0

        with demo.states[HOST].change() as now:
            systemd.reboot(demo.states[HOST], now)
        until(lambda: run(demo, "verify", "inventory.yaml")[0] == 0)
        assert offered() == {SEVENTH: "7"}
        provision("off")
        assert offered() == {"nvidia.com/gpu": "1"}
        assert run(demo, "plan", "inventory.yaml", "--exit-code")[0] == 0
