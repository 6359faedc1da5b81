"""nouveau, blacklisted: it and NVIDIA's driver cannot share a GPU."""

from __future__ import annotations

from gpunode import compat
from gpunode.model import Change, Desired, Facts, Reboot, Watch
from gpunode.planning import CannotPlan, files
from gpunode.render import template

FILE = "/etc/modprobe.d/gpunode-nouveau.conf"
WATCH = Watch(files=(FILE,))


def plan(facts: Facts, desired: Desired) -> tuple[Change, ...]:
    """Blacklist it where it is loaded; reboot where it holds a GPU, as unloading it is not safe."""
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
        raise CannotPlan(
            f"{why} although {FILE} was there at the last boot: another reboot would not help",
            hint="The initial ramdisk loads it, or a script does: run `update-initramfs -u` (RHEL: `dracut --force`) on the host and "
            "reboot it, or search for `modprobe nouveau`; then run again.",
        )
    if held:
        changes.append(Reboot(f"{why} and cannot be unloaded safely"))
    return tuple(changes)


def _booted_with(facts: Facts) -> bool:
    """Whether the file is older than the running system."""
    mtime = facts.files[FILE].mtime
    return mtime is not None and mtime < facts.time - facts.uptime
