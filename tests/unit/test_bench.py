"""Results of benchmarks: what is kept, and what a comparison names."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import results
from bench.compare import compare
from bench.results import Results, Row


def measured(**rows: list[float]) -> Results:
    """Rows by "who_what", in milliseconds."""
    made = [Row(key.partition("_")[0], key.partition("_")[2], "ms", rounds) for key, rounds in rows.items()]
    return Results("abc", "2026-01-01", [0.1], 2, {}, made)


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ([1.0, 9.0, 1.0], [1.05, 1.05], ""),
        ([1.0], [1.1], "start: gpunode: 1 -> 1.1 ms"),
        ([1.0], [0.5], ""),
        ([0.0], [0.0], ""),
    ],
)
def test_a_median_that_is_a_tenth_worse_is_named(old: list[float], new: list[float], named: str) -> None:
    assert "".join(compare(measured(gpunode_start=old), measured(gpunode_start=new))) == named


def test_a_peer_stands_beside_it_and_is_not_named_alone() -> None:
    old = measured(gpunode_start=[1.0], peer_start=[2.0], peer_end=[1.0])
    new = measured(gpunode_start=[3.0], peer_start=[6.0], peer_end=[9.0], gpunode_new=[1.0])
    assert compare(old, new) == ["start: gpunode: 1 -> 3 ms; peer: 2 -> 6 ms"]


def test_kept_results_are_read_as_they_were(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "FOLDER", tmp_path)
    kept = measured(gpunode_start=[1.0, 2.0])
    assert results.load(kept.save("plugin")) == kept
