"""nouveau and nova, Linux' own drivers, blacklisted: they and NVIDIA's cannot share a GPU."""

from __future__ import annotations

from gpunode.errors import CannotPlan
from gpunode.links.machine import pci
from gpunode.model import Change, Desired, Facts, Reboot, Watch
from gpunode.planning import files
from gpunode.planning.templates import template

FILE = "/etc/modprobe.d/gpunode-nouveau.conf"
WATCH = Watch(files=(FILE,))


def plan(facts: Facts, desired: Desired) -> tuple[Change, ...]:
    """Blacklist both where one is loaded; reboot where it holds a GPU, as unloading it is not safe. A host that loads neither
    keeps the file that it has."""
    if desired.driver is None:
        return ()
    held = pci.taken(facts.pci)
    loaded = next((name for name in pci.FREE_MODULES if name in facts.modules), "")
    if not held and not loaded:
        return ()
    why = f"{loaded} is loaded and would take the GPUs first"
    if held:
        why = f"{held[0].driver} holds {', '.join(device.address for device in held)}"
    changes: list[Change] = list(
        files.write(facts, FILE, template("etc/modprobe.d/gpunode-nouveau.conf"), f"{why}; nvidia needs them")
    )
    if held and _booted_without(facts, held[0].driver):
        raise CannotPlan(
            f"{why} although {FILE} was there at the last boot: another reboot would not help",
            hint="The initial ramdisk loads it, or a script does: run `update-initramfs -u` (RHEL: `dracut --force`) on the host and "
            f"reboot it, or search for `modprobe {loaded or held[0].driver}`; then run again.",
        )
    if held:
        changes.append(Reboot(f"{why} and cannot be unloaded safely"))
    return tuple(changes)


def _booted_without(facts: Facts, driver: str | None) -> bool:
    """Whether the file is older than the running system, and keeps this driver away."""
    file, module = facts.files.get(FILE), "nouveau" if driver == "nouveau" else "nova_core"
    if file is None or file.mtime is None or f"blacklist {module}" not in (file.content or "").splitlines():
        return False
    return file.mtime < facts.time - facts.uptime
