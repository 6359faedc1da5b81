"""The driver that a host gets: from whom the inventory has it, or as the host can have it at all; which GPUs get none."""

from collections.abc import Sequence
from dataclasses import replace

from gpunode.errors import CannotPlan
from gpunode.links.driver import archive, choose, signed
from gpunode.links.driver.branches import branches
from gpunode.links.driver.origin import LEAVE
from gpunode.links.driver.plan import CONTAINER, DGX
from gpunode.links.machine import pci
from gpunode.model import DriverSpec, Facts, Host, PciDevice
from gpunode.packages import repositories
from gpunode.packages.names import PackageSystem
from gpunode.planning import files
from gpunode.planning.versions import is_installed
from gpunode.wording import page


def decide(host: Host, facts: Facts, system: PackageSystem) -> DriverSpec:
    """The driver for the host's GPUs. Raises CannotPlan where it can have none."""
    gpus = pci.driven(facts.pci)
    _check(facts, gpus)
    models = list({device.device: pci.gpu(device.device) for device in gpus}.values())
    if unknown := [model.name for model in models if not model.flavours]:
        raise CannotPlan(
            f"{', '.join(unknown)}: not in gpunode's tables, so no driver can be chosen for it",
            hint="Use a newer gpunode, or install a driver by hand and set `driver: none`.",
        )
    if signed.applies(host, facts, system):
        spec = signed.decide(host, facts, system, models)
    elif mirror_applies(host, facts, system):
        spec = decide_mirror(host, facts, system, models)
    elif archive.applies(host, facts, system):
        spec = archive.decide(host, facts, system, models)
    else:
        spec = choose.decide(host, facts, system, models)
    return _with_subnet(facts, system, spec)


def _check(facts: Facts, gpus: Sequence[PciDevice]) -> None:
    """Refuse GPUs whose driver is not the host's to install."""
    parts = [f"{device.address} is {name}" for device in gpus if (name := pci.fraction(device))]
    if parts:
        raise CannotPlan(
            f"{', '.join(parts)}, a part of a GPU: only NVIDIA's GRID driver drives it, which no repository has",
            hint="Install the cloud's GRID driver and set `driver: none`, or take a machine with a whole GPU.",
        )
    if files.exists(facts, DGX):
        raise CannotPlan(
            "this is DGX OS: packages of NVIDIA's own hold driver, kernel and fabric manager together",
            hint="Leave the driver to them: set `driver: none`. If they bring the toolkit too, also set `toolkit: none`.",
        )
    if is_in_container(facts):
        raise CannotPlan(
            f"the GPU Operator's driver container brings this host's driver ({CONTAINER})",
            hint=f"Take the node over from the operator first ({page('switching.md')}), or exclude the host.",
        )
    if all(map(pci.is_passed_through, gpus)):
        owners = ", ".join(sorted({str(device.driver) for device in gpus}))
        raise CannotPlan(
            f"all {len(gpus)} GPUs are bound to {owners}, for virtual machines",
            hint=f"Give a GPU back to the host (unbind {owners}, remove its ids from modprobe.d), "
            "or remove the host from the inventory.",
        )


def is_in_container(facts: Facts) -> bool:
    """Whether the loaded driver is the GPU Operator's: one of the host's own has its library on the host."""
    return "nvidia" in facts.modules and facts.library_version is None and files.exists(facts, CONTAINER)


def _with_subnet(facts: Facts, system: PackageSystem, driver: DriverSpec) -> DriverSpec:
    """With what NVSwitches of NVLink 5 need beside the fabric manager. Raises CannotPlan where no package is known."""
    if not pci.managers(facts.pci):
        return driver
    subnet = () if driver.archive else system.names.subnet
    if not subnet:
        whose = "the distribution's archive has" if driver.archive else f"gpunode knows with {system.name}"
        raise CannotPlan(
            f"{whose} no nvlsm, without which the NVSwitches of NVLink 5 join no GPUs",
            hint=f"Write `driver: auto` to have NVIDIA's packages, {LEAVE}"
            if driver.archive
            else f"Install driver, fabric manager and nvlsm by hand, {LEAVE}",
        )
    return replace(driver, subnet=subnet)


def mirror_applies(host: Host, facts: Facts, system: PackageSystem) -> bool:
    """Whether the host gets its driver so: asked for, or its repository is there and no other is named."""
    mirror = repositories.mirror(facts.os)
    if mirror is None or host.driver_run is not None or host.driver_from == "nvidia":
        return False
    only = host.driver_repository is None and not system.offers(facts, "driver")
    return host.driver_from == "distribution" or (only and mirror.package in facts.packages)


def decide_mirror(host: Host, facts: Facts, system: PackageSystem, models: Sequence[pci.Model]) -> DriverSpec:
    """That driver. Raises CannotPlan where the repository does not have it, or dnf would take NVIDIA's own in its place."""
    mirror = repositories.mirror(facts.os)
    assert mirror is not None
    driver = choose.decide(host, facts, system, models)
    installed = all(is_installed(facts.packages, spec) for spec in driver.packages)
    if branches()[driver.branch].status == "new" and not installed:
        raise CannotPlan(
            f"{mirror.repository} has production and long-term branches only, and {driver.branch} is a new one",
            hint=f"Take NVIDIA's own repository: `driver: {{from: nvidia, version: {driver.branch}}}`, {LEAVE}",
        )
    others = system.driver_sources(facts)
    if others and not installed:
        raise CannotPlan(
            f"{others[0]} has NVIDIA's own repository, whose module streams hide the packages of {mirror.repository}",
            hint=f"Remove that file, or take the driver from it: `driver: {{from: nvidia, version: {driver.branch}}}`.",
        )
    return replace(driver, why=f"{driver.why}, from {mirror.repository}", brings=mirror.package)
