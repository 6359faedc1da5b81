"""What the tiers of tests cost, a probe, a plan and `gpunode --help`: `python -m bench.tiers [TIER…]`, on a quiet machine.

Prints wall and processor seconds of each tier beside its budget in tiers.yaml. Exit status 1: a tier failed, or is over its budget.
"""

import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import yaml

from bench import probe
from bench.peers import hosts

BUDGET = Path(__file__).with_suffix(".yaml")


def measure_probe() -> float:
    return statistics.median(probe.measure(15)[0][probe.HERE])


def measure_help() -> float:
    """Seconds of `gpunode --help` over those of a bare Python."""
    bare, command = [sys.executable, "-c", "pass"], [sys.executable, "-m", "gpunode", "--help"]
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    rounds = [(probe.processor(command, env), probe.processor(bare, env)) for _ in range(15)]
    return statistics.median(whole for whole, _ in rounds) - statistics.median(least for _, least in rounds)


def measure_plan() -> float:
    """Seconds of `gpunode plan` of one host on the operator's machine. Needs root and OpenSSH's server, as bench.peers."""
    gpunode = [sys.executable, "-m", "gpunode"]
    with (
        tempfile.TemporaryDirectory(prefix="bench-plan-") as folder,
        hosts.serve(Path(folder), 1, [], gpunode) as fleet,
    ):
        env = {**os.environ, "HOME": folder, "XDG_STATE_HOME": f"{folder}/state"}
        env.pop("PYTHONDONTWRITEBYTECODE", None)
        command = [*gpunode, "plan", str(fleet.inventory(1, 0))]
        return statistics.median(probe.processor(command, env) for _ in range(15))


MEASURED = {"probe": measure_probe, "plan": measure_plan, "help": measure_help}


def measure(target: str) -> tuple[int, float, float]:
    """Run `make TARGET`: exit status, wall seconds, processor seconds with all descendants that were waited for."""
    if target in MEASURED:
        seconds = MEASURED[target]()
        return 0, seconds, seconds
    began, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    with Path(f"/tmp/tier-{target}.log").open("w") as log:
        code = subprocess.run(
            ["make", target, "ALL=1"], stdout=log, stderr=subprocess.STDOUT, check=False
        ).returncode
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return code, time.monotonic() - began, sum(after[:2]) - sum(before[:2])


def main(names: list[str]) -> int:
    budgets: dict[str, float] = yaml.safe_load(BUDGET.read_text())
    print(f"load {os.getloadavg()[0]:.1f}, {os.cpu_count()} cores")
    status = 0
    for name in names or budgets:
        code, wall, processor = measure(name)
        over = processor > budgets[name]
        status |= bool(code) | over
        print(
            f"{name:10} {wall:6.3g} s wall {processor:6.3g} s processor, budget {budgets[name]}"
            f"{', failed' if code else ''}{', OVER' if over else ''}",
            flush=True,
        )
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
