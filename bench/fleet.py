"""What a plan of many hosts costs the operator: `python -m bench.fleet --help`. Prints a table, and keeps it in bench/results/.

Each host answers with the facts of a bare simulated host, under its own names; no SSH is spoken. What connections cost is measured
by bench.peers.
"""

import argparse
import json
import os
import sys
import tempfile
import time
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from bench import probe
from bench.results import Row, collect
from gpunode.sim.folder import KEY, REPOSITORIES
from gpunode.sim.host import hosts, kinds

CHILD = "--answered-by"


class Answer:
    """A connection to a host, and its running command: the answer to a probe."""

    def __init__(self, name: str, facts: dict[str, Any]) -> None:
        names = {
            key: uuid.uuid5(uuid.NAMESPACE_DNS, name + key).hex for key in ("machine_id", "product_uuid")
        }
        self._facts = {**facts, **names, "hostname": name}
        self._nonce = ""

    def start(self, command: str, stdin: Iterable[bytes], heard: object = None) -> "Answer":
        text = b"".join(stdin)
        head, _, rest = text.partition(b"\n")
        self._nonce = json.loads(rest[int(head.split()[2]) :])["nonce"]
        return self

    def lines(self) -> Iterator[bytes]:
        yield f"@gpunode-begin {self._nonce}\n".encode()
        yield json.dumps({"type": "facts", "facts": self._facts}).encode() + b"\n"
        yield f"@gpunode-end {self._nonce}\n".encode()

    def end(self) -> tuple[int, str]:
        return 0, ""

    def close(self) -> None:
        pass


def plan(facts_file: str, arguments: list[str]) -> None:
    """`gpunode` with these arguments, whose hosts answer with the facts."""
    from gpunode import __main__ as gpunode
    from gpunode.host import ssh

    facts = json.loads(Path(facts_file).read_text())
    ssh.Dialer.connect = lambda _, host: Answer(host.name, facts)  # type: ignore[method-assign, assignment]
    sys.argv = ["gpunode", *arguments]
    gpunode.main()


def read_facts(folder: Path) -> dict[str, Any]:
    """Of a bare simulated host."""
    hosts.lay_out(folder)
    state = hosts.create(folder, kinds.new_host("gpu-0"))
    env = hosts.environment(state, state.machine())
    env["PATH"] += ":/usr/bin:/bin"
    command, stdin = probe.describe(probe.ROOT)
    answer = probe.subprocess.run(command, input=stdin, env=env, capture_output=True, check=True).stdout
    line = next(line for line in answer.splitlines() if line.startswith(b'{"type": "facts"'))
    return dict(json.loads(line)["facts"])


def measure(count: int, folder: Path, options: list[str]) -> tuple[float, float, float]:
    """Wall and processor seconds, and MiB of memory when it was highest."""
    inventory = folder / f"inventory-{count}.yaml"
    named = [f"gpu-{number:04}" for number in range(count)]
    defaults = {"repositories": REPOSITORIES}
    inventory.write_text(json.dumps({"defaults": defaults, "groups": {"gpu": {"hosts": named}}}))
    command = [
        sys.executable,
        "-m",
        "bench.fleet",
        CHILD,
        str(folder / "facts.json"),
        "plan",
        *options,
        str(inventory),
    ]
    began = time.monotonic()
    with (folder / "output").open("w") as output:
        child = os.posix_spawn(
            sys.executable,
            command,
            {**os.environ, "HOME": str(folder)},
            file_actions=[
                (os.POSIX_SPAWN_DUP2, output.fileno(), 1),
                (os.POSIX_SPAWN_DUP2, output.fileno(), 2),
            ],
        )
        _, status, usage = os.wait4(child, 0)
    wall = time.monotonic() - began
    assert os.waitstatus_to_exitcode(status) == 0, (folder / "output").read_text()[-3000:]
    return wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.fleet", description=__doc__.splitlines()[0])
    parser.add_argument("--hosts", default="100,300,1000", metavar="N,N")
    parser.add_argument("--rounds", default=1, type=int)
    parser.add_argument("--json", action="store_true", help="plan with --json")
    options = parser.parse_args()
    rows, load = [], []
    print(f"{'hosts':>6} {'wall':>8} {'processor':>10} {'memory':>9}")
    with tempfile.TemporaryDirectory(prefix="bench-fleet-") as name:
        folder = Path(name)
        (folder / "packages.asc").write_text(KEY)
        (folder / "facts.json").write_text(json.dumps(read_facts(folder)))
        for count in map(int, options.hosts.split(",")):
            rounds = []
            for _ in range(options.rounds):
                load.append(round(os.getloadavg()[0], 2))
                rounds.append(measure(count, folder, ["--json"] if options.json else []))
            wall, processor, memory = ([round(each[at], 2) for each in rounds] for at in range(3))
            rows += [
                Row("gpunode", f"plan, {count} hosts, wall", "s", wall),
                Row("gpunode", f"plan, {count} hosts, processor", "s", processor),
                Row("gpunode", f"plan, {count} hosts, memory", "MiB", memory),
            ]
            print(f"{count:6} {min(wall):6.1f} s {min(processor):8.1f} s {max(memory):5.0f} MiB", flush=True)
    print(f"\n{collect(rows, load, {}).save('fleet')}")


if __name__ == "__main__":
    if sys.argv[1:2] == [CHILD]:
        plan(sys.argv[2], sys.argv[3:])
    else:
        main()
