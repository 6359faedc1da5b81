"""How many requests the API server gets, and which of them side by side: what a run over 1,000 nodes costs."""

from collections.abc import Sequence
from threading import Barrier
from typing import Any

from gpunode import report
from gpunode.cluster.api import Api
from gpunode.cluster.objects import apply
from gpunode.engine import cluster_diff
from gpunode.engine.member import Member
from gpunode.links import node as nodes
from gpunode.links import plugin
from gpunode.links.node import labels
from gpunode.links.plugin import Spec, deployment
from gpunode.model import Cluster, Host, Inventory, Outcome, PluginImage, Ssh

from .conftest import GPU_NODE, NS, PluginController, add_node, pod
from .fake import FakeApi, Fault

IMAGE = PluginImage("plugin:1")
NAMES = [f"n{number}" for number in range(6)]
INVENTORY = Inventory("inventory.yaml", (), Cluster(plugin=IMAGE))
FORBIDDEN = (
    'nodes "n" is forbidden: User "u" cannot patch resource "nodes" in API group "" at the cluster scope'
)


def members() -> list[Member]:
    return [Member(Host(name, Ssh(name)), Outcome(name, "right")) for name in NAMES]


def asked(fake: FakeApi, method: str, end: str) -> Sequence[dict[str, str]]:
    """The queries of requests to paths that end so."""
    return [query for verb, where, query in fake.requests if verb == method and where.endswith(end)]


def test_labels_are_tried_side_by_side(api: Api, fake: FakeApi, monkeypatch):
    """Each node once; after the first, which shows that one may ask, at the same time."""
    for name in NAMES:
        add_node(fake, name)
    together, write = Barrier(len(NAMES) - 1), labels.write

    def written(api: Api, node: nodes.Node, *wish: Any, **more: Any) -> Any:
        if node.name != NAMES[0]:
            together.wait(10)
        return write(api, node, *wish, **more)

    monkeypatch.setattr(labels, "write", written)
    cluster_plan = cluster_diff.plan(api, INVENTORY, members(), report.make(json=True, quiet=True))

    assert [member.host.name for member in cluster_plan.members if member.active] == NAMES
    assert all(asked(fake, "PATCH", f"/nodes/{name}") == [query(dry_run=True)] for name in NAMES)


def query(*, dry_run: bool) -> dict[str, str]:
    return {"fieldManager": "gpunode", "force": "false"} | ({"dryRun": "All"} if dry_run else {})


def test_a_user_who_may_not_try_one_node_is_not_refused_at_each(api: Api, fake: FakeApi, capsys):
    """One request shows it; what every node lacks is shown all the same."""
    for name in NAMES:
        add_node(fake, name)
    for name in NAMES:
        fake.closed[f"/api/v1/nodes/{name}"] = Fault(403, "Forbidden", FORBIDDEN)

    cluster_plan = cluster_diff.plan(
        api, INVENTORY, members(), report.make(json=False, quiet=True), strict=False
    )

    assert sum(len(asked(fake, "PATCH", f"/nodes/{name}")) for name in NAMES) == 1
    assert not cluster_plan.conflicts
    assert "label Node n[0:5]\n" in capsys.readouterr().out


def test_objects_are_tried_side_by_side(api: Api, fake: FakeApi, monkeypatch):
    """Once their namespace is known to be there; their order in the plan stays."""
    add_node(fake, "a", labels=GPU_NODE)
    PluginController(fake)
    wanted = Spec(NS, IMAGE)
    plugin.deploy(api, wanted, seconds=60, notify=lambda _: None)
    before = [change.what for change in plugin.plan(api, wanted)]
    together, live = Barrier(2), apply._live
    waited: list[str] = []

    def alive(api: Api, manifest: dict[str, Any]) -> Any:
        if manifest["kind"] == "DaemonSet" and manifest["metadata"]["namespace"] == NS and len(waited) < 2:
            waited.append(manifest["metadata"]["name"])
            together.wait(10)
        return live(api, manifest)

    monkeypatch.setattr(apply, "_live", alive)
    assert [change.what for change in plugin.plan(api, wanted)] == before


def test_a_rollout_asks_for_daemonsets_now_and_then_and_not_at_every_event(
    api: Api, fake: FakeApi, monkeypatch
):
    """Events of pods come by the thousand."""
    for name in NAMES:
        add_node(fake, name, 1, labels=GPU_NODE)
    PluginController(fake)
    plugin.deploy(api, Spec(NS, IMAGE), seconds=60, notify=lambda _: None)
    fake.requests.clear()
    changes = deployment.changes

    def busy(*where: Any, **more: Any) -> Any:
        """The pods, of which one is seen to change a hundred times before it is ready."""
        for seen, changed in changes(*where, **more):
            starting = pod("late", node=NAMES[0], conditions=[])
            starting["metadata"]["uid"] = "late"
            starting["metadata"]["creationTimestamp"] = "2027-01-01T00:00:00Z"
            yield {**seen, "late": starting}, changed
            for _ in range(100):
                yield {**seen, "late": starting}, "late"
            yield seen, "late"

    monkeypatch.setattr(deployment, "changes", busy)
    assert plugin.deploy(api, Spec(NS, IMAGE), seconds=60, notify=lambda _: None).good
    assert len(asked(fake, "GET", "/daemonsets")) == 1
