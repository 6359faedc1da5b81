"""A scheduler that does not come back gets its earlier configuration."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from gpunode.cluster import control_plane
from gpunode.errors import AgentFailed, ClusterError
from gpunode.model import Cluster, Inventory, Outcome, Share
from gpunode.rollout import restart, share
from gpunode.rollout.member import Member
from gpunode.schedulers import manifest, plan
from tests import cases
from tests.unit.test_schedulers import KUBEADM, WANTED, after, content, files


@pytest.mark.parametrize("end", ["it is not Ready yet", KeyboardInterrupt()], ids=["late", "Ctrl-C"])
def test_a_scheduler_that_does_not_come_back_is_put_back(
    monkeypatch: pytest.MonkeyPatch, end: str | BaseException
) -> None:
    """Byte for byte, also where the wait is interrupted; the words say so."""
    text = KUBEADM.replace("{minor}", "36")
    state = files(manifest=text)
    before = dict(state)
    changes, volume = plan.enabling(state, 36, WANTED)
    notes: list[str] = []

    def again(_session: Any, one: Member) -> Member:
        assert one.outcome is not None
        assert one.outcome.facts is not None
        return replace(one, outcome=replace(one.outcome, facts=replace(one.outcome.facts, files=state)))

    def made(session: Any, one: Member) -> Member:
        nonlocal state
        state = after(state, one.changes)
        return again(session, one)

    def came_back(_api: Any, node: str, waited: str, _listener: Any) -> str:
        assert (node, waited) == ("cp-1", volume)
        assert content(state, manifest.PATH) != text
        if isinstance(end, BaseException):
            raise end
        return end

    monkeypatch.setattr(share, "_made", made)
    monkeypatch.setattr(share, "_again", again)
    monkeypatch.setattr(restart, "awaited", came_back)
    facts = replace(cases.facts("modern"), files=state)
    member = share._with(Member(cases.host("cp-1"), Outcome("cp-1", "refused", facts)), changes)
    session: Any = SimpleNamespace(listener=SimpleNamespace(note=notes.append))
    api: Any = None
    with pytest.raises((AgentFailed, KeyboardInterrupt)) as caught:
        share._apply(session, api, member, volume)

    words = getattr(caught.value, "message", notes[-1])
    assert "its earlier configuration was put back" in words
    assert state == before


def test_every_scheduler_of_the_cluster_is_known() -> None:
    """By their pods, and by the labels of the control plane's nodes: one that was not inspected may ask the extender."""
    label = {"node-role.kubernetes.io/control-plane": ""}
    found = {
        "Pod": [{"spec": {"nodeName": "cp-1"}}, {"spec": {}}],
        "Node": [
            {"metadata": {"name": "cp-3", "labels": label}},
            {"metadata": {"name": "gpu-1", "labels": {}}},
        ],
    }
    api: Any = SimpleNamespace(find=lambda kind, *_, **__: (found[kind], ""))
    assert control_plane.schedulers(api) == {"cp-1", "cp-3"}


@pytest.mark.parametrize("there", [{"cp-1"}, {"cp-1", "cp-2"}])
def test_all_schedulers_are_changed_or_none(monkeypatch: pytest.MonkeyPatch, there: set[str]) -> None:
    """One that is not among the hosts would go on asking an extender that is removed."""
    host = replace(cases.host("cp-1"), control_plane=True)
    facts = replace(cases.facts("modern"), files=files(manifest=KUBEADM))
    member = Member(host, Outcome("cp-1", "right", facts))
    monkeypatch.setattr(control_plane, "schedulers", lambda _api: there)
    node: Any = SimpleNamespace(name="cp-1")
    monkeypatch.setattr(
        share.nodes, "located", lambda _api, members, **_: [replace(one, node=node) for one in members]
    )
    listener = SimpleNamespace(failures=lambda _: None, note=None)
    session: Any = SimpleNamespace(
        probed=lambda _: [member], listener=listener, inventory=Inventory("", (), Cluster(share=Share()))
    )
    api: Any = None
    if there == {"cp-1"}:
        assert [one.host.name for one in share._schedulers(session, api)[0]] == ["cp-1"]
    else:
        with pytest.raises(ClusterError, match="cp-2 were not inspected"):
            share._schedulers(session, api)
