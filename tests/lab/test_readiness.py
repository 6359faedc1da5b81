"""Readiness that others obey, on the real control plane: a taint until the proof, a condition, and one GPU taken out."""

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpunode.links.kubelet.registration import FLAG

from . import faults
from .api import Lab
from .conftest import Ran
from .pods import Pods
from .progress import wait

pytestmark = pytest.mark.lab
GPU = "nvidia.com/gpu"
ARGUMENTS = "/etc/default/kubelet"
DAEMON = "/etc/docker/daemon.json"
# gpunode that is killed between the proof and the removal of its taint.
KILLED = """
import os, signal
from gpunode.cli import main
from gpunode.engine import work
work.release = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
main()
"""


@pytest.fixture(autouse=True)
def records(tmp_path, monkeypatch) -> None:
    """Records of runs are the test's own."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))


@pytest.fixture(scope="module", autouse=True)
def verified(gpunode: Callable[..., Ran]) -> None:
    """Both hosts are proven nodes, as each test leaves them."""
    ran = gpunode("provision", "--yes", "--json", timeout=800)
    assert ran.code == 0, ran


def node(lab: Lab, name: str) -> dict[str, Any]:
    return dict(lab.request("GET", f"/api/v1/nodes/{name}"))


def taints(lab: Lab, name: str) -> list[str]:
    """Values of gpunode's taint."""
    every = node(lab, name)["spec"].get("taints") or []
    return [taint["value"] for taint in every if taint["key"] == "gpunode.dev/unverified"]


def test_no_pod_passes_the_taint_before_the_proof_though_the_run_is_killed_after_it(
    lab: Lab, made: Pods, gpunode: Callable[..., Ran]
):
    """The real scheduler keeps a pod without the toleration away; `resume` proves the host again and lets it come."""
    legacy = lab.node("legacy")
    legacy.write(DAEMON, "{}\n")
    words = ["provision", str(lab.inventory), "--yes", "--json", "--limit", "legacy"]
    with subprocess.Popen(
        [sys.executable, "-c", KILLED, *words, "--taint-until-verified"],
        stdout=subprocess.PIPE,
        text=True,
        stdin=subprocess.DEVNULL,
    ) as process:
        wait("the taint", lambda: bool(taints(lab, "legacy")), 300)
        name = made.make("early", "legacy", tolerations=[])
        out, _ = process.communicate(timeout=600)
    assert process.returncode == -signal.SIGKILL, out[-3000:]
    assert '"result": "passed"' in out
    assert len(taints(lab, "legacy")) == 1
    lab.request("PATCH", "/api/v1/nodes/legacy", {"spec": {"unschedulable": None}})  # the taint is enough
    time.sleep(10)  # several of the scheduler's tries: what must not happen cannot be waited for
    assert made.get(name)["status"]["phase"] == "Pending"

    ran = gpunode("resume", "--yes", "--json", timeout=800)

    assert ran.code == 0, ran
    assert taints(lab, "legacy") == []
    wait("the pod", lambda: made.get(name)["status"]["phase"] == "Running", 90)


def test_a_kubelet_registers_with_the_taint_and_leaves_a_node_that_exists(
    lab: Lab, gpunode: Callable[..., Ran]
):
    """The flag counts at the first registration alone; `provision` proves the new node and removes taint and flag."""
    modern = lab.node("modern")
    before = modern.read(ARGUMENTS)
    modern.write(ARGUMENTS, before.replace("--v=2", f"--v=2 {FLAG}"))
    try:
        modern.exec(["systemctl", "restart", "kubelet"])
        modern.wait_ready()
        assert taints(lab, "modern") == []
        lab.request("DELETE", "/api/v1/nodes/modern")
        modern.exec(["systemctl", "restart", "kubelet"])
        modern.wait_ready()
        assert taints(lab, "modern") == ["joining"]
        ran = gpunode("provision", "--yes", "--json", "--limit", "modern", timeout=800)
        assert ran.code == 0, ran
        assert taints(lab, "modern") == []
        assert modern.read(ARGUMENTS) == before
        assert not any("restart kubelet" in line["message"] for line in ran.of("change", "modern"))
    finally:
        modern.write(ARGUMENTS, before)


def test_the_condition_follows_a_fault(lab: Lab, gpunode: Callable[..., Ran], inventory: Callable[..., Path]):
    """By the plugin's own token, beside the conditions of the real kubelet; back by itself; gone when switched off."""
    quiet = lab.inventory.with_name("quiet.yaml")
    quiet.write_text("version: v1\nflags: {plugin: {recoverySeconds: 8}}\n")
    before, after = "{archive: plugin.tar}", "{archive: plugin.tar, condition: true, config: quiet.yaml}"
    on = inventory(lambda text: text.replace(before, after))
    assert "condition" in on.read_text()
    try:
        ran = gpunode("plugin deploy", "--yes", "--json", inventory=on)
        assert ran.code == 0, ran
        wait("the condition", lambda: gpu_ready(lab) == ("True", "ready"), 60)
        with faults.xids(lab.node("modern"), 0, 95):  # not only with the next refresh, after 300 s
            wait("the fault", lambda: gpu_ready(lab) == ("False", "xid-95"), 60)
        wait("the end of it", lambda: gpu_ready(lab) == ("True", "ready"), 120)
        # The kubelet tells of the GPU later than the plugin's condition does.
        wait("verify", lambda: gpunode("verify", "--json", "--no-run", inventory=on).code == 0)
    finally:
        off = gpunode("plugin deploy", "--yes", "--json")
        quiet.unlink()
    assert off.code == 0, off
    assert gpu_ready(lab) is None


def gpu_ready(lab: Lab) -> tuple[str, str] | None:
    """Status and reason of modern's condition; the kubelet's own stay."""
    conditions = {condition["type"]: condition for condition in node(lab, "modern")["status"]["conditions"]}
    assert conditions["Ready"]["status"] == "True"
    own = conditions.get("GpuReady")
    return (own["status"], own["reason"]) if own else None


def test_a_cordoned_gpu_stays_out_over_restarts_of_plugin_and_kubelet(
    lab: Lab, made: Pods, gpunode: Callable[..., Ran]
):
    """A pod that has it runs on."""
    name, modern, before = made.make("holder", "modern"), lab.node("modern"), lab.units("modern")
    (seen,) = made.seen(name)
    (uuid,) = seen.uuids
    ran = gpunode(f"cordon-gpu {uuid}", "--reason", "its fan is broken", "--yes", "--json")
    assert ran.code == 0, ran
    try:
        wait("the kubelet", lambda: lab.units("modern") == before - 1, 60)
        pod = plugins_pod(lab)
        lab.request("DELETE", f"/api/v1/namespaces/gpunode/pods/{pod}")
        wait("another pod", lambda: plugins_pod(lab) not in ("", pod), 90)
        wait("the plugin", lambda: gpunode("plugin status", "--json").code == 0, 120)
        wait("the kubelet", lambda: lab.units("modern") == before - 1, 60)
        modern.exec(["systemctl", "restart", "kubelet"])
        modern.wait_ready()
        wait("the plugin", lambda: gpunode("plugin status", "--json").code == 0, 120)
        wait("the kubelet", lambda: lab.units("modern") == before - 1, 60)
        shown = gpunode("verify", "--json", "--no-run")
        assert shown.code == 0, shown
        assert "its fan is broken" in shown.stdout
        assert made.get(name)["status"]["phase"] == "Running"
    finally:
        back = gpunode(f"uncordon-gpu {uuid}", "--yes", "--json")
    assert back.code == 0, back
    wait("the kubelet", lambda: lab.units("modern") == before, 60)


def plugins_pod(lab: Lab) -> str:
    """The plugin's pod on modern that does not end; "" for none."""
    there = lab.request("GET", "/api/v1/namespaces/gpunode/pods")["items"]
    names = [
        str(pod["metadata"]["name"])
        for pod in there
        if pod["spec"].get("nodeName") == "modern" and "deletionTimestamp" not in pod["metadata"]
    ]
    return next((name for name in names if name.startswith("gpunode-device-plugin")), "")
