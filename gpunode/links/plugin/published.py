"""The device plugin's status on a node, from the node's annotation or the plugin's log, and the reasons in it."""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import datetime, timezone

from gpunode.cluster.api import Api
from gpunode.cluster.api.kinds import Object
from gpunode.contract.promises import MEMORY_ANNOTATION
from gpunode.contract.status import (
    ANNOTATION,
    CORDONED,
    ENFORCED,
    MARK,
    Status,
    UnknownVersion,
    find_last,
    loads,
)
from gpunode.errors import ClusterError, HttpError, Problem
from gpunode.links.node import GPU_LABEL, Node
from gpunode.wording import advise

COMPONENT = "gpunode-device-plugin"  # source of its events
CONTAINER = "device-plugin"  # in its pod
LINES = 5000  # of its log: the status is repeated every hour, so it is among them
UNHEALTHY, HEALTHY = ("GPUUnhealthy", "GPUGone"), "GPUHealthy"  # reasons of its events
NOT_STARTED = 400  # HTTP status where a container has no log yet
NOTHING_YET = "no-status"  # code: the plugin has just started
UPDATE = advise("`gpunode plugin deploy` brings this version's plugin.")


def read(api: Api, node: Node, pod: Object) -> Status | Problem:
    """The status that this pod publishes, or why it cannot be read."""
    text = node.plugin_status if _annotates(pod) else ""
    log = ""
    if not text:
        meta = pod["metadata"]
        try:
            log = api.log(meta["namespace"], meta["name"], CONTAINER, lines=LINES)
        except HttpError as error:
            if error.status == NOT_STARTED:
                return _nothing_yet()
            return Problem("no-log", f"the plugin's log cannot be read: {error.message}")
        text = find_last(log) or ""
    if not text:
        return _older_problem() if log.strip() else _nothing_yet()
    try:
        return loads(text)
    except UnknownVersion as error:
        if isinstance(error.version, int) and error.version > 1:
            what = f"the plugin is newer than this gpunode: {error}"
            return Problem("plugin-newer", what, fix="Update gpunode on this computer.")
        return _older_problem()
    except ValueError as error:
        return Problem("bad-status", f"the plugin's status cannot be read: {error}", fix=UPDATE)


def why_missing(status: Status | Problem) -> Problem | None:
    """Why GPUs are missing or unhealthy; None where that is not known. With `holders` where they are reserved."""
    if isinstance(status, Problem):
        return None if status.code == NOTHING_YET else status
    if status.problem is not None:
        return Problem(status.problem.code, f"the plugin reports: {status.problem}")
    sentences = dict.fromkeys(
        [*(each.sentence for each in status.lost), *(each.words for each in status.reserved)]
    )
    if not sentences:
        return None
    holders = (
        ()
        if status.lost
        else tuple(dict.fromkeys(pod.name or pod.uid for each in status.reserved for pod in each.pods))
    )
    codes = [each.code for each in status.lost]
    code = next((code for code in codes if code != CORDONED), codes[0] if codes else "reserved")
    reports = "" if code == CORDONED else "the plugin reports: "  # that is its operator's intention
    return Problem(code, f"{reports}{'; '.join(sentences)}", holders=holders)


def only_cordoned(status: Status | Problem) -> bool:
    """True if GPUs are missing, and all of them by an operator's intention."""
    return (
        isinstance(status, Status) and bool(status.lost) and {lost.code for lost in status.lost} == {CORDONED}
    )


def why_not_ready(status: Status | Problem) -> Problem | None:
    """Why the running plugin is not ready; None where that is not known."""
    if isinstance(status, Problem):
        return None if status.code == NOTHING_YET else status
    if status.not_ready is not None:
        return Problem(status.not_ready.code, f"the plugin is not ready: {status.not_ready}")
    return why_missing(status)


def hidden_problems(status: Status | Problem) -> str:
    """Problems that the kubelet's counts do not show: a refused configuration, GPUs that are not offered; "" for none."""
    if isinstance(status, Problem):
        return status.what if status.code.startswith(("plugin-", "bad-")) else ""
    refused = status.configuration.refused
    sentences = [f"its configuration is unchanged: {refused}"] if refused else []
    return "; ".join([*sentences, *(lost.sentence for lost in status.lost if not lost.listed)])


def why_unlimited(status: Status | Problem) -> str:
    """Why the driver does not limit containers to their share of a GPU's memory; "" where it does, and where no GPU is
    shared by memory."""
    limits = status.memory_limits.values() if isinstance(status, Status) else ()
    return "; ".join(dict.fromkeys(limit.words for limit in limits if limit.code != ENFORCED))


def resources(status: Status | Problem) -> frozenset[str] | None:
    """The resources of the configuration in force; None where it is not known."""
    return frozenset(status.resources) if isinstance(status, Status) else None


def outage(api: Api, node: Node, pod: Object) -> str:
    """The last unhealthy GPU that the plugin reported before this start, from its event: perhaps the missing one. ""
    for none; for people only."""
    events: list[Object] = []
    with suppress(ClusterError):  # the user may have no right to events
        fields = f"involvedObject.kind=Node,involvedObject.uid={node.name}"
        events = api.find("Event", "default", fields=fields)[0]
    ours = [event for event in events if (event.get("source") or {}).get("component") == COMPONENT]
    past = [event for event in ours if "" < _when(event) < _start(pod)]
    last = max((event for event in past if event.get("reason") in UNHEALTHY), key=_when, default=None)
    if last is None or any(event.get("reason") == HEALTHY and _when(event) >= _when(last) for event in past):
        return ""
    return f"before its last start, {_age(last)}, the plugin reported: {last.get('message', '')}"


def log_line(log: str) -> str:
    """The last line of a log that is not a status."""
    return next((line for line in reversed(log.splitlines()) if f" {MARK} " not in line), "")


def _nothing_yet() -> Problem:
    return Problem(NOTHING_YET, "the plugin has not published its status yet")


def _older_problem() -> Problem:
    what = "the plugin is older than this gpunode and publishes no status that it reads"
    return Problem("plugin-older", what, fix=UPDATE)


def _annotates(pod: Object) -> bool:
    """Whether this pod keeps the annotation current: the annotation of a killed pod may remain."""
    env = [
        variable for container in pod["spec"].get("containers", []) for variable in container.get("env", [])
    ]
    return {"name": "NODE_ANNOTATION", "value": "true"} in env


def _start(pod: Object) -> str:
    """When the plugin's container started; "" while it does not run."""
    for status in pod.get("status", {}).get("containerStatuses") or []:
        if status["name"] == CONTAINER:
            return str(status.get("state", {}).get("running", {}).get("startedAt") or "")
    return ""


def _when(event: Object) -> str:
    """When the event was last reported, as sortable text."""
    return str(event.get("lastTimestamp") or "")


def _age(event: Object) -> str:
    moment = datetime.fromisoformat(_when(event).replace("Z", "+00:00"))
    minutes = int((datetime.now(timezone.utc) - moment).total_seconds() // 60)
    return f"{minutes // 60} h ago" if minutes >= 120 else f"{max(minutes, 1)} min ago"


ANNOTATIONS = (ANNOTATION, MEMORY_ANNOTATION)  # that it writes


def read_annotations(api: Api, keys: Iterable[str] = ANNOTATIONS) -> Mapping[tuple[str, str], str]:
    """Node and key -> the text, of those of these annotations that the plugin's nodes have."""
    return {
        (item["metadata"]["name"], key): item["metadata"]["annotations"][key]
        for item in api.find("Node", labels=f"{GPU_LABEL}=true")[0]
        for key in keys
        if key in (item["metadata"].get("annotations") or {})
    }


def remove_annotations(api: Api, keys: Iterable[str] = ANNOTATIONS) -> Mapping[tuple[str, str], str]:
    """Remove these annotations. Returns what was removed, as `read_annotations` does."""
    texts = read_annotations(api, keys)
    for name, key in texts:
        api.merge("Node", name, {"metadata": {"annotations": {key: None}}})
    return texts
