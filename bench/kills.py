"""How a run outlives its operator: `python bench/kills.py [HOSTS] [KILLS] [BOUND] [SEED]`. Prints what it does, then figures.

A hundred simulated hosts carry jobs; the operator's process is killed (-9) fifty times at random steps, and the run is resumed
each time. Watched from outside: nodes that are disturbed at once, and containers of jobs that were started again.
"""

import json
import os
import random
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.sim.storm import storm  # noqa: E402 (after the path is set)


def main(hosts: int = 100, kills: int = 50, bound: int = 8, seed: int | None = None) -> int:
    """0 where no bound was passed, and no job lost."""
    begun = time.monotonic()
    seed = random.randrange(10**6) if seed is None else seed
    print(f"seed {seed}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_STATE_HOME"] = folder
        figures = storm(
            hosts,
            kills,
            bound,
            seed,
            seconds=(5, 60),
            notify=lambda words: print(f"{time.monotonic() - begun:6.0f} s  {words}", flush=True),
        )
    print(json.dumps(asdict(figures), indent=1))
    return 0 if figures.disturbed <= bound and not figures.lost else 1


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
