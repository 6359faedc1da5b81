"""Many hosts at once."""

from __future__ import annotations

import threading

from gpunode import fleet
from gpunode.errors import AgentFailed, Refused, Unreachable
from gpunode.model import Event, Host, Outcome, Ssh


def hosts(*names: str) -> list[Host]:
    return [Host(name, Ssh(name)) for name in names]


def outcomes(items: list[Event | Outcome]) -> dict[str, Outcome]:
    return {item.host: item for item in items if isinstance(item, Outcome)}


def test_one_bad_host_never_stops_the_others() -> None:
    """Each kind of failure becomes that host's outcome; the rest go on."""

    def story(host: Host, tell: fleet.Tell) -> Outcome:
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
    assert done["gone"].hint == "Look."


def test_a_mistake_in_one_hosts_story_is_that_hosts_failure() -> None:
    """Facts that nobody foresaw on one host leave the others their run; the traceback is kept for the report."""

    def story(host: Host, tell: fleet.Tell) -> Outcome:
        if host.name == "odd":
            raise KeyError("version")
        return Outcome(host.name, "right")

    done = outcomes(list(fleet.run(hosts("a", "odd", "b"), story, forks=8)))

    assert (done["a"].status, done["odd"].status, done["b"].status) == ("right", "failed", "right")
    assert (done["odd"].error or "").startswith("a mistake in gpunode: KeyError: 'version'\nTraceback")
    assert "in story" in (done["odd"].error or "")


def test_events_come_while_hosts_are_still_at_work() -> None:
    """Progress is seen before the outcome, not with it."""
    seen = threading.Event()

    def story(host: Host, tell: fleet.Tell) -> Outcome:
        tell(Event("stage", host.name, "probe"))
        assert seen.wait(10)
        return Outcome(host.name, "right")

    run = fleet.run(hosts("a"), story, forks=8)

    assert next(run) == Event("stage", "a", "probe")
    seen.set()
    assert isinstance(next(run), Outcome)


def test_hosts_are_worked_on_side_by_side() -> None:
    """With as many forks as hosts nobody waits for another."""
    together = threading.Barrier(8)

    def story(host: Host, tell: fleet.Tell) -> Outcome:
        together.wait(10)
        return Outcome(host.name, "right")

    names = [f"n{number}" for number in range(8)]

    assert set(outcomes(list(fleet.run(hosts(*names), story, forks=8)))) == set(names)


def test_a_batch_is_finished_before_the_next_begins() -> None:
    """`batch` bounds how many hosts can be harmed at once."""
    at_work: set[str] = set()
    together: list[set[str]] = []

    def story(host: Host, tell: fleet.Tell) -> Outcome:
        at_work.add(host.name)
        together.append(set(at_work))
        at_work.remove(host.name)
        return Outcome(host.name, "right")

    list(fleet.run(hosts("a", "b", "c"), story, forks=8, batch=1))

    assert together == [{"a"}, {"b"}, {"c"}]


def test_no_further_batch_begins_after_too_many_failures() -> None:
    """Hosts that were not tried are reported so, not left out."""
    tried: list[str] = []

    def story(host: Host, tell: fleet.Tell) -> Outcome:
        tried.append(host.name)
        raise AgentFailed(host.name, "it broke")

    done = outcomes(list(fleet.run(hosts("a", "b", "c"), story, forks=8, batch=1, max_fail=1)))

    assert tried == ["a", "b"]
    assert done["c"].error == "not tried: 2 hosts before it failed"


def test_a_host_that_is_lost_while_it_is_changed_counts_as_failed() -> None:
    """One that does not come back from its reboot must not be followed by all the others."""
    tried: list[str] = []

    def story(host: Host, tell: fleet.Tell) -> Outcome:
        tried.append(host.name)
        raise Unreachable(host.name, "it did not come back")

    list(fleet.run(hosts("a", "b", "c"), story, forks=8, batch=1, max_fail=0))

    assert tried == ["a"]
