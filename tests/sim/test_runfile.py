"""NVIDIA's own installer, through real SSH and by the real agent, on a simulated host: from bare, upgraded, and to packages."""

import hashlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from gpunode.model import InstallDriver, Outcome, RunFile
from gpunode.sim.host import kinds
from tests.sim.fleets import Fleet, serving

SCRIPT = '#!/bin/sh\nexec "$GPUNODE_SIM_PYTHON" -I "$GPUNODE_SIM_RUN" nvidia-installer {version} "$@"\n'


@pytest.fixture(scope="module")
def fleet(tmp_path_factory) -> Iterator[Fleet]:
    """A bare host, and one with nouveau."""
    machines = (kinds.new_host("h100-1"), kinds.nouveau_host("a100-1"))
    with serving(tmp_path_factory.mktemp("fleet"), machines) as served:
        yield served


def wishing(fleet: Fleet, driver: str, run: RunFile | None = None) -> Fleet:
    """The fleet with another driver in its inventory."""
    hosts = tuple(replace(host, driver=driver, driver_run=run) for host in fleet.inventory.hosts)
    return replace(fleet, inventory=replace(fleet.inventory, hosts=hosts))


def by_file(fleet: Fleet, folder: Path, version: str) -> dict[str, Outcome]:
    """Provisioned with an installer of this machine."""
    path = folder / f"NVIDIA-{version}.run"
    path.write_text(SCRIPT.format(version=version))
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return wishing(fleet, version, RunFile(version, digest, str(path))).provision()


def test_a_driver_goes_from_bare_by_upgrade_to_packages(fleet: Fleet, tmp_path):
    """Each time the GPUs answer with the driver that was asked for, and nothing is left to do."""
    for version in ("580.178.04", "595.91.07"):
        for name, outcome in by_file(fleet, tmp_path, version).items():
            assert (outcome.status, outcome.problem) == ("changed", None), name
            assert not outcome.plan
            assert outcome.facts.installed_run is not None
            assert (outcome.facts.library_version, outcome.facts.modules["nvidia"].version) == (
                version,
                version,
            )
            assert len(outcome.facts.gpus) == len(fleet.states[name].machine().gpus)
    for outcome in wishing(fleet, "580").provision("h100-1").values():
        assert (outcome.status, outcome.problem) == ("changed", None)
        assert not outcome.plan
        assert outcome.facts.installed_run is None
        assert "nvidia-open-580" in outcome.facts.packages
        assert (outcome.facts.modules["nvidia"].version or "").startswith("580.")


def test_a_file_of_another_checksum_is_sent_and_not_run(fleet: Fleet, tmp_path):
    """The host keeps the driver that it has."""
    path = tmp_path / "NVIDIA.run"
    path.write_text(SCRIPT.format(version="610.43.02"))
    wanted = wishing(fleet, "610.43.02", RunFile("610.43.02", "0" * 64, str(path)))
    outcome = wanted.provision("h100-1")["h100-1"]
    assert outcome.status == "failed"
    assert "SHA-256" in outcome.why
    assert not any(isinstance(change, InstallDriver) for change in outcome.applied)
