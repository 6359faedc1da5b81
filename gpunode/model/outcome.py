"""How a host's run ended, what it left, the verdicts on its links, and the events of a run."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

from gpunode.errors import NO_RIGHTS, Layer, Problem
from gpunode.model.change import Change
from gpunode.model.disturbance import Disturbed
from gpunode.model.facts import Facts
from gpunode.model.plan import Desired, Plan

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
    def of(cls, manifest: Mapping[str, Any]) -> "Title":
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
    `kept`: of an undo: all that the run changed on the host stays.
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
    kept: bool = False

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
    def ok(cls, layer: Layer, text: str, cause: str = "", fix: str = "") -> "Verdict":
        return cls(layer, "ok", text).with_cause(cause, fix)

    @classmethod
    def broken(cls, layer: Layer, text: str, cause: str = "", fix: str = "", code: str = "") -> "Verdict":
        return cls(layer, "broken", text, Problem(code, text, layer, cause=cause, fix=fix))

    @classmethod
    def unknown(cls, layer: Layer, text: str = "", problem: Problem | None = None) -> "Verdict":
        return cls(layer, "unknown", text, problem)

    @classmethod
    def pending(cls, layer: Layer, text: str, cause: str, fix: str) -> "Verdict":
        """A link that holds, while the plan replaces what it is about."""
        return cls(layer, "ok", text, Problem(PENDING, text, layer, cause=cause, fix=fix))

    @property
    def is_pending(self) -> bool:
        return self.problem is not None and self.problem.code == PENDING

    @property
    def lacks_right(self) -> bool:
        """True if it was not judged, since this user may not do what that takes."""
        return self.problem is not None and self.problem.code == NO_RIGHTS

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

    def with_cause(self, cause: str, fix: str = "") -> "Verdict":
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
