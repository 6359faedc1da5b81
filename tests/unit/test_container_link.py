"""The link `container`: where it is judged, and what its result says."""

from types import SimpleNamespace
from typing import Any, cast, get_args

import pytest

from gpunode.commands import verify
from gpunode.engine.member import Member
from gpunode.engine.session import Session
from gpunode.links.runtime import link as runtime
from gpunode.model import Host, Layer, Outcome, Ssh, Verdict
from tests import cases, tables

HOST = runtime.BELOW
SEEN = cases.overlaid(
    cases.facts("legacy"),
    {
        "gpus": [
            {"index": n, "uuid": f"GPU-{n}", "name": "P100", "pci": f"0000:0{n}:00.0", "memory_mib": 1}
            for n in (0, 1)
        ]
    },
)
ANSWER: dict[str, Any] = {
    "tool": "docker",
    "image": "cuda:12",
    "status": 0,
    "uuids": ["GPU-0", "GPU-1"],
    "words": [],
    "devices": ["/dev/nvidia0", "/dev/nvidia1", "/dev/nvidiactl"],
    "mounts": ["/usr/bin/nvidia-smi", "/usr/lib/x86_64-linux-gnu/libcuda.so.580.178.04"],
}


def chain(**others: str) -> list[Verdict]:
    """All below the kubelet holds; the others are as they are named."""
    above = {"kubelet": "ok", "node": "ok", **others}
    status: dict[str, Any] = {**dict.fromkeys(HOST, "ok"), **above}
    return [Verdict(layer, status[layer], "") for layer in get_args(Layer) if layer in status]


@pytest.mark.parametrize(
    ("others", "runs"),
    [
        ({}, False),
        ({"kubelet": "broken", "node": "unknown"}, True),
        ({"node": "broken"}, True),
        ({"node": "unknown"}, True),
        ({"runtime": "broken", "kubelet": "unknown", "node": "unknown"}, False),
        ({"plugin": "broken"}, False),
    ],
)
def test_it_is_run_where_the_runtime_holds_and_no_pod_can_follow(others: dict[str, str], runs: bool):
    """A node without the plugin runs pods; a host without a working runtime no container."""
    assert runtime.needs_container(chain(**others)) is runs


def test_it_stands_after_the_runtime_and_counts_as_no_link_of_the_chain():
    """Where it is broken the host is; where it is ok the links that were checked are as many as before."""
    links = chain(kubelet="broken", node="unknown")
    good = runtime.insert_container(links, runtime.judge_container(ANSWER, SEEN))
    assert [link.layer for link in good][5:8] == ["runtime", "container", "kubelet"]
    assert verify.list_unchecked(good) == verify.list_unchecked(links)
    bad = runtime.insert_container(links, runtime.judge_container({**ANSWER, "uuids": []}, SEEN))
    assert verify.find_broken({"a": bad}) == {"a": "container"}


@tables.rows("containers")
def test_it_compares_with_the_gpus_of_the_host(answer: dict[str, Any], status: str, text: str, cause: str):
    """By UUID; the tool's own words are the cause of a failure."""
    verdict = runtime.judge_container({**ANSWER, **answer}, SEEN)
    assert verdict.status == status
    assert text in verdict.text
    assert cause in verdict.cause
    assert bool(cause) == bool(verdict.cause)
    assert bool(verdict.fix) == (status == "broken")


@pytest.mark.parametrize(
    ("messages", "status", "words"),
    [
        ([{"type": "container", **ANSWER}], "ok", "2 of 2 GPUs answer"),
        ([{"type": "progress", "text": "x"}], "unknown", "not run: no answer"),
        ([], "unknown", "not run: no answer"),
    ],
)
def test_no_other_message_of_a_host_is_taken_for_its_result(
    messages: list[dict[str, Any]], status: str, words: str
):
    host = Host("gpu-01", Ssh("gpu-01"))
    session = SimpleNamespace(
        hosts=[host],
        forks=1,
        inventory=SimpleNamespace(cluster=SimpleNamespace(plugin=None)),
        visits={host.name: SimpleNamespace(ask=lambda _: messages)},
        reporter=SimpleNamespace(event=lambda _: None),
    )
    member = Member(host, Outcome(host.name, "right", SEEN))
    chains = {host.name: tuple(chain(kubelet="broken", node="unknown"))}
    judged = verify._with_containers(cast("Session", session), [member], chains)
    (link,) = (container for container in judged[host.name] if container.layer == "container")
    assert link.status == status
    assert words in link.text
