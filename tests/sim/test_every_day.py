"""What whoever runs a cluster does with a kubeconfig alone: no inventory is there, no host is dialled."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gpunode import inventory
from gpunode.sim import faults
from gpunode.sim.demo import Demo
from gpunode.sim.host import kinds
from tests import jsonlines

from .clusters import until
from .jobs import JOBS, client, job

Gpunode = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def demo() -> Iterator[Demo]:
    """Two nodes, proven."""
    with Demo([kinds.old("gpu-1"), kinds.new("gpu-2")]) as made:
        done = run(made.folder, "provision", "inventory.yaml", "--yes", "-q", "--html", "report.html")
        assert done.returncode == 0, done.stdout + done.stderr
        yield made


@pytest.fixture
def gpunode(demo: Demo, tmp_path: Path) -> Gpunode:
    """gpunode in a folder without an inventory, with the demo's kubeconfig."""

    def command(*words: str) -> subprocess.CompletedProcess[str]:
        return run(tmp_path, *words, KUBECONFIG=str(demo.folder / "kubeconfig"))

    return command


def run(folder: Path, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
    state = {"XDG_STATE_HOME": str(folder / "state")}
    return subprocess.run(
        [sys.executable, "-m", "gpunode", *words],
        cwd=folder,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        check=False,
        env={**os.environ, **state, **more},
    )


def lines(done: subprocess.CompletedProcess[str], kind: str) -> list[dict[str, Any]]:
    found = jsonlines.parse(done.stdout)
    return [line for line in found if line["type"] == kind]


def test_a_provision_leaves_a_report_with_its_hosts_timeline_and_result(demo: Demo) -> None:
    text = (demo.folder / "report.html").read_text()
    assert '<td class="green">verified</td>' in text
    assert "install " in text.split("<b>gpu-1</b>")[1].split("Timeline")[1].split("<b>gpu-2</b>")[0]
    assert "cluster" in text


def test_the_plugin_is_inspected_with_a_kubeconfig_alone(gpunode: Gpunode) -> None:
    """All GPU nodes, or those that --limit takes by name."""
    done = gpunode("plugin", "status", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    assert [(row["node"], row["phase"]) for row in lines(done, "plugin")] == [
        ("gpu-1", "Running"),
        ("gpu-2", "Running"),
    ]
    limited = gpunode("plugin", "status", "--json", "--limit", "gpu-2")
    assert [row["node"] for row in lines(limited, "plugin")] == ["gpu-2"]
    other = gpunode("plugin", "status", "--limit", "gpu-3")
    assert other.returncode == 2
    assert "--limit gpu-3: no such host or group; did you mean `gpu-" in other.stderr


def test_a_first_inventory_is_written_from_the_clusters_nodes(gpunode: Gpunode, tmp_path: Path) -> None:
    """Those with GPUs, by name where nodes share an address, as here; no host is asked."""
    done = gpunode("init", "--from", "cluster")
    assert done.returncode == 0, done.stderr
    assert "2 hosts from the nodes of" in done.stderr
    hosts = inventory.load(tmp_path / "inventory.yaml").hosts
    assert [host.name for host in hosts] == ["gpu-1", "gpu-2"]


def test_vectors_are_added_with_a_kubeconfig_alone(gpunode: Gpunode) -> None:
    """By the image that the deployed plugin runs."""
    done = gpunode("run", "vectoradd", "--json", "--limit", "gpu-2")
    assert done.returncode == 0, done.stdout + done.stderr
    assert {row["node"] for row in lines(done, "vectoradd")} == {"gpu-2"}


def test_a_notebook_ends_at_once_where_nothing_can_run_it(gpunode: Gpunode) -> None:
    """The simulated cluster makes no pods of Deployments, and says so; nothing of the notebook is left."""
    done = gpunode("run", "notebook")
    assert done.returncode == 1
    assert "this cluster is simulated" in done.stderr
    assert "It is deleted again." in done.stderr
    assert "no notebook of gpunode's" in gpunode("run", "notebook", "--remove").stderr


def test_a_job_runs_or_its_pod_says_why_not(gpunode: Gpunode, demo: Demo) -> None:
    """The one of the article has an image of the internet; one of the plugin's image runs to its end."""
    api, place = client(demo), "/apis/batch/v1/namespaces/default/jobs"
    manifest = lines(gpunode("run", "manifest", "mnist", "--json"), "manifest")[0]["object"]
    assert api.ask("POST", place, manifest)[0] == 201
    pod = {**manifest["spec"]["template"]["spec"]}
    pod["containers"] = [{"name": "c", "image": "gpunode-deviceplugin:demo", "command": ["nvidia-smi"], "resources": pod["containers"][0]["resources"]}]  # fmt: skip
    own = {"metadata": {"name": "smi"}, "spec": {"template": {"spec": pod}}}
    assert api.ask("POST", place, own)[0] == 201

    def ends() -> Any:
        job = api.ask("GET", f"{place}/smi")[1]
        return [one["type"] for one in job["status"].get("conditions", [])]

    until(ends)
    assert ends() == ["Complete"]
    of = "batch.kubernetes.io/job-name=gpunode-mnist"
    until(lambda: "pulls nothing" in str(api.ask("GET", JOBS, labelSelector=of)[1]["items"]))
    for name in ("smi", manifest["metadata"]["name"]):
        api.ask("DELETE", f"{place}/{name}")
    until(lambda: not api.ask("GET", JOBS)[1]["items"])


def test_every_gpu_is_shown_with_the_pod_that_has_it(gpunode: Gpunode, demo: Demo) -> None:
    """As the plugin answers through the API server; a node whose plugin does not run is named, with its pods."""
    api = client(demo)
    job(api, "train", "gpu-1", 600)

    def users() -> list[tuple[str, list[str]]]:
        done = gpunode("status", "--json")
        assert done.returncode == 0, done.stdout + done.stderr
        return [(row["node"], row["pods"]) for row in lines(done, "gpu")]

    until(lambda: ("gpu-1", ["default/train"]) in users())  # the plugin asks the kubelet every 5 s
    done = gpunode("status", "--json", "--limit", "gpu-1")
    rows = lines(done, "gpu")
    assert {(row["node"], row["health"], row["temp"]) for row in rows} == {("gpu-1", "ok", 34)}
    assert all(row["uuid"].startswith("GPU-") and row["memory"] > 10**10 for row in rows)
    (last,) = lines(done, "summary")
    assert (last["gpus"], last["used"], last["unknown"]) == (len(rows), 1, 0)

    shown = gpunode("status").stdout
    assert "default/train" in shown
    assert "34 °C" in shown
    assert "GPU-" not in shown

    api.ask("DELETE", f"{JOBS}/train")


def test_nvidia_smi_shows_the_gpu_of_a_pod(gpunode: Gpunode, demo: Demo) -> None:
    """By the image that is there, on the node that --limit takes; the pod is gone afterwards."""
    done = gpunode("run", "nvidia-smi", "--json", "--limit", "gpu-2")
    assert done.returncode == 0, done.stdout + done.stderr
    log = lines(done, "log")
    assert {line["node"] for line in log} == {"gpu-2"}
    assert len([line for line in log if "GPU-" in line["log"]]) == 1
    until(lambda: left(demo) == [])


def test_a_pod_that_cannot_start_says_why_and_is_deleted(gpunode: Gpunode, demo: Demo) -> None:
    done = gpunode("run", "nvidia-smi", "--json", "--limit", "gpu-1", "--image", "no.example/there:1")
    assert done.returncode == 1
    (error,) = lines(done, "error")
    assert " on gpu-1: ImagePullBackOff: " in error["error"]
    until(lambda: left(demo) == [])


def left(demo: Demo) -> list[str]:
    """Pods of nvidia-smi that are there."""
    items = client(demo).ask("GET", "/api/v1/namespaces/gpunode/pods")[1]["items"]
    return [item["metadata"]["name"] for item in items if "nvidia-smi" in item["metadata"]["name"]]


def test_an_option_names_the_cluster_and_a_mistake_in_it_is_one_of_usage(
    gpunode: Gpunode, demo: Demo, tmp_path: Path
) -> None:
    named = run(tmp_path, "plugin", "status", "--json", "--kubeconfig", str(demo.folder / "kubeconfig"))
    assert len(lines(named, "plugin")) == 2
    wrong = gpunode("plugin", "status", "--context", "prd")
    assert wrong.returncode == 2
    assert "has no context `prd`" in wrong.stderr


def test_a_driver_that_was_unloaded_is_seen(gpunode: Gpunode, demo: Demo) -> None:
    """As on a real host: what used the module has ended, and the plugin's pod cannot start without it."""
    faults.inflict("module", [demo.states["gpu-2"]])
    until(lambda: "driver not loaded" in gpunode("status").stderr)
    done = gpunode("status", "--json")
    assert done.returncode == 1
    assert {row["node"] for row in lines(done, "gpu")} == {"gpu-1"}
    done = run(demo.folder, "provision", "inventory.yaml", "--yes")
    assert done.returncode == 0, done.stdout + done.stderr
    assert gpunode("status").returncode == 0


def test_the_plugin_is_removed_with_a_kubeconfig_alone(gpunode: Gpunode, demo: Demo) -> None:
    """Last in this file. The labels that brought it go with it. Unasked, it is removed only from a cluster that is named."""
    unnamed = gpunode("plugin", "remove", "--yes", "--json")
    assert unnamed.returncode == 2
    assert "nothing names the cluster" in unnamed.stderr
    done = gpunode("plugin", "remove", "--yes", "--json", "--kubeconfig", str(demo.folder / "kubeconfig"))
    assert done.returncode == 0, done.stdout + done.stderr
    gone = [row["object"] for row in lines(done, "object")]
    assert "Node gpu-1 label gpunode.dev/gpu" in gone
    left = gpunode("status", "--json")
    assert left.returncode == 1
    assert {line["error"] for line in lines(left, "error")} == {
        f"{node}: gpunode's device plugin does not run there" for node in ("gpu-1", "gpu-2")
    }
    after = gpunode("plugin", "status")
    assert after.returncode == 1
    assert "No node has the plugin" in after.stderr
