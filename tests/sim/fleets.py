"""Simulated hosts for tests: made in a folder, served by this process, worked on as the command line does."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from gpunode import inventory
from gpunode.engine import converge, fleet
from gpunode.engine.fleet import Visit
from gpunode.engine.session import Dialer
from gpunode.host import ssh, wire
from gpunode.model import Event, Host, Inventory, OnEvent, Outcome
from gpunode.sim import folder, process
from gpunode.sim.host import hosts, sshd
from gpunode.sim.host.machine import Machine
from gpunode.sim.host.state import State

SETTLE = 0.4  # seconds that a restarted unit must stay up here


@dataclass(frozen=True)
class Fleet:
    """Hosts that are served, and the inventory that names them."""

    inventory: Inventory
    states: dict[str, State]
    server: sshd.Server
    dialer: Dialer

    def hosts(self, *names: str) -> list[Host]:
        """These hosts, or all."""
        return [host for host in self.inventory.hosts if not names or host.name in names]

    def each(
        self, story: Callable[[Visit, OnEvent], Outcome], *names: str, emit: OnEvent | None = None
    ) -> dict[str, Outcome]:
        """A story of every host at once, each in a visit of its own."""

        def told(host: Host, _: OnEvent) -> Outcome:
            visit = Visit(host, self.dialer.connect, self.inventory.cluster.plugin)
            try:
                return story(visit, emit or _nobody)
            finally:
                visit.close()

        items = fleet.run(self.hosts(*names), told, forks=64)
        return {item.host: item for item in items if isinstance(item, Outcome)}

    def look(self, *names: str) -> dict[str, Outcome]:
        """Probe and plan."""
        return self.each(converge.probe_and_plan, *names)

    def provision(self, *names: str, emit: OnEvent | None = None) -> dict[str, Outcome]:
        """Rounds of plan and apply, as many as the command line makes."""
        return self.each(_provisioned, *names, emit=emit)


def _nobody(_: Event) -> None:
    pass


def _provisioned(visit: Visit, emit: OnEvent) -> Outcome:
    outcome = converge.probe_and_plan(visit, emit)
    for _ in range(converge.ROUNDS):
        if not outcome.plan or outcome.status not in ("planned", "changed"):
            break
        outcome = converge.apply(visit, outcome, emit)
    return outcome


@contextlib.contextmanager
def serving(
    demo: Path, machines: Sequence[Machine], dials: Callable[[Path], Dialer] = ssh.Dialer
) -> Iterator[Fleet]:
    """Make the machines and serve them until the block ends; then nothing of them runs."""
    hosts.lay_out(demo)
    states = {machine.name: hosts.create(demo, machine) for machine in machines}
    folder.write_groups(demo, folder.group_by_kind(machines))
    key, text = sshd.new_key()
    sshd.write_key(demo / "id_ed25519", text)
    (demo / "kubeconfig").write_text("{}")
    served = sshd.Server(states.values(), key)
    (demo / "known_hosts").write_text(served.known_hosts())
    folder.write_files(demo, {name: served.port(name) for name in states})
    dialer = dials(Path("/dev/null"))
    ask = wire.apply_job

    def soon(*arguments: Any) -> dict[str, Any]:
        return {**ask(*arguments), "settle": SETTLE}

    try:
        with mock.patch("gpunode.host.wire.apply_job", soon):
            yield Fleet(inventory.load(demo / "inventory.yaml"), states, served, dialer)
    finally:
        dialer.close()
        served.close()
        for state in states.values():
            process.end_apply(state.root)
