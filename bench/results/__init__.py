"""What a benchmark measured, kept as bench/results/NAME-DATE.json: the figure of every round, with load and commit.

A figure is a cost: the lower, the better.
"""

import json
import os
import statistics
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Row:
    """One figure of one program: `who` is "gpunode", or the peer that ran beside it on the same machine."""

    who: str
    what: str
    unit: str
    rounds: list[float]

    @property
    def median(self) -> float:
        return statistics.median(self.rounds)


@dataclass(frozen=True)
class Results:
    """One run of a benchmark. `load`: of the machine, before each round; `versions`: of the programs."""

    commit: str  # "-dirty": with changes that are not committed
    date: str
    load: list[float]
    cores: int
    versions: Mapping[str, str]
    rows: Sequence[Row]

    def save(self, name: str) -> Path:
        path = FOLDER / f"{name}-{self.date}.json"
        path.write_text(json.dumps(asdict(self), indent=1) + "\n")
        return path


def collect(rows: Sequence[Row], load: list[float], versions: Mapping[str, str]) -> Results:
    """These rows, with this checkout's commit and today's date."""
    describe = ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    commit = subprocess.run(
        describe, cwd=FOLDER.parent, stdout=subprocess.PIPE, text=True, check=True
    ).stdout.strip()
    return Results(commit, time.strftime("%Y-%m-%d"), load, os.cpu_count() or 1, versions, rows)


def load(path: Path) -> Results:
    content = json.loads(path.read_text())
    return Results(**{**content, "rows": [Row(**row) for row in content["rows"]]})
