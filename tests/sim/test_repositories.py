"""Hosts that know no repository of NVIDIA's, and an inventory that names none: gpunode brings it, with a key that it knows."""

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest

from gpunode import report
from gpunode.engine import converge, prerequisites
from gpunode.engine.fleet import Visit
from gpunode.engine.member import Member
from gpunode.engine.session import Session, open_session
from gpunode.errors import GpunodeError
from gpunode.model import OnEvent, Outcome, WriteFile
from gpunode.packages import keys, signing
from gpunode.packages import repositories as tables
from gpunode.packages.keys import Key
from gpunode.packages.repositories import Signed
from gpunode.sim.host import kinds
from gpunode.sim.host.machine import Machine
from tests.sim.fleets import Fleet, serving
from tests.unit.test_dnf_systems import KEY

PRINT = signing.fingerprint(KEY)


@contextmanager
def answering(**ends: str) -> Iterator[list[str]]:
    """NVIDIA's addresses have KEY. The tables know its fingerprint in whole, or its `ends` for these directories. Yields the
    addresses that were asked."""
    known = dict.fromkeys(("debian12", "debian13", "ubuntu2604", "rhel10", "*"), PRINT) | ends
    asked: list[str] = []

    def fetched(address: str, hint: str) -> str:
        asked.append(address)
        return KEY

    with (
        mock.patch.object(tables, "_keys", return_value=known),
        mock.patch.object(keys, "_fetch", fetched),
    ):
        yield asked


@contextmanager
def bare(folder: Path, *machines: Machine) -> Iterator[tuple[Fleet, Session]]:
    """A session over the machines with an inventory that names no repositories."""
    with serving(folder, machines) as fleet:
        hosts = tuple(
            replace(host, driver_repository=None, toolkit_repository=None) for host in fleet.hosts()
        )
        reporter = report.make(json=True, quiet=False)
        with open_session(fleet.inventory, hosts, reporter, forks=8) as session:
            yield fleet, session


def test_both_repositories_come_with_their_keys_and_once_for_all_hosts(tmp_path, capsys):
    with bare(tmp_path, kinds.new_host("a"), kinds.new_host("b")) as (_, session), answering() as asked:
        members = session.for_each_host(converge.probe_and_plan)
        assert [outcome.outcome and outcome.outcome.repository for outcome in members] == ["driver", "driver"]

        members = prerequisites.add_repositories(session, members, ())

        assert [address.split("/")[2] for address in asked] == [
            "developer.download.nvidia.com",
            "nvidia.github.io",
        ]
        for member in members:
            assert member.outcome
            assert member.outcome.plan
            keys = [
                change
                for change in member.outcome.plan.changes
                if isinstance(change, WriteFile) and "PUBLIC KEY" in change.content
            ]
            assert len(keys) == 2
        out = capsys.readouterr().out
        assert out.count(f"has the fingerprint that gpunode knows, {PRINT}") == 2  # shown with the plan
        plans = {outcome.host.name: outcome.outcome for outcome in members if outcome.outcome}

        def apply(visit: Visit, emit: OnEvent) -> Outcome:
            outcome = plans[visit.host.name]
            while outcome.plan:  # the driver's own unit is known only once it is there
                outcome = converge.apply(visit, outcome, emit)
            return outcome

        assert [(link.status, link.problem) for link in session.each(apply)] == [("changed", None)] * 2
        for visit in session.visits.values():  # another run: the hosts know them now
            visit.host = replace(visit.host, driver_repository=None, toolkit_repository=None)
        assert [outcome.status for outcome in session.each(converge.probe_and_plan)] == ["right", "right"]


def test_a_key_that_cannot_be_had_is_reported_once_and_the_hosts_stay_refused(tmp_path, capsys):
    def key(source: Signed, trusted: Collection[str] = ()) -> Key:
        raise GpunodeError(f"{source.key_uri} cannot be fetched: no route to host")

    with bare(tmp_path, kinds.new_host("a"), kinds.new_host("b")) as (_, session):
        before = session.for_each_host(converge.probe_and_plan)
        with mock.patch.object(prerequisites, "read_key", key):
            assert prerequisites.add_repositories(session, before, ()) == before
    said = capsys.readouterr()
    assert (said.out + said.err).count("no route to host") == 1
    assert "gpunode keys" in said.out + said.err


def become(member: Member, version: str, kernel: str) -> Member:
    """A host of another release; what it has is the same."""
    assert member.outcome
    assert member.outcome.facts
    facts = member.outcome.facts
    facts = replace(facts, os=replace(facts.os, version=version), kernel=kernel)
    return replace(member, outcome=replace(member.outcome, facts=facts))


def keys_in(member: Member) -> int:
    """How many keys its plan writes; 0 without a plan."""
    plan = member.outcome and member.outcome.plan
    changes = plan.changes if plan else ()
    return sum(isinstance(change, WriteFile) and "PUBLIC KEY" in change.content for change in changes)


@pytest.mark.parametrize(
    ("machine", "version", "kernel"),
    [
        (kinds.old_host("a", "h100"), "26.04", "7.0.0-14-generic"),
        (kinds.new_host("a"), "13", "6.12.57+deb13-amd64"),
    ],
    ids=["ubuntu", "debian"],
)
def test_a_bare_host_of_a_new_release_has_its_first_plan_without_a_key_made_by_hand(
    tmp_path, machine: Machine, version: str, kernel: str
):
    with bare(tmp_path, machine) as (_, session), answering():
        (repository,) = session.for_each_host(converge.probe_and_plan)
        (repository,) = prerequisites.add_repositories(session, (become(repository, version, kernel),), None)
        assert keys_in(repository) == 2


def test_a_key_of_which_only_the_end_is_known_is_shown_and_taken_only_with_its_whole_fingerprint(
    tmp_path, capsys
):
    with bare(tmp_path, kinds.new_host("a")) as (_, session), answering(debian13=PRINT[-8:]):
        (outcome,) = session.for_each_host(converge.probe_and_plan)
        outcome = become(outcome, "13", "6.12.57+deb13-amd64")
        host = session.visits["a"].host

        def added(trusted: Collection[str] | None) -> tuple[int, str]:
            session.visits["a"].host = host
            capsys.readouterr()
            (after,) = prerequisites.add_repositories(session, (outcome,), trusted)
            said = capsys.readouterr()
            return keys_in(after), said.out + said.err

        many, said = added(None)  # `plan`
        assert many == 2
        assert f"has the fingerprint {PRINT}. gpunode knows only that" in said
        assert f"gpunode provision --fingerprint {PRINT}" in said
        many, said = added(())  # `provision`
        assert many == 0
        assert f"--fingerprint {PRINT}" in said
        many, said = added([f"{0:032}{PRINT[-8:]}"])  # what answers was made to end alike
        assert many == 0
        assert f"its fingerprint is {PRINT}, NVIDIA's is {0:032}{PRINT[-8:]}" in said
        many, said = added([PRINT])
        assert many == 2
        assert f"the fingerprint that you gave, {PRINT}" in said
