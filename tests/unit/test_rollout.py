"""What ends a run before its next batch."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest

from gpunode.engine import control_plane, rollout, rounds
from gpunode.engine.batch import Run
from gpunode.engine.member import PAUSED, Member
from gpunode.errors import Problem
from gpunode.model import Host, Outcome, Ssh

FAILED = Member(Host("a", Ssh("a")), Outcome("a", "failed", problem=Problem("", "no disk")))
SKIPPED = Member(
    Host("b", Ssh("b")), Outcome("b", "planned"), reason=Problem(control_plane.UNHEALTHY, "etcd is down")
)


@pytest.mark.parametrize(
    ("member", "judged", "seen", "code", "what"),
    [
        (None, "a", {}, "", ""),
        (FAILED, "a", {}, rounds.STOPPED, "1 host failed (a)"),
        (FAILED, "a", {"max_fail": 1}, "", ""),
        (FAILED, "b", {}, "", ""),  # the plan showed it as failed
        (SKIPPED, "", {}, rounds.STOPPED, "etcd is down"),
        (None, "", {"lease": "ada has it"}, rounds.STOPPED, "ada has it"),
        (None, "", {"lost": "no space left"}, rounds.STOPPED, "no space left"),
        (None, "", {"set": True}, PAUSED, "the run was interrupted"),
        (None, "", {"paused": True}, PAUSED, "the run was paused"),
    ],
    ids=["none", "failed", "allowed", "before", "control plane", "lease", "record", "Ctrl-C", "pause"],
)
def test_a_run_stops_for_its_first_reason(
    member: Member | None, judged: str, seen: dict[str, Any], code: str, what: str
) -> None:
    record: Any = SimpleNamespace(lost=seen.get("lost", ""), paused=seen.get("paused", False))
    interrupt: Any = SimpleNamespace(set=seen.get("set", False))
    run = Run(mock.Mock(), None, record, interrupt, {}, prove=True)
    lease: Any = SimpleNamespace(lost_reason=lambda *_: seen.get("lease", ""))
    members = (member,) if member else ()
    hosts = rollout.Hosts(members, (), (), frozenset(judged), seen.get("max_fail"))
    reason = rollout.stop_reason(run, lease, members, hosts)
    assert ((reason.code, reason.what) if reason else ("", "")) == (code, what)
