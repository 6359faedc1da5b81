"""Reads the kubelet's device checkpoint: containers' devices, in the file that the kubelet restores at its start.

It has what the pod-resources API does not report (devices of init containers), or not yet (just after the kubelet's
start). The kubelet writes it after an allocation, before the container starts, and whenever a plugin sends a list; not
when a pod ends. Format: pkg/kubelet/cm/devicemanager/checkpoint in Kubernetes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from gpunode.contract.checkpoint import Entry

from ..offer.reservations import ContainerDevices


def pod_names(found: Iterable[Entry], reported: Iterable[ContainerDevices]) -> dict[str, str]:
    """Names of pods by UID, where the kubelet reports the same devices for one of their containers."""
    by_devices = {(one.container, one.resource, frozenset(one.ids)): one.pod for one in reported}
    return {
        one.pod: pod.name
        for one in found
        if (pod := by_devices.get((one.container, one.resource, one.ids))) is not None
    }


def unreported(found: Iterable[Entry], reported: Iterable[ContainerDevices]) -> tuple[Entry, ...]:
    """The entries with units that the kubelet does not report, each unit once."""
    known = {(one.resource, unit_id) for one in reported for unit_id in one.ids}
    rest = []
    for one in found:
        ids = frozenset(unit_id for unit_id in one.ids if (one.resource, unit_id) not in known)
        known |= {(one.resource, unit_id) for unit_id in ids}
        if ids:
            rest.append(replace(one, ids=ids))
    return tuple(rest)
