"""The cluster's part of `provision`, one host's trouble beside another's."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpunode import report
from gpunode.cli import cluster
from gpunode.cluster.api import Api
from gpunode.model import Cluster, Host, Inventory, Outcome, PluginImage, Ssh
from tests import cases

from .conftest import PluginController, add_node
from .fake import FakeApi

HOSTS = (Host("a", Ssh("a"), labels={"pool": "ml"}), Host("b", Ssh("b")))
INVENTORY = Inventory("inventory.yaml", HOSTS, Cluster(plugin=PluginImage("plugin:1")))


def outcomes() -> list[Outcome]:
    seen = cases.facts("modern")
    return [Outcome(host.name, "right", replace(seen, hostname=host.name, gpus=())) for host in HOSTS]


def test_a_label_that_somebody_else_set_leaves_the_other_hosts_theirs(
    api: Api, fake: FakeApi, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is told with its way out and the command fails; the plugin still comes to every other node."""
    add_node(fake, "a", labels={"pool": "theirs"})
    add_node(fake, "b")
    PluginController(fake)

    code = cluster.bring_up(api, INVENTORY, HOSTS, outcomes(), report.make(json=False, quiet=True), run=False)

    assert code == 1
    assert "a: somebody else set pool=theirs" in capsys.readouterr().err
    labels = {node["metadata"]["name"]: node["metadata"]["labels"] for node in fake.all("Node")}
    assert labels["b"]["gpunode.dev/gpu"] == "true"
    assert labels["a"]["pool"] == "theirs"


def test_hosts_that_are_no_nodes_are_named_when_there_is_no_other(
    api: Api, fake: FakeApi, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reason is that they are no nodes, not that no node has the plugin's label."""
    monkeypatch.setattr(cluster, "REGISTER_SECONDS", 0.0)
    add_node(fake, "other")

    assert cluster.bring_up(api, INVENTORY, HOSTS, outcomes(), report.make(json=False, quiet=True), run=False)
    said = capsys.readouterr().err
    assert "a: no node of the cluster has its hostname `a`" in said
    assert "b: no node of the cluster has its hostname `b`" in said


def test_a_plan_names_a_label_that_somebody_else_set_and_goes_on(
    api: Api, fake: FakeApi, capsys: pytest.CaptureFixture[str]
) -> None:
    """What the other nodes get is shown all the same."""
    add_node(fake, "a", labels={"pool": "theirs"})
    add_node(fake, "b")
    names = {"a": "a", "b": "b"}

    cluster.plan(api, INVENTORY, HOSTS, names, report.make(json=False, quiet=True))

    said = capsys.readouterr()
    assert "a: somebody else set pool=theirs" in said.err
    assert "Node b gpunode.dev/gpu=true" in said.out
