"""The cluster's Lease: since when a run certainly holds it. Its life among other runs is in tests/sim/test_work.py."""

from typing import Any
from unittest import mock

from gpunode.cluster import lease


def test_a_renewal_counts_from_before_it_was_asked_for(monkeypatch):
    """An answer may take long, and the API server counts from its own moment."""
    held, now = lease.Held("us"), [100.0]

    def answer_late(item: Any) -> Any:
        now[0] += 20
        held.ended.set()
        return item

    monkeypatch.setattr(lease, "clock", lambda: now[0])
    monkeypatch.setattr(lease, "RENEW", 0.0)
    lease._renew(mock.Mock(replace=answer_late), {}, held)
    assert held.renewed == 100.0
