"""The machine: a GPU is on the PCI bus, and the system is one that gpunode may change."""

from collections import Counter

from gpunode.errors import CannotPlan, Problem
from gpunode.links.link import Link
from gpunode.links.machine import pci
from gpunode.links.machine.pci import driven, gpus
from gpunode.model import ExpectedGpus, Facts, Outcome, Verdict
from gpunode.planning.mig import matches


def judge_pci(outcome: Outcome, seen: Facts) -> Verdict:
    devices = gpus(seen.pci)
    if not devices:
        return Verdict.broken(
            "PCI",
            "no NVIDIA GPU on the PCI bus",
            "nothing with vendor 10de and a display class (0300, 0302) in /sys/bus/pci/devices",
            "Check that the GPU is seated, powered and passed through, or remove the host from the inventory.",
        )
    names = Counter(f"{pci.gpu(device.device).name} ({device.vendor}:{device.device})" for device in devices)
    ours, listed = driven(devices), ", ".join(f"{n}x {name}" for name, n in names.items())
    where = ", ".join(
        device.address.removeprefix("0000:")
        + ("" if device in ours else f" ({device.driver}, for a virtual machine)")
        for device in devices
    )
    text = f"{listed} at {where}"
    if outcome.desired and (problem := check_count(outcome.desired.gpus, seen)):
        return Verdict.broken("PCI", problem.what, f"there are {text}", problem.fix, problem.code)
    return Verdict.ok("PCI", text)


def check_count(expected: ExpectedGpus | None, seen: Facts) -> Problem | None:
    """Why the host's GPUs are not the expected ones; None where they are, or where nothing is expected."""
    if expected is None:
        return None
    devices = gpus(seen.pci)
    fitting = [device for device in devices if matches(expected.model, pci.gpu(device.device).name)]
    if len(fitting) == len(devices) == expected.count:
        return None
    model = f" {expected.model}" if expected.model else ""
    others = f", {len(devices) - len(fitting)} of another model" if len(devices) > len(fitting) else ""
    return Problem(
        "gpus-missing" if len(fitting) < expected.count else "gpus-unexpected",
        f"{len(fitting)} of {expected.count}{model} GPUs on the PCI bus{others}",
        fix="See the kernel log (`journalctl -k | grep -iE 'pci|nvrm'`): a GPU that has left the bus returns after a cold start. If it does not, "
        "check its seat, cables and power. If the inventory is wrong, correct `gpus` there.",
    )


OUT = "remove the host from the inventory"


def check(facts: Facts) -> None:
    """Refuse what has no driver of its own at all, or no GPU."""
    kernel = facts.kernel.lower()
    if "microsoft" in kernel and "wsl" in kernel:
        raise CannotPlan(
            "this is WSL: its driver is the Windows host's, and its GPU is on no PCI bus",
            hint=f"Use a real or virtual machine with Linux, or {OUT}.",
        )
    if kernel.endswith("-tegra"):
        raise CannotPlan(
            "this is a Jetson: its GPU is part of the processor, and its driver comes with L4T",
            hint=f"NVIDIA's JetPack brings driver and toolkit; {OUT}.",
        )
    if not pci.gpus(facts.pci):
        others = [
            f"{d.vendor}:{d.device} (class {d.cls[:4]})" for d in facts.pci if d.vendor.lower() == "10de"
        ]
        seen = f"; of NVIDIA there is only {', '.join(others)}, which is no GPU" if others else ""
        raise CannotPlan(
            f"no NVIDIA GPU on the PCI bus{seen}",
            hint="Check that it is seated, powered and passed through (`lspci -d 10de:`), "
            "or remove the host from the inventory.",
        )


LINK = Link("machine", judges=(judge_pci,))
