"""The change `service`."""

import time

from gpunode.agent.failures import Failure
from gpunode.agent.record import Run, settling
from gpunode.agent.system import Message, last, run
from gpunode.agent.systemd import journal
from gpunode.engine.on_host.confirmation import judged
from gpunode.engine.on_host.guard import disarm, read_guard
from gpunode.engine.on_host.health import node_units, reasons, restart, what_worked
from gpunode.links.driver.on_host.gpus import spare_newcomers


def service(this: Run, change: Message) -> Message:
    """Enable and (re)start a unit. It must stay up, and all that worked before its files were changed must still work.

    Where files were changed for it, the host must also be reachable from outside. It ends no user of a GPU that came
    after the plan.
    """
    unit = change["unit"]
    guard = read_guard(this)
    guarded = guard is not None and guard["unit"] == unit
    if guard is None or not guarded:
        guard = {"worked": what_worked(node_units(unit)), "settle": settling(this)}
    contained = unit != "nvidia-fabricmanager.service"
    # Before systemd is reloaded, too: that alone may take the GPUs from containers.
    spare_newcomers(change["ends"], 2 * settling(this), "%s is not restarted" % unit, contained=contained)
    started = time.time()
    run("systemctl", "daemon-reload", timeout=60)
    if change["enable"]:
        answer = run("systemctl", "enable", unit, timeout=60)
        if answer.status:
            raise Failure("unit-failed", "systemctl enable %s: %s" % (unit, last(answer.words, 1)[0]))
    if not change["start"]:
        return {}
    lost = restart(unit, "restart" if change["restart"] else "start", guard)
    if not lost:
        detail = judged(this, unit) if guarded else {}
        disarm(this)
        return detail
    printed = journal(unit, 100, started)
    parts = [name.split()[-1] for name in lost if not name.endswith(".service")]
    about = [line for line in printed if any(part in line for part in parts)]
    lines = reasons(about or printed) or [lost[unit] if unit in lost else "its journal is silent"]
    if unit in lost:
        sentence = "%s did not come back: %s" % (unit, lines[0])
    else:
        sentence = "%s runs, but not all that worked before works: %s (%s)" % (
            unit,
            ", ".join(sorted(lost)),
            lines[0],
        )
    if not set(lost) & set(guard["worked"]):
        disarm(this)
        lines.append("it did not run before either, so its files stay as they are now")
    raise Failure("unit-failed", sentence, lines)
