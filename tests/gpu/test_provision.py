"""The main job on a real GPU: a host without NVIDIA's toolkit, on this machine's driver, becomes a verified node and is left again.

`host.py` says what of it is real. Without a GPU they run on the lab's stand-in, if the host was made with it.
"""

import contextlib
import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.deviceplugin.test_gpu import provoke_xid
from tests.lab.progress import wait
from tests.lab.test_lost_gpus import DENY

from . import host
from .test_pod import REAL

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(400)]
NODE = "/api/v1/nodes/control-plane"
PODS = "/api/v1/namespaces/default/pods"
MEM = "aliyun.com/gpu-mem"
PLUGIN = "/apis/apps/v1/namespaces/gpunode/daemonsets/gpunode-device-plugin"
# what the toolkit's package writes when it is installed, and leaves when it is purged
OF_THE_TOOLKIT = "/etc/nvidia-container-runtime/config.toml"

Gpunode = Callable[..., list[dict[str, Any]]]


def request(method: str, path: str, body: Any = None, content: str = "") -> Any:
    return host.cluster.request(host.SLOT, method, path, body, content)


@pytest.fixture(scope="module")
def gpunode(tmp_path_factory) -> Iterator[Gpunode]:
    """Runs gpunode on the host that is up; returns the lines of its --json, whose exit code has to be as said."""
    if not (host.OUT / "root").exists():
        pytest.skip(
            "no host to provision: `python -m tests.gpu.host make` writes it, on Debian 12 after `make lab`"
        )
    if os.geteuid() != 0:
        pytest.skip("a host's namespaces need root")
    if not REAL and not (host.OUT / "root/etc/lab-gpus.json").exists():
        pytest.skip("no NVIDIA GPU on this machine, and the host has no stand-in")
    environment = {**os.environ, "XDG_STATE_HOME": str(tmp_path_factory.mktemp("state"))}

    def run(*arguments: str, code: int | None = 0, json_lines: bool = True) -> list[dict[str, Any]]:
        command = [sys.executable, "-m", "gpunode", *arguments, *(["--json"] if json_lines else [])]
        began = time.monotonic()
        done = subprocess.run(
            command, cwd=host.OUT, env=environment, capture_output=True, text=True, check=False, timeout=200
        )
        seconds = time.monotonic() - began
        print(
            f"$ gpunode {' '.join(arguments)}  # {seconds:.1f} s, exit code {done.returncode}\n{done.stdout[-6000:]}"
        )
        assert code is None or done.returncode == code, done.stdout[-3000:] + done.stderr[-3000:]
        return [json.loads(line) for line in done.stdout.splitlines()] if json_lines else []

    with host.up():
        yield run


@pytest.fixture(scope="module")
def before(gpunode: Gpunode) -> str:
    return host.listing()


@pytest.fixture(scope="module")
def provisioned(before: str, gpunode: Gpunode) -> list[dict[str, Any]]:
    gpunode("plan", "inventory.yaml", json_lines=False)
    return gpunode("provision", "inventory.yaml", "--yes", "--taint-until-verified", "--accept", "quick")


def test_provision_ends_with_a_verified_and_accepted_gpu(provisioned: list[dict[str, Any]], gpunode: Gpunode):
    """vectoradd has run on it by kubelet, containerd and NVIDIA's runtime; its figures are in bounds; the taint is gone."""
    passed = [line for line in provisioned if line["type"] == "vectoradd"]
    assert [line["result"] for line in passed] == ["passed"]
    accepted = [line for line in provisioned if line["type"] == "acceptance"]
    assert [line["result"] for line in accepted] == ["accepted"], accepted
    node = request("GET", NODE)
    assert not node["spec"].get("taints")
    assert condition(node)["status"] == "True"
    gpunode("verify", "inventory.yaml", json_lines=False)
    gpunode("status", "inventory.yaml", json_lines=False)
    gpunode("label", "inventory.yaml", "--accelerator", json_lines=False)
    print(
        json.dumps(
            {
                k: v
                for k, v in request("GET", NODE)["metadata"]["labels"].items()
                if "nvidia" in k or "gpunode" in k
            }
        )
    )


def test_a_second_provision_has_nothing_to_do(provisioned: object, gpunode: Gpunode):
    gpunode("plan", "inventory.yaml", "--exit-code")


def test_a_cordoned_gpu_takes_no_pod_until_it_is_uncordoned(provisioned: object, gpunode: Gpunode):
    [uuid] = {line["uuid"] for line in gpunode("status", "inventory.yaml") if line.get("uuid")}
    gpunode("cordon-gpu", uuid, "inventory.yaml", "--reason", "test", "--yes", json_lines=False)
    wait("no allocatable GPU", lambda: allocatable() == "0", 30)
    gpunode("uncordon-gpu", uuid, "inventory.yaml", "--yes", json_lines=False)
    wait("an allocatable GPU", lambda: allocatable() == "1", 90)


def test_two_pods_use_one_gpu_at_a_time_by_shares_of_its_time(provisioned: object, gpunode: Gpunode):
    """Each computes while the other one has its context; the plugin then offers the whole GPU again."""
    share = {"name": "nvidia.com/gpu", "replicas": 2}
    (host.OUT / "plugin.json").write_text(
        json.dumps({"version": "v1", "sharing": {"timeSlicing": {"resources": [share]}}})
    )
    text = (host.OUT / "inventory.yaml").read_text()
    (host.OUT / "shared.yaml").write_text(text.replace("archive: ", "config: plugin.json, archive: "))
    gpunode("provision", "shared.yaml", "--yes")
    wait("two shares", lambda: allocatable() == "2", 90)
    for name in ("first", "second"):
        request("POST", PODS, shared_pod(name))
    wait("both run at a time", lambda: phases() == {"first": "Running", "second": "Running"}, 60)
    wait("both have computed", lambda: phases() == {"first": "Succeeded", "second": "Succeeded"}, 90)
    gpunode("verify", "shared.yaml", json_lines=False)
    for name in ("first", "second"):
        request("DELETE", f"{PODS}/{name}?gracePeriodSeconds=0")
    gpunode("provision", "inventory.yaml", "--yes")
    wait("one GPU", lambda: allocatable() == "1", 90)


def test_pods_get_the_parts_of_a_gpu_that_the_extender_promises(provisioned: object, gpunode: Gpunode):
    """Two hold CUDA memory at a time, beside each other; a third waits until one of them has ended."""
    (host.OUT / "plugin.json").write_text(json.dumps({"version": "v1", "sharing": {"memory": {}}}))
    text = (host.OUT / "inventory.yaml").read_text()
    (host.OUT / "memory.yaml").write_text(
        text.replace("archive: ", "config: plugin.json, archive: ").replace(
            "cluster:\n", "cluster:\n  share: {}\n"
        )
    )
    gpunode("provision", "memory.yaml", "--yes")
    gpunode("share", "enable", "memory.yaml", "--yes")
    wait("the GPU's memory", lambda: allocatable(MEM) not in {"0", "none"}, 90)
    half = int(allocatable(MEM)) // 2
    for name, units in (("first", half), ("second", half), ("third", 2)):
        request("POST", PODS, memory_pod(name, units))
    running = {"first": "Running", "second": "Running", "third": "Pending"}
    wait(
        "two hold memory at a time",
        lambda: phases() == running and bool(said("first") and said("second")),
        90,
    )
    assert {said("first"), said("second")} == {f"{half} of {allocatable(MEM)}\n"}
    [gpu] = [row for row in gpunode("share", "inspect", "memory.yaml") if row["type"] == "share"]
    assert (gpu["used"], gpu["promised"]) == (2 * half, 2 * half), gpu
    gpunode("share", "fsck", "memory.yaml")
    gpunode("status", "memory.yaml", json_lines=False)
    why = gpunode("why", "pod", "default/third", "memory.yaml", code=1)
    assert [line["code"] for line in why if line["type"] == "reason"] == ["in-use"], why
    request("DELETE", f"{PODS}/first?gracePeriodSeconds=0")
    wait("the third runs", lambda: phases().get("third") == "Running" and bool(said("third")), 90)
    for name in ("second", "third"):
        request("DELETE", f"{PODS}/{name}?gracePeriodSeconds=0")
    wait("no pod", lambda: not phases(), 60)
    gpunode("verify", "memory.yaml", json_lines=False)
    gpunode("share", "disable", "memory.yaml", "--yes")
    gpunode("provision", "inventory.yaml", "--yes")
    wait("one GPU", lambda: allocatable() == "1", 90)


def test_a_running_pod_that_loses_its_gpu_is_named(provisioned: object, gpunode: Gpunode):
    """Its cgroup refuses NVIDIA's devices from then on, as after `systemctl daemon-reload` on some hosts; the GPU is right."""
    pod = shared_pod("loses")
    [container] = pod["spec"]["containers"]
    work = (
        "import subprocess, sys, time\n"
        "while True:\n"
        "    done = subprocess.run([sys.executable, '-m', 'gpunode.deviceplugin.vectoradd', '--json'])\n"
        "    print('ended with', done.returncode, flush=True); time.sleep(1)"
    )
    container |= {"command": ["python3", "-c", work], "env": [{"name": "LOSES", "value": "yes"}]}
    request("POST", PODS, pod)
    wait("the pod computes", lambda: "ended with 0" in said("loses"), 60)
    assert host.inside(f"python3 -c {shlex.quote(DENY)}").strip()
    wait("it fails", lambda: said("loses").rstrip()[-1:] not in {"", "0"}, 60)
    links = [line for line in gpunode("verify", "inventory.yaml", code=1) if line["type"] == "link"]
    [broken] = [link for link in links if link["status"] == "broken"]
    assert broken["text"] == "1 container lost GPUs: default/loses", broken
    print(said("loses")[-1500:], json.dumps(broken))
    request("DELETE", f"{PODS}/loses?gracePeriodSeconds=0")
    wait("no pod", lambda: not phases(), 60)
    gpunode("verify", "inventory.yaml", json_lines=False)


def test_a_fault_reaches_the_nodes_condition_within_seconds(provisioned: object, gpunode: Gpunode):
    """A real Xid 31 that a pod provokes, made a fault of the GPU by NVIDIA's variable."""
    variable = {"name": "DP_ENABLE_HEALTHCHECKS", "value": "31"}
    container = {"name": "device-plugin", "env": [variable]}
    change = {"spec": {"template": {"spec": {"containers": [container]}}}}
    patched = request("PATCH", PLUGIN, change, "application/strategic-merge-patch+json")
    wait("the plugin's new pod", lambda: plugin_runs(patched["metadata"]["generation"]), 90)
    wait(
        "a ready GPU",
        lambda: condition(request("GET", NODE))["status"] == "True" and allocatable() == "1",
        60,
    )
    if REAL:
        provoke_xid()
    else:
        host.inside("lab-gpu xid 0 31")
    wait("the condition is False", lambda: condition(request("GET", NODE))["status"] == "False", 60)
    print(json.dumps(condition(request("GET", NODE))), host.inside("dmesg | grep -i xid | tail -n 2"))
    wait("no allocatable GPU", lambda: allocatable() == "0", 30)
    gpunode("why", "node", "control-plane", "inventory.yaml", json_lines=False, code=None)


def test_forget_leaves_packages_and_files_as_they_were(before: str, provisioned: object, gpunode: Gpunode):
    gpunode("forget", "control-plane", "--inventory", "inventory.yaml", "--yes", json_lines=False)
    changed = set(host.listing().splitlines()) ^ set(before.splitlines())
    assert [line for line in changed if not line.endswith(OF_THE_TOOLKIT)] == []
    assert allocatable() in {"0", "none"}  # a kubelet forgets a resource after five minutes


def test_an_undo_leaves_packages_and_files_as_they_were(before: str, gpunode: Gpunode):
    """Of a host that was forgotten: `provision`, killed by nobody, and `undo last`; then there is nothing left to undo."""
    gpunode("provision", "inventory.yaml", "--yes")
    gpunode("undo", "last", "inventory.yaml", "--yes", json_lines=False)
    changed = set(host.listing().splitlines()) ^ set(before.splitlines())
    assert [line for line in changed if not line.endswith(OF_THE_TOOLKIT)] == []
    listed = gpunode("history")
    assert "undone" in json.dumps(listed[0]), listed


def condition(node: dict[str, Any]) -> dict[str, Any]:
    return next(
        (dict(c) for c in node["status"]["conditions"] if c["type"] == "GpuReady"), {"status": "none"}
    )


def shared_pod(name: str) -> dict[str, Any]:
    """It computes on its share for some seconds, in which both of two pods run."""
    image = request("GET", PLUGIN)["spec"]["template"]["spec"]["containers"][0]["image"]
    work = (
        "import subprocess, sys, time; end = time.monotonic() + 20\n"
        "while time.monotonic() < end:\n"
        "    subprocess.run([sys.executable, '-m', 'gpunode.deviceplugin.vectoradd'], check=True)"
    )
    container = {
        "name": "work",
        "image": image,
        "imagePullPolicy": "Never",
        "command": ["python3", "-c", work],
        "resources": {"limits": {"nvidia.com/gpu": "1"}},
    }
    spec = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 0, "containers": [container]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


def memory_pod(name: str, units: int) -> dict[str, Any]:
    """It says its share, and holds a gibibyte of the GPU's memory."""
    pod = shared_pod(name)
    [container] = pod["spec"]["containers"]
    work = (
        "import os, time; from gpunode.deviceplugin.cuda import Cuda, load; cuda = Cuda(load())\n"
        "part, whole = (os.environ[f'ALIYUN_COM_GPU_MEM_{key}'] for key in ('CONTAINER', 'DEV'))\n"
        "with cuda.on(0), cuda.allocated(2**30): print(part, 'of', whole, flush=True); time.sleep(300)"
    )
    container |= {"command": ["python3", "-c", work], "resources": {"limits": {MEM: units}}}
    return pod


def said(name: str) -> str:
    """A pod's log."""
    with contextlib.suppress(OSError):
        return str(request("GET", f"{PODS}/{name}/log"))
    return ""


def phases() -> dict[str, str]:
    """Of the pods that share the GPU."""
    return {pod["metadata"]["name"]: pod["status"].get("phase", "") for pod in request("GET", PODS)["items"]}


def plugin_runs(generation: int) -> bool:
    """Whether the DaemonSet's form of that generation runs on the node."""
    status = request("GET", PLUGIN)["status"]
    return bool(
        status["observedGeneration"] >= generation
        and status.get("updatedNumberScheduled") == status.get("numberReady") == 1
    )


def allocatable(resource: str = "nvidia.com/gpu") -> str:
    return str(request("GET", NODE)["status"]["allocatable"].get(resource, "none"))
