"""The driver: its module is loaded, its library fits, NVML answers for every GPU."""

import re
from collections.abc import Iterable, Sequence

from gpunode import packages
from gpunode.contract import xids
from gpunode.explain import explain
from gpunode.links.driver import mig, modules, plan
from gpunode.links.driver.decide import is_in_container
from gpunode.links.driver.modules import loaded_flavour
from gpunode.links.kubelet.start import flag, has_flag
from gpunode.links.link import Link, Step, cause_by_plan, fix_by_plan, judge_by_plan, waiting_step
from gpunode.links.machine.pci import driven
from gpunode.model import Facts, Fault, Gpu, KernelModule, Outcome, Verdict
from gpunode.planning.versions import branch_of
from gpunode.wording import Advice, Command, lines, page, several

UNMANAGED = "`driver: none` leaves the driver to you: install it or load its module; reboot if module and library differ."
SILENT = "gpus-silent"  # verdict's code: NVML lists or reaches fewer GPUs than the bus has
LOST = ("gpu-lost", "gpu-unreachable", "xid-79")  # codes of a GPU that has left the bus
ON_HOST = ("reboot", "reset-gpu", "reset-fabric")  # actions whose command is one


def repair(node: str, code: str = "gpu-lost") -> str:
    """How to bring a GPU of the node back that is Unhealthy for this reason, in the words of `gpunode explain`, with the commands. An
    Xid for which the plugin waits until a reset, and a code without an advice of its own, take one."""
    meaning = explain(code)
    resets = code.startswith("xid-") and xids.verdict(int(code[4:])) is xids.Verdict.RESET
    if meaning is None or meaning.action == "see-message" or (resets and meaning.action != "reset-gpu"):
        meaning = explain("gpu-requires-reset")
        assert meaning
    fix, other = meaning.next, meaning.alternative
    if meaning.action in ON_HOST:
        command = f"on the host `sudo {meaning.bare_command}`"
        commands = f"`kubectl drain {node} --ignore-daemonsets`; {command}; then `kubectl uncordon {node}`"
        fix = lines((commands, meaning.more))
    return f"{fix}{'' if fix.endswith('.') else '.'} If {other.condition}: {other.next}" if other else fix


def node_name(outcome: Outcome, seen: Facts) -> str:
    """The node's name: the inventory's, else as the kubelet takes it from its argument, k3s' or the host, in lower case."""
    desired = outcome.desired
    if desired and desired.node:
        return desired.node
    # source: k8s.io/component-helpers/node/util, GetHostname; a kubelet's own argument comes last in k3s' (its pkg/daemons/agent)
    argv = seen.kubelet.arguments if seen.kubelet else ()
    argv += desired.kubelet.argv if desired and desired.kubelet else ()
    own = None if has_flag(argv, "with-node-id") else flag(argv, "node-name")
    return (flag(argv, "hostname-override") or own or seen.hostname).strip().lower()


def judge_module(outcome: Outcome, seen: Facts) -> Verdict:
    owners = {device.driver for device in driven(seen.pci)} - {None, "nvidia"}
    if owners:
        owner = ", ".join(sorted(str(owner) for owner in owners))
        by_hand = (
            f"Unbind them from {owner} (see /etc/modprobe.d and the kernel's command line), then reboot; "
            "or remove the host from the inventory."
        )
        return Verdict.broken(
            "module",
            f"{owner} holds the GPUs, not nvidia",
            f"nvidia cannot bind to the GPUs: when it loads, the kernel logs “NVRM: GPU … is already bound to {owner}”",
            fix_by_plan(outcome, "module", by_hand, "nouveau", "driver"),
        )
    loaded = seen.modules.get("nvidia")
    if loaded is None:
        version = seen.library_version
        unloaded = f"driver {version} is installed, but its module is not loaded" if version else ""
        return Verdict.broken(
            "module",
            "nvidia is not loaded",
            cause_by_plan(outcome, "module", "driver", "repository") or unloaded or "no driver is installed",
            fix_by_plan(outcome, "module", UNMANAGED, "driver"),
        )
    flavour = loaded_flavour(seen)
    step = waiting_step(outcome, "driver")
    loads = [c for c in step.changes if isinstance(c, KernelModule) and not c.unload] if step else []
    missing = [change for change in loads if change.fault]  # without one it follows from an installation
    if missing:
        return judge_by_plan(outcome, "module", f"nvidia {loaded.version}, {flavour}, incomplete", "driver")
    return _next_boot(outcome, f"nvidia {loaded.version}, {flavour}")


def _next_boot(outcome: Outcome, text: str) -> Verdict:
    """The module's link where it is loaded: broken if the next boot loses it and the plan prevents that; with the reason if no change
    of gpunode's does."""
    driver = outcome.desired.driver if outcome.desired else None
    if driver is None or not driver.ahead:
        return Verdict.ok("module", text)
    cause = f"the next boot loses the driver: kernel {driver.ahead} has no nvidia module"
    if not driver.ahead_why:
        return Verdict.broken("module", text, cause, fix_by_plan(outcome, "module", "", "driver"))
    by_hand = "Give that kernel its module, or let the boot loader start another one next."
    return Verdict.ok("module", text, f"{cause}; {driver.ahead_why}", by_hand)


def judge_library(outcome: Outcome, seen: Facts) -> Verdict:
    loaded = seen.modules["nvidia"].version if "nvidia" in seen.modules else None
    if is_in_container(seen):
        return Verdict.broken(
            "library",
            "libnvidia-ml.so.1 is in the GPU Operator's driver container alone",
            "containers get the driver's files from the host, where gpunode's plugin and the host's toolkit look for them",
            f"Take the node over from the operator ({page('switching.md')}), or exclude the host.",
        )
    if seen.library_version is None:
        system = packages.system_of_host(seen)
        repair = f"`{system.reinstall}`" if system else "a new installation"
        by_hand = (
            f"See `ldconfig -p | grep nvidia` on the host; {repair} of its driver's packages "
            "restores a deleted library."
        )
        return Verdict.broken(
            "library",
            "libnvidia-ml.so.1 is missing",
            cause_by_plan(outcome, "library", "driver"),
            fix_by_plan(outcome, "library", by_hand, "driver"),
        )
    if loaded is not None and seen.library_version != loaded:
        return Verdict.broken(
            "library",
            f"libnvidia-ml {seen.library_version} ≠ module {loaded}",
            "the library was replaced while the old module stayed loaded; programs fail with "
            "“Failed to initialize NVML: Driver/library version mismatch”",
            fix_by_plan(outcome, "library", UNMANAGED, "driver"),
        )
    text = f"libnvidia-ml {seen.library_version}"
    asked = _other_driver(outcome, seen, loaded or "")
    if asked and waiting_step(outcome, "driver"):
        cause = f"a driver change is pending: nvidia {loaded} is loaded; {asked}"
        return Verdict.pending(
            "library", text, cause, Advice(Command("provision", f"--limit {outcome.host}"))
        )
    return judge_by_plan(outcome, "library", text, "driver", "nouveau")


def _other_driver(outcome: Outcome, seen: Facts, loaded: str) -> str:
    """The driver that is desired, where another one is loaded; else ""."""
    desired = outcome.desired and outcome.desired.driver
    if not desired or not loaded:
        return ""
    same = loaded == desired.version if desired.version else branch_of(loaded) == desired.branch
    if same and loaded_flavour(seen) == desired.flavour:
        return ""
    return f"the plan brings {desired.version or desired.branch}, {desired.flavour}"


def loses_gpu(link: Verdict) -> bool:
    """Whether the link is broken by GPUs that do not answer the driver."""
    return link.problem is not None and link.problem.code == SILENT


def find_missing(seen: Facts) -> list[str]:
    """PCI addresses of the GPUs that NVML does not list."""
    listed = {gpu.pci.lower()[-12:] for gpu in seen.gpus}
    return [device.address for device in driven(seen.pci) if device.address.lower()[-12:] not in listed]


def judge_nvml(outcome: Outcome, seen: Facts) -> Verdict:
    if seen.smi_error:
        error = (seen.smi_error.strip() or "nvidia-smi failed").splitlines()[0]
        why = cause_by_plan(outcome, "NVML", "driver")
        fix = fix_by_plan(outcome, "NVML", repair(node_name(outcome, seen)), "driver")
        meaning = explain(error)
        lost = meaning is not None and meaning.code in LOST
        error = error.partition(".  Reboot the system")[0]  # the fix has it
        error += " (nvidia-smi names only the first lost GPU)" if lost and len(driven(seen.pci)) > 1 else ""
        return Verdict.broken("NVML", error, why, fix, SILENT if lost else "")
    expected = driven(seen.pci)
    if missing := find_missing(seen):
        return Verdict.broken(
            "NVML",
            f"{len(seen.gpus)} of {len(expected)} GPUs answer; missing: {', '.join(missing)}",
            "such a GPU has fallen off the bus, failed to initialise, or is not supported by this driver",
            fix_by_plan(outcome, "NVML", repair(node_name(outcome, seen)), "driver"),
            SILENT,
        )
    joined = judge_by_plan(outcome, "NVML", _answering(seen), "fabric", "mig")
    return joined if joined.status == "broken" else _judge_fabric(seen) or _judge_answers(seen)


# What nvidia-smi says of a GPU that the fabric manager has not joined to the others, or not well. Some drivers repeat the field's name:
# `state  Completed, status Success`; without a fabric there is N/A, or a state that is not supported.
UNJOINED = re.compile(r"Not Started|In Progress|Completed,(?!.*(Success|N/A))", re.IGNORECASE)


def _judge_fabric(seen: Facts) -> Verdict | None:
    """Broken where the fabric manager runs and has not joined all GPUs; None where it has, or where nothing is known."""
    apart = [gpu for gpu in seen.gpus if UNJOINED.search(gpu.fabric)]
    if not apart:
        return None
    states = "; ".join(f"GPU {gpu.index}: {gpu.fabric}" for gpu in apart)
    return Verdict.broken(
        "NVML",
        f"{len(apart)} of {len(seen.gpus)} GPUs are not joined over NVSwitch",
        f"{states}: CUDA answers error 802 there",
        "See /var/log/fabricmanager.log and `journalctl -u nvidia-fabricmanager` on the host. With the node drained, "
        "`systemctl restart nvidia-fabricmanager`. If a GPU or NVLink fails again, its hardware is faulty.",
        "fabric",
    )


def _answering(seen: Facts) -> str:
    return f"{several(len(seen.gpus), 'GPU')} answer{'s' if len(seen.gpus) == 1 else ''}"


def _judge_answers(seen: Facts) -> Verdict:
    """All GPUs answer; with their MIG modes and devices, where these need attention."""
    on = ", ".join(str(gpu.index) for gpu in seen.gpus if gpu.mig_on)
    text = _answering(seen) + (f", MIG is on for GPU {on}" if on else "")
    pending = pending_mig(seen.gpus)
    notes = [pending] if pending else []
    if "mig" in seen.errors:
        unlisted = f"the MIG devices are not known: {seen.errors['mig']}"
        notes.append((unlisted, "See `nvidia-smi -L` on the host."))
    cause, fix = ("\n".join(texts) for texts in zip(*notes, strict=True)) if notes else ("", "")
    return Verdict.ok("NVML", text, cause, fix)


def pending_mig(gpus: Sequence[Gpu]) -> tuple[str, str] | None:
    """Which GPUs change their MIG mode at the next reset, and how to reset them; None where none does."""
    waiting = [gpu for gpu in gpus if gpu.mig_on != gpu.mig_pending]
    if not waiting:
        return None
    causes = [
        f"GPU {_indexes(some, ', ')}: MIG is {'on' if on else 'off'}, and {'off' if on else 'on'} only after the GPU's next reset"
        for on in (True, False)
        if (some := [gpu for gpu in waiting if gpu.mig_on == on])
    ]
    return (
        "\n".join(causes),
        f"With the node drained and the device plugin's pod deleted, `nvidia-smi -i {_indexes(waiting, ',')} --gpu-reset`; "
        "or reboot the host.",
    )


def _indexes(gpus: Iterable[Gpu], comma: str) -> str:
    return comma.join(str(gpu.index) for gpu in gpus)


LINK = Link(
    "driver",
    steps=(
        Step("nouveau", "module", modules.plan_nouveau, modules.NOUVEAU_WATCH),
        Step("driver", "module", plan.plan, plan.WATCH),
        Step("fabric", "NVML", plan.plan_fabric, plan.FABRIC_WATCH),
        Step("persistence", "NVML", plan.plan_persistence, plan.PERSISTENCE_WATCH),
        Step("mig", "NVML", mig.plan, mig.WATCH),
        Step("daemons", "NVML", plan.plan_daemons, plan.WATCH),
    ),
    judges=(judge_module, judge_library, judge_nvml),
    faults=(
        Fault("module", "module", "an administrator unloaded the nvidia module"),
        Fault("nouveau", "module", "a new kernel loaded nouveau instead of nvidia"),
        Fault("nova", "module", "a new kernel loaded nova, nouveau's successor, instead of nvidia"),
        Fault(
            "kernel", "module", "an upgrade installed a kernel that has no nvidia module, for the next boot"
        ),
        Fault("library", "library", "an upgrade replaced the driver's library under the loaded module"),
        Fault(
            "xid",
            "NVML",
            "a GPU reported Xid 79 and fell off the bus",
            "Only a reboot or new hardware fixes it.",
        ),
    ),
)
