"""SELinux, where it is enforced and labels containers: the boolean that lets them use device files.

source: container-selinux (boolean container_use_devices), Red Hat's recipes for GPUs in bootc images and MicroShift. What is
written below /etc gets its label by the agent.
"""

from __future__ import annotations

from gpunode.links.runtime import RUNTIMES
from gpunode.model import Change, Desired, Facts, SelinuxBoolean, Watch
from gpunode.planning import files

ENFORCE = "/sys/fs/selinux/enforce"
BOOLEAN = "container_use_devices"
STATE = f"/sys/fs/selinux/booleans/{BOOLEAN}"
WATCH = Watch(files=(ENFORCE, STATE))


def plan(facts: Facts, desired: Desired) -> tuple[Change, ...]:
    """Set the boolean; nothing where the kernel does not enforce, no policy for containers is there, or none is labelled."""
    if desired.runtime_mode == "none" or (files.text(facts, ENFORCE) or "").strip() != "1":
        return ()
    state = files.text(facts, STATE)
    if state is None or state.startswith("1") or not RUNTIMES[desired.runtime].containers(facts).labelled:
        return ()
    why = (
        "SELinux is enforced and labels containers: without it a container cannot open the GPUs' device files"
    )
    return (SelinuxBoolean(BOOLEAN, why),)
