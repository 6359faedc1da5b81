"""gpunode beside pyinfra and Ansible: `python -m bench.peers --help`. Prints a table, and keeps every round in bench/results/.

All read the same (readings.yaml) of the same hosts (hosts.py), by OpenSSH's server on loopback, and write the same file:

- `apply`: the file is missing; `no change`: it is there. Each is checked, and a run that fails ends the benchmark.
- pyinfra and Ansible (versions: requirements.txt) read fact by fact, item by item, as people write it; `joined`, all readings in one command,
  whose output somebody would have to take apart. Ansible has forks for all hosts, pipelining, no facts, and ssh the key exchange that is
  cheap for it. gpunode reads more than they do.
- `floor` connects and starts Python; `probe` connects and runs gpunode's probe, and nothing reads its answer.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import venv
from collections.abc import Callable, Sequence
from dataclasses import astuple
from pathlib import Path

import yaml

from bench.peers import hosts, measure
from bench.peers.hosts import Fleet
from bench.peers.measure import Cost
from bench.peers.table import MEMORY, PROCESSOR, WALL, goals, table
from bench.results import Row, collect
from gpunode.engine.chain import watch
from gpunode.host import bootstrap, wire

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
VENV = ROOT / "build/peers"
READINGS = [reading["command"] for reading in yaml.safe_load((HERE / "readings.yaml").read_text())]
GPUNODE = [sys.executable, "-m", "gpunode"]
FLOOR = [sys.executable, HERE / "floor.py"]
Contender = Callable[[Fleet, int, int], Cost]  # hosts, milliseconds of a round trip


def install() -> dict[str, str]:
    """The peers in an environment of their own, unless it is there; their versions."""
    pins = (HERE / "requirements.txt").read_text()
    if not (VENV / "pins").exists() or (VENV / "pins").read_text() != pins:
        venv.create(VENV, clear=True, with_pip=True)
        pip = [VENV / "bin/pip", "--quiet", "--disable-pip-version-check", "install", "--no-deps"]
        subprocess.run([*pip, "-r", HERE / "requirements.txt"], check=True)
        (VENV / "pins").write_text(pins)
    pinned = dict(line.split("==") for line in pins.splitlines() if "==" in line)
    return {name: pinned[name] for name in ("pyinfra", "ansible-core")}


def environment(fleet: Fleet, **more: str) -> dict[str, str]:
    """Compiled modules are kept, as where the program was installed; nothing of the user's is read."""
    home = {"HOME": str(fleet.folder), "XDG_STATE_HOME": str(fleet.folder / "state"), "LANG": "C.UTF-8"}
    return {"PATH": f"{VENV}/bin:{os.environ['PATH']}", "PYTHONPATH": str(ROOT), **home, **more}


def gpunode(fleet: Fleet, count: int, delay: int) -> Cost:
    command = [*GPUNODE, "provision", "--yes", fleet.inventory(count, delay)]
    return measure.run(command, environment(fleet))


def least(command: str, stdin: bytes) -> Contender:
    def run(fleet: Fleet, count: int, delay: int) -> Cost:
        every = ",".join(map(fleet.address, range(count)))
        words = [every, str(fleet.ports[delay]), fleet.folder / "user", fleet.folder / "known_hosts", command]
        return measure.run([*FLOOR, *words], environment(fleet), stdin)

    return run


def pyinfra(readings: Sequence[str]) -> Contender:
    def run(fleet: Fleet, count: int, delay: int) -> Cost:
        ssh = {
            "ssh_user": "root",
            "ssh_port": fleet.ports[delay],
            "ssh_key": str(fleet.folder / "user"),
            "ssh_known_hosts_file": str(fleet.folder / "known_hosts"),
            "ssh_strict_host_key_checking": "yes",
            "readings": list(readings),
            "content": fleet.content,
        }
        named = [(fleet.address(n), {**ssh, "path": str(fleet.file(n))}) for n in range(count)]
        inventory = fleet.folder / "pyinfra_inventory.py"
        inventory.write_text(f"gpus = {named!r}\n")
        command = [VENV / "bin/pyinfra", "-y", "--parallel", str(count), inventory, HERE / "deploy.py"]
        return measure.run(command, environment(fleet))

    return run


def ansible(readings: Sequence[str]) -> Contender:
    def run(fleet: Fleet, count: int, delay: int) -> Cost:
        folder = fleet.folder
        ssh = {
            "ansible_user": "root",
            "ansible_port": fleet.ports[delay],
            "ansible_ssh_private_key_file": str(folder / "user"),
            "ansible_python_interpreter": "/usr/bin/python3",
            "readings": list(readings),
            "content": fleet.content,
        }
        named = {fleet.address(n): {"path": str(fleet.file(n))} for n in range(count)}
        (folder / "ansible.yaml").write_text(json.dumps({"all": {"hosts": named, "vars": ssh}}))
        settings = {
            "ANSIBLE_FORKS": str(count),
            "ANSIBLE_PIPELINING": "True",
            "ANSIBLE_STRATEGY": "free",
            "ANSIBLE_SSH_ARGS": f"-o ControlMaster=auto -o ControlPersist=60s -o KexAlgorithms=curve25519-sha256 -o UserKnownHostsFile={folder}/known_hosts",
            "ANSIBLE_LOCALHOST_WARNING": "False",
        }
        command = [VENV / "bin/ansible-playbook", "-i", folder / "ansible.yaml", HERE / "playbook.yaml"]
        return measure.run(command, environment(fleet, **settings))

    return run


def contenders() -> dict[str, Contender]:
    joined = ["; ".join(f"({command})" for command in READINGS)]
    probe = wire.encode(wire.probe_job(watch(None)))
    return {
        "floor": least("/usr/bin/python3 -I -S -c pass", b""),
        "probe": least(bootstrap.command(sudo=False, password=False), probe),
        "gpunode": gpunode,
        "pyinfra": pyinfra(READINGS),
        "pyinfra joined": pyinfra(joined),
        "ansible": ansible(READINGS),
        "ansible joined": ansible(joined),
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.peers", description=__doc__.splitlines()[0])
    numbers = {"type": lambda text: [int(word) for word in text.split(",")], "metavar": "N,N"}
    parser.add_argument("--hosts", default=[1, 10, 50], **numbers)  # type: ignore[arg-type]
    parser.add_argument("--delays", default=[0, 50, 200], help="milliseconds", **numbers)  # type: ignore[arg-type]
    parser.add_argument("--rounds", default=3, type=int)
    parser.add_argument("--only", default="", metavar="NAME,NAME", help="contenders")
    parser.add_argument("--save", default="peers", help="the name in bench/results")
    options = parser.parse_args()
    versions = install()
    measure.adopt_orphans()
    chosen = {
        name: run for name, run in contenders().items() if not options.only or name in options.only.split(",")
    }
    figures: dict[tuple[str, str], dict[str, list[float]]] = {}
    load = []
    with tempfile.TemporaryDirectory(prefix="bench-peers-") as folder:
        delays = [delay for delay in options.delays if delay]
        with hosts.serve(Path(folder), max(options.hosts), delays, GPUNODE) as fleet:
            for _ in range(options.rounds):
                for count in options.hosts:
                    for delay in options.delays:
                        load.append(round(os.getloadavg()[0], 2))
                        for name, run in chosen.items():
                            for act in ("apply", "no change"):
                                if act == "apply" and name in ("floor", "probe"):
                                    continue  # they have no file to write
                                cost = measured(fleet, run, count, delay, act)
                                place = f"{act}, {count} host{'s' * (count > 1)}, {delay} ms"
                                values = figures.setdefault((name, place), {})
                                for what, value in zip((WALL, PROCESSOR, MEMORY), astuple(cost), strict=True):
                                    values.setdefault(what, []).append(round(value, 3))
                                print(f"{name:15} {place:30} {cost}", file=sys.stderr, flush=True)
    rows = [
        Row(who, f"{place}, {what.partition(', ')[0]}", what.partition(", ")[2], rounds)
        for (who, place), values in figures.items()
        for what, rounds in values.items()
    ]
    print(f"{options.rounds} rounds, load {min(load)} to {max(load)}, {os.cpu_count()} cores, {versions}\n")
    print("\n".join([*table(figures), "", *goals(figures)]))
    print(f"\n{collect(rows, load, versions).save(options.save)}")


def measured(fleet: Fleet, run: Contender, count: int, delay: int, act: str) -> Cost:
    if act == "apply":
        fleet.remove_file(count)
    cost = run(fleet, count, delay)
    fleet.check_file(count)
    return cost


if __name__ == "__main__":
    main()
