"""Decides one host's desired state from its inventory, facts and the compat tables, or refuses with a fix."""

from __future__ import annotations

from dataclasses import replace

from gpunode import packages
from gpunode.errors import CannotPlan, Refused
from gpunode.links.driver import archive, kernels, mirror, signed
from gpunode.links.driver import choose as driver
from gpunode.links.driver.origin import LEAVE
from gpunode.links.kubelet import decide as node
from gpunode.links.kubelet import places
from gpunode.links.machine import kinds as machines
from gpunode.links.machine import pci
from gpunode.links.runtime import decide as runtime_decision
from gpunode.links.toolkit import decide as devices
from gpunode.links.toolkit.versions import default_version
from gpunode.model import (
    Desired,
    DriverWish,
    Facts,
    Host,
    PackageSpec,
    PciDevice,
    PluginImage,
    Repository,
    Source,
)
from gpunode.packages import PackageSystem, releases, repositories
from gpunode.planning.versions import is_installed, numbers, upstream


def decide(host: Host, facts: Facts, image: PluginImage | None) -> Desired:
    """The desired state. Raises Refused where nothing fits, or where a change would break the host."""
    try:
        return _decide(host, facts, image)
    except CannotPlan as error:
        raise Refused(host.name, error.message, hint=error.hint, layer="kubelet") from error


def _decide(host: Host, facts: Facts, image: PluginImage | None) -> Desired:
    _readable(host, facts)
    machines.check(host, facts)
    gpus = pci.gpus(facts.pci)
    if not gpus:
        raise _no_gpu(host, facts)
    system = packages.system_of_host(facts)
    if system is None and (host.driver != "none" or host.toolkit != "none"):
        raise _no_packages(host, facts)
    wish = _driver(host, facts, system, pci.driven(facts.pci)) if system and host.driver != "none" else None
    minor = node.minor(facts)
    start = places.read(facts)
    node.check(facts, minor, start)
    runtime = runtime_decision.runtime(host, facts, minor, start)
    gates, reasons = node.gates(host, minor, start)
    node.check_gates(facts, minor, start, gates)
    toolkit = _toolkit(host, facts, system) if system and host.toolkit != "none" else ()
    sources = _sources(host, facts, system, wish, toolkit) if system else ()
    handed = devices.decide(host, facts, runtime, start, toolkit)
    return Desired(
        runtime=runtime,
        runtime_mode=host.runtime,
        gates=gates,
        gate_reasons=reasons,
        driver=wish,
        toolkit=toolkit,
        sources=sources,
        image=image,
        notes=(
            *driver.notes(host, facts, wish),
            *kernels.notes(facts),
            *_unused(host, system),
            *(system.notes(facts, sources) if system else ()),
            *node.notes(facts, minor, start),
            *handed.notes,
        ),
        isolation=host.isolation,
        toolkit_version=handed.toolkit,
        links=handed.links,
        cdi=handed.cdi,
        device_loss=handed.loss,
        kubelet=start,
    )


def _driver(host: Host, facts: Facts, system: PackageSystem, gpus: tuple[PciDevice, ...]) -> DriverWish:
    """From whom the inventory has it, or as the host can have it at all."""
    machines.check_driver(host, facts, gpus)
    if signed.fits(host, facts, system):
        return _with_subnet(host, facts, system, signed.wish(host, facts, system, gpus))
    if mirror.fits(host, facts, system):
        return _with_subnet(host, facts, system, mirror.wish(host, facts, system, gpus))
    by_archive = host.driver_from == "distribution" or archive.is_needed(host, facts, system)
    choose = archive.wish if by_archive else driver.wish
    return _with_subnet(host, facts, system, choose(host, facts, system, gpus))


def _with_subnet(host: Host, facts: Facts, system: PackageSystem, wish: DriverWish) -> DriverWish:
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


def _unused(host: Host, system: PackageSystem | None) -> tuple[str, ...]:
    """A note on a repository of the inventory that this host does not get."""
    if host.system_repository is None or system is None or system.RPM:
        return ()
    return (f"`repositories.system` is for RPMs, and this host has {system.NAME}: it is not used.",)


NEEDED = (
    "os",
    "arch",
    "pci",
    "modules",
    "library_version",
    "installed_run",
    "packages",
    "files",
    "units",
    "kubelet",
    "gpu_users",
    "unconfirmed",
)


def _readable(host: Host, facts: Facts) -> None:
    """Refuse facts with a needed section that could not be read: it looks like an empty one."""
    failed = [f"{section}: {error}" for section, error in facts.errors.items() if section in NEEDED]
    if failed:
        raise Refused(
            host.name,
            "not everything that a plan rests on could be read\n" + "\n".join(failed),
            hint="Fix what the host reports, then run again.",
            layer="ssh",
        )


def _no_gpu(host: Host, facts: Facts) -> Refused:
    others = [f"{d.vendor}:{d.device} (class {d.cls[:4]})" for d in facts.pci if d.vendor.lower() == "10de"]
    seen = f"; of NVIDIA there is only {', '.join(others)}, which is no GPU" if others else ""
    return Refused(
        host.name,
        f"no NVIDIA GPU on the PCI bus{seen}",
        hint="Check that it is seated, powered and passed through (`lspci -d 10de:`), "
        "or take the host out of the inventory.",
        layer="PCI",
    )


def _no_packages(host: Host, facts: Facts) -> Refused:
    system = f"{facts.os.pretty or facts.os.id or 'a system without /etc/os-release'} on {facts.os.arch or 'an unknown architecture'}"
    reason = releases.refusal(facts.os)
    return Refused(
        host.name,
        f"{system}: {reason}"
        if reason
        else f"{system}: gpunode installs packages on {releases.releases()} (amd64, arm64)",
        hint="Install driver and toolkit by hand and set `driver: none` and `toolkit: none` for this host.",
        layer="toolkit" if host.driver == "none" else "module",
    )


def _toolkit(host: Host, facts: Facts, system: PackageSystem) -> tuple[PackageSpec, ...]:
    """The toolkit's packages at one version: the inventory's, the installed one if it is newer, or the table's. With
    nvidia-docker2 where that is wished."""
    version = host.toolkit
    wrapped = version == "nvidia-docker2"
    if version == "auto" or wrapped:
        version = default_version()
        names = [spec.name for spec in system.NAMES.toolkit(version)]
        installed = {facts.packages[name].version for name in names if name in facts.packages}
        if len(installed) == 1:
            version = max(version, upstream(installed.pop()), key=numbers)
    return (*system.NAMES.toolkit(version), *((system.NAMES.wrapper,) if wrapped else ()))


def _sources(
    host: Host,
    facts: Facts,
    system: PackageSystem,
    wish: DriverWish | None,
    toolkit: tuple[PackageSpec, ...],
) -> tuple[Source, ...]:
    """The inventory's repositories for the packages to install; two with one address are one source."""
    sources: list[Source] = []
    if system.RPM and host.system_repository is not None and (wish or toolkit):
        sources.append(_source("system", host.system_repository))
    arch = facts.os.arch
    needs: list[tuple[repositories.Purpose, tuple[PackageSpec, ...], Repository | None]] = [
        (
            "driver",
            (*wish.pin, *wish.headers, *wish.modules, *wish.packages, *wish.fabric, *wish.subnet)
            if wish and not wish.brings
            else (),
            host.driver_repository,
        ),
        ("toolkit", toolkit, host.toolkit_repository),
    ]
    for purpose, specs, repository in needs:
        theirs = [spec for spec in specs if spec.origin == "nvidia"]
        if not theirs:
            continue
        if repository is not None:
            known = [system.place(source.uri, arch) for source in sources]
            if system.place(repository.uri, arch) not in known:
                sources.append(_source(purpose, repository))
        elif not (
            all(is_installed(facts.packages, spec) for spec in theirs) or system.offers(facts, purpose)
        ):
            raise _no_repository(host, facts, system, purpose)
    return tuple(sources)


def _source(purpose: str, repository: Repository) -> Source:
    return Source(f"gpunode-{purpose}", repository.uri, repository.key, repository.fingerprint)


def _no_repository(host: Host, facts: Facts, system: PackageSystem, purpose: repositories.Purpose) -> Refused:
    return Refused(
        host.name,
        "\n".join(
            (
                f"{system.NAME} knows no repository for the {purpose}, and the inventory names none",
                *system.notes(facts, ()),
            )
        ),
        hint="`gpunode provision` adds NVIDIA's, where its key can be fetched and its whole fingerprint is known, or given with "
        "`--fingerprint`. "
        f"Else set `repositories.{purpose}` in the inventory; `gpunode keys` checks a key and prints that: "
        f"uri: {repositories.repository_uri(purpose, facts.os)} (or a mirror of it), key: a file with the public key that signs it "
        f"({repositories.repository_key(system.NAMES.family, purpose)}).",
        layer="module" if purpose == "driver" else "toolkit",
        repository=purpose,
    )
