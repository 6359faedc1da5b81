"""Prerequisites of a host's plan: a Python for the agent, and NVIDIA's repositories with their keys."""

from collections.abc import Collection, Mapping
from dataclasses import replace

from gpunode.engine import converge, rounds
from gpunode.engine.fleet import Visit
from gpunode.engine.member import Member, Members, update
from gpunode.engine.reporter import confirm
from gpunode.engine.session import Session
from gpunode.errors import GpunodeError, WrongKey
from gpunode.model import Event, OnEvent, Outcome, Repository
from gpunode.packages import repositories
from gpunode.packages.keys import Key, read_key
from gpunode.packages.repositories import Signed
from gpunode.wording import advise, few, several


def install_python(session: Session, members: Members, *, yes: bool) -> Members:
    """The members, after Python was installed where it was missing, planned. Raises Declined if the user refuses."""
    lacking = {
        member.host.name: member.outcome.install
        for member in members
        if member.outcome and member.outcome.install
    }
    if not lacking:
        return members
    for command in dict.fromkeys(lacking.values()):
        hosts = [name for name, its in lacking.items() if its == command]
        session.reporter.note(f"Before any plan, on {few(hosts, 5)}: `{command}`.")
    confirm(session.reporter, f"Install Python on {several(len(lacking), 'host')}?", yes=yes)

    def install(visit: Visit, emit: OnEvent) -> Outcome:
        emit(Event("stage", visit.host.name, "install Python"))
        visit.install = lacking[visit.host.name]
        outcome = rounds.probe_host(visit, emit)
        visit.install = ""
        return outcome

    those = [member for member in members if member.host.name in lacking]
    return update(members, session.for_each_host(install, those))


def add_repositories(session: Session, members: Members, trusted: Collection[str] | None) -> Members:
    """The members; those refused for lack of a repository are planned again with it. Each key is fetched once; a key that is
    unavailable or untrusted is a problem, and the refusal stays. `trusted`: full fingerprints from the user; None: plans are only
    shown, so a key is accepted of which gpunode knows only the end."""
    got: dict[Signed, Repository | GpunodeError] = {}
    for _ in ("driver", "toolkit"):
        members = tuple(_plan_with(session, member, trusted, got) for member in members)
    return members


def _plan_with(
    session: Session,
    member: Member,
    trusted: Collection[str] | None,
    got: dict[Signed, Repository | GpunodeError],
) -> Member:
    refused = member.outcome
    if refused is None or not refused.repository or refused.facts is None:
        return member
    source = repositories.signed_repository(refused.facts.os, refused.repository)
    if source is None:
        return member
    if source not in got:
        got[source] = _fetch(session, source, trusted)
    repository = got[source]
    if isinstance(repository, GpunodeError):
        return member
    named: Mapping[str, Repository] = {f"{refused.repository}_repository": repository}
    visit = session.visits[member.host.name]
    visit.host = replace(visit.host, **named)  # type: ignore[arg-type]
    return replace(
        member, host=visit.host, outcome=converge.plan_host(visit.host, refused.facts, visit.image)
    )


def _fetch(session: Session, source: Signed, trusted: Collection[str] | None) -> Repository | GpunodeError:
    adds = f"The plans add NVIDIA's repository for the {source.purpose}, {source.uri}. Its key was fetched from {source.key_uri} and "
    try:
        fetched = read_key(source, trusted=trusted or ())
    except WrongKey as error:
        if trusted is not None or not error.text:
            session.reporter.problem(error.problem)
            return error
        fetched = Key(error.text, error.fingerprint)
        text = advise(
            f"{adds}has the fingerprint {fetched.fingerprint}. gpunode knows only that NVIDIA's ends with {source.fingerprint}. "
            "A forged key can end so, too. Compare all 40 digits with a source of your own. If they are the same, "
            f"`gpunode provision --fingerprint {fetched.fingerprint}` takes it."
        )
        session.reporter.note(text)
    except GpunodeError as error:
        fix = (
            "Without internet bring the keys, or name a mirror's: `gpunode keys SYSTEM --driver PLACE --toolkit PLACE` "
            "checks them, and prints the `repositories` that the inventory needs."
        )
        error.problem = replace(error.problem, fix=fix)
        session.reporter.problem(error.problem)
        return error
    else:
        whose = "that gpunode knows" if fetched.fingerprint == source.fingerprint else "that you gave"
        session.reporter.note(f"{adds}has the fingerprint {whose}, {fetched.fingerprint}.")
    return Repository(source.uri, fetched.text, fetched.fingerprint)
