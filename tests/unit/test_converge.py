"""One host's story, against an agent whose words the test writes."""

import json
import re
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any
from unittest.mock import Mock

import pytest

from gpunode.engine import converge, rounds
from gpunode.engine.fleet import Visit
from gpunode.errors import AgentFailed, Unreachable
from gpunode.host import reach, wire
from gpunode.host.answers import parse_facts
from gpunode.model import Change, Event, Facts, Host, Outcome, Plan, Reboot, Ssh, StepPlan, Watch, WriteFile
from tests import tables

HOST = Host("gpu-01", Ssh("gpu-01"), sudo=False)
FAILED = {"type": "failed", "n": 0, "code": "internal", "error": "no", "detail": [], "restored": []}
FILES = tuple(WriteFile(f"/etc/{name}", "text\n", "a reason") for name in ("a", "b", "c"))

Answer = tuple[list[dict[str, Any]], bool]  # messages, and whether the answer comes to its end


class Remote:
    def __init__(self, nonce: str, answer: Answer) -> None:
        self._nonce, (self._messages, self._whole) = nonce, answer

    def lines(self) -> Iterator[bytes]:
        yield f"@gpunode-begin {self._nonce}\n".encode()
        for message in self._messages:
            yield json.dumps(message).encode() + b"\n"
        if self._whole:
            yield f"@gpunode-end {self._nonce}\n".encode()

    def end(self) -> tuple[int | None, str]:
        return (0 if self._whole else None), ""


class Agent:
    """Answers job after job as `answers` says; `jobs` are those it was given. An exception is a failed dial."""

    def __init__(self, *answers: Answer | Exception) -> None:
        self.answers = list(answers)
        self.jobs: list[dict[str, Any]] = []
        self.dials: list[int] = []  # how many jobs there had been at each

    def dial(self, host: Host) -> reach.Connection:
        self.dials.append(len(self.jobs))
        if self.answers and isinstance(self.answers[0], Exception):
            raise self.answers.pop(0)
        return self

    def start(self, command: str, stdin: Iterable[bytes], heard: object = None) -> reach.Remote:
        sent = b"".join(stdin)
        header = re.match(rb"gpunode-agent 1 (\d+) (\d+)\n", sent)
        assert header
        job = json.loads(sent[header.end() + int(header[1]) :][: int(header[2])])
        self.jobs.append(job)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return Remote(job["nonce"], answer)

    def close(self) -> None:
        pass


@pytest.fixture(scope="module")
def raw() -> dict[str, Any]:
    """What the real agent says of this machine."""
    host = Host("here", Ssh("here"), connection="local", sudo=False)
    messages = list(reach.talk(host, reach.Local(), wire.probe_job(Watch())))
    return next(message["facts"] for message in messages if message["type"] == "facts")


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch) -> None:
    monkeypatch.setattr(converge, "time", Mock(wraps=time, sleep=lambda _: None))


def planned(raw: dict[str, Any], *changes: Change) -> Outcome:
    return Outcome(
        HOST.name, "planned", parse_facts(raw), plan=Plan(HOST.name, (StepPlan("step", tuple(changes)),))
    )


def done(*numbers: int) -> list[dict[str, Any]]:
    return [
        message
        for number in numbers
        for message in ({"type": "start", "n": number}, {"type": "done", "n": number, "seconds": 0.1})
    ]


def ends(facts: dict[str, Any], *, ok: bool = True) -> list[dict[str, Any]]:
    """The last messages of an apply or a probe: the host's facts, and whether all went well."""
    return [{"type": "facts", "facts": facts}, {"type": "end", "ok": ok}]


def apply(agent: Agent, outcome: Outcome) -> tuple[Outcome, list[Event]]:
    events: list[Event] = []
    return converge.apply(Visit(HOST, agent.dial, None), outcome, events.append), events


def test_an_apply_tells_each_change_and_is_judged_by_the_probe_that_ends_it(raw: dict[str, Any]):
    """One exec: changes and fresh facts in the same answer."""
    agent = Agent(([*done(0, 1, 2), *ends(raw)], True))
    outcome, events = apply(agent, planned(raw, *FILES))

    assert outcome.applied == FILES
    assert [event.data["n"] for event in events if event.type == "change"] == [0, 1, 2]
    assert [job["op"] for job in agent.jobs] == ["apply"]


def test_an_apply_of_an_undo_names_the_applies_that_it_knows_and_the_run_that_it_undoes(raw: dict[str, Any]):
    entries = [{"apply": name, "path": "/etc/a"} for name in ("one", "one", "two")]
    agent = Agent(
        ([{"type": "journal", "entries": entries}], True),
        (ends(raw), True),
    )
    visit = Visit(HOST, agent.dial, None)
    converge.read_journal(visit, "r1")
    converge.apply(visit, planned(raw, *FILES), lambda _: None)
    assert (agent.jobs[1]["known"], agent.jobs[1]["undoes"]) == (["one", "two"], "r1")


def test_a_lost_connection_is_made_again_and_the_apply_followed_without_telling_twice(raw: dict[str, Any]):
    """What was told before the cut is skipped when the story is told from its start."""
    story = [*done(0, 1, 2), *ends(raw)]
    agent = Agent((story[:3], False), Unreachable(HOST.name, "no route"), (story, True))
    outcome, events = apply(agent, planned(raw, *FILES))

    assert outcome.applied == FILES
    assert [event.data["n"] for event in events if event.type == "change"] == [0, 1, 2]
    assert [job["op"] for job in agent.jobs] == ["apply", "follow"]
    assert agent.jobs[1]["run"] == agent.jobs[0]["run"]


def test_the_patience_for_a_lost_connection_begins_again_with_each_message(raw: dict[str, Any], monkeypatch):
    """A link that fails now and then carries an hour's apply to its end. Its changes' own seconds are not counted twice."""
    seconds = iter(range(0, 10_000, 25))
    monkeypatch.setattr(converge, "time", Mock(wraps=time, monotonic=seconds.__next__))
    story = [*done(0, 1, 2), *ends(raw)]
    story[5] = {**story[5], "seconds": 3600.0}
    agent = Agent(*((story[:number], False) for number in (1, 3, 5)), (story, True))
    outcome, _ = apply(agent, planned(raw, *FILES))
    assert (outcome.applied, outcome.spent) == (FILES, {"files": 3600.2})


def test_a_host_that_does_not_come_back_from_its_reboot_is_given_up_after_minutes(
    raw: dict[str, Any], monkeypatch
):
    seconds = iter(range(0, 10_000, 300))
    monkeypatch.setattr(converge, "time", Mock(wraps=time, monotonic=seconds.__next__))
    agent = Agent(([*done(0), {"type": "end", "ok": True}], True), *[Unreachable(HOST.name, "no route")] * 9)
    outcome, _ = apply(agent, planned(raw, reboot := Reboot("because")))
    assert outcome.status == "unreachable"
    assert "did not come back within 15 minutes" in outcome.why
    assert outcome.applied == (reboot,)


CONFIRM = {"type": "confirm", "n": 1, "unit": "docker.service", "seconds": 120}


def test_a_restart_is_confirmed_over_a_new_connection_that_follows_the_apply(raw: dict[str, Any]):
    """The old one is given up: it may work where no new one does. A dial that fails is tried again."""
    story = [*done(0), {"type": "start", "n": 1}, CONFIRM]
    rest = [{"type": "done", "n": 1, "seconds": 0.1}, *done(2), *ends(raw)]
    agent = Agent((story, True), Unreachable(HOST.name, "no route"), ([*story, *rest], True))
    outcome, events = apply(agent, planned(raw, *FILES))

    assert outcome.applied == FILES
    assert [event.data["n"] for event in events if event.type == "change"] == [0, 1, 2]
    assert [(job["op"], job.get("confirms")) for job in agent.jobs] == [("apply", None), ("follow", 1)]
    assert agent.dials == [0, 1, 1]
    assert "confirm docker.service over a new connection" in [event.message for event in events]


def test_a_connection_made_again_before_it_was_asked_to_confirm_is_not_the_one_that_does(raw: dict[str, Any]):
    """It may be older than the restart."""
    story = [*done(0), {"type": "start", "n": 1}, CONFIRM]
    rest = [{"type": "done", "n": 1, "seconds": 0.1}, *ends(raw)]
    agent = Agent((done(0), False), (story, True), ([*story, *rest], True))
    outcome, _ = apply(agent, planned(raw, *FILES))

    assert outcome.applied == FILES[:2]
    assert [job.get("confirms") for job in agent.jobs] == [None, None, 1]
    assert agent.dials == [0, 1, 2]


def test_what_was_kept_unconfirmed_is_confirmed_and_costs_others_nothing(raw: dict[str, Any]):
    """One job for a host that has such; none for any other."""
    kept = {"code": "api-server-answered", "run": "r1", "unit": "docker.service", "by": "ann", "since": 0.0}
    agent = Agent(([{"type": "end", "ok": True}], True))
    visit = Visit(HOST, agent.dial, None)
    right = Outcome(HOST.name, "right", parse_facts(raw))
    assert converge.confirm_restarts(visit, right, lambda _: None) is right
    assert agent.jobs == []
    later = Outcome(HOST.name, "right", parse_facts({**raw, "unconfirmed": [kept, kept]}))
    assert converge.confirm_restarts(visit, later, lambda _: None) is later
    assert [(job["op"], job["runs"]) for job in agent.jobs] == [("confirm", ["r1"])]


def test_a_connection_that_stays_lost_says_that_the_work_goes_on(raw: dict[str, Any], monkeypatch):
    """After the deadline the host is given up on; nothing claims that the changes failed."""
    monkeypatch.setattr(converge, "RECONNECT_SECONDS", -1.0)
    outcome, _ = apply(Agent((done(0), False)), planned(raw, *FILES))
    assert "the connection was lost while changing the host" in outcome.why
    assert outcome.problem
    assert "continues" in outcome.problem.fix
    assert (outcome.status, outcome.applied) == ("unreachable", FILES[:1])


def test_a_connection_lost_before_the_job_had_arrived_says_that_nothing_was_changed(raw: dict[str, Any]):
    """An image takes long to send; the host then knows of no apply to follow."""
    unknown = [{"type": "unknown", "run": "r"}, {"type": "end", "ok": False}]
    agent = Agent(([], False), (unknown, True))

    outcome, _ = apply(agent, planned(raw, *FILES))
    assert "before the apply began: nothing was changed" in outcome.why
    assert (outcome.status, outcome.applied) == ("unreachable", ())


def test_a_change_that_fails_ends_the_story_with_its_cause_and_way_out(raw: dict[str, Any]):
    """What was done before it stays told; what was put back is named."""
    failed = {
        "type": "failed",
        "n": 1,
        "code": "disk-full",
        "error": "no space is left on /etc",
        "detail": ["/dev/vda1 100%"],
        "restored": ["/etc/b"],
    }
    agent = Agent(([*done(0), failed, *ends(raw, ok=False)], True))
    outcome, _ = apply(agent, planned(raw, *FILES))

    assert outcome.status == "failed"
    assert outcome.applied == FILES[:1]
    assert "no space is left on /etc" in outcome.why
    assert "/dev/vda1 100%" in outcome.why
    assert "Restored: /etc/b" in outcome.why
    assert outcome.problem.fix.startswith("Free space")
    assert outcome.problem.code == "disk-full"


def test_a_host_that_somebody_else_changes_is_left_to_them(raw: dict[str, Any]):
    """Who and since when."""
    agent = Agent(([{"type": "locked", "run": "r", "by": "ann@desk", "since": 0.0}], True))

    outcome, _ = apply(agent, planned(raw, *FILES))
    assert outcome.status == "refused"
    assert "ann@desk has been changing this host since 19" in outcome.why
    assert outcome.problem
    assert "repeat this command" in outcome.problem.fix  # whichever it is


def test_an_abort_tells_what_it_ended_and_what_came_of_it():
    """Whose apply, at what; the files that were put back, and what else there is to say."""
    aborting = {
        "type": "aborting",
        "run": "r",
        "by": "ann@desk",
        "since": 0.0,
        "doing": "packages cuda-drivers",
    }
    failed = {**FAILED, "restored": ["/etc/a"], "detail": ["docker.service runs again"]}
    agent = Agent(
        ([aborting, failed, {"type": "progress", "text": "left"}, {"type": "end", "ok": True}], True)
    )
    events: list[Event] = []
    ended = converge.abort(Visit(HOST, agent.dial, None), events.append)

    assert (ended.by, ended.doing) == ("ann@desk", "packages cuda-drivers")
    assert ended.results == ("restored /etc/a", "docker.service runs again", "left")
    assert [job["op"] for job in agent.jobs] == ["abort"]
    assert "ann@desk" in events[-1].message


def test_a_reboot_is_over_when_the_boot_id_has_changed(raw: dict[str, Any]):
    """A host that answers before it went down is not taken for one that is back."""
    down = Unreachable(HOST.name, "refused")
    agent = Agent(
        ([*done(0), *ends(raw)], True),
        (ends(raw), True),
        ([*done(0), *ends(raw)], True),
        down,
        (ends({**raw, "boot_id": "another"}), True),
    )
    outcome, events = apply(agent, planned(raw, Reboot("nouveau holds the GPUs")))

    assert outcome.facts.boot_id == "another"
    assert [event.message for event in events if event.type == "stage"] == ["reboot"]


def test_a_reboot_that_the_host_refuses_is_a_failure_at_once(raw: dict[str, Any]):
    """Nobody waits a quarter of an hour for a host that never goes down."""
    words = "Call to Reboot failed: Access denied"
    refused = {**FAILED, "code": "reboot-failed", "error": words}
    story = [*done(0), {"type": "end", "ok": True}]
    agent = Agent(
        (story, True),
        ([{"type": "facts", "facts": raw}], True),
        ([*story, refused, {"type": "end", "ok": False}], True),
    )
    outcome, _ = apply(agent, planned(raw, Reboot("nouveau holds the GPUs")))

    assert outcome.status == "failed"
    assert outcome.applied == ()
    assert words in outcome.why
    assert outcome.problem.fix.startswith("Reboot the host by hand")


def test_an_answer_without_facts_is_a_failure():
    """Nothing is planned on nothing."""
    agent = Agent(([{"type": "end", "ok": True}], True))

    with pytest.raises(AgentFailed, match="holds no facts"):
        converge.probe_and_plan(Visit(HOST, agent.dial, None), lambda _: None)


HOLDER = {"run": "r", "by": "ann@desk", "since": 5}


@tables.rows("facts-of-another-type")
def test_facts_of_another_type_are_a_failure_that_names_their_place(
    raw: dict[str, Any], wrong: dict[str, Any], words: str
):
    """A host may answer anything."""
    agent = Agent((ends({**raw, **wrong}), True))
    with pytest.raises(AgentFailed) as error:
        converge.probe_and_plan(Visit(HOST, agent.dial, None), lambda _: None)
    assert f"the host answered {words}" in error.value.message
    assert error.value.hint


@tables.rows("messages-of-another-type")
def test_a_message_of_another_type_is_a_failure_that_names_its_place(
    raw: dict[str, Any], message: dict[str, Any], words: str
):
    """Of an apply, which is followed by its messages."""
    outcome, _ = apply(Agent(([message], True), ([], True)), planned(raw, *FILES))
    assert outcome.status == "failed"
    assert words in outcome.why


@pytest.mark.parametrize("wrong", [{"since": 1e18}, {"since": "noon"}, {"by": 1}, {"doing": None}])
def test_an_abort_reads_no_message_of_another_type(wrong: dict[str, Any]):
    aborting = {**HOLDER, "type": "aborting", "doing": "restart docker.service", **wrong}
    with pytest.raises(AgentFailed, match=f"is expected, in aborting.{next(iter(wrong))}"):
        converge.abort(Visit(HOST, Agent(([aborting], True)).dial, None), lambda _: None)


def test_a_host_that_may_still_reboot_is_waited_for(raw: dict[str, Any]):
    """An earlier run was changing it. One that refuses the login is up, and one whose time is over is given up."""
    answer: Answer = (ends(raw), True)
    down, refused = Unreachable(HOST.name, "refused"), Unreachable(HOST.name, "no key", code="key")
    agent = Agent(down, answer)
    events: list[Event] = []
    seen = converge.wait_until_back(Visit(HOST, agent.dial, None), 60, events.append)
    assert seen.facts is not None
    assert "wait until it answers: an earlier run was changing it" in [event.message for event in events]
    for agent, seconds in ((Agent(down), 0.0), (Agent(refused), 60.0)):
        with pytest.raises(Unreachable):
            converge.wait_until_back(Visit(HOST, agent.dial, None), seconds, events.append)


def test_what_a_plan_rests_on_is_read_again_after_an_apply_that_still_ran(raw: dict[str, Any]):
    """And when hosts are probed again after another run's lease. An undo that took the journal of before would miss what these have
    changed since."""
    running = {**raw, "running": {"run": "r0", "by": "ada@ws", "since": 0.0}}
    first, last = ([{"type": "facts", "facts": seen}] for seen in (running, raw))
    agent = Agent((first, True), ([{"type": "end", "ok": True}], True), (last, True), (last, True))
    visit = Visit(HOST, agent.dial, None)
    chosen = []

    def choose(_: Visit) -> Callable[[Facts], Outcome]:
        chosen.append(len(agent.jobs))
        return lambda seen: Outcome(HOST.name, "right", seen)

    visit.choose_planner = choose
    outcome = rounds.probe_host(visit, lambda _: None)
    assert (chosen, outcome.facts.running) == ([0, 2], None)
    rounds.probe_host(visit, lambda _: None)
    assert chosen == [0, 2, 3]
