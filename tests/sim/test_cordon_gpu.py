"""One GPU of a host is taken out of scheduling, and given back, while its job runs on."""

from collections.abc import Iterator

import pytest

from gpunode.links.plugin.cordons import PATH
from gpunode.sim.host import kinds
from gpunode.sim.process import Demo

from . import operators
from .clusters import Client, until
from .jobs import JOBS, client, job
from .operators import run

pytestmark = pytest.mark.usefixtures("records")
HOST, GPU = "h100-1", "nvidia.com/gpu"


@pytest.fixture(scope="module")
def demo() -> Iterator[Demo]:
    with Demo([kinds.new_host(HOST, count=2)]) as made:
        code, _ = run(made, "provision", "inventory.yaml", "--yes")
        assert code == 0, operators.output(made)
        yield made


def allocatable(api: Client) -> str:
    return str(api.ask("GET", f"/api/v1/nodes/{HOST}")[1]["status"]["allocatable"][GPU])


def test_a_cordoned_gpu_takes_no_new_pods_and_is_no_fault(demo: Demo):
    api = client(demo)
    job(api, "before", HOST, 600)
    until(lambda: api.ask("GET", f"{JOBS}/before")[1]["status"].get("phase") == "Running")

    def in_use() -> list[tuple[str, str]]:
        _, seen = run(demo, "status", "inventory.yaml")
        gpus = [line for line in seen if line["type"] == "gpu"]
        return [(line["uuid"], line["gpu"]) for line in gpus if "default/before" in line["pods"]]

    ((used, index),) = until(in_use)

    code, seen = run(demo, "cordon-gpu", used, "inventory.yaml", "--reason", "fan is broken", "--yes")

    assert code == 0, operators.output(demo)
    (row,) = [line for line in seen if line["type"] == "cordon"]
    assert (row["host"], row["uuid"], row["result"]) == (HOST, used, "cordoned")
    until(lambda: allocatable(api) == "1")
    assert api.ask("GET", f"{JOBS}/before")[1]["status"]["phase"] == "Running"
    code, seen = run(demo, "status", "inventory.yaml")
    assert code == 0, operators.output(demo)
    states = {line["uuid"]: (line["health"], line["code"]) for line in seen if line["type"] == "gpu"}
    assert states.pop(used) == ("cordoned", "cordoned")
    assert list(states.values()) == [("ok", "")]
    code, _ = run(demo, "plugin", "status", "inventory.yaml")
    assert code == 0, operators.output(demo)
    assert "fan is broken" in operators.output(demo)
    code, _ = run(demo, "verify", "inventory.yaml")
    assert code == 0, operators.output(demo)
    assert "fan is broken" in operators.output(demo)
    code, _ = run(demo, "plan", "inventory.yaml", "--exit-code")
    assert code == 0, operators.output(demo)

    plugin = next(
        item["metadata"]["name"]
        for item in api.ask("GET", "/api/v1/namespaces/gpunode/pods")[1]["items"]
        if item["metadata"]["name"].startswith("gpunode-device-plugin")
    )
    api.ask("DELETE", f"/api/v1/namespaces/gpunode/pods/{plugin}")
    until(lambda: run(demo, "plugin", "status", "inventory.yaml")[0] == 0)
    assert allocatable(api) == "1"

    code, seen = run(demo, "uncordon-gpu", used, "inventory.yaml", "--yes")

    assert code == 0, operators.output(demo)
    until(lambda: allocatable(api) == "2")
    assert not (demo.states[HOST].root / PATH.lstrip("/")).exists()
    code, seen = run(demo, "uncordon-gpu", f"{HOST}/{index}", "inventory.yaml", "--yes")
    assert (code, [line["result"] for line in seen if line["type"] == "cordon"]) == (
        0,
        ["already uncordoned"],
    )


def test_a_uuid_that_no_host_lists_is_refused(demo: Demo):
    code, _ = run(demo, "cordon-gpu", "MIG-1", "inventory.yaml", "--reason", "x", "--yes")
    assert code == 2
