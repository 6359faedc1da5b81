"""What the device plugin last said of a node's GPUs: in the node's annotation, in events about the node, in its log."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from contextlib import suppress

from gpunode.cluster import pods
from gpunode.cluster.api import Api
from gpunode.cluster.kinds import Object
from gpunode.cluster.nodes import Node
from gpunode.errors import ClusterError

# As gpunode/deviceplugin/cluster/events.py and view.py have them.
COMPONENT = "gpunode-device-plugin"
CONTAINER = "device-plugin"  # in its pod
UNREADY = "INFO not ready: "  # in its log
LEFT_OUT = " is not offered: "  # in its log, of a GPU
INFO, ILL, HELD, FREE = "INFO ", "unhealthy: ", "held back: ", "held back no longer"  # in its log
STILL = re.compile(r" of pod (\S+) still has ")  # of what is held back, wherever it is told
OTHERS = " pods in all)"  # besides the one that is named
HELD_EVENTS = ("GPUHeld", "GPUFree")
BESIDE = "GPUMemoryNotLimited"  # the reason of its warnings that keep no GPU from being offered


def last(api: Api, node: Node, pod: Object) -> str:
    """Why GPUs are missing, in the plugin's words; "" where it says nothing. The best source that there is counts: of the
    log the last warning, unless it has left out a GPU, which it says once."""
    if said := trouble(api, node, pod):
        return said
    lines = pods.last_words(api, pod, CONTAINER, lines=50).splitlines()
    told = _logged(lines)
    return f"the plugin's log: {told}" if told else ""


def holders(words: str) -> tuple[str, ...]:
    """The pods for which GPUs are held back, if that is all that these words of the plugin tell of; () if not."""
    found = [STILL.search(part) for part in words.split("; ")]
    return tuple(dict.fromkeys(one[1] for one in found if one)) if all(found) else ()


def unready(api: Api, node: Node, pod: Object) -> str:
    """Why the plugin, which runs, is not ready; "" where it says nothing. What it last gave as a reason counts, whatever
    it has logged since."""
    lines = pods.last_words(api, pod, CONTAINER, lines=50).splitlines()
    why = next((line.partition(UNREADY)[2] for line in reversed(lines) if UNREADY in line), "")
    return f"the plugin is not ready: {why}" if why else last(api, node, pod)


def unlimited(api: Api, node: Node, pod: Object) -> str:
    """Why the driver does not hold containers to their share of a GPU's memory; "" where the plugin says nothing of it."""
    limits = _view(node, pod).get("memoryLimits")
    if isinstance(limits, dict):
        return "; ".join(dict.fromkeys(str(why) for why in limits.values() if why != "enforced"))
    return _newest([one for one in _events(api, node) if one.get("reason") == BESIDE])


def trouble(api: Api, node: Node, pod: Object) -> str:
    """What the plugin tells the cluster of GPUs that are not well; "" where it tells nothing."""
    said = _annotation(node, pod) or _event(api, node)
    return f"the plugin says: {said}" if said else ""


def _logged(lines: Sequence[str]) -> str:
    """What in the log is a reason: what it tells as usual is none, nor what has been given back since."""
    told: list[str] = []
    for line in lines:
        if FREE in line:  # the same fields follow it
            told = [one for one in told if HELD not in one or line.partition(FREE)[2] not in one]
        elif INFO not in line:
            told.append(line)
    last = next((line for line in reversed(told) if LEFT_OUT in line), told[-1] if told else "")
    if HELD not in last:
        return last
    held = [line.partition(HELD)[2].partition(" resource=")[0] for line in told if HELD in line]
    return "; ".join(dict.fromkeys([*(line for line in told if ILL in line), *held]))


def _annotation(node: Node, pod: Object) -> str:
    """The whole of what keeps GPUs from being offered just now."""
    view = _view(node, pod)
    try:
        out = [*view.get("unhealthy", {}).items(), *view.get("held", {}).items()]
        ill = "; ".join(f"{uuid}: {why}" for uuid, why in out)
        return str(view.get("problem") or ill)
    except AttributeError:
        return ""  # somebody else's words


def _view(node: Node, pod: Object) -> Object:
    """The annotation, where this pod keeps it up to date: one of a pod that was killed may still be there."""
    env = [one for container in pod["spec"].get("containers", []) for one in container.get("env", [])]
    if {"name": "NODE_ANNOTATION", "value": "true"} not in env:
        return {}
    try:
        view = json.loads(node.said or "{}")
    except ValueError:
        return {}
    return view if isinstance(view, dict) else {}


def _event(api: Api, node: Node) -> str:
    """The newest event of the plugin about this node, if it is a warning: nothing has become better since. A GPU that is
    held back hides none that is ill, nor the other way round."""
    found = [one for one in _events(api, node) if one.get("reason") != BESIDE]
    ill = _newest([one for one in found if one.get("reason") not in HELD_EVENTS])
    held = _newest([one for one in found if one.get("reason") in HELD_EVENTS])
    return "; ".join(filter(None, (ill, held)))


def _events(api: Api, node: Node) -> list[Object]:
    found: list[Object] = []
    with suppress(ClusterError):  # who may not read events is told less
        fields = f"involvedObject.kind=Node,involvedObject.uid={node.name}"
        found = api.find("Event", "default", fields=fields)[0]
    return [one for one in found if (one.get("source") or {}).get("component") == COMPONENT]


def _newest(found: list[Object]) -> str:
    newest = max(found, key=lambda one: str(one.get("lastTimestamp") or ""), default={})
    return str(newest.get("message", "")) if newest.get("type") == "Warning" else ""
