"""A scheduler that does not come back gets its earlier configuration."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from gpunode.errors import AgentFailed
from gpunode.model import Outcome
from gpunode.rollout import share
from gpunode.rollout.member import Member
from gpunode.schedulers import manifest, plan
from tests import cases
from tests.unit.test_schedulers import KUBEADM, WANTED, after, content, files


def test_a_scheduler_that_does_not_come_back_is_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Byte for byte; the error names host, reason, and what was done about it."""
    text = KUBEADM.replace("{minor}", "36")
    state = files(manifest=text)
    before = dict(state)
    changes, volume = plan.enabling(state, 36, WANTED)

    def made(_session: Any, one: Member) -> Member:
        nonlocal state
        state = after(state, one.changes)
        assert one.outcome is not None
        assert one.outcome.facts is not None
        return replace(one, outcome=replace(one.outcome, facts=replace(one.outcome.facts, files=state)))

    def came_back(_api: Any, node: str, waited: str, _listener: Any) -> str:
        assert (node, waited) == ("cp-1", volume)
        assert content(state, manifest.PATH) != text
        return "it is not Ready yet"

    monkeypatch.setattr(share, "_made", made)
    monkeypatch.setattr(share, "_came_back", came_back)
    facts = replace(cases.facts("modern"), files=state)
    member = share._with(Member(cases.host("cp-1"), Outcome("cp-1", "refused", facts)), changes)
    with pytest.raises(AgentFailed) as caught:
        share._apply(SimpleNamespace(listener=None), None, member, volume)  # type: ignore[arg-type]

    assert "it is not Ready yet; its earlier configuration was put back" in caught.value.message
    assert caught.value.hint
    assert state == before
