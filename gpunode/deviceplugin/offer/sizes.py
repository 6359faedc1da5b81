"""Each GPU's memory in units, as the scheduler extender reads it from the node's annotation. Pure."""

from __future__ import annotations

import json
from collections import Counter

from gpunode.contract.promises import ELSEWHERE, VERSION, elsewhere_fields

from .state import NodeState


def document(state: NodeState, resource: str) -> str | None:
    """The annotation's text; None while no GPU is offered as this resource.

    `reserved`: units that pods use by an earlier configuration. `lost`: the GPU is Unhealthy. `elsewhere`: containers whose
    GPUs are others than noted.
    """
    units = state.offers.get(resource, ())
    if not units:
        return None
    count = Counter(unit.device.uuid for unit in units)
    reserved = Counter(unit.device.uuid for unit in units if unit.id in state.reserved.get(resource, {}))
    gpus = [
        {
            "index": device.index,
            "uuid": device.uuid,
            "units": count[device.uuid],
            "reserved": reserved[device.uuid],
            "lost": device.uuid in state.unhealthy,
        }
        for device in dict.fromkeys(unit.device for unit in units)
    ]
    found = {"version": VERSION, "mib": units[0].mib, "gpus": gpus}
    if state.elsewhere:
        found[ELSEWHERE] = elsewhere_fields(state.elsewhere)
    return json.dumps(found, sort_keys=True, separators=(",", ":"))
