"""Package sources: set up, and refreshed before an installation."""

from __future__ import annotations

from gpunode import packages
from gpunode.links.driver import plan as driver
from gpunode.links.toolkit import plan as toolkit
from gpunode.model import Change, Desired, Facts, Packages, Watch

WATCH = Watch(
    files=tuple(path for system in packages.SYSTEMS.values() for path in system.WATCH.files),
    packages=tuple(pattern for system in packages.SYSTEMS.values() for pattern in system.WATCH.packages),
)


def plan(facts: Facts, desired: Desired) -> tuple[Change, ...]:
    """The sources' own changes, then a refresh by the package system, and what it needs to go on."""
    system = packages.system_of_host(facts)
    if system is None:
        return ()
    changes, tools = system.plan_sources(facts, desired), system.plan_tools(facts, desired)
    if changes or tools or driver.missing(facts, desired) or toolkit.missing(facts, desired):
        return (
            *changes,
            Packages(f"{system.NAME} must know what its sources hold now", refresh=True, fault=""),
            *tools,
        )
    return ()
