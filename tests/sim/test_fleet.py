"""Fleets in which something goes wrong: hosts that are away, slow, cut off or dying; the others do not notice."""

import contextlib
import json
import os
import signal
from collections.abc import Callable, Iterator

import pytest

from gpunode.engine import converge
from gpunode.engine.fleet import Visit
from gpunode.model import Event, OnEvent, Outcome
from gpunode.sim.host import kinds
from gpunode.sim.host.state import State
from tests.sim.fleets import Fleet, serving


@pytest.fixture
def serve(tmp_path) -> Iterator[Callable[[int], Fleet]]:
    """Serves so many hosts with P100s."""
    with contextlib.ExitStack() as stack:

        def made(count: int) -> Fleet:
            return stack.enter_context(serving(tmp_path, [kinds.old_host(f"gpu-{n}") for n in range(count)]))

        yield made


def at(headline: str, act: Callable[[], None]) -> OnEvent:
    """A reporter that acts once, when a change begins."""
    left = [act]

    def emit(event: Event) -> None:
        if event.type == "change" and event.message.startswith(headline) and left:
            left.pop()()

    return emit


def break_with(state: State, name: str, detail: str = "1") -> None:
    with state.change() as now:
        now.faults[name] = detail


def test_hosts_that_are_away_stop_nobody(serve: Callable[[int], Fleet]):
    """They are reported unreachable, with the cause."""
    fleet = serve(8)
    for name in ("gpu-2", "gpu-5"):
        break_with(fleet.states[name], "unreachable")
    outcomes = fleet.look()
    away = {name for name, outcome in outcomes.items() if outcome.status == "unreachable"}
    assert away == {"gpu-2", "gpu-5"}
    assert all(outcomes[name].status == "planned" for name in outcomes.keys() - away)
    assert outcomes["gpu-2"].problem


def test_a_slow_host_holds_no_other_up(serve: Callable[[int], Fleet], tmp_path):
    """Hosts are worked on side by side: the first to be begun answers only after all others have ended."""
    fleet, answer = serve(4), tmp_path / "answer"
    break_with(fleet.states["gpu-0"], "slow", str(answer))
    ended: list[str] = []

    def probe(visit: Visit, emit: OnEvent) -> Outcome:
        outcome = converge.probe_and_plan(visit, emit)
        ended.append(outcome.host)
        if len(ended) == 3:
            answer.touch()
        return outcome

    assert fleet.hosts()[0].name == "gpu-0"
    assert {outcome.status for outcome in fleet.each(probe).values()} == {"planned"}
    assert ended[3] == "gpu-0"


def test_a_connection_that_is_cut_in_an_apply_stops_nothing(serve: Callable[[int], Fleet]):
    """The apply continues on the host, and a new connection follows it to its end."""
    fleet = serve(1)
    outcome = fleet.provision(emit=at("install linux", lambda: fleet.server.cut("gpu-0")))["gpu-0"]
    assert (outcome.status, outcome.problem) == ("changed", None)
    assert not outcome.plan
    assert len(outcome.applied) == len({id(change) for change in outcome.applied})


def test_a_host_that_dies_in_an_apply_is_repaired_by_the_next_run(serve: Callable[[int], Fleet]):
    """The first run names the interrupted change, the second plans from the current state."""
    fleet = serve(1)
    state = fleet.states["gpu-0"]

    def die() -> None:
        holder = json.loads((state.root / "run/gpunode/lock").read_text())
        os.killpg(holder["pid"], signal.SIGKILL)

    outcome = fleet.provision(emit=at("restart docker", die))["gpu-0"]
    assert outcome.status == "failed"
    assert "restart docker" in outcome.why
    again = fleet.provision()["gpu-0"]
    assert (again.status, again.problem) == ("changed", None)
    assert not again.plan


def test_an_apply_that_is_aborted_is_one_that_failed(serve: Callable[[int], Fleet]):
    """Its own operator gets the failure; another one may start at once."""
    fleet = serve(1)
    ended: list[converge.Ended] = []

    def end() -> None:
        def story(visit: Visit, emit: OnEvent) -> Outcome:
            ended.append(converge.abort(visit, emit))
            return Outcome("gpu-0", "right")

        fleet.each(story)

    outcome = fleet.provision(emit=at("restart docker", end))["gpu-0"]
    assert outcome.status == "failed"
    assert "restart docker" in outcome.why
    assert "gpunode abort" in outcome.why
    assert ended[0].doing == "restart docker.service"
    assert "restored /etc/docker/daemon.json" in ended[0].results
    assert fleet.provision()["gpu-0"].status == "changed"


def test_a_second_operator_is_told_who_is_at_work(serve: Callable[[int], Fleet]):
    """Who comes while an apply is under way follows it, and then has nothing to do."""
    fleet = serve(1)
    seen: list[str] = []

    def meanwhile() -> None:
        facts = fleet.look()["gpu-0"].facts
        seen.append(facts.running.by if facts and facts.running else "nobody")

    fleet.provision(emit=at("restart docker", meanwhile))
    assert seen
    assert "@" in seen[0]


def test_many_hosts_are_looked_at_at_once(serve: Callable[[int], Fleet]):
    """Forty, each with its own SSH server and its own plan."""
    outcomes = serve(40).look()
    assert len(outcomes) == 40
    assert {outcome.status for outcome in outcomes.values()} == {"planned"}
