"""NVIDIA's repositories for hosts whose plans need one that neither they nor the inventory know: with its key, fetched from
NVIDIA and checked against the fingerprints of the tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from gpunode import compat, converge
from gpunode.compat import Signed
from gpunode.errors import GpunodeError
from gpunode.keys import key
from gpunode.model import Repository
from gpunode.rollout.member import Member, Members
from gpunode.rollout.session import Session

WHOLE = 40  # digits of a fingerprint; with fewer, another key could end alike


def added(session: Session, members: Members) -> Members:
    """The members, of which those that were refused for such a repository are planned again with it. Each key is fetched once;
    one that cannot be had is a problem, and the refusal stays."""
    got: dict[Signed, Repository | GpunodeError] = {}
    for _ in ("driver", "toolkit"):
        members = tuple(_with(session, one, got) for one in members)
    return members


def _with(session: Session, one: Member, got: dict[Signed, Repository | GpunodeError]) -> Member:
    refused = one.outcome
    if refused is None or not refused.repository or refused.facts is None:
        return one
    source = compat.signed_for(refused.facts.os, refused.repository)
    if source is None or len(source.fingerprint) < WHOLE:
        return one
    if source not in got:
        got[source] = _fetched(session, source)
    found = got[source]
    if isinstance(found, GpunodeError):
        return one
    named: Mapping[str, Repository] = {f"{refused.repository}_repository": found}
    visit = session.visits[one.host.name]
    visit.host = replace(visit.host, **named)  # type: ignore[arg-type]
    return replace(one, host=visit.host, outcome=converge.planned(visit.host, refused.facts, visit.image))


def _fetched(session: Session, source: Signed) -> Repository | GpunodeError:
    try:
        text = key(source)
    except GpunodeError as error:
        error.hint = (
            "Without internet bring the keys, or name a mirror's: `gpunode keys SYSTEM --driver PLACE --toolkit PLACE` "
            "checks them, and prints the `repositories` that the inventory needs."
        )
        session.listener.problem(error)
        return error
    session.listener.note(
        f"The plans add NVIDIA's repository for the {source.purpose}, {source.uri}. Its key was fetched from {source.key_uri} and "
        f"has the fingerprint that gpunode knows, {source.fingerprint}."
    )
    return Repository(source.uri, text)
