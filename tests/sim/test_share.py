"""`gpunode share` from enable to disable, by the program itself: the host, its files and the API are simulated, the plugin is real.

The simulation has no static pods and no Deployments: what kubelet and controllers make of them is played here.
"""

import re
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpunode.contract.promises import INDEX, MEMORY_ANNOTATION
from gpunode.links.scheduler.configuration import MANIFEST
from gpunode.sim.host import kinds
from gpunode.sim.process import Demo
from tests import jsonlines
from tests.unit.test_schedulers import KUBEADM

from . import operators
from .clusters import Client, until
from .jobs import JOBS, client
from .operators import worked

HOST, MEM = "cp-1", "aliyun.com/gpu-mem"
TEXT = KUBEADM.replace("{minor}", "36")
SCHEDULERS = "/api/v1/namespaces/kube-system/pods"
OWN = "/apis/apps/v1/namespaces/gpunode/deployments/gpunode-share"
SERVICE = "/api/v1/namespaces/gpunode/services/gpunode-share"
MERGE = "application/merge-patch+json"


class Played(threading.Thread):
    """The static pod of the host's scheduler, Ready as its manifest has it; the extender's Deployment leads, its Service has an address."""

    def __init__(self, api: Client, path: Path) -> None:
        super().__init__(daemon=True)
        self.stop = threading.Event()
        self._api, self._path, self._seen = api, path, ""

    def run(self) -> None:
        while not self.stop.wait(0.1):
            text = self._path.read_text() if self._path.exists() else ""
            if text and text != self._seen:
                self._start(text)
                self._seen = text
            code, answer = self._api.ask("GET", OWN)
            if code == 200 and not answer.get("status", {}).get("readyReplicas"):
                done = {"observedGeneration": answer["metadata"].get("generation", 1), "readyReplicas": 1}
                done |= {"replicas": 2, "updatedReplicas": 2}
                address = {"spec": {"clusterIP": "10.96.0.15"}}  # before it leads: enable reads it then
                if self._api.ask("PATCH", SERVICE, address, MERGE)[0] == 200:
                    self._api.ask("PATCH", OWN, {"status": done}, MERGE)

    def _start(self, text: str) -> None:
        spec = yaml.safe_load(text)["spec"]
        volumes = [{"name": volume["name"], "emptyDir": {}} for volume in spec["volumes"]]
        box = {"name": "kube-scheduler", "image": "gpunode-deviceplugin:demo", "command": ["sleep", "600"]}
        name = f"kube-scheduler-{HOST}"
        self._api.ask("DELETE", f"{SCHEDULERS}/{name}", {"gracePeriodSeconds": 0})
        meta = {"name": name, "namespace": "kube-system", "labels": {"component": "kube-scheduler"}}
        pod = {
            "kind": "Pod",
            "metadata": meta,
            "spec": {"nodeName": HOST, "volumes": volumes, "containers": [box]},
        }
        self._api.ask("POST", SCHEDULERS, pod)


@pytest.fixture(scope="module")
def demo() -> Iterator[Demo]:
    """A GPU host that is of the control plane too, with GPUs shared by memory."""
    plugin = {"archive": "plugin.tar", "config": "plugin.yaml"}
    config = {"plugin.yaml": "version: v1\nsharing: {memory: {}}\n"}
    with Demo([kinds.old_host(HOST)], cluster={"plugin": plugin, "share": {}}, files=config) as made:
        written = yaml.safe_load(made.inventory.read_text())
        for group in written["groups"].values():
            group["hosts"] = [{**host, "control_plane": True} for host in group["hosts"]]
        made.inventory.write_text(yaml.safe_dump(written))
        worked(gpunode(made, "provision", "--yes", "-q", "--no-run"))
        yield made


def gpunode(demo: Demo, *words: str) -> subprocess.CompletedProcess[str]:
    command, *options = words
    words = (*command.split(), "inventory.yaml", *options)
    return operators.gpunode(demo.folder, *words, XDG_STATE_HOME=str(demo.folder / "state"))


def rows(done: subprocess.CompletedProcess[str], kind: str) -> list[dict[str, Any]]:
    lines = jsonlines.parse(done.stdout)
    return [line for line in lines if line["type"] == kind]


def test_enable_in_a_demo_without_a_scheduler_says_what_the_demo_shows(demo: Demo):
    done = gpunode(demo, "share enable", "--yes")
    assert done.returncode == 1, done.stdout + done.stderr
    told = " ".join(done.stderr.split())
    assert "This cluster is simulated and has no kube-scheduler" in told
    assert "`gpunode share inspect`, `fsck` and `simulate`" in told


@pytest.mark.parametrize("command", ["enable", "disable"])
def test_all_missing_rights_are_named_at_once(demo: Demo, command: str):
    """Those of the run's Lease, of the extender's objects, and of the scheduler's pods."""
    text = (demo.folder / "inventory.yaml").read_text()
    (demo.folder / "nobody.yaml").write_text(
        text.replace("kubeconfig: kubeconfig", "kubeconfig: kubeconfig-nobody")
    )
    done = operators.gpunode(demo.folder, "share", command, "nobody.yaml", "--yes")
    assert done.returncode == 4, done.stdout
    first, *missing = done.stderr.splitlines()
    assert re.search(r"nothing was changed: user \S+ lacks \d+ rights$", first)
    for resource in ("leases", "clusterroles", "pods"):
        assert any(re.search(rf"\b{resource}\b", line) for line in missing)


def test_where_nothing_makes_the_extenders_pods_enable_says_so_and_what_stays(demo: Demo):
    """Long before the end of the wait, whose limit it names; `share disable` takes it back."""
    path = demo.states[HOST].root / MANIFEST.lstrip("/")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(TEXT)
    done = gpunode(demo, "share enable", "--yes")
    assert done.returncode == 1, done.stdout + done.stderr
    told = " ".join(done.stderr.split())
    assert "this simulated cluster creates no pods" in told
    assert "`gpunode share disable` removes the objects" in told
    assert path.read_text() == TEXT
    worked(gpunode(demo, "share disable", "--yes"))
    assert client(demo).ask("GET", OWN)[0] == 404


def test_from_enable_to_disable(demo: Demo):
    """A question before each change; who has what, and what differs; afterwards the scheduler's file is as it was."""
    api, path = client(demo), demo.states[HOST].root / MANIFEST.lstrip("/")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(TEXT)
    played = Played(api, path)
    played.start()
    try:
        until(lambda: api.ask("GET", f"{SCHEDULERS}/kube-scheduler-{HOST}")[0] == 200)
        asked = gpunode(demo, "share enable", "--json")
        assert asked.returncode != 0, asked.stdout
        assert (path.read_text(), api.ask("GET", OWN)[0]) == (TEXT, 404)

        done = worked(gpunode(demo, "share enable", "--yes", "--json"))
        assert "# gpunode share" in path.read_text()
        assert rows(done, "summary")[-1]["asking"] == 1
        enabled = path.read_text()
        again = gpunode(demo, "share enable", "--yes", "--json")
        assert (again.returncode, path.read_text()) == (0, enabled), again.stdout + again.stderr

        node = f"/api/v1/nodes/{HOST}"
        until(lambda: MEMORY_ANNOTATION in api.ask("GET", node)[1]["metadata"].get("annotations", {}))
        limits = {"resources": {"limits": {MEM: "4"}}}
        box = {"name": "c", "image": "gpunode-deviceplugin:demo", "command": ["sleep", "600"], **limits}
        spec = {"nodeName": HOST, "containers": [box]}
        pod = {"kind": "Pod", "metadata": {"name": "past", "namespace": "default"}, "spec": spec}
        assert api.ask("POST", JOBS, pod)[0] == 201
        done = gpunode(demo, "share inspect", "--json")
        shown = {
            row["gpu"]: (row["promised"], row["used"], row["unit"], row["pods"])
            for row in rows(done, "share")
            if row["resource"] == MEM
        }
        assert (4, 4, "GiB", "default/past") in shown.values()
        assert "?" not in shown
        done = gpunode(demo, "share fsck", "--json")
        assert (done.returncode, [row["code"] for row in rows(done, "fsck")]) == (1, ["not-noted"])
        until(lambda: "default/past" in str(rows(gpunode(demo, "status", "--json"), "gpu")))
        told = gpunode(demo, "status")
        assert "PROMISED" in told.stdout
        assert "no note of the GPU of default/past" in told.stderr

        worked(gpunode(demo, "share fsck", "--repair", "--yes", "--json"))
        noted = api.ask("GET", f"{JOBS}/past")[1]["metadata"]["annotations"]
        assert shown[noted[INDEX]][3] == "default/past"
        assert rows(gpunode(demo, "share fsck", "--json"), "fsck") == []

        worked(gpunode(demo, "share disable", "--yes", "--json"))
        assert (path.read_text(), api.ask("GET", OWN)[0]) == (TEXT, 404)
        assert api.ask("GET", f"{JOBS}/past")[1]["status"]["phase"] in ("Pending", "Running")
    finally:
        played.stop.set()
        played.join(60)
