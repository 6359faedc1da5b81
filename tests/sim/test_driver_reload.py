"""Another driver on a node that has the device plugin, which uses the GPUs itself: a reload is enough."""

from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from gpunode.links.plugin import daemonset
from gpunode.sim.host import kinds
from gpunode.sim.process import Demo

from . import operators
from .clusters import until
from .jobs import client, cordoned
from .operators import of_kind, worked
from .test_batches import begin, gpunode

pytestmark = pytest.mark.usefixtures("records")


@pytest.fixture(scope="module")
def demo() -> Iterator[Demo]:
    """A GPU node with the production driver."""
    with Demo([kinds.new_host("gpu-1", count=2)]) as made:
        worked(gpunode(made, "provision", "inventory.yaml", "--yes", "--json"))
        yield made


def want(demo: Demo, driver: int) -> None:
    written = yaml.safe_load(demo.inventory.read_text())
    written.setdefault("defaults", {})["driver"] = driver
    demo.inventory.write_text(yaml.safe_dump(written))


def node(demo: Demo) -> dict[str, Any]:
    meta = client(demo).ask("GET", "/api/v1/nodes/gpu-1")[1]["metadata"]
    notes = meta.get("annotations") or {}
    return {"gpu": meta["labels"].get("gpunode.dev/gpu"), "owner": notes.get(daemonset.OWNER)}


def booted(demo: Demo) -> str:
    return demo.states["gpu-1"].now().boot_id


def test_the_plugin_makes_way_for_a_reload_of_the_modules(demo: Demo):
    """The plan shows the reboot that would be needed with it, and that it is a reload; nothing reboots, and the plugin is
    back afterwards."""
    want(demo, 580)
    before = booted(demo)
    done = worked(gpunode(demo, "provision", "inventory.yaml", "--yes", "--json"))
    (plan,) = of_kind(done, "plan")
    assert (plan["disturbs"]["reboot"], plan["disturbs"]["reload"]) == (True, True)
    assert booted(demo) == before
    assert demo.states["gpu-1"].now().modules["nvidia"].startswith("580.")
    assert node(demo) == {"gpu": "true", "owner": None}
    assert cordoned(client(demo)) == []
    assert [row["result"] for row in of_kind(done, "verified")] == ["verified"]


def test_the_plugin_comes_back_after_a_run_that_died(demo: Demo):
    """Its label says that it is away, and who did it; `resume` continues."""
    want(demo, 595)
    before = booted(demo)
    with begin(demo, "provision", "inventory.yaml", "--yes") as run:
        until(lambda: node(demo)["gpu"] == daemonset.PAUSED)
        run.kill()
    assert node(demo)["owner"].startswith("run ")
    worked(gpunode(demo, "resume", "inventory.yaml", "--yes", "--json"))
    assert booted(demo) == before
    assert demo.states["gpu-1"].now().modules["nvidia"].startswith("595.")
    assert node(demo) == {"gpu": "true", "owner": None}


def version(demo: Demo) -> str:
    """The branch of the loaded module; "" for none."""
    return demo.states["gpu-1"].now().modules.get("nvidia", "").partition(".")[0]


def test_an_apply_that_is_killed_inside_a_load_is_completed_by_the_next_run(demo: Demo):
    """Between unload and load the host has no module; nothing reboots, and the plugin is back afterwards."""
    wanted, boot = "580" if version(demo) == "595" else "595", booted(demo)
    want(demo, int(wanted))
    program = operators.kill_at_load(demo.states["gpu-1"])
    killed = gpunode(demo, "provision", "inventory.yaml", "--yes", "--json")
    assert (killed.returncode, version(demo), program.exists()) == (1, "", False)
    (plan,) = of_kind(gpunode(demo, "plan", "inventory.yaml", "--json"), "plan")
    assert [change["what"] for change in plan["changes"]][:1] == ["load nvidia, nvidia_uvm, nvidia_modeset"]
    worked(gpunode(demo, "provision", "inventory.yaml", "--yes", "--json"))
    assert (version(demo), booted(demo)) == (wanted, boot)
    assert (node(demo), cordoned(client(demo))) == ({"gpu": "true", "owner": None}, [])
    planned = gpunode(demo, "plan", "inventory.yaml", "--exit-code")
    assert planned.returncode == 0, planned.stdout
