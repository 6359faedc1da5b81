"""A driver of the distribution's own archive, through real SSH and by the real agent, on a simulated host."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Literal

import pytest

from gpunode.model import Facts
from gpunode.sim.host import kinds
from tests.sim.fleets import Fleet, serving

HOST = "h100-1"


@pytest.fixture(scope="module")
def fleet(tmp_path_factory) -> Iterator[Fleet]:
    """A bare host with the archive's components."""
    with serving(tmp_path_factory.mktemp("fleet"), (kinds.new_host(HOST),)) as served:
        sources = served.states[HOST].root / "etc/apt/sources.list"
        sources.write_text(
            "deb http://deb.demo.example/debian bookworm main contrib non-free non-free-firmware\n"
        )
        yield served


def provisioned(fleet: Fleet, driver: str, whose: Literal["nvidia", "distribution"]) -> Facts:
    """What is there after a run, which has nothing left to do."""
    hosts = tuple(replace(host, driver=driver, driver_from=whose) for host in fleet.inventory.hosts)
    outcome = replace(fleet, inventory=replace(fleet.inventory, hosts=hosts)).provision(HOST)[HOST]
    assert outcome.facts is not None
    assert (outcome.status, outcome.problem) == ("changed", None)
    assert not outcome.plan
    assert outcome.facts.library_version == outcome.facts.modules["nvidia"].version
    return outcome.facts


def test_a_driver_goes_from_bare_to_nvidias_packages_and_back(fleet: Fleet):
    """Never both: of the other driver no package is left."""
    for _ in range(2):
        facts = provisioned(fleet, "auto", "distribution")
        assert facts.library_version == "535.261.03"
        assert facts.packages["nvidia-kernel-dkms"].held
        assert not {"nvidia-open", "nvidia-kernel-open-dkms", "nvidia-driver-pinning-595"} & set(
            facts.packages
        )
        facts = provisioned(fleet, "595", "nvidia")
        assert facts.library_version == "595.91.07"
        assert "nvidia-kernel-dkms" not in facts.packages
        assert "nvidia-driver-pinning-595" in facts.packages
