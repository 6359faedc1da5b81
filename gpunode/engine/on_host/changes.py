"""The kinds of changes."""

import re
from typing import Callable, Dict, Optional

from gpunode.agent.failures import Failure
from gpunode.agent.package_manager import SILENCE
from gpunode.agent.record import Run, settling
from gpunode.agent.system import Message, last, run
from gpunode.engine.on_host.edits import CHECKS, remove_file, write_file
from gpunode.engine.on_host.services import service
from gpunode.links.driver.on_host.gpus import next_kernel, read_kernels, spare_newcomers
from gpunode.links.driver.on_host.modules import kernel_module
from gpunode.links.driver.on_host.runfile import install_driver, uninstall_driver
from gpunode.links.plugin.on_host import load_image
from gpunode.links.runtime.on_host.selinux import selinux_boolean
from gpunode.packages.on_host.systems import packages


def make(this: Run, change: Message) -> Message:
    """Make one change; returns details for its `done` message."""
    return CHANGES[change["kind"]](this, change)


def not_known(change: Message) -> Optional[Failure]:
    """Why this agent cannot make the change; None if it can."""
    check = change.get("check")
    if change["kind"] not in CHANGES:
        return Failure(
            "unknown-change", "the agent knows no change `%s`: nothing was changed" % change["kind"]
        )
    if check and check not in CHECKS:
        return Failure("unknown-change", "the agent knows no check `%s`: nothing was changed" % check)
    return None


def reboot(this: Run, change: Message) -> Message:
    """Not done, but refused if the next kernel has no nvidia module and dkms builds none, or a process began to use the GPUs
    since the plan; `work` does it after the last message."""
    kernel = next_kernel()
    if read_kernels().get(kernel) is False:
        words = build(this, kernel)
        if not read_kernels().get(kernel):
            sentence = "not rebooted: the kernel %s boots next and has no nvidia module" % kernel
            raise Failure("module-missing", sentence, last(words, 5))
    spare_newcomers(change["ends"], 2 * settling(this), "not rebooted")
    return {}


def build(this: Run, kernel: str) -> str:
    """Have dkms build its nvidia module for a kernel: the scripts of RPM packages build for the running one alone. Its words."""
    status = run("dkms", "status").out
    if re.search("(?m)^nvidia", status) is None:
        return status
    this.progress("dkms builds the nvidia module for the kernel %s, which boots next" % kernel)
    answer = run("dkms", "autoinstall", "-k", kernel, timeout=SILENCE)
    return (answer.out + answer.err).strip() or status


CHANGES: Dict[str, Callable[[Run, Message], Message]] = {
    "write_file": write_file,
    "remove_file": remove_file,
    "packages": packages,
    "service": service,
    "kernel_module": kernel_module,
    "load_image": load_image,
    "install_driver": install_driver,
    "uninstall_driver": uninstall_driver,
    "selinux_boolean": selinux_boolean,
    "reboot": reboot,
}
