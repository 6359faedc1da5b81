"""What is right for one host: its wishes, its facts and the compat tables → Desired, or a refusal with a way out."""

from __future__ import annotations

from gpunode import apt, compat
from gpunode.desired import driver, node
from gpunode.errors import Refused, about
from gpunode.model import Desired, DriverWish, Facts, Host, PluginImage, Repository, Source


def decide(host: Host, facts: Facts, image: PluginImage | None) -> Desired:
    """The stack that fits. Raises Refused when there is none, or when getting there would break the host."""
    _readable(host, facts)
    gpus = compat.gpus(facts.pci)
    if not gpus:
        raise _no_gpu(host, facts)
    notes: list[str] = []
    if host.driver != "none" or host.toolkit != "none":
        with about("toolkit" if host.driver == "none" else "module"):
            _system(host, facts)
    with about("module"):
        wish = None if host.driver == "none" else driver.wish(host, facts, gpus, notes)
    if wish is None and "nvidia" not in facts.modules:
        notes.append("No nvidia module is loaded, and `driver: none` leaves that to others.")
    with about("kubelet"):
        minor = node.minor(host, facts)
        node.check(host, facts, minor)
    with about("runtime"):
        runtime = node.runtime(host, facts, minor)
    with about("kubelet"):
        gates, reasons = node.gates(host, facts, minor)
    toolkit = () if host.toolkit == "none" else _toolkit(host, facts)
    return Desired(
        runtime=runtime,
        runtime_mode=host.runtime,
        gates=gates,
        gate_reasons=reasons,
        driver=wish,
        toolkit=toolkit,
        sources=_sources(host, facts, wish, toolkit),
        image=image,
        notes=(*notes, *node.notes(facts)),
    )


NEEDED = (
    "os",
    "arch",
    "pci",
    "modules",
    "library_version",
    "packages",
    "files",
    "units",
    "kubelet",
    "gpu_users",
)


def _readable(host: Host, facts: Facts) -> None:
    """A section that could not be read looks like an empty one: no ground to plan on."""
    failed = [f"{section}: {error}" for section, error in facts.errors.items() if section in NEEDED]
    if failed:
        raise Refused(
            host.name,
            "not everything that a plan rests on could be read\n" + "\n".join(failed),
            hint="Mend what the host complains about, then run again.",
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


def _system(host: Host, facts: Facts) -> compat.System:
    system = compat.system(facts.os.id, facts.os.version, facts.os.arch)
    if system is None:
        raise Refused(
            host.name,
            f"{facts.os.pretty or facts.os.id} on {facts.os.arch or 'an unknown architecture'}: "
            f"gpunode installs packages on {compat.systems()} (amd64, arm64)",
            hint="Install driver and toolkit by hand and set `driver: none` and `toolkit: none` for this host.",
        )
    return system


def _toolkit(host: Host, facts: Facts) -> tuple[str, ...]:
    """The four packages at one version: the wished one, the one that is there if it is newer, or the table's."""
    version = host.toolkit
    if version == "auto":
        version = compat.toolkit_version()
        there = {p.version for name, p in facts.packages.items() if name in compat.toolkit_packages()}
        if len(there) == 1:
            installed = compat.upstream(there.pop())
            if compat.numbers(installed) > compat.numbers(version):
                version = installed
    return tuple(f"{name}={version}-1" for name in compat.toolkit_packages())


def _sources(
    host: Host, facts: Facts, wish: DriverWish | None, toolkit: tuple[str, ...]
) -> tuple[Source, ...]:
    """The inventory's repositories for what is to be installed; two at one place are one source."""
    sources: list[Source] = []
    needs: list[tuple[compat.Purpose, tuple[str, ...], Repository | None]] = [
        ("driver", _from_nvidia(wish) if wish else (), host.driver_repository),
        ("toolkit", toolkit, host.toolkit_repository),
    ]
    for purpose, packages, repository in needs:
        if not packages:
            continue
        if repository is None:
            with about("module" if purpose == "driver" else "toolkit"):
                _must_be_known(host, facts, purpose, packages)
        elif apt.place(repository.uri, "/", facts.os.arch) not in (
            apt.place(source.uri, "/", facts.os.arch) for source in sources
        ):
            sources.append(Source(f"gpunode-{purpose}", repository.uri, repository.key))
    return tuple(sources)


def _from_nvidia(wish: DriverWish) -> tuple[str, ...]:
    """What is to come from NVIDIA's repository: the kernel's headers come from the distribution."""
    return (*wish.pin, *(package for package in wish.packages if "=" in package))


def _must_be_known(host: Host, facts: Facts, purpose: compat.Purpose, packages: tuple[str, ...]) -> None:
    """Without a repository in the inventory, the host must know one, or have no need of one."""
    if all(compat.is_installed(facts.packages, package) for package in packages):
        return
    if any(entry.binary and compat.offers(purpose, entry.uri) for entry in apt.entries(facts)):
        return
    uri = compat.repository_uri(purpose, _system(host, facts), facts.os.arch)
    raise Refused(
        host.name,
        f"apt knows no repository for the {purpose}, and the inventory names none",
        hint=f"Set `repositories.{purpose}` in the inventory: uri: {uri} (or a mirror of it), "
        f"key: a file with the public key that signs it ({compat.repository_key(purpose)}).",
    )
