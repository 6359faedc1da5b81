"""What a person or a program sees. The only place that imports rich.

Results go to stdout, progress and questions to stderr; with `json`, stdout holds JSON lines of the same events and
outcomes, and nothing ever asks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Protocol

from gpunode.errors import GpunodeError
from gpunode.model import Event, Host, Link, Outcome
from gpunode.report.named import Named, named

if TYPE_CHECKING:
    from gpunode.cluster.difference import Difference

__all__ = ["Named", "Report", "make", "named"]


class Report(Protocol):
    """Told what happens, in order, by one thread."""

    def live(self, hosts: Sequence[Host]) -> AbstractContextManager[None]:
        """While it lasts, progress of these hosts is shown."""
        ...

    def event(self, event: Event) -> None:
        """Something happened on a host or in the cluster."""
        ...

    def finished(self, outcome: Outcome) -> None:
        """A host's story is told."""
        ...

    def plans(self, outcomes: Sequence[Outcome], *, diff: bool = True) -> None:
        """What would change, host by host."""
        ...

    def cluster(self, context: str, differences: Sequence[Difference], *, diff: bool | None = None) -> None:
        """What would change in the cluster that the kubeconfig calls `context`, each with its diff; what is new or removed
        is named only, unless `diff`. False: nothing has a diff."""
        ...

    def troubles(self, outcomes: Sequence[Outcome]) -> None:
        """The errors among these, each with its way out."""
        ...

    def links(self, host: str, links: Sequence[Link]) -> None:
        """How far a host's chain holds."""
        ...

    def rows(self, kind: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        """A table of results: one JSON line a row, keyed by column."""
        ...

    def problem(self, error: GpunodeError, host: str | None = None) -> None:
        """Something failed beside the hosts' own stories, for one host or for all."""
        ...

    def note(self, text: str) -> None:
        """A sentence for the person."""
        ...

    def ask(self, question: str) -> bool:
        """A question that needs a person; False where there is none."""
        ...

    def summary(self, outcomes: Sequence[Outcome], *, cluster: int | None = 0) -> None:
        """The last line: counts and seconds, and how many changes of the cluster wait (None: it was not checked)."""
        ...

    def total(self, text: str, numbers: Mapping[str, object]) -> None:
        """Another command's last line, as a sentence or as numbers."""
        ...


def make(*, json: bool, quiet: bool) -> Report:
    """The report for a person, or JSON lines."""
    if json:
        from gpunode.report.lines import Lines

        return Lines(quiet=quiet)
    from gpunode.report.human import Human

    return Human(quiet=quiet)
