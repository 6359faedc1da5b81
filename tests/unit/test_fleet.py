"""Many hosts at once."""

import threading
from typing import Any, cast

import pytest

from gpunode.engine import fleet
from gpunode.engine.session import Session
from gpunode.errors import AgentFailed, Refused, Unreachable
from gpunode.model import Event, Host, OnEvent, Outcome, Ssh
from gpunode.report.lines import Lines


def hosts(*names: str) -> list[Host]:
    return [Host(name, Ssh(name)) for name in names]


def outcomes(items: list[Event | Outcome]) -> dict[str, Outcome]:
    return {item.host: item for item in items if isinstance(item, Outcome)}


def test_one_bad_host_never_stops_the_others():
    """Each kind of failure becomes that host's outcome; the rest go on."""

    def story(host: Host, emit: OnEvent) -> Outcome:
        if host.name == "gone":
            raise Unreachable("gone", "no answer", hint="Look.")
        if host.name == "odd":
            raise Refused("odd", "no stack exists")
        if host.name == "broken":
            raise AgentFailed("broken", "it broke")
        return Outcome(host.name, "right")

    done = outcomes(list(fleet.run(hosts("a", "gone", "odd", "broken", "b"), story, forks=8)))

    assert {name: outcome.status for name, outcome in done.items()} == {
        "a": "right",
        "gone": "unreachable",
        "odd": "refused",
        "broken": "failed",
        "b": "right",
    }
    assert done["gone"].problem.fix == "Look."


def test_a_mistake_in_one_hosts_story_is_that_hosts_failure():
    """Facts that nobody foresaw on one host leave the others their run; the traceback is kept for the report."""

    def story(host: Host, emit: OnEvent) -> Outcome:
        if host.name == "odd":
            raise KeyError("version")
        return Outcome(host.name, "right")

    done = outcomes(list(fleet.run(hosts("a", "odd", "b"), story, forks=8)))

    assert (done["a"].status, done["odd"].status, done["b"].status) == ("right", "failed", "right")
    assert done["odd"].why.startswith("a bug in gpunode: KeyError: 'version'\nTraceback")
    assert "in story" in done["odd"].why


def test_events_come_while_hosts_are_still_at_work():
    """Progress is seen before the outcome, not with it."""
    seen = threading.Event()

    def story(host: Host, emit: OnEvent) -> Outcome:
        emit(Event("stage", host.name, "probe"))
        assert seen.wait(10)
        return Outcome(host.name, "right")

    run = fleet.run(hosts("a"), story, forks=8)

    assert next(run) == Event("stage", "a", "probe")
    seen.set()
    assert isinstance(next(run), Outcome)


def test_hosts_are_worked_on_side_by_side():
    """With as many forks as hosts nobody waits for another."""
    together = threading.Barrier(8)

    def story(host: Host, emit: OnEvent) -> Outcome:
        together.wait(10)
        return Outcome(host.name, "right")

    names = [f"n{number}" for number in range(8)]

    assert set(outcomes(list(fleet.run(hosts(*names), story, forks=8)))) == set(names)


def test_forks_bound_how_many_hosts_are_worked_on_at_once():
    """All wait to begin while none has ended; two threads do them all."""
    go_on, threads = threading.Event(), set[str]()

    def story(host: Host, emit: OnEvent) -> Outcome:
        threads.add(threading.current_thread().name)
        emit(Event("stage", host.name, "probe"))
        assert go_on.wait(10)
        return Outcome(host.name, "right")

    run = fleet.run(hosts("a", "b", "c", "d"), story, forks=2)
    begun = [next(run), next(run)]
    go_on.set()
    assert len(outcomes([*begun, *run])) == 4
    assert len(threads) == 2


class OpenVisit:
    """Counts those that are open."""

    def __init__(self, host: Host) -> None:
        self.host, self.open = host, False

    def close(self) -> None:
        self.open = False


@pytest.mark.parametrize(("forks", "left"), [(3, 3), (2, 0)])
def test_connections_are_kept_where_all_hosts_may_be_worked_on_at_once(forks: int, left: int):
    """Of more hosts each is closed after its work: a thousand files are more than a process may have open."""

    def work(visit: Any, _emit: OnEvent) -> Outcome:
        visit.open = True
        assert sum(visit.open for visit in visits.values()) <= forks
        return Outcome(visit.host.name, "right")

    names = hosts("a", "b", "c")
    visits = {host.name: OpenVisit(host) for host in names}
    session = Session(cast("Any", None), tuple(names), cast("Any", visits), Lines(quiet=True), forks)
    session.each(work)
    assert sum(visit.open for visit in visits.values()) == left
