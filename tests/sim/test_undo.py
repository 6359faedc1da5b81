"""Undo of a run: the host is as before it, apart from LEFT; what somebody changed since is kept; an undo can be undone."""

import signal
import subprocess

import pytest

from gpunode.sim.host import kinds
from gpunode.sim.host.state import State
from gpunode.sim.process import Demo
from tests.snapshots import differences, files

from . import operators
from .clusters import until
from .jobs import client
from .operators import of_kind, worked
from .test_forget import node

pytestmark = pytest.mark.usefixtures("records")
# What stays of a run that is undone.
LEFT = (
    r"folder .*",  # a simulated host has few of them at first
    r"file /var/lib/gpunode/.*",  # records
    r"file /run/gpunode/.*",
    r"file /run/cdi/nvidia\.yaml",  # until the next boot
    r"file /usr/lib/modules/[^/]+/modules\.dep",  # depmod's
    r"file /var/lib/kubelet/device-plugins/\.?kubelet_internal_checkpoint",
    r"file /var/log/pods/.*",
    r"file /proc/.*",  # processes and times
)


def software(demo: Demo) -> tuple[object, ...]:
    """Packages with their versions and holds, loaded modules, enabled units."""
    now = State(demo.folder / "hosts/gpu-1").now()
    packages = {name: (package.version, package.held) for name, package in now.packages.items()}
    return packages, sorted(now.modules), sorted(name for name, unit in now.units.items() if unit.enabled)


def objects(demo: Demo) -> set[str]:
    """What gpunode has in the cluster beside nodes."""
    paths = ("apis/apps/v1/daemonsets", "apis/node.k8s.io/v1/runtimeclasses", "api/v1/serviceaccounts", "apis/rbac.authorization.k8s.io/v1/clusterroles")  # fmt: skip
    items = [client(demo).ask("GET", f"/{path}")[1] for path in paths]
    return {item["metadata"]["name"] for each in items for item in each["items"]}


def undo(demo: Demo, *words: str) -> subprocess.CompletedProcess[str]:
    return operators.gpunode(demo.folder, "undo", *words, "--yes", "--json")


def test_an_undone_host_is_as_before_apart_from_what_somebody_changed_since():
    edited = "/etc/modules-load.d/gpunode.conf"
    with Demo([kinds.old_host("gpu-1")]) as demo:
        root = demo.folder / "hosts/gpu-1/root"
        before, bare, joined = files(str(root)), software(demo), node(client(demo), "gpu-1")
        empty = objects(demo)
        worked(operators.gpunode(demo.folder, "provision", "inventory.yaml", "--yes", "--json"))
        made, provisioned = files(str(root)), software(demo)
        labelled, full = node(client(demo), "gpu-1"), objects(demo)
        (root / edited[1:]).write_text("nvidia\n")
        undone = worked(undo(demo, "last"))
        kept = [(line["code"], line["what"]) for line in of_kind(undone, "left") if line["host"]]
        assert kept == [("irreversible", "gpunode-deviceplugin:demo"), ("kept", edited)]
        assert differences(before, files(str(root)), LEFT) == [f"file {edited}"]
        assert software(demo) == bare
        assert node(client(demo), "gpu-1") == joined
        assert [line for line in of_kind(undone, "left") if not line["host"]] == []
        assert objects(demo) == empty
        worked(undo(demo, "last"))
        assert differences(made, files(str(root)), LEFT) == [f"file {edited}"]
        assert software(demo) == provisioned
        assert node(client(demo), "gpu-1")["labels"] == labelled["labels"] != joined["labels"]
        assert objects(demo) == full != empty
        with operators.begin(demo, "undo", "last", "--yes", then=[["gpu-1", "undone", "held"]]) as going:
            until((demo.folder / "here").exists)
            going.send_signal(signal.SIGINT)
            until(lambda: "Interrupted: " in operators.output(demo))
            (demo.folder / "go").touch()
            assert (going.wait(), objects(demo)) == (8, full)
        resumed = operators.gpunode(demo.folder, "resume", "inventory.yaml", "--yes", "--json")
        assert (resumed.returncode, objects(demo)) == (0, empty), resumed.stdout + resumed.stderr
        listed = of_kind(operators.gpunode(demo.folder, "history", "--json"), "run")
    assert [run["result"] for run in listed] == [*[{"undone": 1}] * 4, {"proven": 1}]


def test_an_upgrade_of_the_driver_is_undone_also_where_operator_or_apply_is_killed():
    with Demo(
        [kinds.old_host("gpu-1")], groups={"gpu": {"driver": "570", "hosts": [{"name": "gpu-1"}]}}
    ) as demo:
        inventory = demo.folder / "inventory.yaml"
        worked(operators.gpunode(demo.folder, "provision", "inventory.yaml", "--yes", "--json"))
        before = software(demo)
        inventory.write_text(inventory.read_text().replace("570", "580"))
        worked(operators.gpunode(demo.folder, "provision", "inventory.yaml", "--yes", "--json"))
        assert State(demo.folder / "hosts/gpu-1").now().modules["nvidia"].startswith("580.")
        status, _ = operators.run(demo, "undo", "last", "--yes", die=["gpu-1", "changing"])
        assert status == -9
        resumed = worked(operators.gpunode(demo.folder, "resume", "inventory.yaml", "--yes", "--json"))
        assert software(demo) == before
        assert State(demo.folder / "hosts/gpu-1").now().modules["nvidia"].startswith("570.")
        assert of_kind(resumed, "summary")[0]["changed"] == 1
        (run,) = of_kind(operators.gpunode(demo.folder, "show", "last", "--json"), "run")
        assert run["result"] == {"undone": 1}
        operators.kill_at_load(demo.states["gpu-1"])
        killed = operators.gpunode(demo.folder, "provision", "inventory.yaml", "--yes", "--json")
        assert killed.returncode == 1, killed.stdout
        assert "nvidia" not in State(demo.folder / "hosts/gpu-1").now().modules
        worked(undo(demo, "last"))
        assert software(demo) == before


def test_an_undo_that_can_put_nothing_back_says_so_and_leaves_the_cluster_as_it_is():
    with Demo([kinds.old_host("gpu-1")]) as demo:
        written = demo.folder / "hosts/gpu-1/root/etc/modules-load.d/gpunode.conf"
        for text in ("nvidia\n", "vfio\n"):
            worked(operators.gpunode(demo.folder, "provision", "inventory.yaml", "--yes", "--json"))
            written.write_text(text)
        labels, full = node(client(demo), "gpu-1"), objects(demo)
        kept = operators.gpunode(demo.folder, "undo", "last", "--yes")
        assert kept.returncode == 4, kept.stdout + kept.stderr
        assert "gpu-1  = cannot be undone" in kept.stdout
        assert "/etc/modules-load.d/gpunode.conf: changed since the run" in kept.stdout
        assert "Not undone: gpu-1: an undo can restore none of the run's changes there" in kept.stderr
        assert (node(client(demo), "gpu-1"), objects(demo)) == (labels, full)
        listed = of_kind(operators.gpunode(demo.folder, "history", "--json"), "run")
    assert listed[0]["result"] == {"kept": 1}


def test_a_host_whose_journal_has_nothing_of_the_run_is_refused():
    with Demo([kinds.old_host("gpu-1")]) as demo:
        worked(operators.gpunode(demo.folder, "provision", "inventory.yaml", "--yes", "--no-run", "--json"))
        for journal in (demo.folder / "hosts/gpu-1/root/var/lib/gpunode/runs").glob("*/journal.jsonl"):
            journal.unlink()
        refused = undo(demo, "last")
    assert refused.returncode == 4
    (outcome,) = of_kind(refused, "outcome")
    assert "its journal has no entry of run" in outcome["error"]
