"""The machine: a GPU is on the PCI bus."""

from __future__ import annotations

from collections import Counter

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


LINK = Link("machine", judges=(judge_pci,))
