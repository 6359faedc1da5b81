"""Machines whose driver is not the host's to install."""

from __future__ import annotations

from collections.abc import Sequence

from gpunode.errors import Refused
from gpunode.links.machine import pci
from gpunode.model import Facts, Host, PciDevice

DGX = "/etc/dgx-release"
OUT = "take the host out of the inventory"


def check(host: Host, facts: Facts) -> None:
    """Refuse what has no driver of its own at all, or no GPU."""
    kernel = facts.kernel.lower()
    if "microsoft" in kernel and "wsl" in kernel:
        raise Refused(
            host.name,
            "this is WSL: its driver is the Windows host's, and its GPU is on no PCI bus",
            hint=f"Use a real or virtual machine with Linux, or {OUT}.",
            layer="PCI",
        )
    if kernel.endswith("-tegra"):
        raise Refused(
            host.name,
            "this is a Jetson: its GPU is part of the processor, and its driver comes with L4T",
            hint=f"NVIDIA's JetPack brings driver and toolkit; {OUT}.",
            layer="PCI",
        )
    if not pci.gpus(facts.pci):
        raise _no_gpu(host, facts)


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


def check_driver(host: Host, facts: Facts, gpus: Sequence[PciDevice]) -> None:
    """Refuse what gets its driver from others."""
    parts = [f"{device.address} is {name}" for device in gpus if (name := pci.fraction(device))]
    if parts:
        raise Refused(
            host.name,
            f"{', '.join(parts)}, a part of a GPU: only NVIDIA's GRID driver drives it, which no repository has",
            hint="Install the cloud's GRID driver and set `driver: none`, or take a machine with a whole GPU.",
            layer="module",
        )
    dgx = facts.files.get(DGX)
    if dgx is not None and dgx.exists:
        raise Refused(
            host.name,
            "this is DGX OS: packages of NVIDIA's own hold driver, kernel and fabric manager together",
            hint="Leave the driver to them: `driver: none`, and `toolkit: none` where the toolkit is there, too.",
            layer="module",
        )


def known(host: Host, models: Sequence[pci.Model]) -> None:
    """Refuse GPUs that are in no table."""
    unknown = [model.name for model in models if not model.flavours]
    if unknown:
        raise Refused(
            host.name,
            f"{', '.join(unknown)}: not in gpunode's tables, so no driver can be chosen for it",
            hint="Use a newer gpunode, or install a driver by hand and set `driver: none`.",
            layer="module",
        )


def passed_through(host: Host, gpus: Sequence[PciDevice]) -> None:
    """Refuse GPUs that are for virtual machines."""
    if all(map(pci.is_passed_through, gpus)):
        owners = ", ".join(sorted({str(device.driver) for device in gpus}))
        raise Refused(
            host.name,
            f"all {len(gpus)} GPUs are bound to {owners}, for virtual machines",
            hint=f"Give a GPU back to the host (unbind {owners}, remove its ids from modprobe.d), "
            "or take the host out of the inventory.",
            layer="module",
        )
