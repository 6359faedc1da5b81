"""The links below Kubernetes, judged from one probe: PCI → module → library → NVML → toolkit → runtime → kubelet.

A link is broken when the running host shows it, or when a plan has changes for it; either gives the cause.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

from gpunode import compat, packages
from gpunode.compat import driven, gpus
from gpunode.errors import CannotPlan
from gpunode.host import diff
from gpunode.links import kubelet as kubelets
from gpunode.links import runtime as runtimes
from gpunode.links.driver import mig
from gpunode.model import Facts, KernelModule, Layer, Link, Outcome, StepPlan, Unit
from gpunode.wording import Advice, Command, lines

Check: TypeAlias = Callable[[Outcome, Facts], Link]

# Where no change of gpunode's helps. A reset needs GPUs that no process has open, the device plugin included.
LOST = (
    "See `dmesg | grep -e NVRM -e Xid` on the host. With the node drained and the device plugin's pod deleted, "
    "`nvidia-smi --gpu-reset` may bring a GPU back, else a reboot; if neither does, check the hardware."
)
KLOG = re.compile(r"^[A-Z]\d{4} (?:[\d:.]+ +\d+ )?[\w.]+:\d+\] ")  # level, date, time, thread, place
UNMANAGED = "`driver: none` leaves the driver to you: install it or load its module; reboot if module and library differ."


def links(outcome: Outcome) -> tuple[Link, ...]:
    """The host's links in causal order; those after the first broken one are `unknown`."""
    seen = outcome.facts
    if seen is None:
        return (Link("ssh", "broken", outcome.error or "no answer", fix=outcome.hint),)
    chain = [check(outcome, seen) for check in CHECKS]
    if outcome.status == "refused":
        if outcome.layer == "ssh":
            chain.insert(0, Link("ssh", "ok", "it answers"))
        chain = [_refused(outcome, link) for link in chain]
    return first_broken(chain)


def by_hand(outcome: Outcome) -> Link | None:
    """The broken link of a host that has no changes, such as a lost GPU's. None where there is none."""
    return unmended(outcome) if outcome.status == "right" else None


def unmended(outcome: Outcome) -> Link | None:
    """The first broken link that no change of the plan mends: its fix would be the same without the plan."""
    seen = outcome.facts
    if outcome.status not in ("right", "planned") or seen is None:
        return None
    bare = replace(outcome, plan=None)
    found = ((check(outcome, seen), check(bare, seen)) for check in CHECKS)
    return next((link for link, alone in found if link.status == "broken" and link.fix == alone.fix), None)


def unmended_note(outcome: Outcome) -> str:
    """That link in a sentence without its full stop; "" where there is none."""
    link = unmended(outcome)
    return f"{link.layer} is broken: {link.text}: see `gpunode verify`" if link else ""


def _refused(outcome: Outcome, link: Link) -> Link:
    """The link broken by the refusal of its layer, unless it is broken already."""
    if link.layer != outcome.layer or link.status != "ok":
        return link
    what, _, why = (outcome.error or "").partition("\n")
    return Link(link.layer, "broken", what, why, outcome.hint)


def image(outcome: Outcome) -> Link | None:
    """The plugin's link where the node does not have the plugin's image: new pods cannot start. None where it has."""
    if outcome.facts is None or _waiting(outcome, "image") is None:
        return None
    return _judge(outcome, "plugin", "new pods of the plugin cannot start", "image")


def first_broken(chain: list[Link]) -> tuple[Link, ...]:
    """The chain with the links after a broken one `unknown`."""
    judged: list[Link] = []
    for link in chain:
        follows = any(before.status == "broken" for before in judged)
        judged.append(Link(link.layer, "unknown", "") if follows else link)
    return tuple(judged)


def _fix(outcome: Outcome, layer: Layer, by_hand: str, *steps: str) -> str:
    """`provision` where one of these steps has changes; else the fix by hand.

    A host that is refused for another layer needs that fixed first.
    """
    if outcome.status == "refused":
        return outcome.hint if outcome.layer == layer else lines((outcome.error or "", outcome.hint))
    if _waiting(outcome, *steps, "reboot"):
        return Advice(Command("provision", f"--limit {outcome.host}"))
    return by_hand


def _waiting(outcome: Outcome, *names: str) -> StepPlan | None:
    """The first of these steps, in the order given, that has changes."""
    steps = {step.step: step for step in outcome.plan.steps} if outcome.plan else {}
    return next((steps[name] for name in names if name in steps and steps[name].changes), None)


def _judge(outcome: Outcome, layer: Layer, text: str, *steps: str) -> Link:
    """Ok, unless one of these steps has changes."""
    step = _waiting(outcome, *steps)
    if step is None:
        return Link(layer, "ok", text)
    cause = _faults(step)
    will = "; ".join(diff.headline(change) for change in step.changes)
    return Link(layer, "broken", text, cause, lines((_fix(outcome, layer, "", *steps), f"it will {will}")))


def _faults(step: StepPlan) -> str:
    """The step's faults, one a line."""
    faults = (change.why if change.fault is None else change.fault for change in step.changes)
    return "\n".join(fault for fault in faults if fault)


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
    ours = driven(devices)
    where = ", ".join(
        device.address.removeprefix("0000:")
        + ("" if device in ours else f" ({device.driver}, for a virtual machine)")
        for device in devices
    )
    return Link("PCI", "ok", f"{', '.join(f'{n}x {name}' for name, n in names.items())} at {where}")


def _module(outcome: Outcome, seen: Facts) -> Link:
    owners = {device.driver for device in driven(seen.pci)} - {None, "nvidia"}
    if owners:
        owner = ", ".join(sorted(str(owner) for owner in owners))
        by_hand = (
            f"Unbind them from {owner} (see /etc/modprobe.d and the kernel's command line), then reboot; "
            "or remove the host from the inventory."
        )
        return Link(
            "module",
            "broken",
            f"{owner} holds the GPUs, not nvidia",
            f"nvidia cannot bind to them: when it loads, the kernel logs “NVRM: GPU … is already bound to {owner}”",
            _fix(outcome, "module", by_hand, "nouveau", "driver"),
        )
    loaded = seen.modules.get("nvidia")
    if loaded is None:
        return Link(
            "module",
            "broken",
            "nvidia is not loaded",
            _why(outcome, "module", "driver", "repository") or "no driver is installed",
            _fix(outcome, "module", UNMANAGED, "driver"),
        )
    flavour = "open" if "Open Kernel Module" in (seen.module_banner or "") else "proprietary"
    step = _waiting(outcome, "driver")
    loads = [c for c in step.changes if isinstance(c, KernelModule) and not c.unload] if step else []
    missing = [change for change in loads if change.fault]  # without one it follows from an installation
    if missing:
        return _judge(outcome, "module", f"nvidia {loaded.version}, {flavour}, incomplete", "driver")
    return _next_boot(outcome, f"nvidia {loaded.version}, {flavour}")


def _next_boot(outcome: Outcome, text: str) -> Link:
    """The module's link where it is loaded: broken if the next boot loses it and the plan prevents that; with the reason if no change
    of gpunode's does."""
    wish = outcome.desired.driver if outcome.desired else None
    if wish is None or not wish.ahead:
        return Link("module", "ok", text)
    cause = f"the next boot loses the driver: kernel {wish.ahead} has no nvidia module"
    if not wish.ahead_why:
        return Link("module", "broken", text, cause, _fix(outcome, "module", "", "driver"))
    by_hand = "Give that kernel its module, or let the boot loader start another one next."
    return Link("module", "ok", text, f"{cause}; {wish.ahead_why}", by_hand)


def _library(outcome: Outcome, seen: Facts) -> Link:
    loaded = seen.modules["nvidia"].version if "nvidia" in seen.modules else None
    if seen.library_version is None:
        system = packages.of(seen)
        again = f"`{system.REINSTALL}`" if system else "a new installation"
        by_hand = (
            f"See `ldconfig -p | grep nvidia` on the host; {again} of its driver's packages "
            "restores a deleted library."
        )
        return Link(
            "library",
            "broken",
            "libnvidia-ml.so.1 is missing",
            _why(outcome, "library", "driver"),
            _fix(outcome, "library", by_hand, "driver"),
        )
    if loaded is not None and seen.library_version != loaded:
        return Link(
            "library",
            "broken",
            f"libnvidia-ml {seen.library_version} ≠ module {loaded}",
            "the library was replaced while the old module stayed loaded; programs fail with "
            "“Failed to initialize NVML: Driver/library version mismatch”",
            _fix(outcome, "library", UNMANAGED, "driver"),
        )
    return _judge(outcome, "library", f"libnvidia-ml {seen.library_version}", "driver", "nouveau")


def _nvml(outcome: Outcome, seen: Facts) -> Link:
    if seen.smi_error:
        error = (seen.smi_error.strip() or "nvidia-smi failed").splitlines()[0]
        why = _why(outcome, "NVML", "driver")
        return Link("NVML", "broken", error, why, _fix(outcome, "NVML", LOST, "driver"))
    there = {gpu.pci.lower()[-12:] for gpu in seen.gpus}
    expected = driven(seen.pci)
    missing = [device.address for device in expected if device.address.lower()[-12:] not in there]
    if missing:
        return Link(
            "NVML",
            "broken",
            f"{len(seen.gpus)} of {len(expected)} GPUs answer; missing: {', '.join(missing)}",
            "a GPU on the bus that NVML does not list has fallen off, failed to initialise, or is not "
            "supported by this driver",
            _fix(outcome, "NVML", LOST, "driver"),
        )
    joined = _judge(outcome, "NVML", f"{len(seen.gpus)} GPUs answer", "fabric")
    return joined if joined.status == "broken" else _answering(seen)


def _answering(seen: Facts) -> Link:
    """All GPUs answer; with their MIG modes and devices, where these need attention."""
    on = ", ".join(str(gpu.index) for gpu in seen.gpus if gpu.mig_on)
    text = f"{len(seen.gpus)} GPUs answer" + (f", MIG is on for GPU {on}" if on else "")
    notes = [one] if (one := mig.pending(seen.gpus)) else []
    if "mig" in seen.errors:
        unlisted = f"the MIG devices are not known: {seen.errors['mig']}"
        notes.append((unlisted, "See `nvidia-smi -L` on the host."))
    cause, fix = ("\n".join(words) for words in zip(*notes, strict=True)) if notes else ("", "")
    return Link("NVML", "ok", text, cause, fix)


def _toolkit(outcome: Outcome, seen: Facts) -> Link:
    package = seen.packages.get("nvidia-container-toolkit")
    text = f"nvidia-container-toolkit {package.version}" if package else "no nvidia-container-toolkit"
    return _judge(outcome, "toolkit", text, "toolkit", "toolkit-config", "repository", "cdi")


def _runtime(outcome: Outcome, seen: Facts) -> Link:
    name = outcome.desired.runtime if outcome.desired else runtimes.in_use(seen)
    service = runtimes.RUNTIMES[name].unit(seen)
    unit = seen.units.get(service)
    if unit is None or unit.active != "active":
        shown = service.removesuffix(".service")
        by_hand = f"See `systemctl status {shown}` and `journalctl -u {shown}` on the host."
        # k3s and RKE2 restart both by one unit, after the files of both.
        steps = (name, "kubelet") if kubelets.places.of(seen).unit == service else (name,)
        fix = _fix(outcome, "runtime", by_hand, *steps)
        if fix != by_hand and outcome.status != "refused":
            fix = lines((fix, f"else see `systemctl status {shown}` there"), "; ")
        return Link("runtime", "broken", f"{shown} {_state(unit)}", _why(outcome, "runtime", *steps), fix)
    try:
        state = runtimes.RUNTIMES[name].state(seen)
    except CannotPlan as error:
        what, _, why = error.message.partition("\n")
        return Link("runtime", "broken", what, why, error.hint)
    link = _judge(outcome, "runtime", state, *runtimes.RUNTIMES, "dev-char")
    if link.status == "ok" and outcome.desired and outcome.desired.device_loss:
        cause, fix = outcome.desired.device_loss
        return replace(link, cause=cause, fix=fix)
    return link


def _kubelet(outcome: Outcome, seen: Facts) -> Link:
    name = kubelets.places.of(seen).unit
    unit = seen.units.get(name)
    version = f"kubelet {seen.kubelet.version}" if seen.kubelet else "kubelet"
    if unit is None or unit.active != "active" or unit.sub != "running":
        logged = dict.fromkeys(KLOG.sub("", line) for line in seen.kubelet.journal) if seen.kubelet else {}
        reason = "\n".join([*logged][-3:])  # each once: every start logs the same
        journal = f"journalctl -u {name.removesuffix('.service')}"
        by_hand = f"See `{journal}` on the host; a kubelet that never ran must join the cluster first."
        fix = _fix(outcome, "kubelet", by_hand, "kubelet")
        return Link("kubelet", "broken", f"{version} {_state(unit)}", reason, fix)
    return _judge(outcome, "kubelet", version, "kubelet")


def _state(unit: Unit | None) -> str:
    """A service's state, as the predicate of a sentence."""
    if unit is None:
        return "is not installed"
    if unit.active == "failed":
        return "has failed" if unit.sub == "failed" else f"has failed ({unit.sub})"
    return f"is {unit.active} ({unit.sub})"


def _why(outcome: Outcome, layer: Layer, *steps: str) -> str:
    step = _waiting(outcome, *steps)
    if step is not None:
        return _faults(step)
    return (outcome.error or "") if outcome.layer == layer else ""


CHECKS: tuple[Check, ...] = (_pci, _module, _library, _nvml, _toolkit, _runtime, _kubelet)
