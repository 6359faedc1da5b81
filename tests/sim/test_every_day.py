"""What whoever runs a cluster does with a kubeconfig alone: no inventory is there, no host is dialled."""

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gpunode import inventory
from gpunode.sim import faults
from gpunode.sim.host import kinds, systemd
from gpunode.sim.process import Demo

from . import operators
from .clusters import until
from .jobs import JOBS, client, job
from .operators import of_kind, worked

Gpunode = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def demo() -> Iterator[Demo]:
    """Two nodes, proven."""
    with Demo([kinds.old_host("gpu-1"), kinds.new_host("gpu-2")]) as made:
        worked(run(made.folder, "provision", "inventory.yaml", "--yes", "-q", "--html", "report.html"))
        yield made


@pytest.fixture
def gpunode(demo: Demo, tmp_path) -> Gpunode:
    """gpunode in a folder without an inventory, with the demo's kubeconfig."""
    return lambda *words: run(tmp_path, *words, KUBECONFIG=str(demo.folder / "kubeconfig"))


def run(folder: Path, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
    return operators.gpunode(folder, *words, XDG_STATE_HOME=str(folder / "state"), **more)


def test_a_provision_leaves_a_report_with_its_hosts_timeline_and_result(demo: Demo):
    text = (demo.folder / "report.html").read_text()
    assert 'class="green">verified</td>' in text
    assert "install " in text.split("<b>gpu-1</b>")[1].split("Timeline")[1].split("<b>gpu-2</b>")[0]
    assert "cluster" in text


def test_the_plugin_is_inspected_with_a_kubeconfig_alone(gpunode: Gpunode):
    """All GPU nodes, or those that --limit takes by name."""
    done = worked(gpunode("plugin", "status", "--json"))
    assert [(row["node"], row["phase"]) for row in of_kind(done, "plugin")] == [
        ("gpu-1", "Running"),
        ("gpu-2", "Running"),
    ]
    limited = gpunode("plugin", "status", "--json", "--limit", "gpu-2")
    assert [row["node"] for row in of_kind(limited, "plugin")] == ["gpu-2"]
    other = gpunode("plugin", "status", "--limit", "gpu-3")
    assert other.returncode == 2
    assert "--limit gpu-3: no such host or group; did you mean `gpu-" in other.stderr


def test_a_first_inventory_is_written_from_the_clusters_nodes(gpunode: Gpunode, tmp_path):
    """Those with GPUs, by name where nodes share an address, as here; no host is asked."""
    done = gpunode("init", "--from", "cluster")
    assert done.returncode == 0, done.stderr
    assert "2 hosts from the nodes of" in done.stderr
    hosts = inventory.load(tmp_path / "inventory.yaml").hosts
    assert [host.name for host in hosts] == ["gpu-1", "gpu-2"]


def test_vectors_are_added_with_a_kubeconfig_alone(gpunode: Gpunode):
    """By the image that the deployed plugin runs."""
    done = worked(gpunode("run", "vectoradd", "--json", "--limit", "gpu-2"))
    assert {row["node"] for row in of_kind(done, "vectoradd")} == {"gpu-2"}


def test_a_notebook_ends_at_once_where_nothing_can_run_it(gpunode: Gpunode):
    """The simulated cluster makes no pods of Deployments, and says so; nothing of the notebook is left."""
    done = gpunode("run", "notebook")
    assert done.returncode == 1
    assert "this simulated cluster" in done.stderr
    assert "It is deleted again." in done.stderr
    assert "no notebook of gpunode's" in gpunode("run", "notebook", "--remove").stderr


def test_a_job_runs_or_its_pod_says_why_not(gpunode: Gpunode, demo: Demo):
    """The one of the article has an image of the internet; one of the plugin's image runs to its end."""
    api, place = client(demo), "/apis/batch/v1/namespaces/default/jobs"
    manifest = of_kind(gpunode("run", "manifest", "mnist", "--json"), "manifest")[0]["object"]
    assert api.ask("POST", place, manifest)[0] == 201
    pod = {**manifest["spec"]["template"]["spec"]}
    pod["containers"] = [{"name": "c", "image": "gpunode-deviceplugin:demo", "command": ["nvidia-smi"], "resources": pod["containers"][0]["resources"]}]  # fmt: skip
    own = {"metadata": {"name": "smi"}, "spec": {"template": {"spec": pod}}}
    assert api.ask("POST", place, own)[0] == 201

    def ends() -> Any:
        job = api.ask("GET", f"{place}/smi")[1]
        return [condition["type"] for condition in job["status"].get("conditions", [])]

    until(ends)
    assert ends() == ["Complete"]
    of = "batch.kubernetes.io/job-name=gpunode-mnist"
    until(lambda: "pulls nothing" in str(api.ask("GET", JOBS, labelSelector=of)[1]["items"]))
    for name in ("smi", manifest["metadata"]["name"]):
        api.ask("DELETE", f"{place}/{name}")
    until(lambda: not api.ask("GET", JOBS)[1]["items"])


def test_every_gpu_is_shown_with_the_pod_that_has_it(gpunode: Gpunode, demo: Demo):
    """As the plugin answers through the API server; a node whose plugin does not run is named, with its pods."""
    api = client(demo)
    job(api, "train", "gpu-1", 600)

    def users() -> list[tuple[str, list[str]]]:
        done = worked(gpunode("status", "--json"))
        return [(row["node"], row["pods"]) for row in of_kind(done, "gpu")]

    until(lambda: ("gpu-1", ["default/train"]) in users())  # the plugin asks the kubelet every 5 s
    done = gpunode("status", "--json", "--limit", "gpu-1")
    rows = of_kind(done, "gpu")
    assert {(row["node"], row["health"], row["temp"]) for row in rows} == {("gpu-1", "ok", 34)}
    assert all(row["uuid"].startswith("GPU-") and row["memory"] > 10**10 for row in rows)
    (last,) = of_kind(done, "summary")
    assert (last["gpus"], last["used"], last["unknown"]) == (len(rows), 1, 0)

    shown = gpunode("status").stdout
    assert "default/train" in shown
    assert "34 °C" in shown
    assert "GPU-" not in shown

    api.ask("DELETE", f"{JOBS}/train")


def test_nvidia_smi_shows_the_gpu_of_a_pod(gpunode: Gpunode, demo: Demo):
    """By the image that is there, on the node that --limit takes; the pod is gone afterwards."""
    done = worked(gpunode("run", "nvidia-smi", "--json", "--limit", "gpu-2"))
    log = of_kind(done, "log")
    assert {line["node"] for line in log} == {"gpu-2"}
    assert len([line for line in log if "GPU-" in line["log"]]) == 1
    until(lambda: left(demo) == [])


def test_a_pod_that_cannot_start_says_why_and_is_deleted(gpunode: Gpunode, demo: Demo):
    done = gpunode("run", "nvidia-smi", "--json", "--limit", "gpu-1", "--image", "no.example/there:1")
    assert done.returncode == 1
    (error,) = of_kind(done, "error")
    assert " on gpu-1: ImagePullBackOff: " in error["error"]
    until(lambda: left(demo) == [])


def test_a_pod_that_the_kubelet_refused_is_named_by_verify_until_it_is_gone(demo: Demo):
    """As after a reboot: bound already, it asks for GPUs that the device manager does not have. A bundle has it, too."""
    pods, name = "/api/v1/namespaces/default/pods", "too-much"
    limits = {"limits": {"nvidia.com/gpu": "64"}}
    spec = {"nodeName": "gpu-2", "containers": [{"name": "c", "image": "cuda:12", "resources": limits}]}
    pod = {"kind": "Pod", "apiVersion": "v1", "metadata": {"name": name}, "spec": spec}
    assert client(demo).ask("POST", pods, pod)[0] == 201
    until(lambda: client(demo).ask("GET", f"{pods}/{name}")[1]["status"].get("phase") == "Failed")
    options = ("inventory.yaml", "--no-run", "--json", "--limit", "gpu-2")
    done = run(demo.folder, "verify", *options)
    assert done.returncode == 1
    broken = [link for link in of_kind(done, "link") if link["status"] == "broken"]
    assert [(link["layer"], link["text"]) for link in broken] == [
        ("work", f"the kubelet refused 1 pod: default/{name}")
    ]
    assert broken[0]["fix"] == f"kubectl -n default get pod {name} -o yaml | kubectl replace --force -f -"
    packed = run(demo.folder, "support-bundle", "inventory.yaml", "--json", "-o", "help.tar.gz")
    assert packed.returncode == 0, packed.stderr
    files = {line["file"]: line["bytes"] for line in of_kind(packed, "content")}
    assert {"hosts/gpu-1.json", "hosts/gpu-2.json", "cluster/nodes/gpu-2.json"} <= files.keys()
    assert files["cluster/events.json"] > 10
    client(demo).ask("DELETE", f"{pods}/{name}")
    until(lambda: client(demo).ask("GET", f"{pods}/{name}")[0] == 404)
    assert run(demo.folder, "verify", *options).returncode == 0


def left(demo: Demo) -> list[str]:
    """Pods of nvidia-smi that are there."""
    items = client(demo).ask("GET", "/api/v1/namespaces/gpunode/pods")[1]["items"]
    return [item["metadata"]["name"] for item in items if "nvidia-smi" in item["metadata"]["name"]]


def test_a_resource_counted_by_hand_is_scheduled_by(gpunode: Gpunode, demo: Demo):
    """The kubelet makes it allocatable; it is taken away the same way."""
    fpga, where = "example.com/fpga", ("--limit", "gpu-1", "--json")
    api = client(demo)

    def counted() -> Any:
        _, node = api.ask("GET", "/api/v1/nodes/gpu-1")
        return [node["status"][part].get(fpga) for part in ("capacity", "allocatable")]

    done = worked(gpunode("label", "--resource", f"{fpga}=2", *where))
    assert [row["result"] for row in of_kind(done, "resource")] == ["changed"]
    until(lambda: counted() == ["2", "2"])
    state = demo.states["gpu-1"]
    with state.change() as now:
        systemd.start(state, now, "kubelet.service")
    until(lambda: counted() == ["0", "0"])
    worked(gpunode("label", "--resource", fpga, "--remove", *where))
    until(lambda: counted() == [None, None])


def test_a_runtime_without_nvidia_is_fixed_and_the_plugins_pod_is_a_new_one(demo: Demo):
    """As the plan says: its container keeps the runtime that it was started with. No other pod is replaced."""
    namespace = "/api/v1/namespaces/gpunode/pods"

    def plugins() -> dict[str, str]:
        items = client(demo).ask("GET", namespace)[1]["items"]
        return {item["spec"]["nodeName"]: f"Pod gpunode/{item['metadata']['name']}" for item in items}

    before = plugins()
    faults.inflict("runtime", [demo.states["gpu-2"]])
    broken = run(demo.folder, "verify", "inventory.yaml", "--json", "--no-run", "--limit", "gpu-2")
    assert [link["layer"] for link in of_kind(broken, "link") if link["status"] == "broken"] == ["runtime"]
    done = worked(run(demo.folder, "provision", "inventory.yaml", "--yes", "--json"))
    assert [(line["change"], line["object"], line["node"]) for line in of_kind(done, "cluster")] == [
        ("replace", before["gpu-2"], "gpu-2")
    ]
    after = plugins()
    assert (after["gpu-1"] == before["gpu-1"], after["gpu-2"] == before["gpu-2"]) == (True, False)


def test_a_driver_that_was_unloaded_is_seen(gpunode: Gpunode, demo: Demo):
    """As on a real host: what used the module has ended, and the plugin's pod cannot start without it."""
    faults.inflict("module", [demo.states["gpu-2"]])
    until(lambda: "driver not loaded" in gpunode("status").stderr)
    done = gpunode("status", "--json")
    assert done.returncode == 1
    assert {row["node"] for row in of_kind(done, "gpu")} == {"gpu-1"}
    worked(run(demo.folder, "provision", "inventory.yaml", "--yes"))
    assert gpunode("status").returncode == 0


def test_the_plugin_is_removed_with_a_kubeconfig_alone(gpunode: Gpunode, demo: Demo):
    """Last in this file. The labels that brought it go with it. Unasked, it is removed only from a cluster that is named."""
    unnamed = gpunode("plugin", "remove", "--yes", "--json")
    assert unnamed.returncode == 2
    assert "nothing names the cluster" in unnamed.stderr
    done = worked(
        gpunode("plugin", "remove", "--yes", "--json", "--kubeconfig", str(demo.folder / "kubeconfig"))
    )
    gone = [row["object"] for row in of_kind(done, "object")]
    assert "Node gpu-1 label gpunode.dev/gpu" in gone
    left = gpunode("status", "--json")
    assert left.returncode == 1
    assert {line["error"] for line in of_kind(left, "error")} == {
        f"{node}: gpunode's device plugin does not run there" for node in ("gpu-1", "gpu-2")
    }
    after = gpunode("plugin", "status")
    assert after.returncode == 1
    assert "No node has the plugin" in after.stderr
