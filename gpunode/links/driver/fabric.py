"""NVIDIA's fabric manager: the daemon that joins the GPUs of a host with NVSwitch. Without it CUDA answers error 802 there.

Its package must be of exactly the driver's version, so `steps.driver` installs both together. For NVSwitches of NVLink 5 its start
script, which fails before the module ib_umad is there, starts nvlsm too.
source: NVIDIA/gpu-driver-container (nvidia-driver: _ensure_nvlink5_prerequisites).
"""

from __future__ import annotations

from gpunode.links.driver import modules
from gpunode.links.driver import plan as driver
from gpunode.model import Change, Desired, Facts, Service, Watch
from gpunode.planning import users
from gpunode.planning.versions import is_installed

UNIT = "nvidia-fabricmanager.service"
WATCH = Watch(units=(UNIT,), packages=("nvlsm", "infiniband-diags"))


def plan(facts: Facts, desired: Desired) -> tuple[Change, ...]:
    """Enable and start its unit once the modules are loaded; before a reboot only enable it, as that starts it."""
    wish = desired.driver
    if wish is None or not wish.switches:
        return ()
    after = driver.module_after(facts, desired)
    loads = after == "reloaded"
    missing = wish.subnet and modules.UMAD not in facts.modules
    needed = (modules.load(facts, (modules.UMAD,), "the fabric manager does not start"),) if missing else ()
    unit = facts.units.get(UNIT)
    runs = unit is not None and unit.active == "active"
    stays = unit is not None and unit.enabled == "enabled"
    there = all(is_installed(facts.packages, spec) for spec in (*wish.fabric, *wish.subnet))
    if after == "rebooted":
        why = "the reboot starts it: it joins the GPUs over NVSwitch"
        return () if stays and there else (Service(UNIT, why, enable=True, start=False, fault=""),)
    if after == "absent":
        return ()
    if runs and stays and not loads and not needed and there:
        return ()
    fault = None if runs else f"{UNIT} is not active: CUDA answers error 802 on a host with NVSwitch"
    why = "joins the GPUs over NVSwitch; without it CUDA answers error 802"
    restart = not runs or loads or not there  # it aborts CUDA's jobs
    if not restart and stays:
        return needed
    ends = users.keys(facts.gpu_users) if runs and restart else None
    return (*needed, Service(UNIT, why, enable=True, restart=restart, ends=ends, fault=fault))
