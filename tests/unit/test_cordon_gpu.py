"""Which GPU is meant: by its UUID, or the start of one."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from gpunode.commands.cordon_gpu import _find_gpu
from gpunode.engine.member import Member
from gpunode.errors import Refused, UsageError
from gpunode.model import Gpu, Host, Outcome, Ssh
from tests import cases

FIRST, SECOND = "GPU-8a008c7e-0b6f-5c1e-9c6f-0d3c8a5f7e11", "GPU-8b118c7e-0b6f-5c1e-9c6f-0d3c8a5f7e12"
LOST = "GPU-99999999-0b6f-5c1e-9c6f-0d3c8a5f7e13"


def find(text: str, *, hosts: int = 1) -> str:
    gpus = tuple(Gpu(number, uuid, "H100", "", 1) for number, uuid in enumerate((FIRST, SECOND)))
    member = Member(Host("a", Ssh("a")), Outcome("a", "right", replace(cases.facts("modern"), gpus=gpus)))
    session: Any = SimpleNamespace(
        hosts=[SimpleNamespace(name=f"host-{number}") for number in range(hosts)],
        reporter=SimpleNamespace(note=lambda text: None),
    )
    return _find_gpu(session, [member], text)[1]


@pytest.mark.parametrize(("text", "uuid"), [(FIRST, FIRST), ("GPU-8a", FIRST), (LOST, LOST)])
def test_a_start_that_is_unique_is_enough(text: str, uuid: str) -> None:
    """A lost GPU is named whole."""
    assert find(text) == uuid


@pytest.mark.parametrize(
    ("text", "hosts", "error"),
    [("GPU-8", 1, UsageError), ("GPU-9999", 1, Refused), (LOST, 2, Refused)],
    ids=["several", "no GPU of the host", "a lost one of two hosts"],
)
def test_nothing_is_cordoned_that_is_not_known(text: str, hosts: int, error: type[Exception]) -> None:
    with pytest.raises(error):
        find(text, hosts=hosts)
