"""The driver that a host gets: from whom the inventory has it, or as the host can have it at all."""

from __future__ import annotations

from dataclasses import replace

from gpunode.errors import Refused
from gpunode.links.driver import archive, choose, mirror, signed
from gpunode.links.driver.origin import LEAVE
from gpunode.links.machine import kinds, pci
from gpunode.model import DriverSpec, Facts, Host
from gpunode.packages import PackageSystem

WAYS = (signed, mirror, archive, choose)  # the first that applies decides


def decide(host: Host, facts: Facts, system: PackageSystem) -> DriverSpec:
    """The driver for the host's GPUs. Raises Refused where it can have none."""
    gpus = pci.driven(facts.pci)
    kinds.check_driver(host, facts, gpus)
    way = next(way for way in WAYS if way.applies(host, facts, system))
    return _with_subnet(host, facts, system, way.decide(host, facts, system, gpus))


def _with_subnet(host: Host, facts: Facts, system: PackageSystem, wish: DriverSpec) -> DriverSpec:
    """With what NVSwitches of NVLink 5 need beside the fabric manager. Raises Refused where no package is known."""
    if not pci.managers(facts.pci):
        return wish
    subnet = () if wish.archive else system.NAMES.subnet
    if not subnet:
        whose = "the distribution's archive has" if wish.archive else f"gpunode knows with {system.NAME}"
        raise Refused(
            host.name,
            f"{whose} no nvlsm, without which the NVSwitches of NVLink 5 join no GPUs",
            hint=f"Write `driver: auto` to have NVIDIA's packages, {LEAVE}"
            if wish.archive
            else f"Install driver, fabric manager and nvlsm by hand, {LEAVE}",
            layer="module",
        )
    return replace(wish, subnet=subnet)
