"""The toolkit's CDI specification: there, and of the driver and the GPUs that the host has.

The toolkit's own units write it from 1.18 on, as the driver's modules or nvidia-ctk change; for older ones gpunode has a unit that
udev starts with the driver. source: NVIDIA/nvidia-container-toolkit deployments/systemd, deployments/udev.
"""

from __future__ import annotations

import re

from gpunode.desired.devices import JUST_IN_TIME
from gpunode.model import Change, Desired, Facts, RemoveFile, Service, Watch, WriteFile
from gpunode.planning import files, services
from gpunode.render import template
from gpunode.steps import driver
from gpunode.versions import is_installed

UNIT, PATH = "nvidia-cdi-refresh.service", "nvidia-cdi-refresh.path"  # the toolkit's
OWN = "gpunode-cdi.service"
FILE = f"/etc/systemd/system/{OWN}"
LINK = f"/etc/systemd/system/multi-user.target.wants/{OWN}"
RULE = "/etc/udev/rules.d/99-gpunode-cdi.rules"
NOTE = "no container is touched"
WRITTEN = "/run/cdi/nvidia.yaml"  # by both units, whatever else is there
# Those of the first folder count.
FOLDERS = ("/run/cdi/", "/etc/cdi/")
KIND = re.compile(r"""\bkind["']?\s*:\s*["']?nvidia\.com/gpu["']?\s*(,|}|$)""", re.MULTILINE)
DRIVER = re.compile(r"/lib(?:cuda|nvidia-ml)\.so\.(\d+(?:\.\d+)+)")

WATCH = Watch(
    files=(FILE, LINK, RULE, *(f"{folder}*.{kind}" for folder in FOLDERS for kind in ("yaml", "json"))),
    units=(UNIT, PATH, OWN),
)


def plan(facts: Facts, desired: Desired) -> tuple[Change, ...]:
    """The unit that writes it, started while it is missing, or of another driver or other GPUs; and after the driver changes."""
    if not desired.cdi:
        return ()
    comes = any(not is_installed(facts.packages, spec) for spec in desired.toolkit)
    theirs = desired.toolkit_version >= JUST_IN_TIME and (services.is_loaded(facts, UNIT) or comes)
    written: tuple[WriteFile, ...] = ()
    for path in () if theirs else (FILE, RULE):
        written += files.write(facts, path, template(path.lstrip("/")), desired.cdi)
    before: tuple[Change, ...] = (*_leftovers(facts), *_watching(facts)) if theirs else written
    name = UNIT if theirs else OWN
    after, unit, fault = driver.module_after(facts, desired), facts.units.get(name), wrong(facts)
    stays = unit is not None and unit.enabled == "enabled"
    if after == "rebooted":
        why = f"the reboot starts it: {desired.cdi}"
        return before if stays else (*before, Service(name, why, enable=True, start=False, fault=""))
    if after == "absent" or not (fault or not stays or after == "reloaded" or written):
        return before
    guards = tuple(change.path for change in written)
    why = f"{desired.cdi}; it is written again as the driver changes"
    start = Service(name, why, enable=True, restart=True, guards=guards, note=NOTE, fault=fault or None)
    return (*before, start)


def wrong(facts: Facts) -> str:
    """What is wrong with the specification, the one that the units write before those of others; "" where it is right."""
    there = [file for folder in FOLDERS for path, file in facts.files.items() if path.startswith(folder)]
    found = {file.path: file.content for file in there if file.content and KIND.search(file.content)}
    if WRITTEN in found:
        found = {WRITTEN: found[WRITTEN]}
    unread = [file for file in there if file.exists and file.content is None]
    if not found and unread:
        why = unread[0].error or "it is no text"
        return f"{unread[0].path} cannot be read: {why}"
    if not found:
        return f"no file in {' or '.join(FOLDERS)} is a CDI specification of nvidia.com/gpu"
    path, text = next(iter(found.items()))
    version = DRIVER.search(text)
    if version and facts.library_version and version[1] != facts.library_version:
        return f"{path} is older than the driver: it names the libraries of {version[1]}, and {facts.library_version} is there"
    uuids = [part.uuid for gpu in facts.gpus for part in ((gpu.mig or ()) if gpu.mig_on else (gpu,))]
    missing = [uuid for uuid in uuids if uuid not in text]
    if missing and re.search(r"\b(GPU|MIG)-", text):  # before toolkit 1.15 it names devices by number alone
        return f"{path} does not have {', '.join(missing[:4])}: it was written before the GPUs changed"
    return ""


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
