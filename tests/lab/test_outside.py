"""Restarts that take a host from its network, while nothing on the host fails: it comes back by itself."""

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from gpunode import inventory
from gpunode.engine import converge
from gpunode.engine.fleet import Visit
from gpunode.host.ssh import Dialer
from gpunode.model import Change, Event, Outcome, Plan, Service, StepPlan, WriteFile

from .api import Lab, Node
from .progress import wait

pytestmark = pytest.mark.lab
DAEMON, KUBELET = "/etc/docker/daemon.json", "/etc/default/kubelet"
SECONDS = 20.0  # until a host puts back what nobody could confirm; 120 for users
API = "exec 3<>/dev/tcp/%s/6443"


@dataclass
class Applied:
    """An apply, made as `provision` makes it, and how it ended."""

    events: list[str] = field(default_factory=list)
    outcome: Outcome | None = None


@contextmanager
def applied(lab: Lab, node: Node, *changes: Change) -> Iterator[Applied]:
    """It runs while the block does, and has ended after it."""
    host = next(host for host in inventory.load(lab.inventory).hosts if host.name == node.name)
    dialer = Dialer(Path("/dev/null"))
    visit, result = Visit(host, dialer.connect, None), Applied()

    def emit(event: Event) -> None:
        result.events.append(event.message)

    def work() -> None:
        seen = converge.probe_and_plan(visit, emit)
        plan = Plan(host.name, (StepPlan("test", changes),))
        result.outcome = converge.apply(visit, Outcome(host.name, "planned", seen.facts, plan=plan), emit)

    worker = threading.Thread(target=work)
    worker.start()
    try:
        yield result
    finally:
        worker.join(300)
        visit.close()
        dialer.close()


def reached(node: Node) -> bool:
    """Whether a connection to its sshd can be opened."""
    with suppress(OSError), socket.create_connection((node.address, node.port), 2) as connection:
        connection.settimeout(2)
        return connection.recv(4) == b"SSH-"
    return False


def api_reached(lab: Lab, node: Node) -> bool:
    words = ["timeout", "2", "bash", "-c", API % lab.node("control-plane").address]
    return node.exec(words, check=False).returncode == 0


def comes_back(lab: Lab, node: Node, unit: str, path: str, before: str, change: str) -> list[str]:
    """The change cuts the host off, from the operator and from its API server, and is undone without either; what was told meanwhile."""
    changes = (
        WriteFile(path, change, "a mistake", before=before),
        Service(unit, "it reads that at its start", restart=True, guards=(path,)),
    )
    with applied(lab, node, *changes) as ran:
        wait(f"{node.name} to be cut off", lambda: not reached(node) and not api_reached(lab, node), 60)
        assert node.exec(["systemctl", "is-active", unit]).stdout == "active\n"
        assert node.read(path) == change
        wait(f"{node.name} to come back", lambda: reached(node) and api_reached(lab, node), SECONDS + 60)
    assert node.read(path) == before
    node.wait_ready()
    node.exec(
        ["sh", "-c", "! ls /etc/systemd/system/gpunode-restore.service /var/lib/gpunode/runs/*/guard.json"]
    )
    assert ran.outcome.status == "failed"
    assert f"{unit} works, but for {SECONDS:.0f} seconds gpunode could not connect" in (ran.outcome.why or "")
    assert f"Restored: {path}" in (ran.outcome.why or "")
    return ran.events


@pytest.fixture(autouse=True)
def soon(monkeypatch) -> None:
    monkeypatch.setattr(converge, "CONFIRM_SECONDS", SECONDS)


def test_a_docker_bridge_that_takes_the_hosts_own_network_is_undone(lab: Lab):
    """docker runs well on 172.29.N.1/25: that is now the bridge's address, and the operator's and the API server's no more."""
    node = lab.node("legacy")
    node.reset()
    owners = {**json.loads(node.read(DAEMON)), "bip": "172.17.0.1/16"}
    node.write(DAEMON, json.dumps(owners))
    node.exec(["systemctl", "restart", "docker.service"])
    node.wait_ready()
    mistaken = node.address.rpartition(".")[0] + ".1/25"
    comes_back(
        lab, node, "docker.service", DAEMON, json.dumps(owners), json.dumps({**owners, "bip": mistaken})
    )
    assert "172.17.0.1/16" in node.exec(["ip", "-4", "addr", "show", "docker0"]).stdout


HOOK = """\
[Service]
ExecStartPre=-/sbin/iptables -N UPLINK
ExecStartPre=/sbin/iptables -F UPLINK
ExecStartPre=/bin/sh -c 'for chain in INPUT OUTPUT; do iptables -C $chain -j UPLINK || iptables -I $chain -j UPLINK; done'
ExecStartPre=/bin/sh -c 'for port in $CLOSED; do iptables -A UPLINK -p tcp --dport $port -m state --state NEW -j DROP; done'
"""
DROP_IN = "/etc/systemd/system/kubelet.service.d/50-uplink.conf"


def test_a_firewall_that_spares_what_is_connected_is_undone(lab: Lab):
    """The owner's hook closes ports as its file says, for new connections: the apply's own works on, and proves nothing."""
    node = lab.node("modern")
    node.reset()
    before = node.read(KUBELET).replace(
        "--feature-gates=DevicePlugins=true ", ""
    )  # which keeps it from starting
    node.write(KUBELET, before)
    node.exec(
        ["sh", "-c", f"mkdir -p {Path(DROP_IN).parent} && cat > {DROP_IN} && systemctl daemon-reload"],
        input=HOOK,
    )
    node.exec(["systemctl", "restart", "kubelet"])
    node.wait_ready()
    events = comes_back(lab, node, "kubelet.service", KUBELET, before, f'{before}CLOSED="22 6443"\n')
    assert "confirm kubelet.service over a new connection" in events
    assert not any("connection lost" in event for event in events)
    node.reset()
