"""From the symptom to its cause, on a cluster whose scheduler, kubelets and device plugins really say what they say."""

import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpunode.sim import faults
from gpunode.sim.host import kinds
from gpunode.sim.process import Demo

from . import operators
from .clusters import until
from .jobs import JOBS, client, job
from .operators import of_kind, worked

Gpunode = Callable[..., subprocess.CompletedProcess[str]]
GPU = "nvidia.com/gpu"


@pytest.fixture(scope="module")
def demo() -> Iterator[Demo]:
    """Two nodes, proven: a P100, and two H100."""
    with Demo([kinds.old_host("p100-1", count=1), kinds.new_host("h100-1", count=2)]) as made:
        worked(run(made.folder, "provision", "inventory.yaml", "--yes", "-q"))
        yield made


@pytest.fixture
def alone(demo: Demo, tmp_path) -> Gpunode:
    """gpunode in a folder without an inventory, with the demo's kubeconfig."""
    return lambda *words: run(tmp_path, *words, KUBECONFIG=str(demo.folder / "kubeconfig"))


def run(folder: Path, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
    return operators.gpunode(folder, *words, XDG_STATE_HOME=str(folder / "state"), **more)


def wait(demo: Demo, name: str, gpus: int) -> None:
    """A pod that no node takes, once the scheduler has said why."""
    container = {"name": "c", "image": "gpunode-deviceplugin:demo", "command": ["sleep", "600"]}
    asks = {"resources": {"limits": {GPU: str(gpus)}}}
    pod = {"kind": "Pod", "metadata": {"name": name}, "spec": {"containers": [container | asks]}}
    assert client(demo).ask("POST", JOBS, pod)[0] == 201
    until(lambda: "nodes are available" in str(client(demo).ask("GET", f"{JOBS}/{name}")[1]["status"]))


def codes(done: subprocess.CompletedProcess[str]) -> list[str]:
    assert done.returncode == 1, done.stdout + done.stderr
    return [reason["code"] for reason in of_kind(done, "reason")]


def test_pods_that_have_the_gpus_are_named(alone: Gpunode, demo: Demo):
    api = client(demo)
    job(api, "train", "h100-1", 600)
    until(lambda: api.ask("GET", f"{JOBS}/train")[1]["status"].get("phase") == "Running")
    wait(demo, "both", 2)

    done = alone("why", "pod", "both", "--json")

    assert codes(done) == ["in-use"]
    assert of_kind(done, "reason")[0]["evidence"] == ["h100-1: 1 of 2 free, in use by default/train (1)"]
    fine = alone("why", "pod", "train", "--json")
    assert fine.returncode == 0, fine.stdout
    until(
        lambda: "it has GPU" in alone("why", "pod", "train").stdout
    )  # the plugin asks the kubelet every 5 s
    api.ask("DELETE", f"{JOBS}/train")


def test_a_lost_gpu_is_told_from_the_pod_the_node_and_the_gpu(alone: Gpunode, demo: Demo):
    """With a kubeconfig as the plugin reports it; with the inventory as the host's chain has it."""
    until(lambda: client(demo).ask("GET", f"{JOBS}/both")[1]["status"].get("phase") == "Running")
    fine = alone("why", "node", "h100-1", "--json")
    assert fine.returncode == 0, fine.stdout
    faults.inflict("xid", [demo.states["h100-1"]])
    until(lambda: client(demo).ask("GET", "/api/v1/nodes/h100-1")[1]["status"]["allocatable"][GPU] == "1")
    wait(demo, "pair", 2)

    by_pod = alone("why", "pod", "pair", "--json")
    by_node = alone("why", "node", "h100-1", "--json")
    (sick,) = [row for row in of_kind(alone("status", "--json"), "gpu") if row["health"] == "unhealthy"]
    by_gpu = alone("why", "gpu", sick["uuid"], "--json")

    assert codes(by_pod) == ["gpu-lost"]
    assert "in use there: default/both (2)" in of_kind(by_pod, "reason")[0]["evidence"]
    assert codes(by_node) == ["gpu-lost"]
    assert codes(by_gpu) == ["gpu-lost"]
    asked = run(demo.folder, "why", "node", "h100-1", "inventory.yaml", "--json")
    (reason,) = of_kind(asked, "reason")
    assert reason["what"].startswith("link `NVML` of host h100-1 is broken: ")
    assert "PCI ✓ module ✓ library ✓ NVML ✗" in reason["evidence"]


def test_a_node_that_offers_gpus_which_no_new_pod_gets_says_so(demo: Demo):
    """The plugin still lists them: it has its libraries open. One has an Xid by the test above."""
    faults.inflict("library", [demo.states["h100-1"]])
    (answer,) = of_kind(run(demo.folder, "why", "node", "h100-1", "inventory.yaml", "--json"), "answer")
    assert re.match(
        r"node h100-1 is Ready and offers [12] of 2 \S+, but new pods get no GPU; ", answer["text"]
    )
    assert ". Cause: link `library` of host h100-1 is broken: " in answer["text"]


def test_the_broken_link_is_named_by_the_host_and_its_fix_says_what_it_disturbs(demo: Demo):
    """The runtime's configuration lost nvidia: the cluster knows at most that the plugin does not work."""
    faults.inflict("runtime", [demo.states["p100-1"]])

    done = run(demo.folder, "why", "node", "p100-1", "inventory.yaml", "--json")

    assert codes(done) == ["runtime"]
    (reason,) = of_kind(done, "reason")
    assert reason["what"].startswith("link `runtime` of host p100-1 is broken: /etc/docker/daemon.json ")
    assert (
        " --limit p100-1   # disturbs none of your pods\nit will change /etc/docker/daemon.json; "
        in reason["fix"]
    )

    spec = {"nodeName": "p100-1", "containers": [{"name": "c", "image": "registry.example/none:1"}]}
    client(demo).ask("POST", JOBS, {"kind": "Pod", "metadata": {"name": "unpulled"}, "spec": spec})
    until(lambda: "ImagePullBackOff" in str(client(demo).ask("GET", f"{JOBS}/unpulled")[1]["status"]))
    pod = run(demo.folder, "why", "pod", "unpulled", "inventory.yaml", "--json")
    client(demo).ask("DELETE", f"{JOBS}/unpulled")
    first, *others = codes(pod)
    assert (first, "runtime" in others) == ("image-pull", True)  # no node would start it


def test_a_bare_host_is_told_from_its_node_and_without_one():
    """The old kubelet runs, the new one does not start on a gate that is gone. All hosts share an address."""
    with Demo([kinds.old_host("p100-1", count=2), kinds.new_host("h100-1", count=1)]) as demo:
        joined, absent = (run(demo.folder, "why", "node", name, "--json") for name in ("p100-1", "h100-1"))
        unknown = run(demo.folder, "why", "node", "h100-2")
    (answer,) = of_kind(joined, "answer")
    assert (
        "node p100-1 is Ready and offers 0 of 2 GPUs. Cause: link `module` of host p100-1 is broken"
        in answer["text"]
    )
    assert codes(joined) == ["module"]
    (answer,) = of_kind(absent, "answer")
    assert "host h100-1 of the inventory has not joined the cluster. Cause: link `" in answer["text"]
    assert codes(absent)
    assert unknown.returncode == 2, unknown.stdout + unknown.stderr


def test_the_broken_link_comes_first_for_pods_that_got_no_gpu():
    """Their containers start without one: one runs on, and one crashes as a pod does that requests none."""
    with Demo([kinds.new_host("h100-1", count=1)]) as demo:
        worked(run(demo.folder, "provision", "inventory.yaml", "--yes", "-q"))
        api = client(demo)
        faults.inflict("runtime", [demo.states["h100-1"]])
        job(api, "blind", "h100-1", 600)
        until(lambda: api.ask("GET", f"{JOBS}/blind")[1]["status"].get("phase") == "Running")
        running = run(demo.folder, "why", "pod", "blind", "inventory.yaml", "--json")
        api.ask("DELETE", f"{JOBS}/blind")
        until(lambda: api.ask("GET", f"{JOBS}/blind")[0] == 404)
        job(api, "free", "h100-1", 600, privileged=True)  # has the host's devices, whatever the runtime does
        until(lambda: api.ask("GET", f"{JOBS}/free")[1]["status"].get("phase") == "Running")
        assert run(demo.folder, "why", "pod", "free", "inventory.yaml", "--json").returncode == 0
        api.ask("DELETE", f"{JOBS}/free")
        until(lambda: api.ask("GET", f"{JOBS}/free")[0] == 404)
        job(api, "vec", "h100-1", command=["python3", "-m", "gpunode.deviceplugin.vectoradd"])
        until(lambda: "CrashLoopBackOff" in str(api.ask("GET", f"{JOBS}/vec")[1]["status"]))
        crashing = run(demo.folder, "why", "pod", "vec", "inventory.yaml", "--json")
    assert codes(running) == ["runtime"]
    (reason,) = of_kind(running, "reason")
    assert reason["what"].startswith("no GPU is seen in its container, and link `runtime` of host h100-1 is")
    assert codes(crashing) == ["runtime"]
    assert "Request a GPU" not in crashing.stdout
