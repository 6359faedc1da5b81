"""Python on hosts that have none: the agent needs it, so it comes before any plan."""

from __future__ import annotations

from gpunode.engine import rounds
from gpunode.engine.listener import accepted
from gpunode.engine.member import Members
from gpunode.engine.session import Session
from gpunode.engine.visit import Visit
from gpunode.model import Event, OnEvent, Outcome
from gpunode.wording import few


def installed(session: Session, members: Members, *, yes: bool) -> Members:
    """The members. Those without a Python for the agent got one, if the user accepted that."""
    lacking = {one.host.name: one.outcome.install for one in members if one.outcome and one.outcome.install}
    if not lacking:
        return members
    for command in dict.fromkeys(lacking.values()):
        hosts = [name for name, its in lacking.items() if its == command]
        session.listener.note(f"Before any plan, on {few(hosts, 5)}: `{command}`.")
    accepted(session.listener, f"Install Python on {len(lacking)} host{'s' * (len(lacking) > 1)}?", yes=yes)

    def after_it(visit: Visit, tell: OnEvent) -> Outcome:
        tell(Event("stage", visit.host.name, "install Python"))
        visit.install = lacking[visit.host.name]
        outcome = rounds.story(visit, tell)
        visit.install = ""
        return outcome

    found = session.probed(after_it, [one for one in members if one.host.name in lacking])
    now = {one.host.name: one for one in found}
    return tuple(now.get(one.host.name, one) for one in members)
