"""Which GPU is meant: by its node and index, its UUID, or the start of one; and which hosts are asked for it."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest

from gpunode.commands import cordon_gpu
from gpunode.contract.usage import Gpu as UsedGpu
from gpunode.engine.member import Member
from gpunode.errors import ClusterError, Refused, UsageError
from gpunode.links.node import parse
from gpunode.links.plugin.usage import NodeUsage, parse_gpu
from gpunode.model import Gpu, Host, Outcome, Ssh
from tests import cases

FIRST, SECOND = "GPU-8a008c7e-0b6f-5c1e-9c6f-0d3c8a5f7e11", "GPU-8b118c7e-0b6f-5c1e-9c6f-0d3c8a5f7e12"
LOST = "GPU-99999999-0b6f-5c1e-9c6f-0d3c8a5f7e13"


def find(text: str, *, hosts: int = 1) -> str:
    gpus = tuple(Gpu(number, uuid, "H100", "", 1) for number, uuid in enumerate((FIRST, SECOND)))
    member = Member(
        Host("host-0", Ssh("a")), Outcome("a", "right", replace(cases.facts("modern"), gpus=gpus))
    )
    session: Any = SimpleNamespace(
        hosts=[SimpleNamespace(name=f"host-{number}") for number in range(hosts)],
        reporter=SimpleNamespace(note=lambda text: None),
    )
    return cordon_gpu._find_gpu(session, [member], parse_gpu(text))[1]


@pytest.mark.parametrize(
    ("text", "uuid"), [(FIRST, FIRST), ("GPU-8a", FIRST), (LOST, LOST), ("host-0/1", SECOND)]
)
def test_a_start_that_is_unique_is_enough(text: str, uuid: str):
    """A lost GPU is named whole."""
    assert find(text) == uuid


@pytest.mark.parametrize(
    ("text", "hosts", "error"),
    [("GPU-8", 1, UsageError), ("GPU-9999", 1, Refused), (LOST, 2, Refused), ("host-0/2", 1, Refused)],
    ids=["several", "no GPU of the host", "a lost one of two hosts", "no index of the host"],
)
def test_nothing_is_cordoned_that_is_not_known(text: str, hosts: int, error: type[Exception]):
    with pytest.raises(error):
        find(text, hosts=hosts)


@pytest.mark.parametrize(
    ("text", "asked"),
    [
        ("host-1/0", ["host-1"]),
        ("node-1/0", ["host-1"]),
        (SECOND, ["host-1"]),
        ("other/0", []),
        ("GPU-8b", ["host-0", "host-1"]),
        (LOST, ["host-0", "host-1"]),
    ],
    ids=["its host", "its node", "listed by a plugin", "no node of these hosts", "a start", "listed nowhere"],
)
def test_only_the_host_of_the_gpu_is_asked_where_its_node_is_known(monkeypatch, text: str, asked: list[str]):
    members = [
        Member(Host(f"host-{n}", Ssh("a")), node=parse({"metadata": {"name": f"node-{n}", "uid": str(n)}}))
        for n in (0, 1)
    ]
    listed = NodeUsage("node-1", (UsedGpu(SECOND, "0", "H100", 0),))
    api = SimpleNamespace(find=lambda kind: ([], ""))
    monkeypatch.setattr(cordon_gpu.nodes, "connect", lambda inventory: api)
    monkeypatch.setattr(cordon_gpu.nodes, "locate", lambda *_, **__: members)
    monkeypatch.setattr(cordon_gpu, "read_usage", lambda *_: (listed,))
    session: Any = mock.Mock(hosts=[member.host for member in members])
    assert [member.host.name for member in cordon_gpu._choose_hosts(session, parse_gpu(text))] == asked


def test_without_a_cluster_every_host_is_asked(monkeypatch):
    monkeypatch.setattr(cordon_gpu.nodes, "connect", mock.Mock(side_effect=ClusterError("it is away")))
    session: Any = mock.Mock(hosts=[Host("a", Ssh("a")), Host("b", Ssh("b"))])
    assert len(cordon_gpu._choose_hosts(session, parse_gpu(FIRST))) == 2


@pytest.mark.parametrize("index", ["1", "7"])
def test_where_the_driver_does_not_answer_the_plugin_knows_an_index(monkeypatch, index: str):
    """As with a library of another version than the driver's: a GPU on such a host is one to cordon."""
    facts = replace(cases.facts("modern"), gpus=(), smi_error="driver/library version mismatch")
    member = Member(Host("host-0", Ssh("a")), Outcome("a", "right", facts))
    node = parse({"metadata": {"name": "node-0", "uid": "0"}})
    listed = NodeUsage("node-0", (UsedGpu(SECOND, "1", "H100", 0),))
    monkeypatch.setattr(cordon_gpu.nodes, "connect", lambda _: SimpleNamespace(find=lambda kind: ([], "")))
    monkeypatch.setattr(cordon_gpu.nodes, "locate", lambda *_, **__: [replace(member, node=node)])
    monkeypatch.setattr(cordon_gpu, "read_usage", lambda *_: (listed,))
    session: Any = mock.Mock(hosts=[member.host])
    name = parse_gpu(f"host-0/{index}")
    if index == "1":
        assert cordon_gpu._find_gpu(session, [member], name)[1] == SECOND
        return
    with pytest.raises(Refused, match="host-0 lists no GPU 7") as refused:
        cordon_gpu._find_gpu(session, [member], name)
    assert "Its driver does not answer: driver/library version mismatch. " in refused.value.hint


def test_an_index_that_the_host_does_not_have_names_those_it_has():
    with pytest.raises(Refused, match="host-0 lists no GPU 9") as refused:
        find("host-0/9")
    assert f"Its GPUs: 0 ({FIRST}), 1 ({SECOND})" in refused.value.hint
