"""Requests for the labels of many nodes: side by side, and never more at once than connections are kept."""

import itertools
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from gpunode.cluster.api import Api, connection
from gpunode.cluster.api.connection import AT_ONCE
from gpunode.engine import cluster_diff
from gpunode.engine import nodes as stages
from gpunode.engine.member import Member
from gpunode.links import node as nodes
from gpunode.links.node import labels
from gpunode.model import Host, Ssh

from .conftest import add_node
from .fake import FakeApi

SECONDS = 120  # for threads to come


def written(api: Api, members: Sequence[Member]) -> int:
    return len([label for label in stages.apply_labels(api, members) if label.reason is None])


def tried(api: Api, members: Sequence[Member]) -> int:
    return len([change for _, change in cluster_diff._try_labels(api, members, strict=True) if change])


@pytest.mark.parametrize(("ask", "alone"), [(written, 0), (tried, 1)])
def test_labels_are_asked_for_side_by_side_with_a_bound(
    api: Api, fake: FakeApi, monkeypatch, ask: Callable[[Api, Sequence[Member]], int], alone: int
):
    """`alone`: requests that come before the others, by themselves."""
    many = alone + AT_ONCE
    for number in range(many):
        add_node(fake, f"n{number}")
    members = [Member(Host(node.name, Ssh(node.name)), node=node) for node in nodes.fetch(api)]
    together, turn, bounds = threading.Barrier(AT_ONCE), itertools.count(), []

    class Pool(ThreadPoolExecutor):
        def __init__(self, most: int) -> None:
            bounds.append(most)
            super().__init__(most)

    def write(*_: Any, **__: Any) -> dict[str, Any]:
        if next(turn) >= alone:
            together.wait(SECONDS)  # breaks, and the test fails, where fewer come
        else:
            assert bounds == []
        return {}

    monkeypatch.setattr(labels, "write", write)
    monkeypatch.setattr(connection, "ThreadPoolExecutor", Pool)
    assert ask(api, members) == many
    assert bounds == [AT_ONCE]
