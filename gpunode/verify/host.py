"""The links below Kubernetes, judged from one probe: PCI → module → library → NVML → toolkit → runtime → kubelet.

A link is broken when the running host shows it, or when gpunode would change something there: both say why.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TypeAlias

from gpunode import compat, diff
from gpunode.compat import gpus
from gpunode.model import Facts, Link, Outcome, StepPlan

Check: TypeAlias = Callable[[Outcome, Facts], Link]


def links(outcome: Outcome) -> tuple[Link, ...]:
    """The host's links in causal order; the first broken one makes those after it `unknown`."""
    seen = outcome.facts
    if seen is None:
        return (Link("ssh", "broken", outcome.error or "no answer", fix=outcome.hint),)
    chain = [check(outcome, seen) for check in CHECKS]
    if outcome.status == "refused" and all(link.status == "ok" for link in chain):
        chain.append(Link("stack", "broken", "no right state exists", outcome.error or "", outcome.hint))
    return first_broken(chain)


def first_broken(chain: list[Link]) -> tuple[Link, ...]:
    """What follows a broken link is not judged."""
    judged: list[Link] = []
    for link in chain:
        follows = any(before.status == "broken" for before in judged)
        judged.append(Link(link.layer, "unknown", "") if follows else link)
    return tuple(judged)


def _fix(outcome: Outcome) -> str:
    return outcome.hint if outcome.status == "refused" else f"gpunode provision --limit {outcome.host}"


def _waiting(outcome: Outcome, *names: str) -> StepPlan | None:
    """The first of these steps that would change something."""
    steps = outcome.plan.steps if outcome.plan else ()
    return next((step for step in steps if step.step in names and step.changes), None)


def _broken(outcome: Outcome, layer: str, text: str, cause: str = "", fix: str = "") -> Link:
    return Link(layer, "broken", text, cause, fix or _fix(outcome))


def _judge(outcome: Outcome, layer: str, text: str, *steps: str) -> Link:
    """Ok, unless a step of this layer would change something."""
    step = _waiting(outcome, *steps)
    if step is None:
        return Link(layer, "ok", text)
    changes = "\n".join(f"{diff.headline(change)}: {change.why}" for change in step.changes)
    return _broken(outcome, layer, text or "not as it should be", changes)


def _pci(outcome: Outcome, seen: Facts) -> Link:
    devices = gpus(seen.pci)
    if not devices:
        return _broken(
            outcome,
            "PCI",
            "no NVIDIA GPU on the PCI bus",
            "nothing with vendor 10de and a display class (0300, 0302) in /sys/bus/pci/devices",
            "Check that the GPU is seated, powered and passed through, or take the host out of the inventory.",
        )
    names = Counter(
        f"{compat.gpu(device.device).name} ({device.vendor}:{device.device})" for device in devices
    )
    where = ", ".join(device.address.removeprefix("0000:") for device in devices)
    return Link("PCI", "ok", f"{', '.join(f'{n}x {name}' for name, n in names.items())} at {where}")


def _module(outcome: Outcome, seen: Facts) -> Link:
    owners = {device.driver for device in gpus(seen.pci)} - {None, "nvidia"}
    if owners:
        owner = ", ".join(sorted(str(owner) for owner in owners))
        return _broken(
            outcome, "module", f"{owner} holds the GPUs, not nvidia", "the nvidia driver never saw them"
        )
    loaded = seen.modules.get("nvidia")
    if loaded is None:
        return _broken(
            outcome,
            "module",
            "nvidia is not loaded",
            _why(outcome, "driver", "repository") or "no driver is installed",
        )
    flavour = "open" if "Open Kernel Module" in (seen.module_banner or "") else "proprietary"
    return Link("module", "ok", f"nvidia {loaded.version}, {flavour}")


def _library(outcome: Outcome, seen: Facts) -> Link:
    loaded = seen.modules["nvidia"].version if "nvidia" in seen.modules else None
    if seen.library_version is None:
        return _broken(outcome, "library", "libnvidia-ml.so.1 is not there", _why(outcome, "driver"))
    if loaded is not None and seen.library_version != loaded:
        return _broken(
            outcome,
            "library",
            f"libnvidia-ml {seen.library_version} ≠ module {loaded}",
            "the library was replaced while the old module stayed loaded; programs say "
            "“Failed to initialize NVML: Driver/library version mismatch”",
        )
    return _judge(
        outcome, "library", f"libnvidia-ml {seen.library_version}", "driver", "repository", "nouveau"
    )


def _nvml(outcome: Outcome, seen: Facts) -> Link:
    if seen.smi_error:
        return _broken(outcome, "NVML", seen.smi_error.strip().splitlines()[0], _why(outcome, "driver"))
    there = {gpu.pci.lower()[-12:] for gpu in seen.gpus}
    missing = [device.address for device in gpus(seen.pci) if device.address.lower()[-12:] not in there]
    if missing:
        return _broken(
            outcome,
            "NVML",
            f"{len(seen.gpus)} of {len(gpus(seen.pci))} GPUs answer; missing: {', '.join(missing)}",
            "a GPU that is on the bus and not in NVML has fallen off, failed to initialise, or is not "
            "supported by this driver",
            "Look at `dmesg | grep -i -e NVRM -e Xid` on the host; a reset or reboot may bring it back.",
        )
    return Link("NVML", "ok", f"{len(seen.gpus)} GPUs answer")


def _toolkit(outcome: Outcome, seen: Facts) -> Link:
    package = seen.packages.get("nvidia-container-toolkit")
    text = (
        f"nvidia-container-toolkit {package.version}"
        if package
        else "nvidia-container-toolkit is not installed"
    )
    return _judge(outcome, "toolkit", text, "toolkit")


def _runtime(outcome: Outcome, seen: Facts) -> Link:
    name = outcome.desired.runtime if outcome.desired else _used(seen)
    unit = seen.units.get(f"{name}.service")
    if unit is None or unit.active != "active":
        state = f"{unit.active} ({unit.sub})" if unit else "not there"
        fix = (
            ""
            if outcome.status == "refused"
            else f"{_fix(outcome)}; else see `systemctl status {name}` there"
        )
        return _broken(outcome, "runtime", f"{name} is {state}", _why(outcome, name), fix)
    if name == "docker":
        docker = seen.docker
        text = f"docker {docker.version}, default runtime {docker.default_runtime}" if docker else "docker"
    else:
        text = f"containerd {seen.containerd.version}" if seen.containerd else "containerd"
    return _judge(outcome, "runtime", text, "docker", "containerd")


def _used(seen: Facts) -> str:
    """The kubelet's runtime where nothing was decided: docker, even a stopped one, where the kubelet drives it."""
    minor = compat.minor(seen.kubelet.version) if seen.kubelet else None
    unit = seen.units.get("docker.service")
    stopped = (
        minor is not None and compat.has_dockershim(minor) and unit is not None and unit.load == "loaded"
    )
    return "docker" if seen.docker or stopped else "containerd"


def _kubelet(outcome: Outcome, seen: Facts) -> Link:
    unit = seen.units.get("kubelet.service")
    version = f"kubelet {seen.kubelet.version}" if seen.kubelet else "kubelet"
    if unit is None or unit.active != "active" or unit.sub != "running":
        reason = "\n".join(seen.kubelet.journal[-3:]) if seen.kubelet else ""
        state = f"{unit.active} ({unit.sub})" if unit else "not there"
        return _broken(outcome, "kubelet", f"{version} is {state}", reason)
    return _judge(outcome, "kubelet", version, "kubelet", "image")


def _why(outcome: Outcome, *steps: str) -> str:
    step = _waiting(outcome, *steps)
    if step is not None:
        return step.changes[0].why
    return (outcome.error or "") if outcome.status == "refused" else ""


CHECKS: tuple[Check, ...] = (_pci, _module, _library, _nvml, _toolkit, _runtime, _kubelet)
