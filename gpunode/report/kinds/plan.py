"""Lines about what would change, on a host and in the cluster."""

from __future__ import annotations

from typing import Annotated, Literal, TypedDict

from gpunode.report.kinds.common import Node, Object
from gpunode.report.kinds.hosts import OutcomeMore


class PlannedChange(TypedDict):
    """A change of a plan."""

    step: Annotated[str, "the component that plans it"]
    kind: Annotated[str, "`WriteFile`, `Packages`, `Service` …"]
    what: Annotated[str, "the change, for people"]
    why: Annotated[str, "its reason"]


class PlannedChangeMore(PlannedChange, total=False):
    diff: Annotated[list[str], "its lines; not with `--no-diff`"]


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
    gpus: Annotated[list[str], "PCI addresses of those that it has open, as far as known"]


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
    anybody: Annotated[bool, "false: nobody notices, as far as known; such hosts go first and together"]
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


class Cluster(TypedDict):
    """`plan`, `provision`, `plugin deploy`, `share enable`: an object that would change in the cluster."""

    change: Literal["create", "change", "remove", "label", "replace"]
    object: Object


class ClusterMore(Cluster, total=False):
    diff: Annotated[
        list[str],
        "its lines: of what is new or removed the whole of it, of labels `+key=value` and `-key=value`; not with `--no-diff`",
    ]
    claims: list[Claim]
    node: Annotated[
        Node,
        "with `replace`: of a pod of the plugin, whose containers keep the driver and the runtime that they were started with",
    ]
    untried: Annotated[
        str,
        "why the API server could not be asked; `diff` then compares only the fields that gpunode sets with the current ones",
    ]
