"""Hosts that know no repository of NVIDIA's, and an inventory that names none: gpunode brings it, with a key that it knows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest

from gpunode import converge, report
from gpunode.compat import Signed
from gpunode.errors import GpunodeError
from gpunode.model import OnEvent, Outcome, WriteFile
from gpunode.rollout import repositories
from gpunode.rollout.session import Session, opened
from gpunode.sim.host import kinds
from gpunode.sim.host.machine import Machine
from gpunode.visit import Visit
from tests.sim.fleets import Fleet, serving
from tests.unit.test_dnf_systems import KEY


@contextmanager
def bare(folder: Path, *machines: Machine) -> Iterator[tuple[Fleet, Session]]:
    """A session over the machines with an inventory that names no repositories."""
    with serving(folder, machines) as fleet:
        hosts = tuple(replace(one, driver_repository=None, toolkit_repository=None) for one in fleet.hosts())
        listener = report.make(json=True, quiet=False)
        with opened(fleet.inventory, hosts, listener, forks=8) as session:
            yield fleet, session


def test_both_repositories_come_with_their_keys_and_once_for_all_hosts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[Signed] = []

    def key(source: Signed) -> str:
        asked.append(source)
        return KEY

    with bare(tmp_path, kinds.new("a"), kinds.new("b")) as (_, session):
        members = session.probed(converge.look)
        assert [one.outcome and one.outcome.repository for one in members] == ["driver", "driver"]

        with mock.patch.object(repositories, "key", key):
            members = repositories.added(session, members)

        assert [one.purpose for one in asked] == ["driver", "toolkit"]
        for one in members:
            assert one.outcome
            assert one.outcome.plan
            keys = [
                change
                for change in one.outcome.plan.changes
                if isinstance(change, WriteFile) and "PUBLIC KEY" in change.content
            ]
            assert len(keys) == 2
        out = capsys.readouterr().out
        assert out.count("EB693B3035CD5710E231E123A4B469963BF863CC") == 1  # shown with the plan
        plans = {one.host.name: one.outcome for one in members if one.outcome}

        def apply(visit: Visit, tell: OnEvent) -> Outcome:
            outcome = plans[visit.host.name]
            while outcome.plan:  # the driver's own unit is known only once it is there
                outcome = converge.apply(visit, outcome, tell)
            return outcome

        assert [(one.status, one.error) for one in session.each(apply)] == [("changed", None)] * 2
        for visit in session.visits.values():  # another run: the hosts know them now
            visit.host = replace(visit.host, driver_repository=None, toolkit_repository=None)
        assert [one.status for one in session.each(converge.look)] == ["right", "right"]


def test_a_key_that_cannot_be_had_is_reported_once_and_the_hosts_stay_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def key(source: Signed) -> str:
        raise GpunodeError(f"{source.key_uri} cannot be fetched: no route to host")

    with bare(tmp_path, kinds.new("a"), kinds.new("b")) as (_, session):
        before = session.probed(converge.look)
        with mock.patch.object(repositories, "key", key):
            assert repositories.added(session, before) == before
    said = capsys.readouterr()
    assert (said.out + said.err).count("no route to host") == 1
    assert "gpunode keys" in said.out + said.err


def test_a_key_of_which_only_the_last_digits_are_known_is_not_fetched_unasked(tmp_path: Path) -> None:
    with bare(tmp_path, kinds.new("a")) as (_, session):
        (one,) = session.probed(converge.look)
        assert one.outcome
        assert one.outcome.facts
        os = replace(one.outcome.facts.os, version="13")
        one = replace(one, outcome=replace(one.outcome, facts=replace(one.outcome.facts, os=os)))
        with mock.patch.object(repositories, "key", side_effect=AssertionError):
            assert repositories.added(session, (one,)) == (one,)
