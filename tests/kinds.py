"""The JSON lines as types: each kind with its keys, their types and what they mean. docs/reference/json.md is written out of them.

Keys may be added; none changes its meaning within a major version. A key of `More` is there only where it says something.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeAlias, TypedDict

from gpunode.model import Layer, Status

Host: TypeAlias = Annotated[str, "name in the inventory"]
Somewhere: TypeAlias = Annotated[str | None, "name in the inventory; null: the cluster"]
Node: TypeAlias = Annotated[str, "the node's name"]
Message: TypeAlias = Annotated[str, "for people"]
Seconds: TypeAlias = Annotated[float, "how long it took"]
Object: TypeAlias = Annotated[str, "kind and name, with the namespace"]
Resource: TypeAlias = Annotated[str, "name of the extended resource"]
Index: TypeAlias = Annotated[str, "the GPU's index"]
Uuid: TypeAlias = Annotated[str, "the GPU's UUID"]


# --- Hosts and their runs -----------------------------------------------------------------------------


class Stage(TypedDict):
    """All commands: what is being done or waited for."""

    host: Somewhere
    message: Message


class StageMore(Stage, total=False):
    run: Annotated[str, "the run whose apply is followed"]
    id: Annotated[str, "the run whose batch begins, with the members below"]
    state: Literal["running"]
    hosts: Annotated[int, "of the run"]
    finished: Annotated[int, "hosts verified so far"]
    bad: Annotated[int, "hosts that ended badly so far"]
    since: Annotated[float, "when the batch began, in seconds since the epoch"]
    batch: Annotated[int, "number of the batch, from 1"]
    batches: Annotated[int, "number of batches"]
    left: Annotated[float, "estimated seconds to the end of the run, without waits for work to end"]


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


class LinkMore(Link, total=False):
    code: Annotated[
        Literal["pending"],
        "the link holds; the plan replaces what it is about, such as the driver by another branch",
    ]
    writers: Annotated[
        list[str], "the `code` of [who wrote](../switching.md#who-wrote-this-last) the files that are wrong"
    ]


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
    """`plan`, `provision`, `show`: a [gate](../inventory.md#gates). With `status` it ran, in `provision`; else it is only named."""

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
    result: Annotated[
        Literal["verified", "in use", "not verified"],
        "`in use`: no GPU was free for a proof, and no change disturbed the work that has them",
    ]
    proof: Annotated[str, "what shows it"]
    layer: Annotated[str, "the link that does not hold; empty: none, or it is not known"]
    code: Annotated[str, "why it does not hold, where that has a code"]


class Time(TypedDict):
    """`provision`, at its end, and `show`: where a host's time went, from the start of its batch to its end."""

    host: Host
    seconds: Annotated[float, "all of it"]
    phases: Annotated[
        dict[str, float],
        "seconds by [phase](../performance.md#time-to-the-first-pod); phases without time are missing",
    ]


class Run(TypedDict):
    """`history`, `show`: a recorded run."""

    run: Annotated[str, "its id"]
    began: Annotated[str, "RFC 3339"]
    took: Annotated[float, "seconds, up to the record's last line"]
    by: Annotated[str, "user@machine; empty, as the last three: an older gpunode wrote the record"]
    inventory: Annotated[str, "the file's path"]
    hosts: Annotated[int, "how many"]
    result: Annotated[dict[str, int], "hosts by state"]
    ended: Annotated[str, "RFC 3339; empty: it was cut off, or is under way"]
    version: Annotated[str, "gpunode's"]
    question: Annotated[str, "before the first change; empty: nothing was to change"]
    answer: Annotated[str, "`yes`, `--yes`, or whose reviewed plan it was; for people"]


class RecordedChange(TypedDict):
    step: Annotated[str, "the link; `cluster`: an object there"]
    kind: Annotated[str, "as of a plan's `changes`; in the cluster what is done with the object"]
    what: Message
    why: Message
    made: Annotated[bool | None, "null: not known"]


class RecordedChangeMore(RecordedChange, total=False):
    diff: Annotated[list[str], "without secrets; absent with `--no-diff`"]


class Recorded(TypedDict):
    """`show`: how a host ended, and its changes."""

    host: Somewhere
    state: Annotated[str | None, "[how far it came](../safety.md#records-of-runs); null: the cluster"]
    why: Annotated[str, "why no further, for people"]
    seconds: Annotated[float | None, "from the start of its batch to its end; null: not known"]
    changes: Annotated[list[RecordedChangeMore], "as shown, in order, with those of later rounds"]


class ReviewedChange(TypedDict):
    step: Annotated[str, "the link; `cluster`: an object there"]
    what: Message
    why: Message


class ReviewedChangeMore(ReviewedChange, total=False):
    diff: Annotated[list[str], "without secrets; absent with `--no-diff`"]


class Reviewed(TypedDict):
    """`show` of a file of `plan --out`: a host's plan."""

    host: Somewhere
    why: Annotated[str, "why the host has no plan, for people"]
    disturbed: Annotated[int | None, "pods and processes; null: not known, or the cluster"]
    changes: Annotated[list[ReviewedChangeMore], "in order"]


class Phase(TypedDict):
    """`show`: a [phase](../performance.md#time-to-the-first-pod) that took time."""

    phase: Annotated[str, "its name"]
    seconds: Annotated[float, "of all hosts together"]
    hosts: Annotated[int, "how many these are"]
    slowest: Annotated[str, "the host where it took longest"]
    most: Annotated[float, "seconds there"]


class Difference(TypedDict):
    """`verify`: a host that differs from the majority of its group; a warning."""

    host: Host
    group: Annotated[str, "of the inventory; empty: hosts without one"]
    what: Literal["GPUs", "model", "driver", "link width"]
    value: Annotated[str, "of this host"]
    others: Annotated[str, "of the majority"]
    hosts: Annotated[int, "hosts of the majority; at least 3"]


class FleetCause(TypedDict):
    """`verify`, at its end where several hosts are broken: a cause, with its hosts."""

    cause: Annotated[str, "without what differs from host to host"]
    layer: Annotated[Layer, "the link that is broken"]
    hosts: Annotated[int, "their number"]
    names: list[str]
    fix: Annotated[str, "for all of them"]


class Deviation(TypedDict):
    """`provision` of a file of `plan --out`: what is not as it was reviewed."""

    host: Annotated[str | None, "name in the inventory; null: all hosts, or the cluster"]
    code: Annotated[
        Literal["version", "inventory", "host", "machine", "plan", "disturbs", "cluster"],
        "gpunode's version, the inventory's bytes, a host that is not in the file, its machine id, its plan, a number of pods and processes that grew, or an object of the cluster",
    ]
    what: Message


class Left(TypedDict):
    """`undo` and `forget`, before their question: something that they leave as it is."""

    host: Annotated[str, "name in the inventory; empty: the cluster"]
    code: Annotated[
        Literal["kept", "irreversible", "cluster", "stays"],
        "changed since the run, on a host that has left the inventory, or without a sign that gpunode wrote it; nothing can restore it; an object of the cluster, which an undo does not change; it is for the user to remove",
    ]
    what: Annotated[str, "a path, a package, a unit, an object"]
    why: Message


class Batch(TypedDict):
    """`provision`, before its question: a batch, where changes come in more than one."""

    batch: Annotated[int, "its number, from 1"]
    hosts: Annotated[list[str], "those in it"]
    changes: Annotated[list[str], "those that change"]
    disturbed: Annotated[list[str], "those where something restarts"]
    words: Annotated[list[str], "by what"]


# --- What would change, on a host and in the cluster --------------------------------------------------


class PlannedChange(TypedDict):
    """A change of a plan."""

    step: Annotated[str, "the component that plans it"]
    kind: Annotated[str, "`WriteFile`, `Packages`, `Service` …"]
    what: Annotated[str, "the change, for people"]
    why: Annotated[str, "its reason"]


class Writer(TypedDict):
    """Who wrote last what a change replaces or removes."""

    code: Annotated[str, "[who](../switching.md#who-wrote-this-last)"]
    name: Message
    sign: Annotated[str, "what shows it, for people"]
    undone: Annotated[int, "how often gpunode wrote the file, and another changed it since"]


class PlannedChangeMore(PlannedChange, total=False):
    diff: Annotated[list[str], "its lines; not with `--no-diff`"]
    writer: Annotated[Writer, "of a file that is there, where traces tell"]


class DisturbedPod(TypedDict):
    """A pod on a host that a plan disturbs, but DaemonSets'."""

    name: Annotated[str, "namespace/name"]
    gpus: Annotated[int, "how many GPUs, or shares and parts of them of `nvidia.com/…`, it asks for"]
    asks: Annotated[dict[str, int], "units that it asks for, by resource, memory among them"]
    standstill: Annotated[
        str,
        "why nothing of it runs on GPUs, as `CrashLoopBackOff`; it is then not waited for. Empty: it runs, or may",
    ]
    on: Annotated[list[str], "PCI addresses of the GPUs that its processes have open"]


class UsingProcess(TypedDict):
    """A process that uses GPUs outside Kubernetes; where pods are not known, any."""

    pid: Annotated[int, "of the host"]
    command: Annotated[str, "without arguments"]
    container: Annotated[str | None, "the container's id"]
    pod: Annotated[str | None, "the pod's uid"]
    name: Annotated[str | None, "namespace/name of the pod, else the container's"]
    gpus: Annotated[list[str], "PCI addresses of its open GPUs, as far as known"]


class Disturbs(TypedDict):
    """What a plan disturbs, and whose work that is."""

    reboot: Annotated[bool, "the host reboots"]
    modules: Annotated[bool, "its driver's modules are unloaded"]
    reload: Annotated[
        bool,
        "what uses the GPUs and asks for the reboot makes way first, so the modules are reloaded; where something uses the GPUs still, the host reboots",
    ]
    restarts: Annotated[list[str], "units that restart"]
    packages: Annotated[list[str], "packages of the installed driver that change"]
    devices: Annotated[bool, "a `systemctl daemon-reload` takes the GPUs from containers that run"]
    mig: Annotated[bool, "GPUs are cut into other MIG devices"]
    plugin: Annotated[bool, "`forget`: the device plugin leaves the node"]
    anybody: Annotated[bool, "false: no known effect on pods or processes; such hosts go first and together"]
    work: Annotated[
        Literal["wait", "drain", "kill", "stays"],
        "what becomes of the work first ([`work`](../inventory.md#variables)), with a cordon where the host is a node; `stays`: nothing",
    ]
    timeout: Annotated[float, "seconds that work is waited for"]
    pods: Annotated[list[DisturbedPod] | None, "null: not known"]
    processes: list[UsingProcess]


class Unconfirmed(TypedDict):
    """A restart that an earlier run kept without confirmation."""

    code: Annotated[Literal["api-server-answered"], "why it was kept"]
    run: Annotated[str, "the run"]
    unit: Annotated[str, "the unit that restarted"]
    by: Annotated[str, "the operator"]
    since: Annotated[float, "seconds since 1970"]


class Plan(OutcomeMore):
    """`plan`, `provision`: a host's plan."""

    changes: list[PlannedChangeMore]
    disturbs: Annotated[Disturbs | None, "null: nothing would change"]
    notes: Annotated[list[str], "for people"]


class PlanMore(Plan, total=False):
    unconfirmed: list[Unconfirmed]


class Claim(TypedDict):
    """A field that others set since, and that gpunode sets back."""

    field: Annotated[str, "its path"]
    manager: Annotated[str, "who set it; empty before Kubernetes 1.20"]


class ClaimMore(Claim, total=False):
    writer: Annotated[
        str, "the `code` of a [writer](../switching.md#who-wrote-this-last), where the manager is a known one"
    ]


class Cluster(TypedDict):
    """`plan`, `provision`, `plugin deploy`, `share enable`: an object that would change in the cluster."""

    change: Literal["create", "change", "remove", "label", "replace"]
    object: Object


class ClusterMore(Cluster, total=False):
    diff: Annotated[
        list[str],
        "its lines: of what is new or removed the whole of it, of labels `+key=value` and `-key=value`; not with `--no-diff`",
    ]
    claims: list[ClaimMore]
    node: Annotated[
        Node,
        "with `replace`: of a pod of the plugin, whose containers keep the driver and the runtime that they were started with",
    ]
    untried: Annotated[
        str,
        "why the API server could not be asked; `diff` then compares only the fields that gpunode sets with the current ones",
    ]


# --- GPUs of the cluster, workloads, and what is made for them ----------------------------------------


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
    trouble: Annotated[str, "the problem; empty: none"]
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
    health: Literal["ok", "unhealthy", "cordoned"]
    since: Annotated[str, "RFC 3339; empty: not known"]
    code: Annotated[str, "why it is unhealthy"]
    reason: Annotated[str, "the same, for people"]
    pods: Annotated[list[str], "its pods, namespace/name"]
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


class Feature(TypedDict):
    """`label --features`: a label that changes; a node whose labels stay has one line without."""

    node: Node
    label: Annotated[str, "its key; empty: none changes"]
    before: Annotated[str, "empty: none"]
    after: Annotated[str, "empty: none"]
    result: Literal["same", "changed", "would change"]


class Cordoned(TypedDict):
    """`cordon-gpu`, `uncordon-gpu`: a GPU."""

    host: Host
    uuid: Annotated[str, "the GPU's"]
    result: Literal["cordoned", "uncordoned", "already cordoned", "already uncordoned"]


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


class Measured(TypedDict):
    """`accept`, `provision --accept`: a GPU. Null where it was not measured: `not_measured` has the reason."""

    node: Node
    uuid: Annotated[str, "of the GPU or MIG device"]
    gpu: Annotated[str, "its model"]
    result: Annotated[Literal["accepted", "failed", "skipped"], "`skipped`: it is in use"]
    memory: Annotated[float | None, "GB/s (1e9 bytes) of device memory"]
    compute: Annotated[float | None, "TFLOPS, FP32, sustained"]
    to_gpu: Annotated[float | None, "GB/s from the host"]
    from_gpu: Annotated[float | None, "GB/s to the host"]
    power: Annotated[float | None, "watts under load"]
    temp: Annotated[int | None, "°C under load"]
    problems: Annotated[
        list[str], "[codes](../accept.md#what-is-found) of why it failed; each has an `error` line"
    ]
    remarks: Annotated[list[str], "what fails nothing, for people"]
    compared_with: Annotated[str, "the source of what its figures were compared with"]
    not_measured: Annotated[dict[str, str], "figure: reason, for people"]


class Accepted(TypedDict):
    """`accept`, `provision --accept`: a host."""

    host: Host
    node: Node
    result: Annotated[
        Literal["accepted", "partly", "failed", "skipped"],
        "`partly`: some GPUs are in use, the others were accepted; `skipped`: all are in use",
    ]
    level: Literal["quick", "standard"]
    until: Annotated[str, "when it runs out, RFC 3339; empty: not accepted"]
    record: Annotated[str, "the file with all figures; empty: none"]
    why: Annotated[str, "what was not measured, for people"]
    not_measured: Annotated[dict[str, str], "NVIDIA's programs that were not run: reason, for people"]


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


# --- `gpunode share` ----------------------------------------------------------------------------------


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


class Content(TypedDict):
    """`support-bundle`: a file of the archive."""

    file: Annotated[str, "its path in the archive"]
    bytes: Annotated[int, "its size"]
    what: Annotated[str, "what it is"]


class Explanation(TypedDict):
    """`explain`: a meaning, with the first line that has it."""

    code: Annotated[str, "`xid-79`, `sxid-12028`, or gpunode's own"]
    what: Annotated[str, "what happened"]
    fault: Annotated[
        Literal["hardware", "driver", "application", "system", "configuration", "unknown", ""],
        "whose fault it is; `unknown`: the line has several causes, `next` says how to find it",
    ]
    action: Annotated[str, "[what to do next](codes.md#actions)"]
    next: Annotated[str, "the same, for people"]
    command: Annotated[str, "for that; empty: there is none"]
    source: Annotated[str, "of these facts"]
    or_if: Annotated[
        str, "the condition of the line's second cause; empty, as the next three: it has one cause"
    ]
    or_fault: Annotated[str, "whose fault it is then"]
    or_action: Annotated[str, "what to do then"]
    or_next: Annotated[str, "the same, for people"]
    line: Annotated[str, "of the text"]


class Answer(TypedDict):
    """`why`: the answer in a sentence; its reasons follow."""

    subject: Annotated[str, "`pod NAMESPACE/NAME`, `node NAME` or `gpu UUID`"]
    state: Annotated[str, "of a pod its phase; of a node or GPU `fine` or `wrong`"]
    text: Message


class Reason(TypedDict):
    """`why`: a reason of the answer, those first that are to be removed first."""

    code: Annotated[
        str, "[what it is](../json.md#reasons), or the code of the broken link or explained error"
    ]
    what: Message
    evidence: Annotated[list[str], "objects and what they show, for people"]
    fix: Annotated[str, "what to do next, and what that disturbs"]


# --- Lines that any command may write, and its last ---------------------------------------------------


class Error(TypedDict):
    """All commands: something failed in the cluster, or on a host whose outcome does not have it."""

    host: Annotated[str | None, "null: all"]
    error: Annotated[str, "what failed"]
    hint: Annotated[str, "what to do next"]


class ErrorMore(Error, total=False):
    code: Annotated[
        str,
        "of [what would refuse a pod](../failures.md#pods-that-are-not-admitted-or-scheduled), or why a host is not verified",
    ]


class Note(TypedDict):
    """All commands: a sentence for people; programs do not rely on it."""

    message: Message


class Summary(TypedDict):
    """The last line, also where the cluster refuses something; of `provision` unless it stopped before a change (declined, no cluster)."""

    seconds: Seconds


class SummaryMore(Summary, total=False):
    hosts: Annotated[int, "`plan`, `provision`, `verify`, `accept`, `lint`, `init`, `show`: how many"]
    runs: Annotated[int, "`history`: how many are listed"]
    sha256: Annotated[str, "`show` of a file of `plan --out`: of the inventory's bytes"]
    version: Annotated[str, "the same: gpunode's"]
    made: Annotated[str, "the same: when, in RFC 3339"]
    by: Annotated[str, "the same: user@machine"]
    right: Annotated[int, "`plan`, `provision`: hosts of this status; each other status has such a key, too"]
    planned: int
    changed: int
    failed: Annotated[int, "also `accept`: hosts, by result, as the next three"]
    accepted: int
    partly: int
    skipped: int
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
    pending: Annotated[int, "`verify`: hosts that work, and whose driver the plan replaces"]
    links: Annotated[int, "`verify`: of all hosts together, 11 each"]
    checked: Annotated[int, "`verify`: of `links`"]
    not_checked: Annotated[dict[str, int], "`verify`: the number of hosts by `layer`"]
    findings: Annotated[int, "`lint`, `share fsck`: how many"]
    nodes: Annotated[int, "`status`, `share fsck`: how many"]
    unknown: Annotated[int, "`status`: nodes whose GPUs are not known"]
    gpus: Annotated[int, "`status`: how many"]
    used: Annotated[int, "`status`: GPUs that pods have"]
    free: Annotated[int, "`status`: working GPUs without a pod"]
    unseen: Annotated[int, "`status`: working GPUs whose users the kubelet does not report"]
    unhealthy: Annotated[int, "`status`: GPUs"]
    cordoned: Annotated[int, "`status`: GPUs; absent if none is"]
    models: Annotated[dict[str, int], "`status`: GPUs by model"]
    shares: Annotated[
        dict[str, list[int]],
        "`status`, where GPUs are shared or have MIG devices: units that no pod has, and all, by resource",
    ]
    inventory: Annotated[str, "`init`: the file; `show` of a plan: its inventory, as it was named"]
    bundle: Annotated[str, "`support-bundle`: the file"]
    repaired: Annotated[int, "`share fsck`: findings"]
    compared: Annotated[int, "`share fsck`: nodes whose kubelets were read"]
    pods: Annotated[int, "`share simulate`: how many"]
    placed: Annotated[int, "`share simulate`: of `pods`"]
    schedulers: Annotated[int, "`share enable`, `share disable`: how many"]
    asking: Annotated[int, "`share enable`: of `schedulers`"]
    removed: Annotated[int, "`share disable`: objects"]
    lines: Annotated[int, "`explain`: lines of the text"]
    explained: Annotated[int, "`explain`: meanings whose cause is known"]
    reasons: Annotated[int, "`why`: how many"]
    resources: Annotated[dict[str, list[int]], "`share inspect`: units promised and units there, by resource"]


KINDS: Mapping[str, type] = {
        "stage": StageMore,
        "change": Change,
        "progress": ProgressMore,
        "outcome": OutcomeMore,
        "plan": PlanMore,
        "why": Why,
        "cluster": ClusterMore,
        "finding": Finding,
        "share": Share,
        "use": Use,
        "fsck": Fsck,
        "simulated": Simulated,
        "free": Free,
        "gate": GateMore,
        "batch": Batch,
        "deviation": Deviation,
        "left": Left,
        "link": LinkMore,
        "object": Changed,
        "plugin": Plugin,
        "key": Key,
        "image": Image,
        "gpu": Gpu,
        "process": Process,
        "label": Label,
        "features": Feature,
        "cordon": Cordoned,
        "resource": Counted,
        "vectoradd": Vectoradd,
        "acceptance": Measured,
        "accepted": Accepted,
        "abort": Abort,
        "log": Log,
        "notebook": Notebook,
        "manifest": Manifest,
        "verified": Verified,
        "time": Time,
        "run": Run,
        "recorded": Recorded,
        "reviewed": Reviewed,
        "phase": Phase,
        "cause": FleetCause,
        "difference": Difference,
        "content": Content,
        "explanation": Explanation,
        "answer": Answer,
        "reason": Reason,
        "error": ErrorMore,
        "note": Note,
        "summary": SummaryMore,
    }  # fmt: skip
