"""Lines about hosts and their runs."""

from __future__ import annotations

from typing import Annotated, Literal, TypedDict

from gpunode.model import Layer, Status
from gpunode.report.kinds.common import Host, Message, Seconds, Somewhere


class Stage(TypedDict):
    """All commands: what is being done or waited for."""

    host: Somewhere
    message: Message


class StageMore(Stage, total=False):
    run: Annotated[str, "the run whose apply is followed"]


class Change(TypedDict):
    """`provision`: a change starts."""

    host: Host
    message: Message
    n: Annotated[int, "number of the change, from 0"]
    of: Annotated[int, "number of changes"]
    kind: Annotated[str, "as of a plan's `changes`"]


class Progress(TypedDict):
    """`provision`: the progress of a change."""

    host: Host
    message: Message


class ProgressMore(Progress, total=False):
    percent: Annotated[float | None, "null: not known"]


class Outcome(TypedDict):
    """All commands that visit hosts: a host is done."""

    host: Host
    status: Annotated[Status, "how it ended"]
    seconds: Seconds


class OutcomeMore(Outcome, total=False):
    error: Annotated[str, "what failed"]
    hint: Annotated[str, "what to do next"]
    code: Annotated[
        str,
        "why [the host cannot be reached](../failures.md#a-host-that-cannot-be-reached), or why [a change failed](codes.md#why-a-change-failed)",
    ]


class Link(TypedDict):
    """`verify`: a link of the chain. One that was not asked for (`--no-run`, no `cluster.plugin`) has no line."""

    host: Host
    layer: Annotated[Layer, "[in their order](../json.md#links)"]
    status: Annotated[
        Literal["ok", "broken", "unknown"],
        "`unknown`: not checked, as it follows from an earlier broken one, or `text` says why",
    ]
    text: Message
    cause: Annotated[str, "of what is broken"]
    fix: Annotated[str, "what to do next"]


class Why(TypedDict):
    """`plan --why`: a choice, after those that it rests on; of a refused host those before that."""

    host: Host
    code: Annotated[
        Literal[
            "system", "gpu", "repository", "branch", "modules", "headers", "fabric", "toolkit", "runtime", "kubelet", "gate"
        ],
        "what is chosen",
    ]  # fmt: skip
    chosen: Annotated[str, "the choice"]
    why: Annotated[str, "its reason"]


class Finding(TypedDict):
    """`lint`: something that an upgrade would break."""

    host: Host
    code: Annotated[
        Literal[
            "gate", "flag", "dockershim", "containerd", "cgroup-v1", "kubelet-config", "scheduler", "unreadable", "not-judged"
        ],
        "[what it is](../json.md#what-an-upgrade-breaks)",
    ]  # fmt: skip
    cause: Message
    fix: Annotated[str, "what to do next"]


class Gate(TypedDict):
    """`plan`, `provision`: a [gate](../inventory.md#gates). With `status` it ran, in `provision`; else it is only named."""

    gate: Annotated[str, "the command"]


class GateMore(Gate, total=False):
    timeout: Annotated[float, "seconds"]
    when: Annotated[str, "for people"]
    host: Somewhere
    message: Message
    hosts: Annotated[list[str], "those of the batch"]
    status: Annotated[int | None, "its exit status, negative: the signal that ended it; null: not in time"]
    seconds: Seconds
    output: Annotated[str, "its last lines"]


class Abort(TypedDict):
    """`abort`: a host that answered."""

    host: Host
    ended: Annotated[str, "what the apply was doing, or `nothing was under way`"]
    by: Annotated[str, "the operator"]
    since: Annotated[str, "when it began"]
    results: Annotated[str, "files put back, and other results"]


class Verified(TypedDict):
    """`provision`, at its end: a host."""

    host: Host
    node: Annotated[str, "empty: not known"]
    result: Literal["verified", "not verified"]
    proof: Annotated[str, "what shows it"]


class Batch(TypedDict):
    """`provision`, before its question: a batch, where changes come in more than one."""

    batch: Annotated[int, "its number, from 1"]
    hosts: Annotated[list[str], "those in it"]
    changes: Annotated[list[str], "those that change"]
    disturbed: Annotated[list[str], "those where something restarts"]
    words: Annotated[list[str], "by what"]
