"""Links in /dev/char to NVIDIA's device files, which its driver registers with no class that udev would link.

source: NVIDIA/nvidia-container-toolkit#48, whose rule this is. Here it starts a unit that loads nvidia_uvm itself before, as
`--create-all` fails without it.
"""

from __future__ import annotations

from gpunode.links.toolkit import cdi
from gpunode.model import Change, Desired, Facts, Watch
from gpunode.planning import files
from gpunode.planning.templates import template

UNIT = "gpunode-dev-char.service"
FILE = f"/etc/systemd/system/{UNIT}"
RULE = "/etc/udev/rules.d/99-gpunode-dev-char.rules"
COMMAND = "create-dev-char-symlinks"
# Where an administrator or NVIDIA's driver container may have put a rule of their own.
OTHERS = ("/etc/udev/rules.d/*nvidia*.rules", "/lib/udev/rules.d/*nvidia*.rules")

WATCH = Watch(files=(FILE, RULE, *OTHERS), units=(UNIT,))


def plan(facts: Facts, desired: Desired) -> tuple[Change, ...]:
    """The unit and its rule, started while a device has no link; nothing where another's rule makes the links."""
    if not desired.links or (not facts.unlinked and _by_others(facts)):
        return ()
    written = (
        *files.write(facts, FILE, template(FILE.lstrip("/")), desired.links),
        *files.write(facts, RULE, template(RULE.lstrip("/")), desired.links),
    )
    fault = ""
    if facts.unlinked:
        few = ", ".join(facts.unlinked[:3]) + (" …" if len(facts.unlinked) > 3 else "")
        fault = f"{few} {'has' if len(facts.unlinked) == 1 else 'have'} no link in /dev/char: {desired.links}"
    at_boot = f"the reboot starts it: {desired.links}"
    start = cdi.start_with_driver(facts, desired, UNIT, written, desired.links, at_boot, fault)
    return (*written, *start)


def _by_others(facts: Facts) -> bool:
    """Whether a rule of others runs the command at every load of the driver."""
    rules = (
        file.content or "" for path, file in facts.files.items() if "/udev/rules.d/" in path and path != RULE
    )
    lines = (line for text in rules for line in text.splitlines())
    return any(COMMAND in line and not line.lstrip().startswith("#") for line in lines)
