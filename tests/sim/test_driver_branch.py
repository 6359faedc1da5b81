"""A driver branch takes the place of another on simulated hosts, as on real ones."""

from dataclasses import replace

import pytest

from gpunode.sim.host import kinds
from gpunode.sim.host.machine import Machine
from tests.sim.fleets import serving


@pytest.mark.parametrize(
    "machine", [kinds.new_host("debian"), kinds.old_host("ubuntu", "t4")], ids=lambda entry: entry.name
)
def test_another_branch_takes_the_place_of_the_one_that_is_there(tmp_path, machine: Machine):
    """From 595, which fits by itself, back and forth: packages, pin and module follow, and nothing is left to do."""
    with serving(tmp_path, [machine]) as fleet:
        assert fleet.provision()[machine.name].status == "changed"
        (host,) = fleet.inventory.hosts
        for branch in ("580", "590", "610", "595"):
            hosts = (replace(host, driver=branch),)
            outcome = replace(fleet, inventory=replace(fleet.inventory, hosts=hosts)).provision()[host.name]
            assert (outcome.status, outcome.problem, bool(outcome.plan)) == ("changed", None, False)
            assert (outcome.facts.modules["nvidia"].version or "").startswith(f"{branch}.")
            assert len(outcome.facts.gpus) == len(machine.gpus)
