"""The change `mig_layout`."""

import re
from typing import List, Optional

from gpunode.agent.failures import Failure
from gpunode.agent.record import Run, settle_time
from gpunode.agent.system import Answer, Message, last, run
from gpunode.links.driver.on_host.gpus import spare_newcomers
from gpunode.links.driver.on_host.modules import start, stop


def mig_layout(this: Run, change: Message) -> Message:
    """Cut GPUs, one after the other, while no process uses one. `layouts`: those of before, by PCI address. A GPU whose new mode waits for
    a reset stays `pending`."""
    spare_newcomers([], 2 * settle_time(this), "the MIG layouts are unchanged")
    for gpu in change["gpus"]:
        refuse_unknown_profiles(gpu["pci"], gpu["after"] or [])
    done: Message = {"layouts": {}, "pending": []}
    try:
        stop(change["services"])
        for gpu in change["gpus"]:
            this.progress("cuts GPU %s by MIG" % gpu["pci"])
            done["layouts"][gpu["pci"]] = before = read_layout(gpu["pci"])
            if not set_layout(gpu["pci"], gpu["after"], before):
                done["pending"].append(gpu["pci"])
    finally:
        start(change["services"])
    return done


def smi(*argv: str) -> Answer:
    return run("nvidia-smi", *argv, timeout=120)


def read_layout(pci: str) -> Optional[List[str]]:
    """The profiles of the GPU's MIG devices; None where MIG is off."""
    answer = smi("-i", pci, "--query-gpu=uuid,mig.mode.current", "--format=csv,noheader")
    uuid, _, mode = answer.out.strip().partition(", ")
    if answer.status:
        raise failure(pci, "its MIG mode cannot be read", answer)
    if mode != "Enabled":
        return None
    _, _, rest = smi("-L").out.partition("(UUID: %s)" % uuid)
    return re.findall(r"(?m)^\s+MIG (\S+)\s+Device", rest.partition("\nGPU ")[0])


def refuse_unknown_profiles(pci: str, wanted: List[str]) -> None:
    """Raises Failure for profiles that the GPU does not list. Drivers that list none before MIG is on refuse them at their creation."""
    listed = re.findall(r"MIG (\d\S*)", smi("mig", "-i", pci, "-lgip").out)
    missing = [profile for profile in sorted(set(wanted)) if listed and profile not in listed]
    if missing:
        sentence = "GPU %s has no MIG profile %s: nothing was changed" % (pci, ", ".join(missing))
        raise Failure("mig-failed", sentence, ["it has " + ", ".join(listed)])


def set_layout(pci: str, wanted: Optional[List[str]], before: Optional[List[str]]) -> bool:
    """Whether the GPU has the layout now; False: its mode waits for a reset. Raises Failure, with the layout of before restored."""
    if (wanted is None) == (before is None) and sorted(wanted or []) == sorted(before or []):
        return True
    try:
        clear(pci, before)
        if (wanted is None) != (before is None) and not switch(pci, wanted is not None):
            return False
        create(pci, wanted)
    except Failure as why:
        try:
            clear(pci, wanted)
            switch(pci, before is not None)
            create(pci, before)
        except Failure as again:
            why.detail.append("its layout of before is not back either: %s" % again)
        raise
    return True


def clear(pci: str, layout: Optional[List[str]]) -> None:
    """Destroy what MIG devices there are; compute instances first, of which there may be none."""
    if layout is None or "MIG " not in smi("mig", "-i", pci, "-lgi").out:
        return
    smi("mig", "-i", pci, "-dci")
    answer = smi("mig", "-i", pci, "-dgi")
    if answer.status:
        raise failure(pci, "its MIG devices cannot be destroyed", answer)


def switch(pci: str, on: bool) -> bool:
    """Set MIG mode; whether it is in force now. nvidia-smi resets the GPU itself where that is needed and possible."""
    answer = smi("-i", pci, "-mig", "1" if on else "0")
    if answer.status:
        raise failure(pci, "MIG mode cannot be switched %s" % ("on" if on else "off"), answer)
    return (read_layout(pci) is not None) == on


def create(pci: str, layout: Optional[List[str]]) -> None:
    answer = smi("mig", "-i", pci, "-cgi", ",".join(layout), "-C") if layout else None
    if answer and answer.status:
        raise failure(pci, "it cannot be cut into %s" % ", ".join(layout or []), answer)


def failure(pci: str, what: str, answer: Answer) -> Failure:
    words = last(answer.out + answer.err, 5) or [answer.message]
    return Failure("mig-failed", "GPU %s: %s: %s" % (pci, what, words[-1]), words)
