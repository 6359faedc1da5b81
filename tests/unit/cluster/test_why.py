"""`gpunode why` with a kubeconfig alone, and with an inventory: its answer, its lines, its exit code."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from gpunode.cli import app
from gpunode.errors import UsageError

from .conftest import GPU_NODE, add_node, pod
from .fake import FakeApi, Object

Why = Callable[..., Result]


@pytest.fixture
def why(fake: FakeApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Why:
    """Runs `gpunode why` with a kubeconfig, in a folder without an inventory."""
    monkeypatch.chdir(tmp_path)
    kubeconfig = fake.kubeconfig(tmp_path)
    return lambda *words: CliRunner().invoke(app, ["why", *words, "--kubeconfig", kubeconfig])


def waiting(name: str, gpus: int = 1, **more: Any) -> Object:
    item = pod(name, namespace="ml", gpus=gpus)
    refused = {
        "type": "PodScheduled",
        "status": "False",
        "message": more.pop("says", "0/1 nodes are available: x."),
    }
    return {**item, "status": {"phase": "Pending", "conditions": [refused]}}  # fmt: skip


def read(result: Result) -> tuple[Object, list[Object]]:
    """The answer, and its reasons."""
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    (answer,) = [line for line in lines if line["type"] == "answer"]
    return answer, [line for line in lines if line["type"] == "reason"]


def test_a_pod_that_waits_for_gpus_in_use_is_told_who_has_them(why: Why, fake: FakeApi) -> None:
    add_node(fake, "n1", 2, labels=GPU_NODE)
    fake.put(pod("a", node="n1", namespace="ml", gpus=2))
    fake.put(waiting("p", says="0/1 nodes are available: 1 Insufficient nvidia.com/gpu."))

    result = why("pod", "ml/p", "--json")

    assert result.exit_code == 1, result.output
    answer, (reason,) = read(result)
    assert (answer["subject"], answer["state"]) == ("pod ml/p", "Pending")
    assert reason["code"] == "in-use"
    assert reason["evidence"] == ["n1: 0 of 2 free, in use by ml/a (2)"]


def test_the_answer_comes_first_and_takes_at_most_15_lines(why: Why, fake: FakeApi) -> None:
    for number in range(30):
        add_node(fake, f"n{number:02}", 2, labels=GPU_NODE)
        fake.put(pod(f"a{number}", node=f"n{number:02}", namespace="ml", gpus=2))
    fake.put(
        waiting("p", 2, says="0/30 nodes are available: 3 the moon is full, 27 Insufficient nvidia.com/gpu.")
    )

    shown = why("pod", "ml/p").stdout.splitlines()

    assert shown[0].startswith(" ml/p, created ")
    assert shown[0].endswith(
        "asks for 2 nvidia.com/gpu: no node has 2 nvidia.com/gpu free: other pods have them"
    )
    assert len(shown) <= 15
    assert any("the moon is full" in line for line in shown)


def test_a_pod_that_is_not_there_is_a_mistake_that_names_one_that_is(why: Why, fake: FakeApi) -> None:
    fake.put(waiting("train-7"))
    result = why("pod", "train-7")
    assert isinstance(result.exception, UsageError)
    assert result.exception.hint == "Did you mean ml/train-7?"


def test_a_cause_that_nothing_shows_is_said_not_to_be_known(why: Why, fake: FakeApi) -> None:
    add_node(fake, "n1", 2, labels=GPU_NODE)
    fake.put(waiting("p", says="0/1 nodes are available: 1 the moon is full."))
    result = why("pod", "ml/p", "--json")
    assert result.exit_code == 7
    assert [reason["code"] for reason in read(result)[1]] == ["scheduler"]


def test_why_the_plugin_offers_no_gpu_is_what_its_judges_say(why: Why, fake: FakeApi) -> None:
    add_node(fake, "n1", 0, labels=GPU_NODE)
    fake.put(waiting("p"))
    result = why("pod", "ml/p", "--json")
    assert result.exit_code == 1, result.output
    _, (reason, *_) = read(result)
    assert reason["what"] == "n1 offers no nvidia.com/gpu"
    assert reason["code"] == "no-pod"
    assert reason["evidence"]
