"""What stands in the plugin's own CDI specification. Pure; `cdi.py` reads and writes the files.

What a GPU container needs of its host (driver libraries and their ld cache, control nodes, hooks) has been found by
the NVIDIA Container Toolkit, which keeps it on the host as kind nvidia.com/gpu. The plugin's specification takes
those edits over as they are, under a kind of its own, and adds what the toolkit cannot know: what one allocation is
to have besides its devices.

Format: https://github.com/cncf-tags/container-device-interface/blob/main/SPEC.md
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..gpus import limits

# Kind and device names are those of NVIDIA's plugin (internal/cdi): what the kubelet remembers of running containers
# stays true when one plugin takes the other's place.
KIND = "k8s.device-plugin.nvidia.com/gpu"
TOOLKIT = "nvidia.com/gpu"
ALLOCATION = "gpunode.dev/allocation"  # annotation of a device that is one allocation
LEAST, WITH_ANNOTATIONS = (
    (0, 5, 0),
    (0, 6, 0),
)  # versions of the format: names may begin with a digit; annotations
OVER_KEPT = 32  # allocations that seem over; a pod has fewer init containers with GPUs

Edits = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Allocation:
    """One container's devices, and what else it is to have."""

    unit: str  # the first of its units' ids
    units: int  # how many it has
    devices: tuple[str, ...]  # UUIDs
    env: Mapping[str, str]
    over: bool = False  # one of its units was given to another container since

    @property
    def name(self) -> str:
        """Of its device in the specification. No two allocations of one pod have the same unit and number of units."""
        return f"allocation-{self.unit}-{self.units}"


@dataclass(frozen=True, slots=True)
class Toolkit:
    """What the toolkit's specification says: edits for every GPU container, and those of each device by name."""

    path: Path
    version: str
    common: Edits
    devices: Mapping[str, Edits]

    @property
    def by_uuid(self) -> bool:
        """Whether it names any device by UUID; else it is not of GPUs, or made with indexes alone."""
        return any(name.startswith(("GPU-", "MIG-")) for name in self.devices)


def parsed(path: Path, document: Any) -> Toolkit | None:
    """The toolkit's specification; None if the document is of another kind. Raises ValueError, KeyError, TypeError."""
    if document["kind"] != TOOLKIT:
        return None
    version = str(document["cdiVersion"])
    _numbers(version)
    devices = {str(entry["name"]): _edits(entry["containerEdits"]) for entry in document["devices"]}
    return Toolkit(path, version, _edits(document.get("containerEdits") or {}), devices)


def _edits(section: Any) -> dict[str, Any]:
    """Lists by name; an empty one may be written as null."""
    found = {name: value for name, value in dict(section).items() if value is not None}
    for name, value in found.items():
        if not isinstance(value, (list, dict)):
            raise TypeError(f"containerEdits.{name} is no list")
    return found


def has_all(document: Any) -> bool:
    """Whether a specification has a device `all`, as the toolkit's ones for GPUDirect Storage and the like do."""
    return any(isinstance(entry, dict) and entry.get("name") == "all" for entry in document["devices"])


def qualified(name: str) -> str:
    """The name by which a runtime knows a device of this specification."""
    return f"{KIND}={name}"


def specification(
    toolkit: Toolkit,
    devices: Mapping[str, str],
    allocations: Iterable[Allocation],
    earlier: Iterable[str] = (),
) -> dict[str, Any]:
    """The specification. `devices`: the name of each by its UUID. What the toolkit does not know is left out.

    `earlier`: names of devices that it had before. Containers that were given them need them when they start again,
    though others are given them no more or by another name; the toolkit's own names tell what they are.
    """
    named = {name: toolkit.devices[name] for name in earlier if name in toolkit.devices and name != "all"}
    named |= {name: toolkit.devices[uuid] for uuid, name in devices.items() if uuid in toolkit.devices}
    plain = [{"name": name, "containerEdits": edits} for name, edits in named.items()]
    made = [
        _entry(allocation, toolkit)
        for allocation in allocations
        if all(uuid in toolkit.devices for uuid in allocation.devices)
    ]
    version = max(_numbers(toolkit.version), WITH_ANNOTATIONS if made else LEAST)
    common = dict(toolkit.common)
    # Runtimes apply the edits before the nvidia runtime, where it is used, looks at the variable. An image that
    # says "all", as CUDA's do, would otherwise get every GPU from it.
    env = [line for line in common.get("env", ()) if not line.startswith("NVIDIA_VISIBLE_DEVICES=")]
    common["env"] = [*env, "NVIDIA_VISIBLE_DEVICES=void"]
    return {
        "cdiVersion": ".".join(map(str, version)),
        "kind": KIND,
        "devices": [*plain, *made],
        "containerEdits": common,
    }


def _entry(allocation: Allocation, toolkit: Toolkit) -> dict[str, Any]:
    edits: dict[str, Any] = {}
    for uuid in allocation.devices:
        for key, value in toolkit.devices[uuid].items():
            edits[key] = [*edits.get(key, ()), *value] if isinstance(value, list) else value
    if "hooks" in edits:
        edits["hooks"] = [limits.fixed(hook, allocation.env) for hook in edits["hooks"]]
    edits["env"] = [*edits.get("env", ()), *(f"{name}={value}" for name, value in allocation.env.items())]
    note = {
        "unit": allocation.unit,
        "units": allocation.units,
        "devices": allocation.devices,
        "env": dict(allocation.env),
        "over": allocation.over,
    }
    return {
        "name": allocation.name,
        "annotations": {ALLOCATION: json.dumps(note, sort_keys=True)},
        "containerEdits": edits,
    }


def allocations(document: Any) -> list[Allocation]:
    """The allocations in a specification of ours, oldest first. Raises ValueError, KeyError, TypeError, AttributeError."""
    notes = [
        json.loads(entry["annotations"][ALLOCATION])
        for entry in document["devices"]
        if ALLOCATION in entry.get("annotations", {})
    ]
    return [Allocation(**{**note, "devices": tuple(note["devices"])}) for note in notes]


def names(document: Any) -> list[str]:
    """The devices in a specification of ours that are no allocations. Raises KeyError, TypeError, AttributeError."""
    entries = document["devices"]
    return [str(entry["name"]) for entry in entries if ALLOCATION not in entry.get("annotations", {})]


def added(known: Sequence[Allocation], new: Allocation, units: Iterable[str]) -> list[Allocation]:
    """`known` and one more, which was given these units.

    No two containers have a unit at a time, so an allocation with one of them seems over; the kubelet says nothing
    when a container ends. It only seems so while a pod starts: the kubelet asks for all its containers at once, and
    lets them have the units of an init container that is yet to run. So the last OVER_KEPT of these stay.
    """
    given = set(units)
    others = [
        one if one.unit not in given else replace(one, over=True) for one in known if one.name != new.name
    ]
    past = [one for one in others if one.over]
    gone = past[: max(0, len(past) - OVER_KEPT)]
    return [*(one for one in others if one not in gone), new]


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))
