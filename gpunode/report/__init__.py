"""What commands print, for users or as JSON lines. The only room that imports rich.

Results go to stdout, progress and questions to stderr. With `json`, stdout has the same events and outcomes as JSON lines,
and there are no questions.
"""

from __future__ import annotations

from gpunode.engine.listener import Listener
from gpunode.report.inventory_names import Named, named, with_inventory

__all__ = ["Named", "make", "named", "with_inventory"]


def make(*, json: bool, quiet: bool, accepted: bool = False) -> Listener:
    """A report for users, or one of JSON lines. `accepted`: what it shows before a question needs no answer any more."""
    if json:
        from gpunode.report.lines import Lines

        return Lines(quiet=quiet)
    from gpunode.report.human import Human

    return Human(quiet=quiet, accepted=accepted)
