"""The kinds of changes: each is made by one function."""

import os
import re
import shutil
import stat
import sys
import time
from typing import Callable, Dict, Optional

from gpunode.agent.failures import Failure
from gpunode.agent.files import keep, put, read_current, sha256
from gpunode.agent.journal import records
from gpunode.agent.machine import journal
from gpunode.agent.package_manager import SILENCE
from gpunode.agent.record import STATE, Run, settle_time
from gpunode.agent.system import Message, below, have, last, resolve, run
from gpunode.engine.on_host.confirmation import wait_for_confirmation
from gpunode.engine.on_host.guard import arm, disarm, find_worked, node_units, read_guard, reasons, restart
from gpunode.links.driver.on_host.gpus import next_kernel, read_kernels, spare_newcomers
from gpunode.links.driver.on_host.mig import mig_layout
from gpunode.links.driver.on_host.modules import kernel_module
from gpunode.links.driver.on_host.runfile import install_driver, uninstall_driver
from gpunode.links.kubelet.on_host import check_kubelet_file
from gpunode.links.plugin.on_host import load_image, remove_image
from gpunode.links.runtime.on_host.containerd import check_containerd
from gpunode.links.runtime.on_host.docker import check_docker
from gpunode.packages.on_host import packages


def refuse_if_changed(path: str, data: Optional[bytes], expected: Optional[str]) -> None:
    if (sha256(data) if data is not None else None) == expected:
        return
    if data is None:
        what = "is gone"
    elif expected is None:
        what = "exists now"
    else:
        what = "has other contents now"
    raise Failure(
        "changed-underneath", "%s %s than when this was planned: nothing was changed" % (path, what)
    )


def write_file(this: Run, change: Message) -> Message:
    path, data = change["path"], change["content"].encode("utf-8")
    real = resolve(path)
    before = read_current(real)
    if before == data:
        return {"unchanged": True}
    refuse_if_changed(path, before, change["before_sha256"])
    mode = change["mode"]
    if before is None:
        owner = tuple(change["owner"]) if change.get("owner") else None
    else:
        status = os.stat(below(real))
        mode, owner = stat.S_IMODE(status.st_mode), (status.st_uid, status.st_gid)
    keep(this, real, sha256(data))
    os.makedirs(os.path.dirname(below(real)), exist_ok=True)
    arm(this, real)
    check = CHECKS[change["check"]] if change.get("check") else None
    expected = change.get("expected")
    put(real, data, mode, owner, this.name, (lambda name: check(path, name, expected)) if check else None)
    if before is None:
        relabel(real, change.get("label"))
    return {}


def remove_file(this: Run, change: Message) -> Message:
    path = change["path"]
    before = read_current(resolve(path))
    if before is None and not os.path.lexists(below(path)):
        return {"unchanged": True}
    refuse_if_changed(path, before, change["before_sha256"])
    parent = resolve(os.path.dirname(path))
    real = parent.rstrip("/") + "/" + os.path.basename(path)
    keep(this, real, None)
    arm(this, real)
    os.unlink(below(real))
    if change.get("folder"):
        try:
            os.rmdir(below(parent))
        except OSError:  # something else is in it
            pass
    return {}


def relabel(path: str, label: Optional[str] = None) -> None:
    """Give a file that is new this label, or that which the policy has for its path; it has its folder's until then."""
    if label and sys.platform == "linux" and os.path.exists(below("/sys/fs/selinux/enforce")):
        os.setxattr(below(path), "security.selinux", label.encode())
    elif os.path.exists(below("/sys/fs/selinux/enforce")) and have("restorecon"):
        run("restorecon", below(path), timeout=60)


def selinux_boolean(_this: Run, change: Message) -> Message:
    state = "on" if change["on"] else "off"
    answer = run("setsebool", "-P", change["name"], state, timeout=300)
    if answer.status:
        sentence = "setsebool -P %s %s: %s" % (change["name"], state, last(answer.message, 1)[0])
        raise Failure("selinux-failed", sentence, last(answer.message, 5))
    return {}


CHECKS: Dict[str, Callable[[str, str, Optional[Message]], None]] = {
    "docker": check_docker,
    "containerd": check_containerd,
    "systemd": check_kubelet_file,
}


def service(this: Run, change: Message) -> Message:
    """Stop and disable a unit, or enable and (re)start it. Then it must stay up, and all that worked before its files
    were changed must still work.

    Where files were changed for it, the host must also be reachable from outside. It ends no user of a GPU that came
    after the plan.
    """
    unit = change["unit"]
    contained = unit != "nvidia-fabricmanager.service"
    act = "stopped" if change.get("disable") else "restarted"
    # Before systemd is reloaded, too: that alone may take the GPUs from containers.
    spare_newcomers(change["ends"], 2 * settle_time(this), "%s is not %s" % (unit, act), contained=contained)
    if change.get("disable"):
        answer = run("systemctl", "disable", "--now", unit, timeout=90)
        if answer.status:
            raise Failure(
                "unit-failed", "systemctl disable --now %s: %s" % (unit, last(answer.message, 1)[0])
            )
        return {}
    guard = read_guard(this)
    guarded = guard is not None and guard["unit"] == unit
    if guard is None or not guarded:
        guard = {"worked": find_worked(node_units(unit)), "settle": settle_time(this)}
    started = time.time()
    run("systemctl", "daemon-reload", timeout=60)
    if change["enable"]:
        answer = run("systemctl", "enable", unit, timeout=60)
        if answer.status:
            raise Failure("unit-failed", "systemctl enable %s: %s" % (unit, last(answer.message, 1)[0]))
    if not change["start"]:
        return {}
    if change.get("drops"):  # of the guard that is on disk they stay: they work with its files
        dropped = "'s runtime %s" % change["drops"]
        guard = dict(guard, worked=[name for name in guard["worked"] if dropped not in name])
    lost = restart(unit, "restart" if change["restart"] else "start", guard)
    if not lost and not guarded:
        return {}
    if not lost:
        detail = wait_for_confirmation(this, unit)
        disarm(this)
        return detail
    printed = journal(unit, 100, started)
    parts = [name.split()[-1] for name in lost if not name.endswith(".service")]
    about = [line for line in printed if any(part in line for part in parts)]
    lines = reasons(about or printed) or [lost[unit] if unit in lost else "its journal is silent"]
    if unit in lost:
        sentence = "%s did not come back: %s" % (unit, lines[0])
    else:
        sentence = "%s runs, but something that worked before does not: %s (%s)" % (
            unit,
            ", ".join(sorted(lost)),
            lines[0],
        )
    if guarded and not set(lost) & set(guard["worked"]):
        disarm(this)
        lines.append("it did not run before either, so its new files stay")
    raise Failure("unit-failed", sentence, lines)


def refuse_unknown(change: Message) -> None:
    """Raise Failure if this agent cannot make the change."""
    kind, check = change["kind"], change.get("check")
    if kind not in CHANGES:
        raise Failure("unknown-change", "the agent knows no change `%s`: nothing was changed" % kind)
    if check and check not in CHECKS:
        raise Failure("unknown-change", "the agent knows no check `%s`: nothing was changed" % check)


def forget_host(this: Run, _change: Message) -> Message:
    """Remove all records, this run's among them: what follows is in /run alone, until the next boot."""
    this.recorded = this.noted = False
    # The newest first: after a kill, a forget by the others would restore gpunode's own texts
    for folder in reversed(records()):
        shutil.rmtree(below(folder))
    if os.path.isdir(below(STATE)):
        shutil.rmtree(below(STATE))
    return {}


def reboot(this: Run, change: Message) -> Message:
    """Not done, but refused if the next kernel has no nvidia module and dkms builds none, or a process began to use the GPUs
    since the plan; `work` does it after the last message."""
    kernel = next_kernel()
    if not change["bare"] and read_kernels().get(kernel) is False:
        log = build(this, kernel)
        if not read_kernels().get(kernel):
            sentence = "not rebooted: the kernel %s boots next and has no nvidia module" % kernel
            raise Failure("module-missing", sentence, last(log, 5))
    spare_newcomers(change["ends"], 2 * settle_time(this), "not rebooted")
    return {}


def build(this: Run, kernel: str) -> str:
    """Have dkms build its nvidia module for a kernel: the scripts of RPM packages build for the running one alone. Its words."""
    status = run("dkms", "status").out
    if re.search("(?m)^nvidia", status) is None:
        return status
    this.progress("dkms builds the nvidia module for the kernel %s, which boots next" % kernel)
    answer = run("dkms", "autoinstall", "-k", kernel, timeout=SILENCE)
    return (answer.out + answer.err).strip() or status


# Each returns details for the `done` message.
CHANGES: Dict[str, Callable[[Run, Message], Message]] = {
    "write_file": write_file,
    "remove_file": remove_file,
    "packages": packages,
    "service": service,
    "kernel_module": kernel_module,
    "mig_layout": mig_layout,
    "load_image": load_image,
    "remove_image": remove_image,
    "forget_host": forget_host,
    "install_driver": install_driver,
    "uninstall_driver": uninstall_driver,
    "selinux_boolean": selinux_boolean,
    "reboot": reboot,
}
