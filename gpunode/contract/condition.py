"""The node's condition GpuReady, which the plugin writes where it is asked to: made from its status. Writer and reader share it. Pure."""

from dataclasses import dataclass, replace

from .status import CORDONED, STARTING, Status
from .times import is_ahead, utc
from .typed import parse, read

TYPE = "GpuReady"
WRITER = "gpunode-device-plugin"  # the plugin's User-Agent, which the API server takes as its field manager
READY = "ready"  # reason while the condition is True
NO_GPU = "no-gpu"  # reason: the node has none that it offers
ACCEPTED = "gpunode.dev/accepted"  # the node's annotation with its acceptance; `acceptance/stamp` writes it
# reason: the inventory requires an acceptance, and the node's does not count
NOT_ACCEPTED = "not-accepted"


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


@dataclass(frozen=True, slots=True)
class _Record:
    """What the condition has of an acceptance."""

    kind: str
    version: int
    level: str
    verdict: str
    at: str
    until: str
    required: bool = False


def with_acceptance(condition: Condition, note: str, now: float) -> Condition:
    """`condition` with the acceptance of the node's annotation `note` in its message. If the inventory required one, and
    this does not count, a condition that is True becomes False."""
    try:
        record: _Record = read(_Record, parse(note), "acceptance")
    except ValueError:
        return condition
    if (record.kind, record.version) != ("gpunode-acceptance", 1):
        return condition
    made, ends = record.at[:10], record.until[:10]
    counts = False
    if record.verdict == "failed":
        text = f"not accepted {made} ({record.level})"
    elif is_ahead(record.at, now):
        text = f"the acceptance is dated {made}, which is in the future: check the clock of this node and of the computer that measured"
    elif record.until <= utc(now):
        text = f"the acceptance ran out {ends}"
    else:
        text, counts = f"accepted {made} ({record.level}), valid until {ends}", True
    if not counts and record.required and condition.status == "True":
        condition = replace(condition, status="False", reason=NOT_ACCEPTED)
    return replace(condition, message=f"{condition.message}; {text}")
