"""Reads the kubelet's device checkpoint: containers' devices, in the file that the kubelet restores at its start.

It has what the pod-resources API does not report (devices of init containers), or not yet (just after the kubelet's
start). The kubelet writes it after an allocation, before the container starts, and whenever a plugin sends a list; not
when a pod ends. Format: pkg/kubelet/cm/devicemanager/checkpoint in Kubernetes.
"""

import base64
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

FILE_NAME = "kubelet_internal_checkpoint"  # in the directory of the plugins' sockets
# The variable in a plugin's answer, of which the file has the bytes (`AllocResp`, a ContainerAllocateResponse): one entry
# of the map `envs`, its key with its length, the value's length, the value. gpushare's plugin puts N of /dev/nvidiaN there
# (pkg/gpu/nvidia/allocate.go).
INDEX = re.compile(rb"\n\x16ALIYUN_COM_GPU_MEM_IDX\x12([\x00-\x7f])", re.DOTALL)
MALFORMED = (KeyError, TypeError, AttributeError, RecursionError)
# Top-level keys of kubelets 1.8, and 1.9 to 1.10. None of these kubelets reports which pods still run.
OLD = frozenset({"Entries", "PodDeviceEntries"})


@dataclass(frozen=True, slots=True)
class Entry:
    """A container's units of one resource. Init containers and other containers of a pod may share devices. `index`: of the
    GPU that a plugin of gpushare's kind gave it, whatever the ids say; "": it did not say."""

    pod: str  # its UID
    container: str
    resource: str
    ids: frozenset[str]
    index: str = ""


def entries(path: Path) -> tuple[Entry, ...]:
    """The entries of the file at `path`, sorted; empty for no file or an old kubelet's. Raises OSError, ValueError."""
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        return ()
    return parse(text)


def parse(text: str | bytes) -> tuple[Entry, ...]:
    """The entries in the file's text, sorted. Raises ValueError."""
    try:
        data = json.loads(text)
        if not OLD.isdisjoint(data):
            return ()
        entries = data["Data"]["PodDeviceEntries"] or ()
        found_entries = [
            Entry(
                entry["PodUID"],
                entry["ContainerName"],
                entry["ResourceName"],
                _ids(entry["DeviceIDs"]),
                _index(base64.b64decode(entry.get("AllocResp") or "")),
            )
            for entry in entries
        ]
        return tuple(sorted(found_entries, key=lambda each: (each.pod, each.container, each.resource)))
    except MALFORMED as error:
        raise ValueError(f"not a device checkpoint of the kubelet: {error!r}") from None


def healthy_ids(text: str | bytes) -> dict[str, frozenset[str]]:
    """The ids of each resource's healthy units, in the text of such a file. Raises ValueError."""
    try:
        data = json.loads(text)
        known = {} if not OLD.isdisjoint(data) else data["Data"].get("RegisteredDevices")
        resources = known.items() if isinstance(known, Mapping) else ()
        return {resource: frozenset(ids or ()) for resource, ids in resources}
    except MALFORMED as error:
        raise ValueError(f"not a device checkpoint of the kubelet: {error!r}") from None


def _ids(ids_by_node: Mapping[str, Sequence[str]] | Sequence[str] | None) -> frozenset[str]:
    """The ids of all NUMA nodes. Empty for a kubelet before 1.20, which has one list: it does not drop ended pods."""
    by_node = ids_by_node if isinstance(ids_by_node, Mapping) else {}
    return frozenset(unit_id for ids in by_node.values() for unit_id in ids)


def _index(answer: bytes) -> str:
    match = INDEX.search(answer)
    return answer[match.end() : match.end() + match[1][0]].decode(errors="replace") if match else ""
