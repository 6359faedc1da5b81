"""nouveau out of the way: it and NVIDIA's driver cannot share a GPU."""

from __future__ import annotations

from gpunode import compat
from gpunode.model import Change, Desired, Facts, Reboot
from gpunode.render import Unfit, template
from gpunode.steps import files

FILE = "/etc/modprobe.d/gpunode-nouveau.conf"
FILES = (FILE,)
UNITS = ()
PACKAGES = ()


def plan(facts: Facts, desired: Desired) -> tuple[Change, ...]:
    """Blacklisted where it is loaded; a reboot where it holds a GPU, since it seldom lets go."""
    if desired.driver is None:
        return ()
    held = [device.address for device in compat.gpus(facts.pci) if device.driver == "nouveau"]
    if not held and "nouveau" not in facts.modules:
        return ()
    why = f"nouveau holds {', '.join(held)}" if held else "nouveau is loaded and would take the GPUs first"
    changes: list[Change] = list(
        files.write(facts, FILE, template("etc/modprobe.d/gpunode-nouveau.conf"), f"{why}; nvidia needs them")
    )
    if held and not changes and _booted_with(facts):
        raise Unfit(
            f"{why} although {FILE} was there at the last boot: another reboot would not help",
            hint="The initial ramdisk loads it, or somebody does: `update-initramfs -u` on the host and reboot it, "
            "or look for `modprobe nouveau`; then run again.",
        )
    if held:
        changes.append(Reboot(f"{why} and cannot be unloaded safely"))
    return tuple(changes)


def _booted_with(facts: Facts) -> bool:
    """Whether the file is older than the running system."""
    mtime = facts.files[FILE].mtime
    return mtime is not None and mtime < facts.time - facts.uptime
