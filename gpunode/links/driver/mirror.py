"""The driver in NVIDIA's packages out of a repository that the distribution keeps: Amazon Linux 2023's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gpunode.errors import Refused
from gpunode.links.driver import choose as driver
from gpunode.links.driver.branches import branches
from gpunode.links.driver.origin import LEAVE
from gpunode.model import DriverSpec, Facts, Host, PciDevice
from gpunode.packages import PackageSystem, repositories
from gpunode.planning.versions import is_installed


def applies(host: Host, facts: Facts, system: PackageSystem) -> bool:
    """Whether the host gets its driver so: asked for, or its repository is there and no other is named."""
    found = repositories.mirror(facts.os)
    if found is None or host.driver_run is not None or host.driver_from == "nvidia":
        return False
    only = host.driver_repository is None and not system.offers(facts, "driver")
    return host.driver_from == "distribution" or (only and found.package in facts.packages)


def decide(host: Host, facts: Facts, system: PackageSystem, gpus: Sequence[PciDevice]) -> DriverSpec:
    """That driver. Raises Refused where the repository does not have it, or dnf would take NVIDIA's own in its place."""
    found = repositories.mirror(facts.os)
    assert found is not None
    wish = driver.decide(host, facts, system, gpus)
    there = all(is_installed(facts.packages, spec) for spec in wish.packages)
    if branches()[wish.branch].status == "new" and not there:
        raise Refused(
            host.name,
            f"{found.repository} has production and long-term branches only, and {wish.branch} is a new one",
            hint=f"Take NVIDIA's own repository: `driver: {{from: nvidia, version: {wish.branch}}}`, {LEAVE}",
            layer="module",
        )
    others = system.driver_sources(facts)
    if others and not there:
        raise Refused(
            host.name,
            f"{others[0]} has NVIDIA's own repository, whose module streams hide the packages of {found.repository}",
            hint=f"Remove that file, or take the driver from it: `driver: {{from: nvidia, version: {wish.branch}}}`.",
            layer="module",
        )
    return replace(wish, why=f"{wish.why}, from {found.repository}", brings=found.package)
