"""The node's condition GpuReady, which the plugin writes where it is asked to: made from its status. Writer and reader share it. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from .status import CORDONED, STARTING, Status

TYPE = "GpuReady"
WRITER = "gpunode-device-plugin"  # the plugin's User-Agent, which the API server takes as its field manager
READY = "ready"  # reason while the condition is True
NO_GPU = "no-gpu"  # reason: the node has none that it offers


@dataclass(frozen=True, slots=True)
class Condition:
    """`status` True, False, or Unknown before the GPUs are discovered; `reason`: a code of the status; `message` names GPUs by UUID."""

    status: str
    reason: str
    message: str


def condition_of(status: Status) -> Condition:
    """The condition for this status. GPUs that an operator has cordoned are no fault; a GPU that waits for a pod is none either."""
    if why := status.problem or status.not_ready:
        return Condition("Unknown" if why.code == STARTING else "False", why.code, why.words)
    faults = [lost for lost in status.lost if lost.code != CORDONED]
    if faults:
        return Condition("False", faults[0].code, "; ".join(lost.sentence for lost in faults))
    if not any(resource.units for resource in status.resources.values()):
        return Condition("False", NO_GPU, "the node offers no GPU")
    message = "; ".join(lost.sentence for lost in status.lost)
    return Condition("True", READY, message or "all GPUs are healthy")
