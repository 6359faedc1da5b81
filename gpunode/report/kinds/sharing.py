"""Lines of `gpunode share`."""

from __future__ import annotations

from typing import Annotated, Literal, TypedDict

from gpunode.report.kinds.common import Message, Node, Resource, Uuid


class Share(TypedDict):
    """`share inspect`: a GPU."""

    node: Node
    gpu: Annotated[str, "its index; `?`: all GPUs of a node together, where they are not distinguished"]
    device: Uuid
    resource: Resource
    promised: Annotated[int, "units that pods were promised"]
    total: Annotated[int | None, "units that it has; null: not known"]
    used: Annotated[int | None, "units by the kubelet's record; null: it was not read"]
    unit: Annotated[
        str, "what one is: `GiB`, `MiB`, `256 MiB`, `GPU`, `share`, `MIG device`; `unit`: not known"
    ]
    pods: Annotated[str, "their names, with `, ` between them"]


class Use(TypedDict):
    """`share inspect -d`: a container on a GPU."""

    node: Node
    gpu: Annotated[str, "as of a `share` line"]
    resource: Resource
    pod: Annotated[str, "namespace/name"]
    container: Annotated[str, "its name"]
    promised: Annotated[int, "units"]
    used: Annotated[int | None, "as of a `share` line"]
    unit: Annotated[str, "as of a `share` line"]


class Fsck(TypedDict):
    """`share fsck`: something that is wrong."""

    node: Node
    pod: Annotated[str, "namespace/name; empty: no single pod's"]
    code: Annotated[
        Literal[
            "not-noted", "other-scheduler", "unreadable", "elsewhere", "no-devices", "overcommitted", "malformed", "gpus-unknown"
        ],
        "[what it is](../json.md#what-fsck-finds)",
    ]  # fmt: skip
    words: Message
    repair: Annotated[Literal["annotations", ""], "what `--repair` writes"]


class Simulated(TypedDict):
    """`share simulate`: a pod."""

    pod: Annotated[int, "its number, from 1"]
    node: Annotated[str, "empty: none has room"]
    gpu: Annotated[str, "of each container, with `,` between them"]
    why: Annotated[str, "why no node has room, with the number of nodes"]


class Free(TypedDict):
    """`share simulate`: what would be free on a node then."""

    node: Node
    free: Annotated[int, "units"]
    largest: Annotated[int, "of one GPU"]
    gpus: Annotated[str, "of each GPU, with a space between them; empty where they are all alike"]
