"""What tests use: the running lab, its hosts, and the ways to break them.

lab = load()
lab.node("modern").reset()
with faults.address_silent(lab.node("legacy")): ...
"""

import json
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import cluster, nodes, slot
from .builds import CHECKOUT
from .docker import DOCKER, docker
from .gpu import control
from .hosts import host
from .progress import LabError, wait
from .slot import Slot


@dataclass(frozen=True, slots=True)
class Node:
    """One host. `address`, `port`, `user`, `key` and `known_hosts` are what SSH needs."""

    name: str
    address: str
    port: int
    user: str
    key: Path
    known_hosts: Path
    slot: Slot

    def exec(
        self, argv: Sequence[str], *, input: str | None = None, check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        """Run a command as root in the host, past SSH: for tests that look or break things."""
        words = [
            DOCKER,
            "-H",
            self.slot.docker_host,
            "exec",
            *(["-i"] if input is not None else []),
            self.name,
            *argv,
        ]
        done = subprocess.run(words, input=input, capture_output=True, text=True, check=False)
        if check and done.returncode:
            raise LabError(
                f"{self.name}: {' '.join(argv)[:200]} ended with {done.returncode}: {done.stdout}{done.stderr}"
            )
        return done

    def read(self, path: str) -> str:
        return self.exec(["cat", path]).stdout

    def write(self, path: str, text: str) -> None:
        """Replace a file's content, keeping its owner and mode."""
        self.exec(["sh", "-c", 'cat > "$1"', "sh", path], input=text)

    def reset(self) -> None:
        """Make the host bare again; its address and keys stay, its Node object goes."""
        nodes.reset(self.slot, host(self.name))

    def reboot(self) -> None:
        """Reboot, and wait until sshd answers again."""
        before = docker(self.slot, "inspect", "-f", "{{.State.StartedAt}}", self.name)
        self.exec(["systemctl", "reboot"], check=False)
        wait(
            f"the reboot of {self.name}",
            lambda: docker(self.slot, "inspect", "-f", "{{.State.StartedAt}}", self.name) != before,
        )
        self.wait_for_ssh()

    def wait_for_ssh(self) -> None:
        wait(f"sshd on {self.name}", lambda: nodes.answers_ssh(self.slot, host(self.name)), 60)

    @property
    def gpus(self) -> "Gpus":
        """Faults of the host's GPUs."""
        return Gpus(self)

    def is_ready(self) -> bool:
        """Whether the cluster has this host as a Ready node."""
        return cluster.node_ready(self.slot, self.name)

    def wait_ready(self, timeout: float = 90) -> None:
        wait(f"{self.name} to be Ready", self.is_ready, timeout)

    def wait_until(self, what: str, command: Sequence[str], timeout: float = 60) -> None:
        """Wait until the command succeeds in the host."""
        ready: Callable[[], bool] = lambda: self.exec(command, check=False).returncode == 0  # noqa: E731
        wait(f"{what} on {self.name}", ready, timeout)


@dataclass(frozen=True, slots=True)
class Gpus:
    """The host's GPUs by number, in the order of the PCI bus; more faults are in gpu/control.py."""

    node: Node

    def xid(self, gpu: int, number: int) -> None:
        """The driver reports an Xid of the GPU."""
        self.node.exec(control.xid(gpu, number))

    def lose(self, gpu: int) -> None:
        """The GPU falls off the bus."""
        for command in control.lose(gpu):
            self.node.exec(command)

    def bring_back(self, gpu: int) -> None:
        """The GPU answers again."""
        for command in control.bring_back(gpu):
            self.node.exec(command)


@dataclass(frozen=True, slots=True)
class Lab:
    """The running lab. `table` is lab.json as it is."""

    table: dict[str, Any]
    slot: Slot

    @property
    def kubeconfig(self) -> Path:
        return Path(self.table["kubeconfig"])

    @property
    def inventory(self) -> Path:
        return Path(self.table["inventory"])

    def node(self, name: str) -> Node:
        entry = self.table["nodes"][name]
        return Node(
            name=name,
            address=entry["address"],
            port=entry["port"],
            user=entry["user"],
            key=Path(entry["key"]),
            known_hosts=Path(entry["known_hosts"]),
            slot=self.slot,
        )

    def request(self, method: str, path: str, body: Any = None) -> Any:
        """One call to the apiserver as its administrator."""
        return cluster.request(self.slot, method, path, body)

    def units(self, node: str, resource: str = "nvidia.com/gpu", which: str = "allocatable") -> int:
        """How many the node has."""
        return int(self.request("GET", f"/api/v1/nodes/{node}")["status"][which].get(resource, 0))


def load(number: int = 1) -> Lab:
    """Lab `number` of this checkout; LabError if it is not up."""
    out = slot.folder(CHECKOUT, number)
    mine = slot.find(out)
    if mine is None or not (out / "lab.json").exists():
        raise LabError(f"lab {number} is not up; run `make lab LABS={number}`")
    return Lab(json.loads((out / "lab.json").read_text()), mine)
