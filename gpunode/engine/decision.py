"""Decides one host's desired state from its inventory, facts and the compat tables, or refuses with a fix."""

from __future__ import annotations

from gpunode import packages
from gpunode.errors import CannotPlan, Refused
from gpunode.links.driver import choose, kernels
from gpunode.links.driver import decide as driver
from gpunode.links.kubelet import decide as node
from gpunode.links.kubelet import places
from gpunode.links.machine import kinds as machines
from gpunode.links.runtime import decide as runtime_decision
from gpunode.links.toolkit import decide as devices
from gpunode.links.toolkit.versions import decide_packages
from gpunode.model import (
    Desired,
    Facts,
    Host,
    PluginImage,
)
from gpunode.packages import releases
from gpunode.packages.sources import decide_sources, unused_note


def decide(host: Host, facts: Facts, image: PluginImage | None) -> Desired:
    """The desired state. Raises Refused where nothing fits, or where a change would break the host."""
    try:
        return _decide(host, facts, image)
    except CannotPlan as error:
        raise Refused(host.name, error.message, hint=error.hint, layer="kubelet") from error


def _decide(host: Host, facts: Facts, image: PluginImage | None) -> Desired:
    _readable(host, facts)
    machines.check(host, facts)
    system = packages.system_of_host(facts)
    if system is None and (host.driver != "none" or host.toolkit != "none"):
        raise _no_packages(host, facts)
    spec = driver.decide(host, facts, system) if system and host.driver != "none" else None
    minor = node.minor(facts)
    start = places.read(facts)
    node.check(facts, minor, start)
    runtime = runtime_decision.runtime(host, facts, minor, start)
    gates, reasons = node.gates(host, minor, start)
    node.check_gates(facts, minor, start, gates)
    toolkit = decide_packages(host, facts, system) if system and host.toolkit != "none" else ()
    sources = decide_sources(host, facts, system, spec, toolkit) if system else ()
    handed = devices.decide(host, facts, runtime, start, toolkit)
    return Desired(
        runtime=runtime,
        runtime_mode=host.runtime,
        gates=gates,
        gate_reasons=reasons,
        driver=spec,
        toolkit=toolkit,
        sources=sources,
        image=image,
        notes=(
            *choose.notes(host, facts, spec),
            *kernels.notes(facts),
            *unused_note(host, system),
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
