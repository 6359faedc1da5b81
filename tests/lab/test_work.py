"""A driver upgrade of nodes that carry GPU jobs: no job is ended by it, and both nodes end proven."""

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from .api import Lab
from .conftest import GPUNODE, Ran
from .pods import NAMESPACE, Pods, pods
from .progress import wait

pytestmark = pytest.mark.lab
KEPT = "lab.gpunode.dev/kept"  # a finalizer: what became of the pod can be read after its eviction
# A job that finishes its work when it is asked to end, as its grace period allows: at a signal of the test.
JOB = """
import signal, subprocess, sys
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
signal.signal(signal.SIGTERM, signal.SIG_IGN)
subprocess.run([sys.executable, "-m", "gpunode.deviceplugin.vectoradd"], check=True)
signal.sigwait({signal.SIGUSR1})
"""
FINISH = ("pkill", "-USR1", "-f", "signal.sigwait")


@pytest.fixture
def job(lab: Lab) -> Iterator[Callable[[str], str]]:
    """Starts a job that has a GPU of this node; returns its pod's name as soon as it runs."""
    made: list[str] = []
    with pods(lab) as maker:

        def start(node: str) -> str:
            name = _create(maker, node)
            made.append(name)
            wait(f"{name} to run", lambda: maker.get(name)["status"].get("phase") == "Running", 60)
            return name

        yield start
        for name in made:
            lab.request("PATCH", f"{NAMESPACE}/pods/{name}", {"metadata": {"finalizers": None}})


def _create(maker: Pods, node: str) -> str:
    container = {
        "name": "job",
        "image": maker.image,
        "args": ["-c", JOB],
        "resources": {"limits": {"nvidia.com/gpu": 1}},
    }
    return maker.create(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": f"job-{node}", "finalizers": [KEPT]},
            "spec": {
                "restartPolicy": "Never",
                "terminationGracePeriodSeconds": 120,
                "automountServiceAccountToken": False,
                "nodeSelector": {"kubernetes.io/hostname": node},
                "containers": [container],
            },
        }
    )


def ended(pod: dict[str, Any]) -> tuple[int, int]:
    """A pod's exit code and restarts; it has ended."""
    (status,) = pod["status"]["containerStatuses"]
    return int(status["state"]["terminated"]["exitCode"]), int(status["restartCount"])


def test_a_driver_upgrade_ends_no_job(
    lab: Lab, gpunode: Callable[..., Ran], inventory: Callable[..., Path], job: Callable[[str], str]
):
    """modern waits for its job, legacy is drained; each job ends by itself, and nodes take pods again."""
    before = inventory(lambda text: _with(text, legacy="driver: 550", modern="driver: 580"))
    first = gpunode("provision", "--yes", "--json", inventory=before, timeout=800)
    assert first.code == 0, first
    names = {node: job(node) for node in ("legacy", "modern")}

    after = inventory(
        lambda text: _with(text, legacy="driver: 580, work: drain", modern="driver: 595, work: wait")
    )
    words, told = [GPUNODE, "provision", "--yes", "--json", after], []
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout or ():
            told.append(line)
            for node, name in names.items():
                named = f"default/{name}" in line or " more" in line  # it names three pods at most
                if '"waiting for ' in line and named:
                    lab.node(node).exec(FINISH, check=False)  # said again and again
    ran = Ran(process.returncode, "".join(told), "")

    assert ran.code == 0, ran
    for node, name in names.items():
        assert ended(lab.request("GET", f"{NAMESPACE}/pods/{name}")) == (0, 0), ran
        assert not lab.request("GET", f"/api/v1/nodes/{node}")["spec"].get("unschedulable")
        assert (
            lab.node(node).read("/sys/module/nvidia/version").split(".")[0]
            == {"legacy": "580", "modern": "595"}[node]
        )
    results = {line["host"]: line["result"] for line in ran.of("verified")}
    assert results == {"legacy": "verified", "modern": "verified"}, json.dumps(ran.of("verified"))


def _with(text: str, **values: str) -> str:
    """The lab's inventory with values of these hosts."""
    for host, more in values.items():
        assert f"{{name: {host}," in text
        text = text.replace(f"{{name: {host},", f"{{name: {host}, {more},")
    return text
