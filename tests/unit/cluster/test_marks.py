"""gpunode's marks on a node: what they are, and that none is left; others' stay."""

from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from gpunode import report
from gpunode.cluster import lease
from gpunode.cluster.api import Api
from gpunode.cluster.lease import Held
from gpunode.commands import forget
from gpunode.engine import rollout
from gpunode.engine.record import Record, RunOptions
from gpunode.engine.session import Session
from gpunode.errors import AnotherRun, UsageError
from gpunode.links import node as nodes
from gpunode.links.node import cordon, labels, taint
from gpunode.links.plugin import marks
from gpunode.model import Cluster, Host, Inventory, PluginImage, Ssh
from tests import jsonlines

from .conftest import add_node
from .fake import FakeApi

RUN = "20261126T001546Z-ab12"
OTHER = {"key": "dedicated", "value": "ml", "effect": "NoSchedule"}
PUBLISHED = {"gpunode.dev/device-plugin": "{}", "gpunode.dev/gpu-memory": "{}"}  # by the plugin
OWN = {"type": "GpuReady", "status": "True", "reason": "ready", "message": "m"}


@pytest.fixture
def marked(fake: FakeApi, api: Api) -> Api:
    """A node with all of them, of an API server without server-side apply, which says in notes whose labels are whose. The simulation
    has one with it (tests/sim/test_forget.py)."""
    fake.minor = 9
    add_node(fake, "a", labels={"rack": "7"})
    fake.update("Node", "a", spec={"taints": [OTHER]})
    node = parsed(api)
    labels.write(api, node, {"gpunode.dev/gpu": "true", "tier": "a"})
    labels.write(api, parsed(api), {"accelerator": "p100"}, writer=labels.ACCELERATOR)
    taint.write(api, parsed(api), ("gpu=yes:NoSchedule",))
    taint.hold(api, "a", RUN)
    cordon.cordon(api, "a", f"run {RUN} of ada@ws")
    annotations = {"gpunode.dev/accepted": "{}", **PUBLISHED, "note": "n"}
    api.merge("Node", "a", {"metadata": {"annotations": annotations}}, manager="kubectl")
    fake.update("Node", "a", status={"conditions": [{"type": "Ready", "status": "True"}, OWN]})
    return api


def item(api: Api) -> Any:
    return api.get("Node", "a")


def parsed(api: Api) -> nodes.Node:
    return nodes.parse(item(api))


def left(api: Api) -> tuple[Any, ...]:
    meta, spec = item(api)["metadata"], item(api)["spec"]
    conditions = [entry["type"] for entry in item(api)["status"]["conditions"]]
    names = {key: value for key, value in meta["labels"].items() if not key.startswith("kubernetes.io/")}
    return names, meta["annotations"], spec.get("taints"), spec.get("unschedulable"), conditions


def test_no_mark_of_gpunodes_is_left(marked: Api):
    """Labels of each writer, the inventory's taints and the run's, the cordon, annotations, the plugin's condition."""
    assert marks.is_owned(item(marked))
    assert marks.find(item(marked)) == (
        "label accelerator",
        "label gpunode.dev/gpu",
        "label tier",
        "taint gpu=yes:NoSchedule",
        f"taint gpunode.dev/unverified={RUN}:NoSchedule",
        "cordon",
        "annotation gpunode.dev/accepted",
        "annotation gpunode.dev/device-plugin",
        "annotation gpunode.dev/gpu-memory",
        "condition GpuReady",
    )
    marks.take_off(marked, "a", keep_software=False, notify=pytest.fail)
    assert left(marked) == ({"rack": "7"}, {"note": "n"}, [OTHER], None, ["Ready"])
    assert (marks.find(item(marked)), marks.is_owned(item(marked))) == ((), False)


def test_the_plugins_labels_stay_with_it_and_are_nobodys(marked: Api):
    """What it publishes, too: it would write that again, and a scheduler extender reads it. A later provision may take the labels over."""
    marks.take_off(marked, "a", keep_software=True, notify=pytest.fail)
    assert left(marked)[1:] == ({"note": "n", **PUBLISHED}, [OTHER], None, ["Ready", "GpuReady"])
    assert left(marked)[0] == {"rack": "7", "gpunode.dev/gpu": "true"}
    assert (marks.find(item(marked), keep_software=True), marks.is_owned(item(marked))) == ((), False)
    labels.write(marked, parsed(marked), {"gpunode.dev/gpu": "paused"}, overwrite=True)
    marks.take_off(marked, "a", keep_software=False, notify=pytest.fail)
    assert left(marked) == ({"rack": "7"}, {"note": "n"}, [OTHER], None, ["Ready"])


def forget_node(
    api: Api,
    monkeypatch,
    folder: Path,
    *hosts: Host,
    lost: str = "",
    paused: bool = False,
) -> int:
    """The exit code of `gpunode forget a`, with a lease that may be lost."""
    held = Held("us")
    held.lost = lost
    monkeypatch.setattr(Record, "paused", property(lambda _: paused))
    monkeypatch.setenv("XDG_STATE_HOME", str(folder))
    monkeypatch.setattr("gpunode.engine.nodes.connect", lambda _: api)
    monkeypatch.setattr("gpunode.engine.rollout.hold", lambda *_: nullcontext(held))
    inventory = Inventory("inventory.yaml", hosts, Cluster(plugin=PluginImage("p:1")))
    session = Session(inventory, (), {}, report.make(json=True, quiet=True), 1)
    return forget.forget_hosts(session, forget.ForgetOptions(yes=True, nodes=("a",)))


def test_a_record_of_an_acceptance_that_cannot_be_removed_fails_its_host_alone(
    marked: Api, monkeypatch, tmp_path, capsys
):
    stays = tmp_path / "gpunode/accepted/a.json"
    stays.mkdir(parents=True)  # as no user may remove it
    assert forget_node(marked, monkeypatch, tmp_path) == 1
    lines = jsonlines.parse(capsys.readouterr().out)
    assert any(str(stays) in str(line) and "stays" in str(line) for line in lines if line["type"] == "error")
    assert not marks.is_owned(item(marked))


def test_the_marks_of_a_hosts_node_stay_by_the_nodes_name(marked: Api, monkeypatch, tmp_path):
    with pytest.raises(UsageError, match="a is the node of host gpu-1"):
        forget_node(marked, monkeypatch, tmp_path, Host("gpu-1", Ssh("gpu-1"), node="a"))
    assert marks.is_owned(item(marked))


def test_a_run_beside_another_leaves_no_record(fake: FakeApi, api: Api, monkeypatch, tmp_path):
    """Else it would be the last run, which `resume` and `pause` take."""
    monkeypatch.setattr(lease, "RETRY", 0.0)
    monkeypatch.setattr(lease, "_holder_of", lambda _: "run 1 of ada@hall")
    versions = iter(range(9))
    fake.minor = 36
    assert api.served.has("Lease")
    monkeypatch.setattr(api, "get", lambda *_, **__: {"metadata": {"resourceVersion": next(versions)}})
    record = Record.begin(Path("i.yaml"), ["a"], RunOptions())
    session = mock.Mock()
    with pytest.raises(AnotherRun) as refused, rollout.hold_cluster(session, api, record, ()):
        pass
    assert (refused.value.exit_code, record.path.exists()) == (4, False)


@pytest.mark.parametrize(
    ("lost", "paused", "code"),
    [("", False, 0), ("another run has its lease", False, 1), ("", True, 8)],
    ids=["neither", "lost", "paused"],
)
def test_no_marks_go_once_the_run_must_stop(
    marked: Api, monkeypatch, tmp_path, capsys, lost: str, paused: bool, code: int
):
    host = Host("gpu-1", Ssh("gpu-1"))
    assert forget_node(marked, monkeypatch, tmp_path, host, lost=lost, paused=paused) == code
    assert marks.is_owned(item(marked)) == bool(code)
    assert ("Meanwhile another run has its lease" in capsys.readouterr().out) == bool(lost)
