"""What got worse by a tenth or more between two runs of a benchmark: `python -m bench.compare OLD NEW`, files of bench/results.

Exit status 1: something of gpunode's did. The peers' figures of the same runs stand beside it: they show what the machine did.
"""

import sys
from pathlib import Path

from .results import Results, load

WORSE = 1.1


def compare(old: Results, new: Results) -> list[str]:
    """A line for each figure of gpunode that got worse."""
    before = {(row.who, row.what): row.median for row in old.rows}
    lines = []
    for row in new.rows:
        figures = [
            f"{other.who}: {before[other.who, other.what]:.4g} -> {other.median:.4g} {other.unit}"
            for other in sorted(new.rows, key=lambda other: other.who != row.who)
            if other.what == row.what and (other.who, other.what) in before
        ]
        known = before.get((row.who, row.what), float("inf"))
        if row.who == "gpunode" and row.median > known and row.median >= known * WORSE:
            lines.append(f"{row.what}: {'; '.join(figures)}")
    return lines


if __name__ == "__main__":
    worse = compare(*(load(Path(path)) for path in sys.argv[1:3]))
    print("\n".join(worse) or "nothing got worse by a tenth")
    sys.exit(bool(worse))
