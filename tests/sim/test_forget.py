"""A host is taken out of gpunode's hands: afterwards it is as it was before gpunode came, but for a short list."""

import signal
from collections.abc import Iterator
from typing import Any

import pytest

from gpunode.engine import accepted
from gpunode.model import Cluster, Inventory
from gpunode.sim.host import kinds
from gpunode.sim.process import Demo
from tests.snapshots import differences, files

from . import operators
from .clusters import Client, until
from .jobs import JOBS, client, cordoned, describe, job
from .operators import run

pytestmark = pytest.mark.usefixtures("records")
HOST = "gpu-1"
# What may differ afterwards.
STAYS = (
    r"folder .*",  # a simulated host has few of them at first
    r"file /run/(cdi|gpunode)/.*",  # until the next boot
    r"file /proc/(uptime|\d+/.*)",  # of processes
    r"file /sys/module/nvidia/refcnt",  # of the processes that use a GPU: a pod's opens it after it is said to run
    r"file /usr/lib/modules/.*/modules\.dep",
    r"file /var/log/pods/.*",
    r"file /var/lib/kubelet/device-plugins/.*",
)


def snapshot(demo: Demo, host: str) -> dict[str, str]:
    """What is on a host, by a name for each thing."""
    state = demo.states[host]
    now, seen = state.now(), files(str(state.root))
    seen |= {f"package {name}": package.version for name, package in now.packages.items()}
    seen |= {f"hold {name}": "" for name, package in now.packages.items() if package.held}
    seen |= {f"image {name}": image for name, image in now.images.items()}
    return seen


def node(api: Client, host: str) -> dict[str, Any]:
    until(lambda: api.ask("GET", f"/api/v1/nodes/{host}")[0] == 200)
    item = api.ask("GET", f"/api/v1/nodes/{host}")[1]
    meta = item["metadata"]
    return {
        "labels": meta.get("labels"),
        "annotations": meta.get("annotations"),
        "spec": item.get("spec"),
        "conditions": sorted(entry["type"] for entry in item["status"]["conditions"]),
    }


@pytest.fixture(scope="module")
def demo() -> Iterator[Demo]:
    with Demo([kinds.old_host(HOST, count=1)]) as made:
        yield made


def test_nodes_whose_hosts_have_left_the_inventory_are_named_and_forgotten(demo: Demo):
    """By the names of the nodes, whose marks go; another's labels stay. This machine's record of an acceptance goes, too."""
    api, names = client(demo), ("gpu-7", "gpu-9")
    for name in names:
        body = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": {"rack": "7"}}}
        assert api.ask("POST", "/api/v1/nodes", body)[0] == 201
        body["metadata"] = {"name": name, "labels": {"gpunode.dev/gpu": "true", "tier": "a"}}
        content = "application/apply-patch+yaml"
        assert api.ask("PATCH", f"/api/v1/nodes/{name}", body, content, fieldManager="gpunode")[0] == 200

    code, _ = run(demo, "plan", "inventory.yaml")
    assert code == 0, operators.output(demo)
    assert (
        "gpu-7, gpu-9 are no longer in the inventory and still have label gpunode.dev/gpu, label tier. "
        in operators.output(demo)
    )
    inventory = Inventory(str(demo.folder / "inventory.yaml"), (), Cluster())
    record = accepted.path_of(accepted.folder(inventory), "gpu-7", None)
    record.parent.mkdir(parents=True, exist_ok=True)
    record.touch()
    for words, labels in (
        (["--keep-software"], {"rack": "7", "gpunode.dev/gpu": "true"}),
        ([], {"rack": "7"}),
    ):
        code, _ = run(demo, "forget", *names, "--yes", *words)
        assert code == 0, operators.output(demo)
        for name in names:
            assert api.ask("GET", f"/api/v1/nodes/{name}")[1]["metadata"]["labels"] == labels
        code, _ = run(demo, "plan", "inventory.yaml")
        assert "no longer in the inventory" not in operators.output(demo)
    assert not record.exists()
    code, _ = run(demo, "forget", "gpu-8", "--yes")
    assert code != 0
    assert "gpu-8 is neither a host of the inventory nor a node" in operators.output(demo)


def test_a_forgotten_host_is_as_it_was_before(demo: Demo):
    """Its node, too. A GPU pod keeps its host; a run that was killed is finished by the same command. Then the host is provisioned as a
    new one; with --keep-software all runs on, and nothing is gpunode's any more."""
    api = client(demo)
    bare, joined = snapshot(demo, HOST), node(api, HOST)
    provision(demo)
    describe(demo, work_timeout="1s")
    job(api, "train", HOST, 600)
    until(lambda: api.ask("GET", f"{JOBS}/train")[1]["status"].get("phase") == "Running")
    held = snapshot(demo, HOST)

    code, _ = run(demo, "forget", HOST, "--yes")

    assert code == 1, operators.output(demo)
    assert "default/train still used its GPUs" in operators.output(demo)
    assert differences(held, snapshot(demo, HOST), STAYS) == []
    assert (cordoned(api), node(api, HOST)["labels"]["gpunode.dev/gpu"]) == ([], "true")

    api.ask("DELETE", f"{JOBS}/train")
    until(lambda: api.ask("GET", f"{JOBS}/train")[0] == 404)
    code, _ = run(demo, "forget", HOST, "--yes", die=[HOST, "changed"])
    assert code == -signal.SIGKILL, operators.output(demo)
    assert cordoned(api) == [HOST]
    forget(demo)

    assert differences(bare, snapshot(demo, HOST), STAYS) == []
    assert node(api, HOST) == joined
    code, seen = run(demo, "forget", HOST, "--yes")
    assert code == 0, operators.output(demo)
    assert [line for line in seen if line["type"] in ("change", "cluster")] == []
    listed = operators.gpunode(demo.folder, "history", "--json")
    assert operators.of_kind(listed, "run")[0]["result"] == {"forgotten": 1}

    provision(demo)
    work = snapshot(demo, HOST)
    forget(demo, "--keep-software")

    records = sorted(name for name in work if name.startswith("file /var/lib/gpunode/"))
    assert records
    assert differences(work, snapshot(demo, HOST), STAYS) == records
    assert node(api, HOST) == {**joined, "labels": {**joined["labels"], "gpunode.dev/gpu": "true"}}
    code, _ = run(demo, "verify", "inventory.yaml")
    assert code == 0, operators.output(demo)


def provision(demo: Demo) -> None:
    code, _ = run(demo, "provision", "inventory.yaml", "--yes")
    assert code == 0, operators.output(demo)


def forget(demo: Demo, *words: str) -> None:
    code, _ = run(demo, "forget", HOST, "--yes", *words)
    assert code == 0, operators.output(demo)
