"""NVIDIA's persistence daemon, which keeps the GPUs initialized: it starts after the modules, and again where it has failed.

source: the drop-in of Azure's images (linux-system-roles/hpc). Its condition on a device file is one on the module here: the
daemon makes the device files itself.
"""

from __future__ import annotations

from dataclasses import replace

from gpunode.links.driver.modules import SERVICES
from gpunode.model import Change, Desired, Facts, Watch
from gpunode.planning import files, services
from gpunode.planning.templates import template
from gpunode.planning.versions import is_installed

UNIT = SERVICES["nvidia-persistenced"]
FILE = f"/etc/systemd/system/{UNIT}.d/gpunode.conf"
WATCH = Watch(files=(FILE,), units=(UNIT,))


def plan(facts: Facts, desired: Desired) -> tuple[Change, ...]:
    """Its drop-in, where the unit is there or comes with the packages; nothing is restarted for it."""
    wish, unit = desired.driver, facts.units.get(UNIT)
    if wish is None:
        return ()
    comes = wish.run is None and any(not is_installed(facts.packages, spec) for spec in wish.packages)
    absent = unit is None or unit.load == "not-found"
    if not (services.is_loaded(facts, UNIT) or (absent and comes)):
        return ()
    why = "the persistence daemon starts after the modules, and again where it has failed; from the next boot on"
    changes = files.write(facts, FILE, template(FILE.lstrip("/")), why)
    return tuple(replace(change, fault="") for change in changes)  # the daemon may well run without it
