"""The report of the control daemons' process to the plugin: one line of JSON, repeated at every change. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from gpunode.contract.offer import ClientLimits
from gpunode.contract.status import Reason


@dataclass(frozen=True, slots=True)
class DaemonState:
    """One GPU's control daemon: its desired limits, and why it cannot be used now (None: it can)."""

    limits: ClientLimits
    why: str | None


Report = Mapping[str, DaemonState]  # by the GPU's UUID


def encode(report: Report) -> bytes:
    """The report as one line, newline included."""
    states = {
        gpu: {"memory": state.limits.memory, "threads": state.limits.threads, "why": state.why}
        for gpu, state in report.items()
    }
    return json.dumps(states).encode() + b"\n"


def decode(line: bytes) -> Report:
    """The report in a line of `encode`. Raises ValueError for any other line."""
    try:
        return {
            gpu: DaemonState(ClientLimits(state["memory"], state["threads"]), state["why"])
            for gpu, state in json.loads(line).items()
        }
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"not a report of MPS control daemons: {error!r}") from None


def why_not(report: Report, gpu: str, limits: ClientLimits) -> Reason | None:
    """Why a client of this GPU cannot be served with these limits now; None: it can."""
    state = report.get(gpu)
    if state is None:
        return Reason("mps-starting", "no MPS control daemon runs for this GPU yet")
    if state.why is not None:
        return Reason("mps-daemon", f"MPS control daemon: {state.why}")
    if state.limits != limits:
        words = "the MPS control daemon has other limits than the configuration, and will be restarted"
        return Reason("mps-limits", words)
    return None
