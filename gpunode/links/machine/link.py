"""The machine: a GPU is on the PCI bus, and the system is one that gpunode may change."""

from __future__ import annotations

from collections import Counter

from gpunode.errors import CannotPlan
from gpunode.links.link import Link
from gpunode.links.machine import pci
from gpunode.links.machine.pci import driven, gpus
from gpunode.model import Facts, Outcome, Verdict


def judge_pci(_: Outcome, seen: Facts) -> Verdict:
    devices = gpus(seen.pci)
    if not devices:
        return Verdict.broken(
            "PCI",
            "no NVIDIA GPU on the PCI bus",
            "nothing with vendor 10de and a display class (0300, 0302) in /sys/bus/pci/devices",
            "Check that the GPU is seated, powered and passed through, or take the host out of the inventory.",
        )
    names = Counter(f"{pci.gpu(device.device).name} ({device.vendor}:{device.device})" for device in devices)
    ours = driven(devices)
    where = ", ".join(
        device.address.removeprefix("0000:")
        + ("" if device in ours else f" ({device.driver}, for a virtual machine)")
        for device in devices
    )
    return Verdict.ok("PCI", f"{', '.join(f'{n}x {name}' for name, n in names.items())} at {where}")


OUT = "take the host out of the inventory"


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
            "or take the host out of the inventory.",
        )


LINK = Link("machine", judges=(judge_pci,))
