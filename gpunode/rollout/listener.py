"""Who hears of a rollout while it goes on: the report, or a test."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from gpunode.errors import GpunodeError
from gpunode.model import Event, Host, Outcome

if TYPE_CHECKING:
    from gpunode.cluster.difference import Difference
    from gpunode.converge import Visit


class Listener(Protocol):
    """Told in order, by one thread. `gpunode.report.Report` says what each is shown as."""

    def event(self, event: Event) -> None: ...

    def note(self, text: str) -> None: ...

    def problem(self, error: GpunodeError, host: str | None = None) -> None: ...

    def rows(self, kind: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None: ...

    def cluster(
        self, context: str, differences: Sequence[Difference], *, diff: bool | None = None
    ) -> None: ...


class Fleet(Protocol):
    """The hosts of a command, and how each is visited."""

    @property
    def hosts(self) -> tuple[Host, ...]: ...

    def each(
        self,
        story: Callable[[Visit, Callable[[Event], None]], Outcome],
        hosts: Sequence[Host] | None = None,
    ) -> list[Outcome]:
        """Outcomes in the order of `hosts`."""
        ...


def tells(listener: Listener) -> Callable[[str], None]:
    """A listener for the cluster room's sentences that leaves out repetitions."""
    last = ""

    def tell(sentence: str) -> None:
        nonlocal last
        if sentence != last:
            last = sentence
            listener.event(Event("stage", None, sentence))

    return tell
