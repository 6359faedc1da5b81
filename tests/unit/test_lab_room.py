"""How many labs come up: as many as this machine has room for. Needs no lab."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.lab import lab, machine
from tests.lab.progress import CannotRun

LABS = [Path("/nowhere/.lab"), Path("/nowhere/.lab-2"), Path("/nowhere/.lab-3")]


@pytest.mark.parametrize(
    ("memory", "disk", "cold", "fit"),
    [
        (23, 200, False, 3),
        (6.5, 200, False, 2),
        (3.1, 200, False, 1),
        (23, 9, False, 1),
        (9, 200, True, 2),
        (23, 27, True, 2),
    ],
)
def test_labs_that_there_is_no_room_for_are_left_out(
    memory: float, disk: float, cold: bool, fit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By memory and disk; what is to be built needs more of both."""
    monkeypatch.setattr(machine, "free_memory", lambda: memory)
    monkeypatch.setattr(machine, "free_disk", lambda: disk)
    assert lab.fitting(LABS, cold=cold) == LABS[:fit]


def test_without_room_for_one_the_reason_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the reason for which the tests skip."""
    monkeypatch.setattr(machine, "free_memory", lambda: 2.5)
    with pytest.raises(CannotRun, match=r"One lab needs 3 GiB of free memory; this machine has 2.5 GiB"):
        lab.fitting(LABS, cold=False)
