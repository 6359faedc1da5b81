"""A second scheduler, by the lab's real kube-scheduler 1.36 in a pod of its own; the cluster's own is not touched."""

import json
import subprocess
import tempfile
import urllib.error
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from gpunode.contract.promises import INDEX, MEMORY_ANNOTATION
from gpunode.links.scheduler.configuration import MANIFEST
from gpunode.links.scheduler.deployment import SECOND

from . import builds
from .api import Lab
from .conftest import Ran
from .docker import docker
from .pods import Pods
from .progress import wait

pytestmark = [pytest.mark.lab, pytest.mark.matrix]

MEM = "aliyun.com/gpu-mem"
IMAGE = "gpunode-lab/kube-scheduler:v1.36.3"
OWN = {"schedulerName": "gpunode"}
CLASSES = {"lab-low": 10, "lab-middle": 50, "lab-high": 100}
PRIORITIES = "/apis/scheduling.k8s.io/v1/priorityclasses"


@pytest.fixture(scope="module")
def image(lab: Lab) -> None:
    """The scheduler's image on every host: no registry is asked."""
    with tempfile.TemporaryDirectory() as folder:
        work, archive = Path(folder), Path(folder, "image.tar")
        (work / "kube-scheduler").write_bytes((builds.go(builds.KUBERNETES) / "kube-scheduler").read_bytes())
        (work / "kube-scheduler").chmod(0o755)
        (work / "Dockerfile").write_text(
            "FROM gpunode-lab/python:new\nCOPY kube-scheduler /usr/local/bin/\nENTRYPOINT []\n"
        )
        docker(lab.slot, "build", "-q", "-t", IMAGE, work)
        docker(lab.slot, "save", "-o", archive, IMAGE)
        loaders = {"legacy": ["docker", "load"]}
        for name in ("control-plane", "modern", "legacy"):
            command = loaders.get(name, ["ctr", "-n", "k8s.io", "images", "import", "-"])
            words = ["/usr/bin/docker", "-H", lab.slot.docker_host, "exec", "-i", name, *command]
            with archive.open("rb") as stream:
                subprocess.run(words, stdin=stream, check=True, capture_output=True)


@pytest.fixture(scope="module")
def inventory(lab: Lab) -> Path:
    """The GPU hosts alone, as where others run the control plane."""
    wish = yaml.safe_load(lab.inventory.read_text())
    lab.inventory.with_name("share-plugin.yaml").write_text("version: v1\nsharing: {memory: {}}\n")
    wish["cluster"]["plugin"]["config"] = "share-plugin.yaml"
    wish["cluster"]["share"] = {"scheduler": {"image": IMAGE}}
    file = lab.inventory.with_name("second.yaml")
    file.write_text(yaml.safe_dump(wish))
    return file


@pytest.fixture(scope="module")
def enabled(lab: Lab, gpunode: Callable[..., Ran], inventory: Path, image: None) -> Iterator[None]:
    """The second scheduler asks the extender. Afterwards neither is there, and the cluster's own is as it was all the time."""
    ran = gpunode("provision", "--yes", "--json", "--no-run", inventory=inventory)
    assert ran.code == 0, ran
    before = lab.node("control-plane").read(MANIFEST)
    ran = gpunode("share enable", "--yes", "--json", inventory=inventory)
    assert ran.code == 0, ran
    assert any(SECOND in line.get("object", "") for line in ran.lines), ran
    again = gpunode("share enable", "--yes", "--json", inventory=inventory)
    assert again.code == 0, again
    assert not any(SECOND in line.get("object", "") for line in again.lines), again
    for name, value in CLASSES.items():
        lab.request("POST", PRIORITIES, {"metadata": {"name": name}, "value": value})
    yield
    for name in CLASSES:
        lab.request("DELETE", f"{PRIORITIES}/{name}")
    ran = gpunode("share disable", "--yes", "--json", inventory=inventory)
    assert ran.code == 0, ran
    assert lab.node("control-plane").read(MANIFEST) == before
    assert lab.request("GET", "/apis/apps/v1/namespaces/gpunode/deployments")["items"] == []
    rbac = "/apis/rbac.authorization.k8s.io/v1"
    for where in (
        f"{rbac}/clusterrolebindings/{SECOND}",
        f"{rbac}/clusterrolebindings/{SECOND}-volumes",
        f"{rbac}/namespaces/kube-system/rolebindings/{SECOND}",
        f"/apis/coordination.k8s.io/v1/namespaces/gpunode/leases/{SECOND}",
    ):
        with pytest.raises(urllib.error.HTTPError, match="404"):
            lab.request("GET", where)
    ran = gpunode("plugin deploy", "--yes", "--json")
    assert ran.code == 0, ran


def sizes(lab: Lab, node: str) -> list[int]:
    published = json.loads(
        lab.request("GET", f"/api/v1/nodes/{node}")["metadata"]["annotations"][MEMORY_ANNOTATION]
    )
    return [gpu["units"] for gpu in published["gpus"]]


def test_pods_that_name_it_wait_for_a_single_gpu(lab: Lab, enabled: None, made: Pods):
    """As with the cluster's own scheduler told of the extender; the event is the second one's."""
    gpus = sizes(lab, "legacy")
    full = [made.make(f"full-{number}", "legacy", units - 2, MEM, **OWN) for number, units in enumerate(gpus)]
    seen = made.seen(*full)
    assert len({uuid for each in seen for uuid in each.uuids}) == len(gpus)
    large = made.make("large", "legacy", 3, MEM, **OWN)
    assert "no single GPU has 3 units of memory free" in made.unschedulable(large)
    made.delete(full[0])
    (view,) = made.seen(large)
    noted = made.get(large)["metadata"]["annotations"][INDEX]
    assert noted == view.env["ALIYUN_COM_GPU_MEM_IDX"] == seen[0].env["ALIYUN_COM_GPU_MEM_IDX"]


def test_a_pod_of_the_clusters_own_scheduler_is_named_and_noted(
    lab: Lab, enabled: None, made: Pods, gpunode: Callable[..., Ran], inventory: Path
):
    """By the extender itself: then the other GPUs are free for others."""
    past = made.make("past", "modern", 7, MEM)
    (view,) = made.seen(past)
    made.seen(made.make("whole", "modern", sizes(lab, "modern")[0], MEM, **OWN))
    assert made.get(past)["metadata"]["annotations"][INDEX] == view.env["ALIYUN_COM_GPU_MEM_IDX"]
    ran = gpunode("share fsck", "--json", inventory=inventory)
    assert (ran.code, ran.of("fsck")) == (0, []), ran
    assert "default/past" in ran.stdout + ran.stderr


def test_preemption_frees_a_gpu_and_ends_nobody_else(lab: Lab, enabled: None, made: Pods):
    """By the sum of the node one small pod of each GPU would do: the extender has the scheduler end one GPU's."""
    units = sizes(lab, "legacy")[0]

    def make(name: str, amount: int, priority: str) -> str:
        name = made.make(name, "legacy", amount, MEM, priorityClassName=priority, **OWN)
        made.seen(name)
        return name

    make("a", 4, "lab-low")
    make("b", units - 4, "lab-middle")
    make("c", 4, "lab-low")
    make("d", units - 4, "lab-middle")
    high = made.make("high", "legacy", 8, MEM, priorityClassName="lab-high", **OWN)
    (view,) = made.seen(high)

    def there(name: str) -> bool:
        try:
            return "deletionTimestamp" not in made.get(name)["metadata"]
        except urllib.error.HTTPError:
            return False

    wait("the small pods to be gone", lambda: not there("a") and not there("c"), 120)
    assert [there("b"), there("d")].count(True) == 1
    assert made.get(high)["metadata"]["annotations"][INDEX] == view.env["ALIYUN_COM_GPU_MEM_IDX"]
