"""What a plan interrupts, how a host's run ended, and the events of a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

from gpunode.errors import Layer, Problem
from gpunode.model.change import Change
from gpunode.model.facts import Facts, GpuUser
from gpunode.model.plan import Desired, Plan


@dataclass(frozen=True, slots=True)
class Disturbance:
    """What changes interrupt on their host. `restarts`: units that restart or stop, in order. `modules`: kernel modules are unloaded.
    `mig`: GPUs are cut into other MIG devices. `devices`: a `systemctl daemon-reload` takes the GPUs from running containers. `packages`: the driver's packages that
    change; programs that start meanwhile find libraries that do not match the loaded module. `plugin`: the device plugin leaves."""

    reboot: bool = False
    restarts: tuple[str, ...] = ()
    modules: bool = False
    packages: tuple[str, ...] = ()
    devices: bool = False
    mig: bool = False
    plugin: bool = False

    def __str__(self) -> str:
        """For people: `reboot, restart of docker and kubelet, reload of the modules, driver packages`."""
        return self.describe("reboot")

    def describe(self, reboot: str) -> str:
        """The same text with `reboot` in place of the word."""
        units = " and ".join(unit.removesuffix(".service") for unit in self.restarts)
        parts = [
            reboot if self.reboot else "",
            f"restart of {units}" if units else "",
            "reload of the modules" if self.modules else "",
            "other MIG devices" if self.mig else "",
            "driver packages" if self.packages else "",
            "reload of systemd, which takes the GPUs from containers" if self.devices else "",
            "end of the device plugin" if self.plugin else "",
        ]
        return ", ".join(filter(None, parts))

    def __bool__(self) -> bool:
        """True if anything that runs on the host may notice."""
        return self.ends_gpu_work or bool(self.restarts)

    @property
    def ends_gpu_work(self) -> bool:
        """True if it ends processes that use the GPUs."""
        units = {"docker.service", "nvidia-fabricmanager.service"} & set(self.restarts)
        parts = (self.reboot, self.modules, self.mig, self.devices, self.plugin, self.packages, units)
        return any(parts)


@dataclass(frozen=True, slots=True)
class Disturbed:
    """What a plan interrupts, and whose work. `work`: how work is ended first, with a cordon of the node if its pods are known;
    `stays`: it continues. `timeout`: seconds to wait for its end. `pods`: the node's pods, without DaemonSets', each with its units
    by resource; None: not known. `standstill`: by pod, why nothing runs on its GPUs. `users`: processes that use the GPUs, without
    the driver's daemons. `reload`: only users of the GPUs require the reboot, and they will have ended, so the modules are reloaded
    instead."""

    what: Disturbance
    work: Literal["wait", "drain", "kill", "stays"] = "stays"
    timeout: float = 0.0
    pods: Mapping[str, Mapping[str, int]] | None = None
    users: tuple[GpuUser, ...] = ()
    reload: bool = False
    standstill: Mapping[str, str] = field(default_factory=dict)

    @property
    def processes(self) -> tuple[GpuUser, ...]:
        """Users outside Kubernetes; all users if the pods are not known."""
        return tuple(user for user in self.users if user.pod is None or self.pods is None)

    @property
    def anybody(self) -> bool:
        """True if work notices, as far as known."""
        ended = self.what.ends_gpu_work and bool(self.processes)
        return bool(self.what) and (self.pods is None or bool(self.pods) or ended)

    @property
    def ends_work(self) -> bool:
        """True if work ends, as far as known: pods outlive a restart of containerd or the kubelet."""
        return self.anybody and (self.pods is None or self.what.ends_gpu_work)


# `differs`: not in its desired state, of a command that plans nothing. `broken`: in reports, a right host with a broken link.
Status: TypeAlias = Literal[
    "right", "broken", "planned", "differs", "changed", "failed", "refused", "unreachable", "declined"
]


@dataclass(frozen=True, slots=True)
class Title:
    """Names an object of the cluster, or a `part` of it: `DaemonSet gpunode/gpunode-device-plugin`, `Node a annotation x`."""

    kind: str
    name: str
    namespace: str = ""
    part: str = ""

    @classmethod
    def of(cls, manifest: Mapping[str, Any]) -> Title:
        """The title of an object."""
        meta = manifest["metadata"]
        return cls(manifest["kind"], meta["name"], meta.get("namespace") or "")

    def __str__(self) -> str:
        place = f"{self.namespace}/" if self.namespace else ""
        return f"{self.kind} {place}{self.name}{self.part and f' {self.part}'}"


@dataclass(frozen=True, slots=True)
class Left:
    """Something that an undo, or a `forget`, leaves as it is. `kept`: it was changed since the run; `irreversible`: nothing can restore
    it; `stays`: it is for the user to remove."""

    code: Literal["kept", "irreversible", "stays"]
    what: str  # a path, a package, a unit
    why: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one host's run ended. `plan`: the changes left (or planned); `problem`: why it failed, was refused or not reached.

    `spent`: seconds of the applies by phase. `disturbs`: what the plan interrupts, if that was asked for. `install`: the host lacks Python, and this program can install it.
    `repository`: the host is refused because neither it nor the inventory has this repository of NVIDIA's. `left`: of an undo or a `forget`; None: it is none.
    """

    host: str
    status: Status
    facts: Facts | None = None
    desired: Desired | None = None
    plan: Plan | None = None
    applied: tuple[Change, ...] = ()
    spent: Mapping[str, float] = field(default_factory=dict)
    problem: Problem | None = None
    seconds: float = 0.0
    disturbs: Disturbed | None = None
    install: str = ""
    repository: Literal["driver", "toolkit", ""] = ""
    left: tuple[Left, ...] | None = None

    @property
    def why(self) -> str:
        """The problem for people; "" where there is none."""
        return self.problem.what if self.problem else ""


PENDING = "pending"  # code of a verdict: the inventory asks for something else than what works now


@dataclass(frozen=True, slots=True)
class Verdict:
    """The judgement of one link of the chain. `unknown`: it was not checked. `problem`: what is wrong, with cause and fix; for a
    link that holds, a remark."""

    layer: Layer
    status: Literal["ok", "broken", "unknown"]
    text: str
    problem: Problem | None = None

    @classmethod
    def ok(cls, layer: Layer, text: str, cause: str = "", fix: str = "") -> Verdict:
        return cls(layer, "ok", text).with_cause(cause, fix)

    @classmethod
    def broken(cls, layer: Layer, text: str, cause: str = "", fix: str = "", code: str = "") -> Verdict:
        return cls(layer, "broken", text, Problem(code, text, layer, cause=cause, fix=fix))

    @classmethod
    def unknown(cls, layer: Layer, text: str = "") -> Verdict:
        return cls(layer, "unknown", text)

    @classmethod
    def pending(cls, layer: Layer, text: str, cause: str, fix: str) -> Verdict:
        """A link that holds, while the plan replaces what it is about."""
        return cls(layer, "ok", text, Problem(PENDING, text, layer, cause=cause, fix=fix))

    @property
    def is_pending(self) -> bool:
        return self.problem is not None and self.problem.code == PENDING

    @property
    def cause(self) -> str:
        return self.problem.cause if self.problem else ""

    @property
    def fix(self) -> str:
        return self.problem.fix if self.problem else ""

    @property
    def partial(self) -> bool:
        """True if it is broken for some GPUs only, its problem's subject."""
        return self.status == "broken" and bool(self.problem and self.problem.subject)

    def with_cause(self, cause: str, fix: str = "") -> Verdict:
        """A copy with another cause, and another fix unless `fix` is empty."""
        if not (self.problem or cause or fix):
            return self
        before = self.problem or Problem("", self.text, self.layer)
        return replace(self, problem=replace(before, cause=cause, fix=fix or before.fix))


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault of real hosts that `gpunode demo --break NAME` causes. `cause`: the end of a sentence that begins with the host's
    name. `layer`: the first link that verify must report as broken. `by_hand`: the fix, if gpunode has none."""

    name: str
    layer: Layer
    cause: str
    by_hand: str = ""


@dataclass(frozen=True, slots=True)
class Event:
    """An event of a run, for the live view and the JSON lines. `data` is plain JSON."""

    type: str  # stage | change | progress | outcome | link | summary | …
    host: str | None = None
    message: str = ""
    data: Mapping[str, object] = field(default_factory=dict)


OnEvent: TypeAlias = Callable[[Event], None]
