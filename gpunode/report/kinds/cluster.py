"""Lines about the cluster's GPUs, workloads, and what is made for them."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypedDict

from gpunode.report.kinds.common import Index, Node, Object, Resource, Uuid


class Changed(TypedDict):
    """`plugin deploy`, `plugin remove`, `share disable`, `run notebook --remove`: an object."""

    action: Annotated[str, "what becomes of it: `remove`, `removed` …"]
    object: Object


class Plugin(TypedDict):
    """`plugin deploy`, `plugin status`: the plugin on a node."""

    node: Node
    pod: Annotated[str, "its name"]
    phase: Annotated[str, "of the pod"]
    restarts: Annotated[int, "of its container"]
    resource: Annotated[str, "that the two after it are of"]
    capacity: Annotated[int, "units that the node has"]
    allocatable: Annotated[int, "units that pods can get"]
    trouble: Annotated[str, "what is wrong; empty: nothing"]
    log: Annotated[str, "the pod's last line where something is wrong"]


class Gpu(TypedDict):
    """`status`: a GPU. Null where NVML does not report a value."""

    node: Node
    gpu: Index
    uuid: Uuid
    model: Annotated[str, "its name"]
    driver: Annotated[str, "the version that runs; empty: the plugin is older and does not say"]
    used: Annotated[int | None, "bytes"]
    memory: Annotated[int | Literal["shared with the host"], "bytes; the words: it has none of its own"]
    util: Annotated[int | None, "percent"]
    temp: Annotated[int | None, "°C"]
    promised: Annotated[int | None, "of `units`, by pods' annotations; null: its memory is not shared"]
    units: Annotated[int | None, "of its memory"]
    allocated: Annotated[int | None, "of `units`, by the kubelet"]
    health: Literal["ok", "unhealthy"]
    since: Annotated[str, "RFC 3339; empty: not known"]
    code: Annotated[str, "why it is unhealthy"]
    reason: Annotated[str, "the same, for people"]
    pods: Annotated[list[str], "those that have it, namespace/name"]
    processes: Annotated[int | None, "that NVML lists where no pod has the GPU"]


class Process(TypedDict):
    """`status` with an inventory: a process that uses GPUs outside pods."""

    node: Node
    pid: Annotated[int, "of the host"]
    command: Annotated[str, "without arguments"]
    container: Annotated[str, "name or id; empty: none"]
    gpus: Annotated[str, "PCI addresses that it has open, with a space between them, as far as known"]


class Label(TypedDict):
    """`label`: a node."""

    node: Node
    before: Annotated[str, "the label's value; empty: none"]
    accelerator: Annotated[str, "the same afterwards"]
    result: Literal["same", "changed", "would change"]


class Counted(TypedDict):
    """`label --resource`: a resource of a node."""

    node: Node
    resource: Resource
    before: Annotated[int | None, "null: none"]
    after: Annotated[int | None, "null: none"]
    result: Literal["same", "changed", "would change", "refused"]


class Vectoradd(TypedDict):
    """`provision`, `verify`, `run vectoradd`: a GPU; more lines where its pods ended differently."""

    node: Node
    uuid: Annotated[str, "the GPU's UUID; empty: no pod saw it"]
    gpu: Annotated[str, "its model, as CUDA names it"]
    result: Literal["passed", "failed", "not covered"]
    pods: Annotated[int, "as many were on it; of shares no more than show it"]
    seconds: Annotated[float | None, "of the longest"]
    why: Annotated[str, "it failed, or was not covered"]


class Log(TypedDict):
    """`run vectoradd --logs`, `run nvidia-smi`: a line of a pod's log."""

    node: Node
    pod: Annotated[str, "its name"]
    log: Annotated[str, "the line"]


class Notebook(TypedDict):
    """`run notebook`: it answers."""

    node: Node
    namespace: Annotated[str, "its namespace"]
    name: Annotated[str, "of its Deployment and its Service"]
    port: Annotated[int | None, "of every node; null: none"]


class Manifest(TypedDict):
    """`run manifest`: an object."""

    object: Annotated[dict[str, Any], "as the API server takes it"]


class Key(TypedDict):
    """`keys`: a key that was checked and written."""

    purpose: Literal["driver", "toolkit"]
    file: Annotated[str, "where it is"]
    fingerprint: Annotated[str, "of the key, in whole"]
    uri: Annotated[str, "the repository's"]


class Image(TypedDict):
    """`plugin image`: what was written."""

    file: Annotated[str, "the archive"]
    image: Annotated[str, "its name"]
    platform: Annotated[str, "such as `linux/amd64`"]
    python: Annotated[str, "of the base"]
    id: Annotated[str, "digest of its configuration"]
