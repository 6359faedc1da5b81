"""The toolkit's CDI specification: there, and of the driver and the GPUs that the host has.

The toolkit's own units write it from 1.18 on, as the driver's modules or nvidia-ctk change; for older ones, and where the toolkit's
unit skips itself, gpunode has a unit that udev starts with the driver. Up to 1.20.0 the toolkit's unit makes no device files, and
nvidia-ctk lists those that are there: a drop-in makes them where /dev/nvidia-uvm was missing. It goes once the unit makes them.
source: NVIDIA/nvidia-container-toolkit deployments/systemd, deployments/udev, pull request 1979.
"""

from __future__ import annotations

import re
from dataclasses import replace

from gpunode import compat
from gpunode.links.driver import plan as driver
from gpunode.links.toolkit import specifications
from gpunode.links.toolkit.decide import JUST_IN_TIME
from gpunode.model import Change, Desired, Facts, RemoveFile, Service, Watch, WriteFile
from gpunode.planning import files, services
from gpunode.planning.templates import template
from gpunode.planning.versions import is_installed

UNIT, PATH = "nvidia-cdi-refresh.service", "nvidia-cdi-refresh.path"  # the toolkit's
OWN = "gpunode-cdi.service"
FILE = f"/etc/systemd/system/{OWN}"
LINK = f"/etc/systemd/system/multi-user.target.wants/{OWN}"
DROP_IN = f"/etc/systemd/system/{UNIT}.d/gpunode.conf"
RULE = "/etc/udev/rules.d/99-gpunode-cdi.rules"
# Where systemd takes it from, the first wins. Packages of 1.18 have it in /etc, too.
UNIT_FILES = tuple(f"{folder}/systemd/system/{UNIT}" for folder in ("/etc", "/usr/lib", "/lib"))
TOOLKITS = "Description=Refresh NVIDIA CDI specification file"  # in every version's unit
MAKES = "create-device-nodes"  # in those that make the device files
MADE_BY_NONE = (1, 20, 0)  # the last version whose unit does not
NOTE = "no container is touched"
WATCH = Watch(
    files=(
        FILE,
        LINK,
        RULE,
        DROP_IN,
        *UNIT_FILES,
        *(f"{folder}*.{kind}" for folder in specifications.FOLDERS for kind in ("yaml", "json")),
    ),
    units=(UNIT, PATH, OWN),
)


def plan(facts: Facts, desired: Desired) -> tuple[Change, ...]:
    """The unit that writes it, started while it is missing, or of another driver or other GPUs; and after the driver changes."""
    if not desired.cdi:
        return ()
    comes = any(not is_installed(facts.packages, spec) for spec in desired.toolkit)
    has = desired.toolkit_version >= JUST_IN_TIME or not desired.toolkit_version
    unit_path, unit_text = _unit(facts)
    another = f"{unit_path} is not the toolkit's" if unit_text and TOOLKITS not in unit_text else ""
    has = has and (services.is_loaded(facts, UNIT) or comes)
    skipped = another or skips(facts, desired) if has else ""
    theirs, reason = has and not skipped, f"{desired.cdi}{skipped and f'; {skipped}'}"
    written: tuple[WriteFile, ...] = ()
    for path in () if theirs else (FILE, RULE):
        written += files.write(facts, path, template(path.lstrip("/")), reason)
    drop_in = files.text(facts, DROP_IN)
    # By its version where it comes only with this plan: a later round may do nothing that was not shown.
    makes = desired.toolkit_version[:3] > MADE_BY_NONE if comes else MAKES in unit_text
    if theirs and not makes and (specifications.lacks_uvm(facts) or drop_in is not None):
        why = "the unit of some toolkits lists device files only where something has made them"
        made = files.write(facts, DROP_IN, template(DROP_IN.lstrip("/")), why)
        written += tuple(
            replace(change, fault="") for change in made
        )  # the specification's is that of the start
    before: tuple[Change, ...] = (*_leftovers(facts), *_watching(facts), *written) if theirs else written
    if drop_in is not None and (makes or not theirs):
        why = "the unit makes the device files itself" if theirs else f"{OWN} writes the specification"
        before = (files.remove(DROP_IN, drop_in, why), *before)
    name = UNIT if theirs else OWN
    after, unit, fault = (
        driver.module_after(facts, desired),
        facts.units.get(name),
        specifications.wrong(facts),
    )
    stays = unit is not None and unit.enabled == "enabled"
    if after == "rebooted":
        why = f"the reboot starts it: {reason}"
        return before if stays else (*before, Service(name, why, enable=True, start=False, fault=""))
    if after == "absent" or not (fault or not stays or after == "reloaded" or written):
        return before
    guards = tuple(change.path for change in written)
    why = f"{reason}; it is written again as the driver changes"
    start = Service(name, why, enable=True, restart=True, guards=guards, note=NOTE, fault=fault or None)
    return (*before, start)


def skips(facts: Facts, desired: Desired) -> str:
    """Why the toolkit's unit would skip itself on this host; "" where it would not."""
    files = _modules(facts, desired)
    if compat.refreshes(desired.toolkit_version, files):
        return ""
    seen = ", ".join(file.rpartition("/")[2] for file in files)
    version = ".".join(map(str, desired.toolkit_version[:3])) or "the toolkit"
    which = (
        f"the driver's module here is {seen}"
        if seen
        else "the kernel's modules.dep lists none of the driver's"
    )
    return f"{UNIT} of {version} skips itself where it finds no module of a name that it knows, and {which}"


def _modules(facts: Facts, desired: Desired) -> tuple[str, ...]:
    """The files of the driver's module: those that are there, else as the driver that comes names them. A wrong guess is put right
    by the next round, which sees them."""
    missing = driver.missing(facts, desired)
    wish = desired.driver
    comes = [spec.name for spec in (wish.packages if wish else ()) if spec in missing]
    if not comes and (facts.module_files or "nvidia" in facts.modules):
        return facts.module_files
    kernels = [name for name in comes if name.endswith("-kernel-dkms")]
    if wish is None or not wish.archive or not kernels:
        return facts.module_files or ("nvidia.ko",)
    tesla = re.match(r"nvidia-tesla-\d+", kernels[0])  # Debian's; Ubuntu's packages have other names
    return (
        f"{tesla[0] if tesla else 'nvidia-current-open' if '-open-' in kernels[0] else 'nvidia-current'}.ko",
    )


def _unit(facts: Facts) -> tuple[str, str]:
    """The file of the unit of the toolkit's name, and its text; "" for both where it could not be read."""
    for path in UNIT_FILES:
        file = facts.files.get(path)
        if file is not None and file.exists:
            return path, file.content or ""
    return "", ""


def _leftovers(facts: Facts) -> tuple[RemoveFile, ...]:
    """gpunode's own unit of an older toolkit; its link first, which leads to it."""
    texts = [(path, files.text(facts, path)) for path in (LINK, RULE, FILE)]
    why = "the toolkit has units of its own for this"
    return tuple(files.remove(path, text, why) for path, text in texts if text is not None)


def _watching(facts: Facts) -> tuple[Service, ...]:
    """The toolkit's unit that waits for changes, where it was disabled, or comes only with this plan."""
    unit = facts.units.get(PATH)
    if unit is not None and unit.enabled == "enabled" and unit.active == "active":
        return ()
    why = "it has the specification written again when the driver or the toolkit changes"
    return (Service(PATH, why, enable=True, note=NOTE),)
