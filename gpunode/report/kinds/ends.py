"""Lines that any command may write, and its last."""

from __future__ import annotations

from typing import Annotated, TypedDict

from gpunode.report.kinds.common import Message, Seconds


class Error(TypedDict):
    """All commands: something failed in the cluster, or on a host whose outcome does not have it."""

    host: Annotated[str | None, "null: all"]
    error: Annotated[str, "what failed"]
    hint: Annotated[str, "what to do next"]


class ErrorMore(Error, total=False):
    code: Annotated[
        str, "of [what would refuse a pod](../failures.md#pods-that-are-not-admitted-or-scheduled)"
    ]


class Note(TypedDict):
    """All commands: a sentence for people; programs do not rely on it."""

    message: Message


class Summary(TypedDict):
    """The last line, also where the cluster refuses something; of `provision` unless it stopped before a change (declined, no cluster)."""

    seconds: Seconds


class SummaryMore(Summary, total=False):
    hosts: Annotated[int, "`plan`, `provision`, `verify`, `lint`, `init`: how many"]
    right: Annotated[int, "`plan`, `provision`: hosts of this status; each other status has such a key, too"]
    planned: int
    changed: int
    failed: int
    refused: int
    unreachable: Annotated[int, "also `lint`: hosts that were not judged"]
    declined: int
    cluster: Annotated[
        int | None,
        "`plan`, `provision`: objects that would change in the cluster, nodes among them; null: not checked, since the inventory names no plugin or the cluster did not answer",
    ]
    broken: Annotated[
        int, "`plan`, `provision`: hosts with nothing to change and a broken link; `verify`, `lint`: hosts"
    ]
    links: Annotated[int, "`verify`: of all hosts together, 11 each"]
    checked: Annotated[int, "`verify`: of `links`"]
    not_checked: Annotated[dict[str, int], "`verify`: the number of hosts by `layer`"]
    findings: Annotated[int, "`lint`, `share fsck`: how many"]
    nodes: Annotated[int, "`status`, `share fsck`: how many"]
    unknown: Annotated[int, "`status`: nodes whose GPUs are not known"]
    gpus: Annotated[int, "`status`: how many"]
    used: Annotated[int, "`status`: GPUs that pods have"]
    free: Annotated[int, "`status`: GPUs that work and that nobody has"]
    unseen: Annotated[int, "`status`: GPUs that work, and of which the kubelet does not say who has them"]
    unhealthy: Annotated[int, "`status`: GPUs"]
    models: Annotated[dict[str, int], "`status`: GPUs by model"]
    shares: Annotated[
        dict[str, list[int]],
        "`status`, where GPUs are shared or have MIG devices: units that no pod has, and all, by resource",
    ]
    inventory: Annotated[str, "`init`: the file"]
    repaired: Annotated[int, "`share fsck`: findings"]
    compared: Annotated[int, "`share fsck`: nodes whose kubelets were read"]
    pods: Annotated[int, "`share simulate`: how many"]
    placed: Annotated[int, "`share simulate`: of `pods`"]
    schedulers: Annotated[int, "`share enable`, `share disable`: how many"]
    asking: Annotated[int, "`share enable`: of `schedulers`"]
    removed: Annotated[int, "`share disable`: objects"]
    resources: Annotated[dict[str, list[int]], "`share inspect`: units promised and units there, by resource"]
