"""Article 004 with the lab's real scheduler: pods are placed GPU by GPU, and all is taken back."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpunode.contract.promises import ALLOCATION, INDEX, MEMORY_ANNOTATION
from gpunode.links.scheduler.configuration import MANIFEST

from .api import Lab
from .conftest import Ran
from .pods import LOOK, Pods
from .progress import wait

pytestmark = pytest.mark.lab

MEM = "aliyun.com/gpu-mem"
ALL = "inventory-all.yaml"  # with the control plane's host


@pytest.fixture(scope="module")
def inventory(lab: Lab) -> Path:
    """All hosts, GPUs shared by memory, and the extender wished for."""
    file = lab.inventory.with_name(ALL)
    wish = yaml.safe_load(file.read_text())
    lab.inventory.with_name("share-plugin.yaml").write_text("version: v1\nsharing: {memory: {}}\n")
    wish["cluster"]["plugin"]["config"] = "share-plugin.yaml"
    wish["cluster"]["share"] = {}
    hosts = wish["groups"].pop("control-plane")["hosts"]
    wish["groups"]["masters"] = {"hosts": [{**host, "control_plane": True} for host in hosts]}
    file = lab.inventory.with_name("share.yaml")
    file.write_text(yaml.safe_dump(wish))
    return file


@pytest.fixture(scope="module")
def enabled(lab: Lab, gpunode: Callable[..., Ran], inventory: Path) -> Iterator[None]:
    """The scheduler asks the extender. Afterwards its manifest is as it was, and nothing of the extender is there."""
    ran = gpunode("provision", "--yes", "--json", "--no-run", "--limit", "p100,h100", inventory=inventory)
    assert ran.code == 0, ran
    host = lab.node("control-plane")
    before = host.read(MANIFEST)
    ran = gpunode("share enable", "--yes", "--json", inventory=inventory)
    assert ran.code == 0, ran
    assert host.read(MANIFEST) != before
    yield
    ran = gpunode("share disable", "--yes", "--json", inventory=inventory)
    assert ran.code == 0, ran
    assert host.read(MANIFEST) == before
    left = lab.request("GET", "/apis/apps/v1/namespaces/gpunode/deployments")["items"]
    assert left == []
    ran = gpunode("plugin deploy", "--yes", "--json")
    assert ran.code == 0, ran


def notes(made: Pods, name: str) -> dict[str, str]:
    return dict(made.get(name)["metadata"]["annotations"])


def several(made: Pods, name: str, node: str, *units: int) -> str:
    """A pod with a container for each of these amounts."""
    containers: list[dict[str, Any]] = [
        {
            "name": f"c{number}",
            "image": made.image,
            "args": ["-c", LOOK],
            "resources": {"limits": {MEM: each}},
        }
        for number, each in enumerate(units)
    ]
    spec = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 0,
        "nodeSelector": {"kubernetes.io/hostname": node},
        "tolerations": [{"operator": "Exists"}],
        "containers": containers,
    }
    return made.create({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec})


def index(lab: Lab, name: str, container: str) -> str:
    """The GPU that a container of a pod got, by its own variable."""
    path = f"/api/v1/namespaces/default/pods/{name}/log?container={container}"

    def said() -> str:
        try:
            return str(lab.request("GET", path))
        except OSError:
            return ""

    wait(f"{name}/{container} to say what it sees", lambda: said().endswith("\n"), 90)
    return str(json.loads(said().splitlines()[-1])["env"]["ALIYUN_COM_GPU_MEM_IDX"])


@pytest.mark.parametrize("node", ["legacy", "modern"])
def test_fragmented_memory_is_waited_for_on_one_gpu(lab: Lab, enabled: None, made: Pods, node: str):
    """Where the plugin alone would fail the pod: the kubelets 1.23 and 1.36."""
    published = json.loads(
        lab.request("GET", f"/api/v1/nodes/{node}")["metadata"]["annotations"][MEMORY_ANNOTATION]
    )
    sizes = [gpu["units"] for gpu in published["gpus"]]
    most = sizes[0] - 2
    full = [made.make(f"{node}-full-{number}", node, most, MEM) for number in range(len(sizes))]
    seen = made.seen(*full)
    assert len({uuid for each in seen for uuid in each.uuids}) == len(sizes)
    for name, view in zip(full, seen, strict=True):
        assert notes(made, name)[INDEX] == view.env["ALIYUN_COM_GPU_MEM_IDX"]

    large = made.make(f"{node}-large", node, 3, MEM)  # there are more in sum
    assert "no single GPU has 3 units of memory free" in made.unschedulable(large)
    made.delete(full[1])
    (view,) = made.seen(large)
    assert (
        view.env["ALIYUN_COM_GPU_MEM_IDX"]
        == seen[1].env["ALIYUN_COM_GPU_MEM_IDX"]
        == notes(made, large)[INDEX]
    )


@pytest.mark.parametrize("node", ["legacy", "modern"])
def test_each_container_of_a_pod_gets_the_gpu_it_was_promised(lab: Lab, enabled: None, made: Pods, node: str):
    """gpushare fails such pods."""
    name = several(made, f"{node}-two", node, 9, 10)
    index(lab, name, "c1")
    promised = json.loads(notes(made, name)[ALLOCATION])
    assert len({gpu for gpus in promised.values() for gpu in gpus}) == (2 if node == "legacy" else 1)
    for position, gpus in promised.items():
        assert [index(lab, name, f"c{position}")] == list(gpus)


def test_pods_at_once_are_all_placed_as_noted(lab: Lab, enabled: None, made: Pods):
    """Equal ones and others, on four GPUs: what each container got is what somebody of its size was promised."""
    names = [made.make(f"many-{number}", "modern", 15 + number % 3, MEM) for number in range(12)]
    seen = made.seen(*names)
    got = sorted((15 + number % 3, view.env["ALIYUN_COM_GPU_MEM_IDX"]) for number, view in enumerate(seen))
    noted = sorted((15 + number % 3, notes(made, name)[INDEX]) for number, name in enumerate(names))
    assert got == noted


def test_who_has_what_is_shown_and_repaired(
    lab: Lab, enabled: None, made: Pods, gpunode: Callable[..., Ran], inventory: Path
):
    """Promise beside use; a pod that came past the scheduler is noted where the kubelet put it, by itself."""
    noted = made.make("noted", "modern", 9, MEM)
    past = made.make("past", "modern", 7, MEM, nodeName="modern")
    view, other = made.seen(noted, past)
    wait("its GPU to be noted", lambda: INDEX in made.get(past)["metadata"].get("annotations", {}), 60)
    assert notes(made, past)[INDEX] == other.env["ALIYUN_COM_GPU_MEM_IDX"]

    def rows(*words: str, kind: str) -> list[dict[str, Any]]:
        ran = gpunode(*words, "--json", inventory=inventory)
        return ran.of(kind)

    shares = [row for row in rows("share inspect", kind="share") if row["resource"] == MEM]
    gpus = {(row["node"], row["gpu"]): row for row in shares}
    assert ("modern", "?") not in gpus
    assert sum(row["used"] for (node, _), row in gpus.items() if node == "modern") == 16
    assert len([1 for node, gpu in gpus if node == "legacy" and gpu != "?"]) == 2
    mine = gpus["modern", view.env["ALIYUN_COM_GPU_MEM_IDX"]]
    shared = view.env["ALIYUN_COM_GPU_MEM_IDX"] == other.env["ALIYUN_COM_GPU_MEM_IDX"]
    assert (mine["promised"], mine["total"]) == (16 if shared else 9, 79)
    assert "default/noted" in mine["pods"]

    assert gpunode("share fsck", "--json", inventory=inventory).code == 0

    placed = rows("share simulate", "--memory", "16", "--pods", "2", kind="simulated")
    assert [bool(row["node"]) for row in placed] == [True, True]


def test_a_resource_counted_by_hand_is_scheduled_by(
    lab: Lab, enabled: None, made: Pods, gpunode: Callable[..., Ran], inventory: Path
):
    """As article 002 does it with curl; it is taken away the same way."""
    fpga, where = "example.com/fpga", ("--limit", "modern", "--json")

    def counted() -> Any:
        return lab.request("GET", "/api/v1/nodes/modern")["status"]["allocatable"].get(fpga)

    ran = gpunode("label", "--resource", f"{fpga}=1", *where, inventory=inventory)
    assert [row["result"] for row in ran.of("resource")] == ["changed"], ran
    wait("the kubelet to make it allocatable", lambda: counted() == "1", 60)
    made.seen(made.make("with-fpga", "modern", 1, fpga))
    assert f"Insufficient {fpga}" in made.unschedulable(made.make("second", "modern", 1, fpga))
    assert gpunode("label", "--resource", f"{fpga}=2", *where, inventory=inventory).code == 1
    assert gpunode("label", "--resource", fpga, "--remove", *where, inventory=inventory).code == 0
    wait("it to be gone", lambda: counted() is None, 60)
