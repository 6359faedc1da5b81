"""What containers have by the kubelet's own record: the file that it reads again when it starts.

It also has what its pod-resources API does not tell (the devices of init containers), and what it does not tell yet (just
after its start). The kubelet writes it when it has given devices, before the container starts, and whenever a plugin
sends a list; it does not when a pod ends. Format: pkg/kubelet/cm/devicemanager/checkpoint in Kubernetes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from .holds import Holder

NAME = "kubelet_internal_checkpoint"  # in the directory of the plugins' sockets
# What kubelets of 1.8, and of 1.9 and 1.10, wrote at its top. None of those tells which pods are left.
OLD = frozenset({"Entries", "PodDeviceEntries"})


@dataclass(frozen=True, slots=True)
class Record:
    """What a container was given of one resource. Init containers of one pod, and its others, may have the same devices."""

    pod: str  # its UID
    container: str
    resource: str
    ids: frozenset[str]


def records(path: Path) -> tuple[Record, ...]:
    """What the file at `path` says, in order; nothing where there is none, or an old kubelet's. Raises OSError, ValueError."""
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        return ()
    try:
        said = json.loads(text)
        if not OLD.isdisjoint(said):
            return ()
        entries = said["Data"]["PodDeviceEntries"] or ()
        found = [
            Record(one["PodUID"], one["ContainerName"], one["ResourceName"], _ids(one["DeviceIDs"]))
            for one in entries
        ]
        return tuple(sorted(found, key=lambda one: (one.pod, one.container, one.resource)))
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"not a record of what containers have: {error!r}") from None


def _ids(given: Mapping[str, Sequence[str]] | Sequence[str] | None) -> frozenset[str]:
    """By NUMA node. None of a kubelet before 1.20, which has them in one list: it cannot be had to drop ended pods."""
    by_node = given if isinstance(given, Mapping) else {}
    return frozenset(one for ids in by_node.values() for one in ids)


def named(found: Iterable[Record], told: Iterable[Holder]) -> dict[str, str]:
    """Names of pods by UID, as far as the kubelet tells what one of their containers has."""
    by_devices = {(one.container, one.resource, frozenset(one.ids)): one.pod for one in told}
    return {
        one.pod: pod.name
        for one in found
        if (pod := by_devices.get((one.container, one.resource, one.ids))) is not None
    }


def untold(found: Iterable[Record], told: Iterable[Holder]) -> tuple[Record, ...]:
    """What of the record the kubelet does not tell, each device once."""
    known = {(one.resource, unit_id) for one in told for unit_id in one.ids}
    left = []
    for one in found:
        ids = frozenset(unit_id for unit_id in one.ids if (one.resource, unit_id) not in known)
        known |= {(one.resource, unit_id) for unit_id in ids}
        if ids:
            left.append(Record(one.pod, one.container, one.resource, ids))
    return tuple(left)
