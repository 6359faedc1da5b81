"""The timer behind a restart: an apply that is killed before it saw the unit stay up leaves a host that mends itself."""

from __future__ import annotations

import functools
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gpunode import inventory, reach, wire
from gpunode.model import Service, WriteFile
from gpunode.ssh import Dialer

from .api import Lab, Node

pytestmark = pytest.mark.lab
SETTLE = 60  # seconds that a unit would have to stay up: none here does, and nobody gives up before
RESTORE = 20


@dataclass(frozen=True)
class Case:
    """A unit, its file, and what somebody could write into it that its program does not start with."""

    host: str
    unit: str
    path: str

    def broken(self, before: str) -> str:
        if self.unit == "docker.service":  # which is started with -H: both together are refused
            return json.dumps({**json.loads(before), "hosts": ["unix:///run/other.sock"]})
        return before.replace('EXTRA_ARGS="', 'EXTRA_ARGS="--no-such-flag ').replace(
            "EXTRA_ARGS=-", "EXTRA_ARGS=--no-such-flag -"
        )


CASES = (
    Case("legacy", "docker.service", "/etc/docker/daemon.json"),
    Case("legacy", "kubelet.service", "/etc/default/kubelet"),
    Case("modern", "kubelet.service", "/etc/default/kubelet"),
)


@contextmanager
def applied(lab: Lab, node: Node, job: dict[str, Any]) -> Iterator[list[dict[str, Any]]]:
    """The agent at work on a job while the block runs; its messages are there when it has ended."""
    host = next(host for host in inventory.load(lab.inventory).hosts if host.name == node.name)
    dialer = Dialer(Path("/dev/null"))
    connection = dialer.connect(host)
    heard: list[dict[str, Any]] = []
    listener = threading.Thread(target=lambda: heard.extend(reach.talk(host, connection, job)))
    listener.start()
    try:
        yield heard
    finally:
        listener.join(120)
        connection.close()
        dialer.close()


def active(node: Node, unit: str) -> bool:
    return node.exec(["systemctl", "is-active", unit], check=False).stdout.strip() == "active"


@pytest.fixture(scope="module")
def bare(lab: Lab) -> Callable[[str], Node]:
    """A host by name; bare when it is first asked for."""

    @functools.cache
    def node(name: str) -> Node:
        found = lab.node(name)
        found.reset()
        return found

    return node


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.host}-{case.unit}")
def test_a_killed_apply_is_undone_by_its_timer(lab: Lab, bare: Callable[[str], Node], case: Case) -> None:
    """The unit crashes on the new file, the agent dies: systemd's timer puts file and unit back as they were."""
    node = bare(case.host)
    if case.host == "modern":  # whose kubelet does not start as its owner left it
        node.write(case.path, node.read(case.path).replace("--feature-gates=DevicePlugins=true", "--v=2"))
        node.exec(["systemctl", "restart", case.unit])
    node.wait_until(f"{case.unit} to run", ["systemctl", "is-active", case.unit])
    before = node.read(case.path)
    broken = case.broken(before)
    assert broken != before
    run = f"killed-{case.unit.partition('.')[0]}"
    changes = (
        WriteFile(case.path, broken, "a mistake", before=before),
        Service(case.unit, "it reads that at its start", restart=True, guards=(case.path,)),
    )
    job = {**wire.apply_job(run, "test@lab", changes, None), "settle": SETTLE, "restore": RESTORE}
    endless = f"/run/systemd/system/{case.unit}.d/endless.conf"  # else systemd itself ends docker's tries
    node.exec(
        [
            "sh",
            "-c",
            f"mkdir -p $(dirname {endless}); printf '[Unit]\\nStartLimitIntervalSec=0\\n' > {endless}",
        ]
    )

    with applied(lab, node, job) as heard:
        node.wait_until(f"{case.unit} to crash", ["sh", "-c", f"! systemctl is-active {case.unit}"])
        node.wait_until("its timer", ["systemctl", "is-active", f"gpunode-restore-{run}.timer"])
        node.exec(["systemctl", "kill", "--signal=KILL", f"gpunode-{run}.service"])
        assert node.read(case.path) == broken

    assert heard[-2]["code"] == "interrupted"
    node.wait_until(
        "its file to be put back", ["sh", "-c", f"! grep -q -e no-such-flag -e other.sock {case.path}"]
    )
    assert node.read(case.path) == before
    node.wait_until(f"{case.unit} to run again", ["systemctl", "is-active", case.unit])
    node.wait_ready()
    node.wait_until("nothing to be left of the apply", ["sh", "-c", f"! test -e /run/gpunode/{run}"])
