"""Decides one host's desired state from its inventory, facts and the compat tables, or refuses with a fix."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from gpunode import packages
from gpunode.errors import CannotPlan, Refused
from gpunode.links.driver import branches, choose
from gpunode.links.driver import decide as driver
from gpunode.links.kubelet import decide as kubelet
from gpunode.links.machine import link as machine
from gpunode.links.runtime import link as runtime_decision
from gpunode.links.toolkit import decide as devices
from gpunode.links.toolkit.plan import decide_packages
from gpunode.model import (
    Desired,
    Facts,
    Host,
    Layer,
    PluginImage,
)
from gpunode.packages import decide_sources, releases, unused_note


@contextmanager
def refusing(host: Host, layer: Layer) -> Iterator[None]:
    """Make CannotPlan the host's refusal, of this layer where it names none."""
    try:
        yield
    except CannotPlan as error:
        raise error.refusal(host.name, layer) from error


def decide(host: Host, facts: Facts, image: PluginImage | None) -> Desired:
    """The desired state. Raises Refused where nothing fits, or where a change would break the host."""
    _readable(host, facts)
    with refusing(host, "PCI"):
        machine.check(facts)
    system = packages.system_of_host(facts)
    if system is None and (host.driver != "none" or host.toolkit != "none"):
        raise _no_packages(host, facts)
    with refusing(host, "module"):
        spec = driver.decide(host, facts, system) if system and host.driver != "none" else None
    with refusing(host, "kubelet"):
        minor, start, gates, reasons = kubelet.decide(host, facts)
    with refusing(host, "runtime"):
        runtime = runtime_decision.runtime(host, facts, minor, start)
    with refusing(host, "toolkit"):
        toolkit = decide_packages(host, facts, system) if system and host.toolkit != "none" else ()
        sources = decide_sources(host, facts, system, spec, toolkit) if system else ()
    with refusing(host, "runtime"):
        handed = devices.decide(host, facts, runtime, start, toolkit)
    with refusing(host, "kubelet"):
        notes = (
            *choose.notes(host, facts, spec),
            *branches.kernel_notes(facts),
            *unused_note(host, system),
            *(system.notes(facts, sources) if system else ()),
            *kubelet.notes(facts, minor, start),
            *handed.notes,
        )
    return Desired(
        runtime=runtime,
        runtime_mode=host.runtime,
        gates=gates,
        gate_reasons=reasons,
        driver=spec,
        toolkit=toolkit,
        sources=sources,
        image=image,
        notes=notes,
        isolation=host.isolation,
        toolkit_version=handed.toolkit,
        links=handed.links,
        cdi=handed.cdi,
        device_loss=handed.loss,
        kubelet=start,
    )


NEEDED = (
    "os",
    "arch",
    "uptime",
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
