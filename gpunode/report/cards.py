"""What a page shows of each host, and the fleet by cause. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from gpunode.engine.chain import by_hand
from gpunode.model import Gpu, Outcome, Verdict
from gpunode.report.blocks import WORDS, chain, failure, plan_lines
from gpunode.report.headline import headline, standing
from gpunode.report.plain import Part, plain

BAD = ("failed", "refused", "unreachable", "broken", "not verified")
STYLES = {"to change": "yellow", "changed": "green", "OK": "green", "right": "green", "verified": "green"}


@dataclass(frozen=True, slots=True)
class Styled:
    """Text with the name of its style; "": none."""

    text: str
    style: str = ""


@dataclass(frozen=True, slots=True)
class Span:
    """What a host did from `begin` on, in seconds since the run began; no words: nothing."""

    begin: float
    seconds: float
    words: str = ""


@dataclass
class Card:
    """Everything reported of one host."""

    name: str
    outcome: Outcome | None = None
    shown: Outcome | None = None  # with the plan that was shown
    links: Sequence[Verdict] = ()
    result: tuple[str, str] | None = None  # of provision: whether it is verified, and what shows it
    events: list[tuple[float, str]] = field(default_factory=list)  # seconds, message
    ended: float = 0.0

    @property
    def status(self) -> str:
        """In one word or two."""
        if self.links:
            return "broken" if any(link.status == "broken" for link in self.links) else "OK"
        if self.outcome is not None and (self.outcome.error or self.result is None):
            return WORDS[standing(self.outcome)]
        return self.result[0] if self.result else "not reached"

    @property
    def style(self) -> str:
        return "red" if self.status in BAD else STYLES.get(self.status, "dim")

    @property
    def cause(self) -> str:
        """Why it is so, without what differs from host to host."""
        broken = next((link for link in self.links if link.status == "broken"), None)
        if broken is not None:
            return f"{broken.layer}: {first(broken.cause or broken.text)}"
        if self.outcome is not None and self.outcome.error:
            return first(self.outcome.error)
        if self.status == "broken" and self.outcome is not None and (link := by_hand(self.outcome)):
            return f"{link.layer}: {first(link.cause or link.text)}"
        if self.result is not None:
            return first(self.result[1])
        steps = self.outcome.plan.steps if self.outcome and self.outcome.plan else ()
        return ", ".join(step.step for step in steps if step.changes)

    @property
    def headline(self) -> str:
        seen = self.outcome or self.shown
        return headline(seen.facts, seen.desired) if seen and seen.facts else ""

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        return self.outcome.facts.gpus if self.outcome and self.outcome.facts else ()

    @property
    def lines(self) -> list[Styled]:
        """Its chain, its plan, or why there is none, as the terminal shows them; without the line of its name."""
        if self.links:
            return styled(without_first(chain(self.name, self.links)))
        found = self.shown or self.outcome
        if found is None:
            return []
        parts = plan_lines(found, 0, diff=True)
        lines = styled(without_first(parts) if found.plan or not found.error else parts)
        if self.outcome is not None and self.outcome is not found and self.outcome.error:
            lines += styled(failure(self.outcome, 0))
        return lines

    @property
    def spans(self) -> list[Span]:
        """Its timeline: what it did until it did the next thing."""
        starts = [at for at, _ in self.events]
        if not starts:
            return []
        ends = [*starts[1:], max(self.ended, starts[-1])]
        did = [
            Span(at, round(end - at, 3), words) for (at, words), end in zip(self.events, ends, strict=True)
        ]
        return [Span(0.0, round(starts[0], 3)), *did]


@dataclass(frozen=True, slots=True)
class Cause:
    """Hosts that ended alike for the same reason."""

    status: str
    style: str
    cause: str
    hosts: list[str]


def causes(cards: Iterable[Card]) -> list[Cause]:
    """The fleet by cause: what is bad first, then by number of hosts."""
    found: dict[tuple[str, str, str], list[str]] = {}
    for card in cards:
        found.setdefault((card.status, card.style, card.cause.replace(card.name, "HOST")), []).append(
            card.name
        )
    order = sorted(found.items(), key=lambda one: (one[0][1] != "red", -len(one[1])))
    return [Cause(*key, names) for key, names in order]


def styled(parts: Iterable[Part]) -> list[Styled]:
    """The parts with the names of their styles."""
    return [Styled(part) if isinstance(part, str) else Styled(*part) for part in parts]


def without_first(parts: Iterable[Part]) -> list[Part]:
    """The parts after the first line."""
    rest = list(parts)
    ends = [at for at, part in enumerate(rest) if (part if isinstance(part, str) else part[0]).endswith("\n")]
    return rest[ends[0] + 1 :] if ends else []


def first(text: str) -> str:
    """The first line."""
    return plain(next(iter(text.splitlines()), ""))
