"""What a probe costs a host: `python -m bench.probe [--rounds N] [COMMIT…]`. Prints processor seconds, beside those of starting Python.

The host is a simulated one with a driver: small programs in place of its own, whose cost is theirs. Its agent is real, and runs on this
machine's /usr/bin/python3. With commits, the probes of these run in turns with that of this checkout: which one made it dearer? The
budget is in tiers.yaml.
"""

import argparse
import io
import json
import os
import resource
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from bench.results import Row, collect
from gpunode.sim.host import hosts, kinds

ROOT = Path(__file__).parents[1]
PYTHON = ["/usr/bin/python3", "-I", "-S", "-c", "pass"]
HERE = "probe"  # this checkout's
# Run with a commit's sources in the path: the command that starts its agent, and what the agent reads.
DESCRIBE = """
import json
from gpunode.engine.chain import watch
from gpunode.host import bootstrap, wire
text = wire.encode(wire.probe_job(watch(None)))
print(json.dumps([bootstrap.command(sudo=False, password=False), text.decode("latin-1")]))
"""


def describe(sources: Path) -> tuple[list[str], bytes]:
    completed = subprocess.run(
        [sys.executable, "-c", DESCRIBE],
        env={**os.environ, "PYTHONPATH": str(sources)},
        cwd=sources,
        stdout=subprocess.PIPE,
        check=True,
    )
    command, text = json.loads(completed.stdout)
    return ["/bin/sh", "-c", command], text.encode("latin-1")


def processor(
    command: Sequence[str], env: Mapping[str, str], stdin: bytes = b"", expected: bytes = b""
) -> float:
    """Seconds, those of its own programs included. It has to print what is `expected`."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, input=stdin, env=env, capture_output=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert expected in done.stdout, done
    return sum(after[:2]) - sum(before[:2])


def measure(rounds: int, commits: Sequence[str] = ()) -> tuple[dict[str, list[float]], list[float]]:
    """Seconds of each round by what ran, and the machine's load before each."""
    with tempfile.TemporaryDirectory(prefix="bench-probe-") as temporary:
        folder = Path(temporary)
        programs = {HERE: describe(ROOT)}
        for commit in commits:
            archive = subprocess.run(["git", "archive", commit], cwd=ROOT, stdout=subprocess.PIPE, check=True)
            with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as files:
                files.extractall(folder / commit)
            programs[commit] = describe(folder / commit)
        hosts.lay_out(folder)
        state = hosts.create(folder, replace(kinds.new_host("gpu-0"), has=(kinds.driver("h100"),)))
        env = hosts.environment(state, state.machine())
        env["PATH"] += ":/usr/bin:/bin"
        seconds: dict[str, list[float]] = {name: [] for name in ("start Python", *programs)}
        load = []
        for _ in range(rounds):
            load.append(round(os.getloadavg()[0], 2))
            seconds["start Python"].append(round(processor(PYTHON, env), 4))
            for name, (command, stdin) in programs.items():
                seconds[name].append(round(processor(command, env, stdin, b'"errors": {}'), 4))
    return seconds, load


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.probe", description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", default=15, type=int)
    parser.add_argument("commits", nargs="*")
    options = parser.parse_args()
    seconds, load = measure(options.rounds, options.commits)
    results = collect([Row("gpunode", name, "s", rounds) for name, rounds in seconds.items()], load, {})
    print(
        f"{results.commit}, load {min(load)} to {max(load)}, {results.cores} cores; medians of {options.rounds}"
    )
    for row in results.rows:
        print(f"{row.what:12} {row.median:.3f} s ({min(row.rounds):.3f} – {max(row.rounds):.3f})")


if __name__ == "__main__":
    main()
