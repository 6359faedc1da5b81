"""`toolkit: nvidia-docker2` on simulated hosts, as on real ones."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gpunode.sim.host import kinds
from gpunode.sim.host.machine import Machine
from tests.sim.fleets import serving

MACHINES = (kinds.old("docker"), kinds.new("containerd"), kinds.rpm("rocky"))


@pytest.mark.parametrize("machine", MACHINES, ids=lambda one: one.name)
def test_nvidia_docker2_comes_with_the_toolkit_and_goes_without_the_wish(
    tmp_path: Path, machine: Machine
) -> None:
    """From bare, in its last version; without the wish it is removed and the toolkit stays."""
    with serving(tmp_path, [machine]) as fleet:
        (host,) = fleet.inventory.hosts
        for toolkit, expected in (("nvidia-docker2", "2.14.0-1"), ("auto", None)):
            hosts = (replace(host, toolkit=toolkit),)
            outcome = replace(fleet, inventory=replace(fleet.inventory, hosts=hosts)).provision()[host.name]
            assert (outcome.status, outcome.error, bool(outcome.plan)) == ("changed", None, False)
            assert outcome.facts is not None
            installed = outcome.facts.packages.get("nvidia-docker2")
            assert (installed and installed.version) == expected
            assert "nvidia-container-toolkit" in outcome.facts.packages
            assert len(outcome.facts.gpus) == len(machine.gpus)
