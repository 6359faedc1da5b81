"""The content of the plugin's own CDI specification. Pure; the package reads and writes the files.

The NVIDIA Container Toolkit finds what a GPU container needs of its host (driver libraries and their ld cache, control
nodes, hooks), and specifies it as kind nvidia.com/gpu. The plugin's specification copies those edits under its own
kind, and adds what the toolkit cannot know: what one allocation gets besides its devices.

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
# stays valid when one plugin replaces the other.
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
    """One container's devices and variables."""

    unit: str  # the first of its units' ids
    units: int  # how many it has
    devices: tuple[str, ...]  # UUIDs
    env: Mapping[str, str]
    over: bool = False  # one of its units was given to another container since

    @property
    def name(self) -> str:
        """The name of its device. No two allocations of one pod have the same first unit and number of units."""
        return f"allocation-{self.unit}-{self.units}"


@dataclass(frozen=True, slots=True)
class Toolkit:
    """The toolkit's specification: edits for every GPU container, and the edits of each device by name.

    `path`: its file, or several with commas between them.
    """

    path: str
    version: str
    common: Edits
    devices: Mapping[str, Edits]

    @property
    def by_uuid(self) -> bool:
        """True if it names any device by UUID; else it has no GPUs, or only indexes."""
        return any(name.startswith(("GPU-", "MIG-")) for name in self.devices)


def parsed(path: Path, document: Any) -> Toolkit | None:
    """The toolkit's specification; None if the document is of another kind. Raises ValueError, KeyError, TypeError."""
    if document["kind"] != TOOLKIT:
        return None
    version = str(document["cdiVersion"])
    _numbers(version)
    devices = {str(entry["name"]): _edits(entry["containerEdits"]) for entry in document["devices"]}
    return Toolkit(str(path), version, _edits(document.get("containerEdits") or {}), devices)


def merged(several: Sequence[Toolkit]) -> Toolkit:
    """One specification of these, in which a device is as the last one has it.

    A file's own edits are for its devices only: where files differ in them, each device gets those of its file.
    """
    owners = {name: one for one in several for name in one.devices}
    used = [one for one in several if any(owner is one for owner in owners.values())]
    alike = all(one.common == used[0].common for one in used)
    return Toolkit(
        path=", ".join(one.path for one in used),
        version=max((one.version for one in used), key=_numbers),
        common=used[0].common if alike else {},
        devices={
            name: one.devices[name] if alike else _joined((one.common, one.devices[name]))
            for name, one in owners.items()
        },
    )


def _joined(several: Iterable[Edits]) -> dict[str, Any]:
    """All entries of these edits."""
    found: dict[str, Any] = {}
    for edits in several:
        for key, value in edits.items():
            found[key] = [*found.get(key, ()), *value] if isinstance(value, list) else value
    return found


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
    """The specification. `devices`: names by UUID. Devices that the toolkit does not know are excluded.

    `earlier`: device names of the file before. Their containers need them at a restart, even if the devices are no
    longer offered or have other names. They are looked up by the toolkit's names.
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
    edits = _joined(toolkit.devices[uuid] for uuid in allocation.devices)
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
        "annotations": {ALLOCATION: json.dumps(note)},
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
    """`known` and a new allocation of these units.

    No two containers use a unit at a time, so an older allocation with one of these units is probably over; the kubelet
    does not report the end of a container. It may not be over while a pod starts: the kubelet allocates for all its
    containers at once, and reuses units of an init container that has yet to run. So the last OVER_KEPT stay.
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
