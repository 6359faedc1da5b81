"""What the device plugin last said of a node's GPUs: in the node's annotation, in events about the node, in its log."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timezone

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
WELL, NO_LONGER = "INFO healthy again", "INFO no longer so: "
START = re.compile(r"INFO starting( anew |$)")  # before it, another configuration may have been in force
REGISTERED = re.compile(r"INFO registered with the kubelet resource=(\S+)")
UID = "with UID "  # before that of a pod whose name the plugin is not told
STILL = re.compile(rf" of pod ((?:{UID})?\S+) still has ")  # of what is held back, wherever it is told
OTHERS = " pods in all)"  # besides the one that is named
# Reasons of its events by what they are about: a later one says how that is by then.
ABOUT = {
    "GPUUnhealthy": "ill",
    "GPUHealthy": "ill",
    "GPUGone": "ill",
    "GPUNotOffered": "left out",
    "GPUOffered": "left out",
    "GPUHeld": "held",
    "GPUFree": "held",
}
NODE = {"GPUsOffered": "GPUsNotOffered", "ConfigTaken": "ConfigRefused"}  # about the node as a whole
COMBINED = "(combined from similar events): "
BESIDE = "GPUMemoryNotLimited"  # the reason of its warnings that keep no GPU from being offered
FORGETS = 300  # seconds in which the kubelet forgets a resource that is offered no more


def last(api: Api, node: Node, pod: Object) -> str:
    """Why GPUs are missing, in the plugin's words; "" where it says nothing. The best source that there is counts: what it
    says of now, of the log the last warning (unless it has left out a GPU, which it says once), what it said before."""
    now, before = _told(api, node, pod)
    if now:
        return now
    told = _logged(pods.last_words(api, pod, CONTAINER, lines=50).splitlines())
    return f"the plugin's log: {told}" if told else before


def offers(api: Api, node: Node, pod: Object) -> frozenset[str] | None:
    """The resources that the running plugin offers, Unhealthy or not; None where it does not say, and where it has offered
    the same for so long that the kubelet counts no others."""
    units = _view(node, pod).get("units")
    if isinstance(units, dict):
        return frozenset(units)
    lines: list[str] = []
    with suppress(ClusterError):
        meta = pod["metadata"]
        since = FORGETS + 30
        lines = api.log(meta["namespace"], meta["name"], CONTAINER, lines=10_000, since=since).splitlines()
    starts = [number for number, line in enumerate(lines) if START.search(line)]
    if not starts:
        return None
    return frozenset(found[1] for line in lines[starts[-1] :] if (found := REGISTERED.search(line)))


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
    said = [one for one in _events(api, node) if one.get("reason") == BESIDE and _when(one) >= _start(pod)]
    return str(max(said, key=_when)["message"]) if said else ""


def standing(api: Api, plugins: Mapping[str, Object]) -> dict[str, str]:
    """By node that has one of these pods: why its plugin goes on without the configuration that it was given, and of
    which GPUs it offers nothing. Nothing else shows that: the kubelet has never heard of it."""
    found: list[Object] = []
    with suppress(ClusterError):  # who may not read events is told less
        for reason in ("ConfigRefused", "ConfigTaken", "GPUNotOffered", "GPUOffered"):
            found += api.find("Event", "default", fields=f"involvedObject.kind=Node,reason={reason}")[0]
    words = {}
    for name, pod in plugins.items():
        about = [one for one in found if one["involvedObject"]["name"] == name and _when(one) >= _start(pod)]
        if standing := _joined(_open(_sorted(about))):
            words[name] = standing
    return words


def trouble(api: Api, node: Node, pod: Object) -> str:
    """What the plugin tells the cluster of GPUs that are not well; "" where it tells nothing."""
    now, before = _told(api, node, pod)
    return now or before


def _told(api: Api, node: Node, pod: Object) -> tuple[str, str]:
    """What the plugin tells the cluster of now, and what it told before it was started anew: that a GPU was ill may be
    why it is missing, whatever else it told was of another start."""
    events, start = [one for one in _events(api, node) if one.get("reason") != BESIDE], _start(pod)
    view = _view(node, pod)
    now = (
        _annotated(view) if "units" in view else _joined(one for one in _open(events) if _when(one) >= start)
    )
    ill = [one for one in _open(events) if "" < _when(one) < start and ABOUT.get(one["reason"]) == "ill"]
    before = f"the plugin said {_age(ill)}, before it was started anew: {_joined(ill)}" if ill else ""
    return f"the plugin says: {now}" if now else "", before


def _logged(lines: Sequence[str]) -> str:
    """What in the log is a reason: what it tells as usual is none, nor what has been mended or given back since, nor what
    was before it began anew."""
    told: list[str] = []
    for line in lines:
        if START.search(line):
            told = []
        elif FREE in line:  # the same fields follow it
            told = [one for one in told if HELD not in one or line.partition(FREE)[2] not in one]
        elif WELL in line:
            told = [one for one in told if ILL not in one or not one.endswith(line.partition(WELL)[2])]
        elif NO_LONGER in line:
            told = [one for one in told if line.partition(NO_LONGER)[2] not in one]
        elif INFO not in line:
            told.append(line)
    left = [line for line in told if LEFT_OUT in line]
    if left:
        return "; ".join(dict.fromkeys(left))
    last = told[-1] if told else ""
    if HELD not in last:
        return last
    held = [line.partition(HELD)[2].partition(" resource=")[0] for line in told if HELD in line]
    return "; ".join(dict.fromkeys([*(line for line in told if ILL in line), *held]))


def _annotated(view: Object) -> str:
    """The whole of what keeps GPUs from being offered just now."""
    try:
        parts = [view.get(key, {}).items() for key in ("unhealthy", "held", "notOffered")]
        ill = "; ".join(f"{uuid}: {why}" for part in parts for uuid, why in part)
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


def _events(api: Api, node: Node) -> list[Object]:
    """The plugin's events about this node, oldest first."""
    found: list[Object] = []
    with suppress(ClusterError):  # who may not read events is told less
        fields = f"involvedObject.kind=Node,involvedObject.uid={node.name}"
        found = api.find("Event", "default", fields=fields)[0]
    return _sorted(found)


def _sorted(found: Iterable[Object]) -> list[Object]:
    """The plugin's own of these events, oldest first."""
    ours = [one for one in found if (one.get("source") or {}).get("component") == COMPONENT]
    return sorted(ours, key=lambda one: (_when(one), one.get("type") == "Normal"))


def _open(events: Iterable[Object]) -> list[Object]:
    """Of events, oldest first, the warnings that no later one about the same has put right or renewed."""
    newest: dict[tuple[str, str], Object] = {}
    for one in events:
        reason = str(one.get("reason"))
        about = ABOUT.get(reason, "")
        message = str(one.get("message", "")).removeprefix(COMBINED)
        device = message.partition(" is ")[0] if about else ""
        key = (about or NODE.get(reason, reason), device)
        newest.pop(key, None)
        newest[key] = one
    return [one for one in newest.values() if one.get("type") == "Warning"]


def _joined(events: Iterable[Object]) -> str:
    return "; ".join(str(one.get("message", "")) for one in events)


def _when(event: Object) -> str:
    """When it was said last; such times sort as they follow each other."""
    return str(event.get("lastTimestamp") or "")


def _start(pod: Object) -> str:
    """When the plugin was started; "" while it does not run."""
    for one in pod.get("status", {}).get("containerStatuses") or []:
        if one["name"] == CONTAINER:
            return str(one.get("state", {}).get("running", {}).get("startedAt") or "")
    return ""


def _age(events: Sequence[Object]) -> str:
    """How long ago the newest was said."""
    said = datetime.fromisoformat(_when(events[-1]).replace("Z", "+00:00"))
    minutes = int((datetime.now(timezone.utc) - said).total_seconds() // 60)
    return f"{minutes // 60} h ago" if minutes >= 120 else f"{max(minutes, 1)} min ago"
