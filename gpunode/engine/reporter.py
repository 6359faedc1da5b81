"""Receives the events, results and questions of a rollout: a report, or a test."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Protocol

from gpunode.errors import Declined
from gpunode.model import Event, Host, OnEvent, Outcome, Verdict

if TYPE_CHECKING:
    from gpunode.cluster.objects.difference import Difference
    from gpunode.errors import Problem
from datetime import datetime

from gpunode.wording import few, moment


class Reporter(Protocol):
    """Gets events, plans and results in order, from one thread."""

    def live(self, hosts: Sequence[Host]) -> AbstractContextManager[None]:
        """Within this context the progress of these hosts is shown."""

    def event(self, event: Event) -> None:
        """Progress on a host or in the cluster."""

    def outcome(self, outcome: Outcome) -> None:
        """A host is done."""

    def plans(self, outcomes: Sequence[Outcome], *, diff: bool | None = None) -> None:
        """The changes of each host. `diff`: with what changes inside files; None: for programs, and for users who ask for it."""

    def cluster(self, context: str, differences: "Sequence[Difference]", *, diff: bool | None = None) -> None:
        """The changes of the cluster `context`. `diff`: as of `plans`; None: with those of nodes and ConfigMaps, and short ones."""

    def failures(self, outcomes: Sequence[Outcome]) -> None:
        """The errors among these, each with its hint."""

    def links(self, host: str, links: Sequence[Verdict]) -> None:
        """A host's chain, link by link."""

    def rows(self, kind: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        """A table; as JSON one line per row, keyed by column."""

    def problem(self, problem: "Problem", host: str | None = None) -> None:
        """A problem that is no host's outcome; `host` None: it concerns all."""

    def note(self, text: str) -> None:
        """A sentence for the user; programs do not rely on it."""

    def ask(self, question: str) -> bool:
        """A question that needs a user, who can have the diffs shown first; False where there is none."""

    def summary(self, outcomes: Sequence[Outcome], *, cluster: int | None = 0, after: str = "") -> None:
        """The last line: hosts by status, seconds, and the number of pending cluster changes (None: not checked).
        `after`: a note of what to do next, which users read last."""

    def total(self, text: str, numbers: Mapping[str, object]) -> None:
        """The last line of other commands: `text` for users, `numbers` as JSON."""


ANSWER = "Where there is no terminal, --yes applies the plan."


def stages(emit: OnEvent, host: str | None, wait: str = "") -> Callable[[str], None]:
    """A reporter of a host's stages, or of the cluster's. `wait`: the wait that all its sentences are news of."""
    data = {"wait": wait} if wait else {}
    return lambda text: emit(Event("stage", host, text, data))


def progress(reporter: Reporter) -> Callable[[str], None]:
    """A reporter for the cluster room's sentences that leaves out repetitions."""
    last = ""

    def notify(sentence: str) -> None:
        nonlocal last
        if sentence != last:
            last = sentence
            reporter.event(Event("stage", None, sentence))

    return notify


def report_reason(reporter: Reporter, host: str, reason: "Problem | None") -> None:
    """Report why a host takes no part; nothing for None."""
    if reason is not None:
        reporter.problem(reason, host)


def confirm(reporter: Reporter, question: str, *, yes: bool, hint: str = ANSWER) -> None:
    """Raise Declined, with this hint, unless the user accepts the shown changes, now or beforehand (`yes`)."""
    if not yes and not reporter.ask(question):
        raise Declined("cancelled; nothing changed", hint=hint)


NAMED = 3  # of several names
GIB = 1024**3


class Headline(str):
    """A note that a page has on top."""

    __slots__ = ()


class Brief(str):
    """A note that a page omits: it names some of several hosts, or what the run is about to do."""

    __slots__ = ()


class Model(str):
    """Of a GPU; for people without the maker, which all have in common."""

    __slots__ = ()

    def __str__(self) -> str:
        return str.__str__(self).removeprefix("NVIDIA ")


class Bytes(int):
    """For people in GiB, for programs in bytes."""

    def __str__(self) -> str:
        return f"{self / GIB:.1f} GiB"


class Percent(int):
    """For people with its sign."""

    def __str__(self) -> str:
        return f"{int(self)} %"


class Celsius(int):
    """For people with its unit."""

    def __str__(self) -> str:
        return f"{int(self)} °C"


class Part(int):
    """For people with the whole that it is a part of, where that is known."""

    whole: int | None

    def __new__(cls, part: int, whole: int | None) -> "Part":
        number = super().__new__(cls, part)
        number.whole = whole
        return number

    def __str__(self) -> str:
        return f"{int(self)}" if self.whole is None else f"{int(self)}/{self.whole}"


class Figure(float):
    """For people with three digits or so."""

    def __str__(self) -> str:
        return f"{float(self):.0f}" if self >= 100 else f"{float(self):.1f}"


class Duration(float):
    """For people in minutes and seconds."""

    def __str__(self) -> str:
        minutes, rest = divmod(round(self), 60)
        return f"{minutes} min {rest} s" if minutes else f"{rest} s"


class Counts(dict[str, int]):
    """State -> how many; for people `3 verified, 1 failed`."""

    __slots__ = ()

    def __str__(self) -> str:
        return ", ".join(
            f"{count} {'verified' if name == 'proven' else name}" for name, count in self.items()
        )


class _Hidden:
    """A cell that people do not see."""

    __slots__ = ()

    def __str__(self) -> str:
        return ""


class Silent(_Hidden, int):
    """A number."""


class ForPrograms(_Hidden, str):
    """A text."""


class Reasons(_Hidden, dict[str, str]):
    """Name -> reason."""


class Codes(_Hidden, tuple[str, ...]):
    """Of problems."""


class Names(tuple[str, ...]):
    """For people the first of them."""

    __slots__ = ()

    def __str__(self) -> str:
        return few(self, NAMED)


class Moment(str):
    """RFC 3339; for people the time here."""

    __slots__ = ()

    def __str__(self) -> str:
        text = str.__str__(self)
        return text and moment(datetime.fromisoformat(text).timestamp())
