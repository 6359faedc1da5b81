"""CDI specifications of nvidia.com/gpu: the effective one, its problems, and the unit that keeps it current.

The toolkit's own units write it from 1.18 on, as the driver's modules or nvidia-ctk change; for older ones, and where the toolkit's
unit skips itself, gpunode has a unit that udev starts with the driver. Up to 1.20.0 the toolkit's unit makes no device files, and
nvidia-ctk lists those that are there: a drop-in makes them where /dev/nvidia-uvm was missing. It goes once the unit makes them.
source: NVIDIA/nvidia-container-toolkit deployments/systemd, deployments/udev, pull request 1979.

Of two folders /run/cdi wins for a device that both have; of a device in two files of one folder there is none.
source: cncf-tags/container-device-interface pkg/cdi/cache.go (refresh), pkg/cdi/spec-dirs.go (DefaultSpecDirs).
"""

import re
from collections.abc import Iterator
from dataclasses import replace

import yaml

from gpunode.contract import yaml_text
from gpunode.links.driver import mig
from gpunode.links.driver import plan as driver_plan
from gpunode.links.toolkit.plan import refreshes
from gpunode.model import Change, Desired, Facts, RemoveFile, Service, Watch, WriteFile
from gpunode.planning import files, services
from gpunode.planning.versions import is_installed
from gpunode.wording import few

WRITTEN = "/run/cdi/nvidia.yaml"  # by the toolkit's unit and gpunode's, whatever else is there
FOLDERS = ("/run/cdi/", "/etc/cdi/")  # the first wins
KIND = re.compile(r"""\bkind["']?\s*:\s*["']?nvidia\.com/gpu["']?\s*(,|}|$)""", re.MULTILINE)
UVM = re.compile(r"/dev/nvidia-uvm(?![-\w])")
DRIVER = re.compile(r"/lib(?:cuda|nvidia-ml)\.so\.(\d+(?:\.\d+)+)")
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
JUST_IN_TIME = (1, 18)  # from which toolkit on there is that unit, and its mode `auto` injects by CDI
NOTE = "no container is touched"
WATCH = Watch(
    files=(
        FILE,
        LINK,
        RULE,
        DROP_IN,
        *UNIT_FILES,
        *(f"{folder}*.{kind}" for folder in FOLDERS for kind in ("yaml", "json")),
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
        written += files.write_own(facts, path, reason)
    drop_in = files.text(facts, DROP_IN)
    # By its version where it comes only with this plan: a later round may do nothing that was not shown.
    makes = desired.toolkit_version[:3] > MADE_BY_NONE if comes else MAKES in unit_text
    if theirs and not makes and (lacks_uvm(facts) or drop_in is not None):
        why = "some toolkits' unit lists only existing device files"
        changes = files.write_own(facts, DROP_IN, why)
        # The specification's is that of the start
        written += tuple(replace(change, fault="") for change in changes)
    before: tuple[Change, ...] = (*_leftovers(facts), *_watchers(facts), *written) if theirs else written
    if drop_in is not None and (makes or not theirs):
        why = "the unit makes the device files itself" if theirs else f"{OWN} writes the specification"
        before = (files.remove(DROP_IN, drop_in, why), *before)
    name = UNIT if theirs else OWN
    why = f"{reason}; it is written again as the driver changes"
    at_boot = f"the reboot starts it: {reason}"
    other = "its MIG devices change" if mig.changes_devices(facts, desired) else ""
    fault = problem(facts) or other
    return (*before, *start_with_driver(facts, desired, name, written, why, at_boot, fault))


def start_with_driver(
    facts: Facts,
    desired: Desired,
    unit: str,
    written: tuple[WriteFile, ...],
    why: str,
    at_boot: str,
    fault: str,
) -> tuple[Service, ...]:
    """Enable a unit that runs once after the driver is loaded, and start it where it did not for this driver and these files.
    `at_boot`: why it is only enabled where a reboot follows. `fault`: what is wrong without its work; "" for nothing."""
    after, state = driver_plan.module_after(facts, desired), facts.units.get(unit)
    stays = state is not None and state.enabled == "enabled"
    if after == "rebooted":
        return () if stays else (Service(unit, at_boot, enable=True, start=False, fault=""),)
    if after == "absent" or not (written or fault or not stays or after == "reloaded"):
        return ()
    guards = tuple(change.path for change in written)
    return (Service(unit, why, enable=True, restart=True, guards=guards, note=NOTE, fault=fault or None),)


def skips(facts: Facts, desired: Desired) -> str:
    """Why the toolkit's unit would skip itself on this host; "" where it would not."""
    modules = _modules(facts, desired)
    if refreshes(desired.toolkit_version, modules):
        return ""
    seen = ", ".join(file.rpartition("/")[2] for file in modules)
    version = ".".join(map(str, desired.toolkit_version[:3])) or "the toolkit"
    which = "the kernel's modules.dep lists none of the driver's"
    if seen:
        which = f"the driver's module here is {seen}"
    return f"{UNIT} of {version} does not run without a module of a name that it knows, and {which}"


def _modules(facts: Facts, desired: Desired) -> tuple[str, ...]:
    """The driver's module files: the present ones, else the names that the planned driver will use. The next round sees the files
    and corrects a wrong guess."""
    missing = driver_plan.missing(facts, desired)
    driver = desired.driver
    comes = [spec.name for spec in (driver.packages if driver else ()) if spec in missing]
    if not comes and (facts.module_files or "nvidia" in facts.modules):
        return facts.module_files
    kernels = [name for name in comes if name.endswith("-kernel-dkms")]
    if driver is None or not driver.archive or not kernels:
        return facts.module_files or ("nvidia.ko",)
    tesla = re.match(r"nvidia-tesla-\d+", kernels[0])  # Debian's; Ubuntu's packages have other names
    return (
        f"{tesla[0] if tesla else 'nvidia-current-open' if '-open-' in kernels[0] else 'nvidia-current'}.ko",
    )


def _unit(facts: Facts) -> tuple[str, str]:
    """The file of the unit of the toolkit's name, and its text; "" for both where it could not be read."""
    path = next((path for path in UNIT_FILES if files.exists(facts, path)), "")
    return path, (facts.files[path].content or "") if path else ""


def _leftovers(facts: Facts) -> tuple[RemoveFile, ...]:
    """gpunode's own unit of an older toolkit; its link first, which leads to it."""
    texts = [(path, files.text(facts, path)) for path in (LINK, RULE, FILE)]
    why = "the toolkit's own units do this"
    return tuple(files.remove(path, text, why) for path, text in texts if text is not None)


def _watchers(facts: Facts) -> tuple[Service, ...]:
    """The toolkit's unit that waits for changes, where it was disabled, or comes only with this plan."""
    unit = facts.units.get(PATH)
    if unit is not None and unit.enabled == "enabled" and unit.active == "active":
        return ()
    why = "it has the specification written again when the driver or the toolkit changes"
    return (Service(PATH, why, enable=True, note=NOTE),)


# --- Specifications -------------------------------------------------------------------------------------


def problem(facts: Facts) -> str:
    """What is wrong with the specification, the one that the units write before those of others; "" where it is right."""
    specifications = _effective(facts)
    unread = [facts.files[path] for path in _paths(facts) if facts.files[path].content is None]
    if not specifications and unread:
        why = unread[0].error or "it is no text"
        return f"{unread[0].path} cannot be read: {why}"
    if not specifications:
        return f"no file in {' or '.join(FOLDERS)} is a CDI specification of nvidia.com/gpu"
    path, text = next(iter(specifications.items()))
    if old := _age_problem(facts, text):
        return f"{path} is older than the driver: {old}"
    if lacks_uvm(facts):
        return f"{path} does not have /dev/nvidia-uvm, which every CUDA program needs: it is older than that device file"
    uuids = [part.uuid for gpu in facts.gpus for part in ((gpu.mig or ()) if gpu.mig_on else (gpu,))]
    missing = [uuid for uuid in uuids if uuid not in text]
    if missing and re.search(r"\b(GPU|MIG)-", text):  # before toolkit 1.15 it names devices by number alone
        return f"{path} does not have {', '.join(missing[:4])}: it was written before the GPUs changed"
    return ""


def lacks_uvm(facts: Facts) -> bool:
    """Whether the specification has files that programs share, as nvidia-ctk found them, and not the one of nvidia_uvm."""
    return any("/dev/nvidiactl" in text and not UVM.search(text) for text in _effective(facts).values())


def other_problems(facts: Facts) -> Iterator[str]:
    """Problems that others' specifications of the same kind cause beside the one that gpunode keeps current."""
    specifications = _of_gpus(facts)
    kept = specifications.pop(WRITTEN, None)
    if kept is None:
        return
    mine = _devices(kept)
    for path, text in specifications.items():
        theirs = _devices(text)
        if path.startswith(FOLDERS[0]):
            if both := sorted(mine & theirs):
                names = few([f"nvidia.com/gpu={name}" for name in both], 3)
                yield f"{path} and {WRITTEN} both have {names}: CDI accepts neither of two in one folder, so no container starts with them. Remove {path}."
            continue
        alone, old = sorted(theirs - mine), _age_problem(facts, text)
        if not old and not alone:
            continue
        names = few([f"nvidia.com/gpu={name}" for name in alone], 3)
        lead = f"{names} still come from it" if alone else "nothing comes from it now"
        yield (
            f"{path} is a second CDI specification of nvidia.com/gpu{f', older than the driver ({old})' if old else ''}: "
            f"{WRITTEN} wins for what both have, {lead}. Remove {path}."
        )


def _paths(facts: Facts) -> list[str]:
    """The files in CDI's folders, the winning folder's first."""
    return [path for folder in FOLDERS for path in files.below(facts, folder)]


def _effective(facts: Facts) -> dict[str, str]:
    """The specification that the units write, else those of others."""
    specifications = _of_gpus(facts)
    return {WRITTEN: specifications[WRITTEN]} if WRITTEN in specifications else specifications


def _of_gpus(facts: Facts) -> dict[str, str]:
    texts = {path: facts.files[path].content or "" for path in _paths(facts)}
    return {path: text for path, text in texts.items() if KIND.search(text)}


def _age_problem(facts: Facts, text: str) -> str:
    version = DRIVER.search(text)
    if not version or not facts.library_version or version[1] == facts.library_version:
        return ""
    return f"it names the libraries of {version[1]}, and {facts.library_version} is there"


def _devices(text: str) -> set[str]:
    """The names of a specification's devices; none of one that is broken, which CDI leaves out."""
    try:
        data = yaml_text.data(text)
        return {str(device["name"]) for device in data.get("devices") or ()}
    except (yaml.YAMLError, AttributeError, KeyError, TypeError):
        return set()


# --- Links in /dev/char -----------------------------------------------------------------------------------
#
# NVIDIA's driver registers its device files with no class that udev would link. source: NVIDIA/nvidia-container-toolkit#48, whose rule
# this is. Here it starts a unit that loads nvidia_uvm itself before, as `--create-all` fails without it.

DEV_CHAR = "gpunode-dev-char.service"
DEV_CHAR_FILE = f"/etc/systemd/system/{DEV_CHAR}"
DEV_CHAR_RULE = "/etc/udev/rules.d/99-gpunode-dev-char.rules"
COMMAND = "create-dev-char-symlinks"
# Where an administrator or NVIDIA's driver container may have put a rule of their own.
DEV_CHAR_OTHERS = ("/etc/udev/rules.d/*nvidia*.rules", "/lib/udev/rules.d/*nvidia*.rules")

DEV_CHAR_WATCH = Watch(files=(DEV_CHAR_FILE, DEV_CHAR_RULE, *DEV_CHAR_OTHERS), units=(DEV_CHAR,))


def plan_dev_char(facts: Facts, desired: Desired) -> tuple[Change, ...]:
    """The unit and its rule, started while a device has no link; nothing where another's rule makes the links."""
    if not desired.links or (not facts.unlinked and _by_others(facts)):
        return ()
    written = (
        *files.write_own(facts, DEV_CHAR_FILE, desired.links),
        *files.write_own(facts, DEV_CHAR_RULE, desired.links),
    )
    fault = ""
    if facts.unlinked:
        few = ", ".join(facts.unlinked[:3]) + (" …" if len(facts.unlinked) > 3 else "")
        fault = f"{few} {'has' if len(facts.unlinked) == 1 else 'have'} no link in /dev/char: {desired.links}"
    at_boot = f"the reboot starts it: {desired.links}"
    start = start_with_driver(facts, desired, DEV_CHAR, written, desired.links, at_boot, fault)
    return (*written, *start)


def _by_others(facts: Facts) -> bool:
    """Whether a rule of others runs the command at every load of the driver."""
    rules = (
        file.content or ""
        for path, file in facts.files.items()
        if "/udev/rules.d/" in path and path != DEV_CHAR_RULE
    )
    lines = (line for text in rules for line in text.splitlines())
    return any(COMMAND in line and not line.lstrip().startswith("#") for line in lines)
