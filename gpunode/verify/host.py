"""The links below Kubernetes, judged from one probe: PCI → module → library → NVML → toolkit → runtime → kubelet.

A link is broken when the running host shows it, or when gpunode would change something there: both say why.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from typing import TypeAlias

from gpunode import compat, diff
from gpunode.cluster import mig
from gpunode.compat import gpus
from gpunode.model import Facts, KernelModule, Layer, Link, Outcome, StepPlan, Unit
from gpunode.verify import fault

Check: TypeAlias = Callable[[Outcome, Facts], Link]

# What helps where no change of gpunode's does. Resets need GPUs that nobody has open, the device plugin included.
LOST = (
    "`dmesg | grep -e NVRM -e Xid` on the host says why. With the node drained and the device plugin's pod deleted, "
    "`nvidia-smi --gpu-reset` may bring a GPU back, else a reboot; if neither does, look at the hardware."
)
KLOG = re.compile(r"^[A-Z]\d{4} (?:[\d:.]+ +\d+ )?[\w.]+:\d+\] ")  # level, date, time, thread, place
UNMANAGED = (
    "`driver: none` leaves the driver to you: install it or load its module, and reboot if both differ."
)


def links(outcome: Outcome) -> tuple[Link, ...]:
    """The host's links in causal order; the first broken one makes those after it `unknown`."""
    seen = outcome.facts
    if seen is None:
        return (Link("ssh", "broken", outcome.error or "no answer", fix=outcome.hint),)
    chain = [check(outcome, seen) for check in CHECKS]
    if outcome.status == "refused":
        if outcome.layer == "ssh":
            chain.insert(0, Link("ssh", "ok", "it answers"))
        chain = [_refused(outcome, link) for link in chain]
    return first_broken(chain)


def _refused(outcome: Outcome, link: Link) -> Link:
    """The link with the refusal that is about it, unless something is to be seen there already."""
    if link.layer != outcome.layer or link.status != "ok":
        return link
    what, _, why = (outcome.error or "").partition("\n")
    return Link(link.layer, "broken", what, why, outcome.hint)


def image(outcome: Outcome) -> Link | None:
    """The plugin's link where the node lacks the plugin's image: its pods cannot start anew. None where it does not."""
    if outcome.facts is None or _waiting(outcome, "image") is None:
        return None
    return _judge(outcome, outcome.facts, "plugin", "its pods cannot start anew", "image")


def first_broken(chain: list[Link]) -> tuple[Link, ...]:
    """What follows a broken link is not judged."""
    judged: list[Link] = []
    for link in chain:
        follows = any(before.status == "broken" for before in judged)
        judged.append(Link(link.layer, "unknown", "") if follows else link)
    return tuple(judged)


def _fix(outcome: Outcome, layer: Layer, by_hand: str, *steps: str) -> str:
    """Provision where one of these steps would change something; else what only a person can do.

    A host that is refused for another link wants that mended first.
    """
    if outcome.status == "refused":
        return outcome.hint if outcome.layer == layer else f"{outcome.error}\n{outcome.hint}"
    if _waiting(outcome, *steps, "reboot"):
        return f"gpunode provision --limit {outcome.host}"
    return by_hand


def _waiting(outcome: Outcome, *names: str) -> StepPlan | None:
    """The first of these steps, in the order asked for, that would change something."""
    steps = {step.step: step for step in outcome.plan.steps} if outcome.plan else {}
    return next((steps[name] for name in names if name in steps and steps[name].changes), None)


def _judge(outcome: Outcome, seen: Facts, layer: Layer, text: str, *steps: str) -> Link:
    """Ok, unless a step of this layer would change something."""
    step = _waiting(outcome, *steps)
    if step is None:
        return Link(layer, "ok", text)
    cause = "\n".join(fault.of(step, seen))
    will = "; ".join(diff.headline(change) for change in step.changes)
    return Link(layer, "broken", text, cause, f"{_fix(outcome, layer, '', *steps)}\nit will {will}")


def _pci(_: Outcome, seen: Facts) -> Link:
    devices = gpus(seen.pci)
    if not devices:
        return Link(
            "PCI",
            "broken",
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
        by_hand = (
            f"Let {owner} go of them (its lines in /etc/modprobe.d and on the kernel's command line), then reboot; "
            "or leave them to it and take the host out of the inventory."
        )
        return Link(
            "module",
            "broken",
            f"{owner} holds the GPUs, not nvidia",
            "the nvidia driver never saw them",
            _fix(outcome, "module", by_hand, "nouveau", "driver"),
        )
    loaded = seen.modules.get("nvidia")
    if loaded is None:
        return Link(
            "module",
            "broken",
            "nvidia is not loaded",
            _why(outcome, seen, "module", "driver", "repository") or "no driver is installed",
            _fix(outcome, "module", UNMANAGED, "driver"),
        )
    flavour = "open" if "Open Kernel Module" in (seen.module_banner or "") else "proprietary"
    step = _waiting(outcome, "driver")
    lacking = [c for c in step.changes if isinstance(c, KernelModule) and not c.unload] if step else []
    if lacking:
        return _judge(
            outcome, seen, "module", f"nvidia {loaded.version}, {flavour}, and not all of it", "driver"
        )
    return Link("module", "ok", f"nvidia {loaded.version}, {flavour}")


def _library(outcome: Outcome, seen: Facts) -> Link:
    loaded = seen.modules["nvidia"].version if "nvidia" in seen.modules else None
    if seen.library_version is None:
        by_hand = (
            "See `ldconfig -p | grep nvidia` on the host; `apt install --reinstall` of its driver's packages "
            "brings back a library that was deleted."
        )
        return Link(
            "library",
            "broken",
            "libnvidia-ml.so.1 is not there",
            _why(outcome, seen, "library", "driver"),
            _fix(outcome, "library", by_hand, "driver"),
        )
    if loaded is not None and seen.library_version != loaded:
        return Link(
            "library",
            "broken",
            f"libnvidia-ml {seen.library_version} ≠ module {loaded}",
            "the library was replaced while the old module stayed loaded; programs say "
            "“Failed to initialize NVML: Driver/library version mismatch”",
            _fix(outcome, "library", UNMANAGED, "driver"),
        )
    return _judge(outcome, seen, "library", f"libnvidia-ml {seen.library_version}", "driver", "nouveau")


def _nvml(outcome: Outcome, seen: Facts) -> Link:
    if seen.smi_error:
        said = seen.smi_error.strip().splitlines()[0]
        why = _why(outcome, seen, "NVML", "driver")
        return Link("NVML", "broken", said, why, _fix(outcome, "NVML", LOST, "driver"))
    there = {gpu.pci.lower()[-12:] for gpu in seen.gpus}
    missing = [device.address for device in gpus(seen.pci) if device.address.lower()[-12:] not in there]
    if missing:
        return Link(
            "NVML",
            "broken",
            f"{len(seen.gpus)} of {len(gpus(seen.pci))} GPUs answer; missing: {', '.join(missing)}",
            "a GPU that is on the bus and not in NVML has fallen off, failed to initialise, or is not "
            "supported by this driver",
            _fix(outcome, "NVML", LOST, "driver"),
        )
    return _answering(seen)


def _answering(seen: Facts) -> Link:
    """All GPUs answer; what there is to know of their MIG."""
    on = ", ".join(str(gpu.index) for gpu in seen.gpus if gpu.mig_on)
    text = f"{len(seen.gpus)} GPUs answer" + (f", MIG is on for GPU {on}" if on else "")
    told = [(one.what, one.fix)] if (one := mig.pending(seen.gpus)) else []
    if "mig" in seen.errors:
        unlisted = f"which MIG devices there are is not known: {seen.errors['mig']}"
        told.append((unlisted, "See what `nvidia-smi -L` says on the host."))
    cause, fix = ("\n".join(words) for words in zip(*told, strict=True)) if told else ("", "")
    return Link("NVML", "ok", text, cause, fix)


def _toolkit(outcome: Outcome, seen: Facts) -> Link:
    package = seen.packages.get("nvidia-container-toolkit")
    text = f"nvidia-container-toolkit {package.version}" if package else "nothing gives containers their GPUs"
    return _judge(outcome, seen, "toolkit", text, "toolkit", "repository")


def _runtime(outcome: Outcome, seen: Facts) -> Link:
    name = outcome.desired.runtime if outcome.desired else _used(seen)
    unit = seen.units.get(f"{name}.service")
    if unit is None or unit.active != "active":
        by_hand = f"`systemctl status {name}` and `journalctl -u {name}` on the host say why."
        fix = _fix(outcome, "runtime", by_hand, name)
        if fix != by_hand and outcome.status != "refused":
            fix = f"{fix}; else see `systemctl status {name}` there"
        return Link("runtime", "broken", f"{name} {_state(unit)}", _why(outcome, seen, "runtime", name), fix)
    if name == "docker":
        docker = seen.docker
        text = f"docker {docker.version}, default runtime {docker.default_runtime}" if docker else "docker"
    else:
        text = f"containerd {seen.containerd.version}" if seen.containerd else "containerd"
    return _judge(outcome, seen, "runtime", text, "docker", "containerd")


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
        said = dict.fromkeys(KLOG.sub("", line) for line in seen.kubelet.journal) if seen.kubelet else {}
        reason = "\n".join([*said][-3:])  # each once: it says the same at every start
        by_hand = (
            "`journalctl -u kubelet` on the host says why; one that never ran is to join the cluster first."
        )
        fix = _fix(outcome, "kubelet", by_hand, "kubelet")
        return Link("kubelet", "broken", f"{version} {_state(unit)}", reason, fix)
    return _judge(outcome, seen, "kubelet", version, "kubelet")


def _state(unit: Unit | None) -> str:
    """How a service is, in words to go behind its name."""
    if unit is None:
        return "is not there"
    if unit.active == "failed":
        return "has failed" if unit.sub == "failed" else f"has failed ({unit.sub})"
    return f"is {unit.active} ({unit.sub})"


def _why(outcome: Outcome, seen: Facts, layer: Layer, *steps: str) -> str:
    step = _waiting(outcome, *steps)
    if step is not None:
        return "\n".join(fault.of(step, seen))
    return (outcome.error or "") if outcome.layer == layer else ""


CHECKS: tuple[Check, ...] = (_pci, _module, _library, _nvml, _toolkit, _runtime, _kubelet)
