"""What a plan disturbs, how a host's run ended, and what happens meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

from gpunode.errors import Layer, Problem
from gpunode.model.change import Change
from gpunode.model.facts import Facts, GpuUser
from gpunode.model.plan import Desired, Plan


@dataclass(frozen=True, slots=True)
class Disturbance:
    """What changes interrupt on their host. `restarts`: units, in order. `modules`: kernel modules are unloaded.
    `devices`: a `systemctl daemon-reload` takes the GPUs from running containers. `packages`: those of the driver that change, so that programs which start meanwhile find libraries that do not fit the
    loaded module."""

    reboot: bool = False
    restarts: tuple[str, ...] = ()
    modules: bool = False
    packages: tuple[str, ...] = ()
    devices: bool = False

    def __str__(self) -> str:
        """For people: `reboot, restart of docker and kubelet, reload of the modules, driver packages`."""
        return self.words("reboot")

    def words(self, reboot: str) -> str:
        """The same, with other words for a reboot."""
        units = " and ".join(unit.removesuffix(".service") for unit in self.restarts)
        found = [
            reboot if self.reboot else "",
            f"restart of {units}" if units else "",
            "reload of the modules" if self.modules else "",
            "driver packages" if self.packages else "",
            "reload of systemd, which takes the GPUs from containers" if self.devices else "",
        ]
        return ", ".join(filter(None, found))

    def __bool__(self) -> bool:
        """True if anything that runs on the host may notice."""
        return self.ends_gpu_work or bool(self.restarts)

    @property
    def ends_gpu_work(self) -> bool:
        """True if processes that use the GPUs cannot go on through it."""
        units = {"docker.service", "nvidia-fabricmanager.service"} & set(self.restarts)
        return self.reboot or self.modules or self.devices or bool(self.packages) or bool(units)


@dataclass(frozen=True, slots=True)
class Disturbed:
    """What a plan interrupts, and whose work. `work`: how it is ended first, with a cordon of the node where pods are known;
    `stays`: it continues. `timeout`: seconds to wait for it. `pods`: the node's, without DaemonSets', with the units that each asks
    for by resource; None: not known. `standstill`: of these, by name, why nothing runs on their GPUs. `users`: processes that use the
    GPUs, without the driver's daemons. `reload`: the reboot is only for users of the GPUs that have ended by then, so the modules are
    reloaded instead."""

    what: Disturbance
    work: Literal["wait", "drain", "kill", "stays"] = "stays"
    timeout: float = 0.0
    pods: Mapping[str, Mapping[str, int]] | None = None
    users: tuple[GpuUser, ...] = ()
    reload: bool = False
    standstill: Mapping[str, str] = field(default_factory=dict)

    @property
    def processes(self) -> tuple[GpuUser, ...]:
        """Those outside Kubernetes; all where pods are not known."""
        return tuple(user for user in self.users if user.pod is None or self.pods is None)

    @property
    def anybody(self) -> bool:
        """Whether work is interrupted, as far as known."""
        ended = self.what.ends_gpu_work and bool(self.processes)
        return bool(self.what) and (self.pods is None or bool(self.pods) or ended)


# `differs`: not in its desired state, where a command plans nothing. `broken`: of reports, a right host with a broken link.
Status: TypeAlias = Literal[
    "right", "broken", "planned", "differs", "changed", "failed", "refused", "unreachable", "declined"
]


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one host's run ended. `plan` is what is left (or would be done); `problem`: why it failed, was refused or not reached.

    `disturbs`: what the plan interrupts, where that was asked. `install`: the program that can give the host the Python that it
    does not have. `repository`: that of NVIDIA's for which it is refused, as neither the host nor the inventory knows it.
    """

    host: str
    status: Status
    facts: Facts | None = None
    desired: Desired | None = None
    plan: Plan | None = None
    applied: tuple[Change, ...] = ()
    problem: Problem | None = None
    seconds: float = 0.0
    disturbs: Disturbed | None = None
    install: str = ""
    repository: Literal["driver", "toolkit", ""] = ""

    @property
    def why(self) -> str:
        """The problem for people; "" where there is none."""
        return self.problem.what if self.problem else ""


@dataclass(frozen=True, slots=True)
class Verdict:
    """One link of the chain from the PCI bus to a pod that passed. `unknown`: it was not checked. `problem`: what is wrong, with
    cause and fix; of one that holds, what is to be known of it."""

    layer: Layer
    status: Literal["ok", "broken", "unknown"]
    text: str
    problem: Problem | None = None

    @classmethod
    def ok(cls, layer: Layer, text: str, cause: str = "", fix: str = "") -> Verdict:
        return cls(layer, "ok", text).because(cause, fix)

    @classmethod
    def broken(cls, layer: Layer, text: str, cause: str = "", fix: str = "", code: str = "") -> Verdict:
        return cls(layer, "broken", text, Problem(code, text, layer, cause=cause, fix=fix))

    @classmethod
    def unknown(cls, layer: Layer, text: str = "") -> Verdict:
        return cls(layer, "unknown", text)

    @property
    def cause(self) -> str:
        return self.problem.cause if self.problem else ""

    @property
    def fix(self) -> str:
        return self.problem.fix if self.problem else ""

    @property
    def partly(self) -> bool:
        """Whether it is broken for some GPUs alone, its problem's subject: the others go on."""
        return self.status == "broken" and bool(self.problem and self.problem.subject)

    def because(self, cause: str, fix: str = "") -> Verdict:
        """The same with another cause, and another fix where one is given."""
        if not (self.problem or cause or fix):
            return self
        before = self.problem or Problem("", self.text, self.layer)
        return replace(self, problem=replace(before, cause=cause, fix=fix or before.fix))


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault of real hosts that `gpunode demo --break NAME` causes. `cause`: a sentence's end, after the host's name. `layer`:
    the first link that verify must find broken. `by_hand`: the fix, where gpunode has none."""

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
