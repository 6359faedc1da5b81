"""A new version of the plugin on some nodes at a time."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from gpunode.cluster.api import Api
from gpunode.links import node as nodes
from gpunode.links import plugin
from gpunode.links.plugin import deployment
from gpunode.links.plugin.deployment import Spec
from gpunode.model import PluginImage

from .conftest import GPU_NODE, NS, PluginController, add_node, pod
from .fake import FakeApi, Object

IMAGE, NEWER = PluginImage("gpunode/device-plugin:1"), PluginImage("gpunode/device-plugin:2")


def node(name: str, *, ready: bool = True, **labels: str) -> nodes.Node:
    status = {"conditions": [{"type": "Ready", "status": str(ready)}]}
    return nodes.parse({"metadata": {"name": name, "uid": name, "labels": labels}, "status": status})


def serving(*, ready: bool = True, ending: bool = False) -> Object:
    made = pod("p", conditions=[{"type": "Ready", "status": str(ready)}])
    if ending:
        made["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    return made


@pytest.mark.parametrize(
    ("count", "most", "goes"), [(0, 1, 1), (1, 1, 1), (4, 1, 4), (10, 1, 10), (11, 2, 6), (64, 7, 10)]
)
def test_a_tenth_of_the_nodes_at_a_time(count: int, most: int, goes: int):
    """One of few; as Kubernetes counts the template's share."""
    assert (deployment.bound(count), deployment.waves(count)) == (most, goes)
    made = Spec(NS, IMAGE).manifests
    shares = {
        manifest["spec"]["updateStrategy"]["rollingUpdate"]["maxUnavailable"]
        for manifest in made
        if manifest["kind"] == "DaemonSet"
    }
    assert shares == {"10%"}


# Of twenty nodes, two may be out. `down` were so before; `busy` have a pod that is not ready (yet).
@pytest.mark.parametrize(
    ("down", "busy", "turn"),
    [((), (), ""), ((), "ab", ""), ("a", "", ""), ("ab", "", "cd"), ("abc", "", "de"), ("ab", "c", "d"), ("ab", "cd", ""),
     ("a", "b", "c"), ("abc", "def", "")],
)  # fmt: skip
def test_nodes_that_were_without_it_before_hold_no_others_back(down: str, busy: str, turn: str):
    """Kubernetes would wait for them for ever; those that the new version fails on do hold it back."""
    names = "abcdefghijklmnopqrst"
    every = [node(name, ready=name not in down) for name in names]
    pods = {name: serving(ready=name not in busy) for name in names}
    waiting = [name for name in names if name not in down]
    assert deployment.next_nodes(every, pods, waiting, set(down)) == list(turn)


def test_each_daemonset_has_its_own_count():
    """Nodes with the RuntimeClass and nodes without it; a pod that is ending serves nobody, nor does none."""
    classes = [node(f"c{number}", **{"gpunode.dev/runtime": "class"}) for number in range(3)]
    plain = [node(f"p{number}") for number in range(3)]
    pods = {entry.name: serving() for entry in (*classes, *plain)}
    pods["c0"] = serving(ending=True)
    del pods["p0"]
    waiting = ["c1", "c2", "p1"]
    assert deployment.next_nodes([*plain, *classes], pods, waiting, {"c0", "p0"}) == ["c1", "p1"]
    assert deployment.next_nodes([*plain, *classes], pods, waiting, {"p0"}) == ["p1"]


def replaced(fake: FakeApi, name: str) -> None:
    """What the DaemonSet's controller and the kubelet do for a node."""
    controller = PluginController.__new__(PluginController)
    controller.fake, controller.states = fake, {}
    (daemonset,) = [
        item for item in fake.all("DaemonSet") if item["metadata"]["name"] == "gpunode-device-plugin"
    ]
    controller.start(daemonset, name)


def test_each_go_has_its_time(api: Api, fake: FakeApi, told: list[str], monkeypatch):
    """Together they may take longer than one; when none comes any more, it is over, and said of which."""
    names = [f"n{number}" for number in range(4)]
    for name in names:
        add_node(fake, name, 1, labels=GPU_NODE)
    PluginController(fake)
    plugin.deploy(api, Spec(NS, IMAGE), seconds=60, notify=told.append)
    clock = [0.0]
    coming: list[str] = []

    def follow(*_: Any, seconds: float, **__: Any) -> Iterator[tuple[dict[str, Object], None]]:
        while clock[0] < seconds:
            yield {item["metadata"]["name"]: item for item in fake.all("Pod")}, None
            clock[0] += 150.0
            if coming:
                replaced(fake, coming.pop(0))

    monkeypatch.setattr(deployment, "changes", follow)
    monkeypatch.setattr(deployment, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    coming += names
    assert plugin.deploy(api, Spec(NS, NEWER), seconds=180, notify=told.append).good
    assert clock[0] == 600.0

    clock[0] = 0.0
    coming += names[:2]
    states = plugin.deploy(api, Spec(NS, IMAGE), seconds=180, notify=told.append).states
    assert {name: bool(state.reason) for name, state in states.items()} == {
        "n0": False,
        "n1": False,
        "n2": True,
        "n3": True,
    }
    assert "a new version rolls out to a tenth of the nodes at a time" in states["n2"].reason.what
    assert clock[0] == 600.0


def test_a_node_that_is_down_keeps_no_other_on_the_version_of_before(
    api: Api, fake: FakeApi, told: list[str], monkeypatch
):
    """Of four nodes it alone uses up what Kubernetes may replace: gpunode goes on, one by one."""
    for name in ("a", "b", "c", "down"):
        add_node(fake, name, 1, labels=GPU_NODE)
    PluginController(fake)
    plugin.deploy(api, Spec(NS, IMAGE), seconds=60, notify=told.append)
    fake.update(
        "Node", "down", status={"conditions": [{"type": "Ready", "status": "Unknown", "message": "gone"}]}
    )
    most: list[int] = []

    def follow(*_: Any, **__: Any) -> Iterator[tuple[dict[str, Object], None]]:
        for _ in range(10):
            there = fake.all("Pod")
            yield {item["metadata"]["name"]: item for item in there}, None
            gone = {"a", "b", "c"} - {item["spec"]["nodeName"] for item in fake.all("Pod")}
            most.append(len(gone))
            for name in gone:
                replaced(fake, name)

    monkeypatch.setattr(deployment, "changes", follow)
    states = plugin.deploy(api, Spec(NS, NEWER), seconds=60, notify=told.append).states
    assert {name for name, state in states.items() if state.reason} == {"down"}
    assert max(most) == 1
