"""The node's condition GpuReady, from the plugin's own token: right within seconds of a fault, back by itself, gone when switched off."""

from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from gpunode.sim.host import kinds
from gpunode.sim.process import Demo

from . import operators
from .clusters import Client, until
from .jobs import client
from .operators import run

pytestmark = pytest.mark.usefixtures("records")
HOST = "h100-1"


@pytest.fixture(scope="module")
def demo() -> Iterator[Demo]:
    """A host that is provisioned, whose plugin writes the condition."""
    with Demo([kinds.new_host(HOST, count=2)]) as made:
        switch(made, on=True)
        code, _ = run(made, "provision", "inventory.yaml", "--yes")
        assert code == 0, operators.output(made)
        yield made


def switch(demo: Demo, *, on: bool) -> None:
    inventory = yaml.safe_load(demo.inventory.read_text())
    inventory["cluster"]["plugin"]["condition"] = on
    demo.inventory.write_text(yaml.safe_dump(inventory))


def gpu_ready(api: Client) -> dict[str, Any] | None:
    conditions = api.ask("GET", f"/api/v1/nodes/{HOST}")[1]["status"]["conditions"]
    assert any(condition["type"] == "Ready" for condition in conditions)
    return next((condition for condition in conditions if condition["type"] == "GpuReady"), None)


def status(api: Client) -> str:
    return str((gpu_ready(api) or {}).get("status"))


def test_the_condition_follows_a_fault_at_once(demo: Demo):
    api = client(demo)
    until(lambda: status(api) == "True")
    code, _ = run(demo, "verify", "inventory.yaml", "--no-run")
    assert code == 0, operators.output(demo)
    with demo.states[HOST].change() as now:
        gpu = demo.states[HOST].machine().gpus[0]
        now.xids.append((gpu.uuid, 48))
    until(lambda: status(api) == "False")  # not only with the next refresh, after 300 s
    seen = gpu_ready(api) or {}
    assert seen["reason"] == "xid-48"
    assert gpu.uuid in seen["message"]

    switch(demo, on=False)
    code, _ = run(demo, "plugin", "deploy", "inventory.yaml", "--yes")

    assert gpu_ready(api) is None, operators.output(demo)
