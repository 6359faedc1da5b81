"""MIG layouts of a host's GPUs as the inventory has them: made now, and again at each boot.

A reboot removes MIG devices, and from Hopper on MIG mode, too. On A100 and A30 a change of the mode resets the GPU; where it cannot
(a virtual machine, a client), it is pending until a reboot. source: NVIDIA's MIG User Guide, "Deployment Considerations", "Getting
Started with MIG"
"""

from collections.abc import Mapping

from gpunode.errors import CannotPlan
from gpunode.links.driver.modules import SERVICES
from gpunode.links.driver.plan import module_after
from gpunode.links.machine import pci
from gpunode.model import (
    Change,
    Desired,
    Facts,
    Gpu,
    GpuLayout,
    Host,
    Layout,
    MigLayout,
    PciDevice,
    Reboot,
    Service,
    Watch,
)
from gpunode.planning import files, services
from gpunode.planning import mig as profiles

UNIT, SCRIPT = "gpunode-mig.service", "/etc/gpunode-mig.sh"
FILE = f"/etc/systemd/system/{UNIT}"
LINK = f"/etc/systemd/system/multi-user.target.wants/{UNIT}"
WATCH = Watch(files=(FILE, LINK, SCRIPT), units=(UNIT,))
# Generations without MIG, by the same guide
WITHOUT = ("Kepler", "Maxwell", "Pascal", "Volta", "Turing", "Ada Lovelace")
DCGM = SERVICES["nv-hostengine"]  # mig-parted stops it, too, and NVIDIA's nvsm (deployments/systemd/hooks.sh)


def decide(host: Host, facts: Facts) -> Mapping[str, Layout]:
    """PCI address → layout, of the GPUs that a rule of the inventory fits. Raises CannotPlan for a layout that a GPU cannot have."""
    layouts: dict[str, Layout] = {}
    for device in pci.driven(facts.pci) if host.mig else ():
        address = device.address.lower()[-12:]
        gpu = next((gpu for gpu in facts.gpus if gpu.pci == address), None)
        names = (gpu.name if gpu else "", pci.gpu(device.device).name)
        rule = next((r for r in host.mig if any(profiles.matches(r.model, name) for name in names)), None)
        if rule and (rule.layout is not None or gpu is None or gpu.mig_capable):
            layouts[address] = rule.layout and _checked(rule.layout, rule.place, device, gpu)
    return layouts


def notes(host: Host, facts: Facts, layouts: Mapping[str, Layout]) -> tuple[str, ...]:
    """What a user may expect of `mig`, and does not get."""
    if host.mig and not layouts:
        return (
            f"`mig`: none of its GPUs is one of {', '.join(rule.model or 'a MIG GPU' for rule in host.mig)}.",
        )
    if not host.mig and files.exists(facts, SCRIPT):
        return (f"The MIG layouts stay, and {UNIT} makes them at each boot; `mig: off` takes them back.",)
    return ()


def _checked(layout: tuple[str, ...], place: str, device: PciDevice, gpu: Gpu | None) -> Layout:
    model = pci.gpu(device.device)
    known = (gpu.profiles if gpu else ()) or profiles.profiles(device.device)
    wrong = profiles.problem(layout, known) if known else ""
    if model.generation in WITHOUT or (gpu is not None and not gpu.mig_capable):
        wrong = "the GPU has no MIG, as A100, A30 and H100 have"
    elif not known and layout[0].startswith(profiles.ALL):
        wrong = f"how many {layout[0][len(profiles.ALL) :]} fit is not known; list them one by one"
    if wrong:
        raise CannotPlan(
            f"{device.address} ({model.name}) cannot have the MIG layout {', '.join(layout)}: {wrong}",
            hint=f"{place}: change or remove it, or write it by model: `mig: {{MODEL: …}}`.",
        )
    return profiles.expand(layout, known)


def plan(facts: Facts, desired: Desired) -> tuple[Change, ...]:
    """The unit that makes the layouts at each boot, and the layouts of GPUs that have others now; all of them after a reload of
    the modules, which removes MIG devices. A mode that waits for a reset gets a reboot. What the inventory does not name stays."""
    after = module_after(facts, desired)
    if not desired.mig or after == "absent":
        return ()
    now = {gpu.pci: gpu for gpu in facts.gpus}
    planned = [(now[at], layout) for at, layout in desired.mig.items() if at in now]
    waiting = [gpu for gpu, layout in planned if gpu.mig_on != gpu.mig_pending == (layout is not None)]
    boot = _at_boot(facts, {at: layout for at, layout in desired.mig.items() if layout is not None})
    if after == "rebooted" or waiting:
        why = f"MIG mode of {', '.join(gpu.pci for gpu in waiting)} is pending until a reset"
        return (*boot, *((Reboot(why),) if waiting else ()))
    gpus = tuple(
        GpuLayout(at, layout, _layout(facts, now[at]) if at in now else None, at in now)
        for at, layout in desired.mig.items()
        if (after == "reloaded" and layout is not None) or (at in now and differs(facts, now[at], layout))
    )
    if not gpus:
        return boot
    seen = [
        f"{gpu.pci}: MIG is {profiles.describe(gpu.before)}, the inventory has {profiles.describe(gpu.after)}"
        for gpu in gpus
        if gpu.seen
    ]
    fault = "\n".join(seen)
    return (*boot, MigLayout(gpus, "the inventory has this layout (`mig`)", _stopped(facts), fault=fault))


def restore(facts: Facts, layouts: Mapping[str, Layout], why: str) -> tuple[MigLayout, ...]:
    """The change that gives GPUs, by PCI address, these layouts; () where all that are there have theirs."""
    gpus = tuple(
        GpuLayout(gpu.pci, layouts[gpu.pci], _layout(facts, gpu))
        for gpu in facts.gpus
        if gpu.pci in layouts and differs(facts, gpu, layouts[gpu.pci])
    )
    return (MigLayout(gpus, why, _stopped(facts)),) if gpus else ()


def _stopped(facts: Facts) -> tuple[str, ...]:
    return tuple(unit for unit in (DCGM,) if services.is_active(facts, unit))


def changes_devices(facts: Facts, desired: Desired) -> bool:
    """Whether the plan makes other MIG devices, with new UUIDs."""
    return any(isinstance(change, MigLayout) for change in plan(facts, desired))


def differs(facts: Facts, gpu: Gpu, layout: Layout) -> bool:
    before = _layout(facts, gpu)
    return sorted(before or ()) != sorted(layout or ()) or (before is None) != (layout is None)


def _layout(facts: Facts, gpu: Gpu) -> Layout:
    if gpu.mig is None:
        raise CannotPlan(
            f"the MIG devices of GPU {gpu.index} are not known: {facts.errors.get('mig', '')}",
            hint="See `nvidia-smi -L` on the host.",
        )
    return tuple(device.profile for device in gpu.mig) if gpu.mig_on else None


def _at_boot(facts: Facts, layouts: Mapping[str, Layout]) -> tuple[Change, ...]:
    """The unit and its script, enabled; removed where no GPU has a layout any more."""
    if not layouts:
        texts = [(path, files.text(facts, path)) for path in (LINK, FILE, SCRIPT)]
        why = "no GPU has a MIG layout in the inventory"
        return tuple(files.remove(path, text, why) for path, text in texts if text is not None)
    why = "a reboot removes MIG devices; from Hopper on it also switches MIG off"
    unit = facts.units.get(UNIT)
    stays = unit is not None and unit.enabled == "enabled"
    return (
        *files.write_own(facts, SCRIPT, why, layouts=layouts),
        *files.write_own(facts, FILE, why),
        *(() if stays else (Service(UNIT, f"at each boot: {why}", enable=True, start=False),)),
    )
