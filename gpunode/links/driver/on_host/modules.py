"""The change `kernel_module`."""

import os
import re
from typing import List

from gpunode.agent.failures import Failure
from gpunode.agent.record import Run, settle_time
from gpunode.agent.system import Answer, Message, below, last, line_of, run, text_of
from gpunode.links.driver.on_host.gpus import (
    MODULE,
    STOPPED,
    newcomers,
    read_gpu_users,
    read_stopped,
    spare_newcomers,
)


def kernel_module(this: Run, change: Message) -> Message:
    """Daemons of the driver that keep a module in use are stopped meanwhile, but not under work: without the fabric manager
    CUDA's jobs abort. Where only the kernel keeps it they stay stopped: a reboot, which the next plan has then, starts
    them. So they do where nothing is loaded: they would load the old modules again."""
    if change["unload"]:
        spare_newcomers([], 2 * settle_time(this), "the kernel modules stay loaded")  # planned without users
    try:
        stop(change["services"] if change["unload"] else [])
        reload_modules(change)
    except (Exception, KeyboardInterrupt) as why:
        if isinstance(why, Failure) and why.code == "module-in-use" and not newcomers([], 0, contained=False):
            why.detail += ["%s is stopped until the reboot" % unit for unit in read_stopped()]
            raise
        start(change["services"])
        raise
    if change["load"] or not change["unload"]:
        start(change["services"])
    return {}


def stop(services: List[str]) -> None:
    """Stop those that run. They are noted before, so that also after a kill they are started again."""
    active = [unit for unit in services if run("systemctl", "is-active", unit).status == 0]
    if active:
        note(list(dict.fromkeys(read_stopped() + active)))
    for unit in active:
        run("systemctl", "stop", unit, timeout=60)


def start(services: List[str]) -> None:
    """Start those of them that `stop` has noted, in this apply or before. Others stay noted: no plan has shown their start."""
    noted = read_stopped()
    due = [unit for unit in noted if unit in services]
    for unit in due:
        run("systemctl", "start", unit, timeout=60)
    if due:
        note([unit for unit in noted if unit not in services])


def note(units: List[str]) -> None:
    """A kill leaves the units of before or these, never a part."""
    new = below(STOPPED) + ".new"
    with open(new, "w") as file:
        file.write(" ".join(units))
    os.rename(new, below(STOPPED))


def reload_modules(change: Message) -> None:
    for name in change["unload"]:
        loaded = below("/sys/module/" + name.replace("-", "_"))
        if not os.path.isdir(loaded):
            continue
        answer = run("modprobe", "-r", name, timeout=120)
        # By the file's name, nvidia_384 of Ubuntu's own, modprobe finds nothing loaded, which it takes for done.
        # source: kmod's tools/modprobe.c, rmmod_do_module
        if not answer.status and os.path.isdir(loaded):
            answer = run("rmmod", name, timeout=120)
        if answer.status and re.search(r"in use|busy", answer.message):
            users = ["%s (pid %d)" % (user["command"], user["pid"]) for user in read_gpu_users()]
            sentence = "the kernel module %s is in use%s" % (
                name,
                " by " + ", ".join(users[:8]) if users else "",
            )
            raise Failure("module-in-use", sentence, last(answer.message, 3) + users)
        if answer.status:
            raise module_failure(name, "unloaded", answer)
    for name in change["load"]:
        answer = run("modprobe", name, timeout=120)
        if answer.status:
            raise module_failure(name, "loaded", answer)


def module_failure(name: str, what: str, answer: Answer) -> Failure:
    release = line_of("/proc/sys/kernel/osrelease")
    listed = text_of("/lib/modules/%s/modules.dep" % release)
    if what == "loaded" and listed is not None and re.search(MODULE, listed) is None:
        sentence = "the kernel %s has no nvidia module: its build was cut off or has failed" % release
        detail = last(run("dkms", "status").out, 5) + last(answer.message, 3)
        return Failure("module-missing", sentence, detail)
    kernel = [
        line
        for line in run("dmesg").out.splitlines()
        if re.search(r"NVRM|nvidia|nouveau|[Nn]ova|Lockdown|module", line)
    ]
    sentence = "the kernel module %s could not be %s: %s" % (name, what, last(answer.message, 1)[0])
    return Failure("module-failed", sentence, last(answer.message, 3) + kernel[-10:])
