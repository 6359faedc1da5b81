"""Which replica leads: one at a time, whatever its clock says."""

from datetime import datetime, timedelta
from typing import Any

import pytest

from gpunode.deviceplugin.cluster.apiserver import ApiError, Object
from gpunode.share import lease
from gpunode.share.lease import ANSWER, SECONDS, SURE, Lease


class Leases:
    """The API server's one Lease, with resource versions."""

    def __init__(self) -> None:
        self.lease: Object | None = None
        self.fail: ApiError | None = None
        self.version = 0

    def get(self, path: str) -> Object:
        if self.fail:
            raise self.fail
        if self.lease is None:
            raise ApiError(404, "not found")
        return {**self.lease, "metadata": {**self.lease["metadata"], "resourceVersion": str(self.version)}}

    def send(self, method: str, path: str, body: Object | None = None) -> None:
        if self.fail:
            raise self.fail
        assert body is not None
        if (method == "POST") != (self.lease is None):
            raise ApiError(409, "already exists")
        if method == "PUT" and body["metadata"]["resourceVersion"] != str(self.version):
            raise ApiError(409, "it has changed")
        self.version += 1
        self.lease = body

    def watch(self, path: str, seconds: int) -> Any:
        raise NotImplementedError


class Clock:
    """Seconds of one machine."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_the_first_leads_and_the_second_waits_until_it_is_silent(clock: Clock):
    """A Lease that changes has a live holder; one that does not for SECONDS has none."""
    api = Leases()
    a, b = Lease(api, "gpunode", "share", "a", clock), Lease(api, "gpunode", "share", "b", clock)
    for _ in range(30):
        a.tend()
        b.tend()
        assert (a.leads, b.leads) == (True, False)
        clock.now += 2
    while not b.leads:
        b.tend()
        assert not (a.leads and b.leads)
        clock.now += 1
    assert 1000 + 60 + SECONDS - 3 <= clock.now <= 1000 + 60 + SECONDS + 3
    a.tend()
    assert (a.leads, b.leads) == (False, True)


def test_a_renewal_counts_from_before_it_was_asked_for(clock: Clock):
    """Another counts from what the API server has, however late its answer comes."""
    api = Leases()

    class Slow(Leases):
        def get(self, path: str) -> Object:
            clock.now += SURE - 1
            return api.get(path)

        def send(self, method: str, path: str, body: Object | None = None) -> None:
            api.send(method, path, body)

    each = Lease(Slow(), "gpunode", "share", "a", clock)
    each.tend()
    assert each.leads
    clock.now += 1
    assert not each.leads


@pytest.mark.parametrize("hours", [-1, 1])
def test_wall_clocks_apart_make_no_difference(monkeypatch, hours: int):
    """What another's Lease says of the time is not compared with the own clock: it is alive while its Lease changes."""
    api, here, there = Leases(), Clock(), Clock()
    there.now += 86_400  # seconds since a machine's start have nothing in common either
    a, b = Lease(api, "gpunode", "share", "a", here), Lease(api, "gpunode", "share", "b", there)

    class Skewed(datetime):
        shift = timedelta()

        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return datetime.now(tz) + cls.shift

    monkeypatch.setattr(lease, "datetime", Skewed)

    def turn(each: Lease, clock: Clock, shift: timedelta) -> None:
        Skewed.shift = shift
        each.tend()
        clock.now += 2

    for _ in range(30):
        turn(a, here, timedelta(hours=hours))
        turn(b, there, timedelta())
        assert (a.leads, b.leads) == (True, False)
    silent = there.now  # a's machine is gone
    while not b.leads and there.now < silent + 60:
        here.now += 2
        turn(b, there, timedelta())
        assert not (a.leads and b.leads)
    assert SECONDS - 4 <= there.now - silent <= SECONDS + 4
    turn(a, here, timedelta(hours=hours))
    assert (a.leads, b.leads) == (False, True)


def test_a_replica_that_ends_hands_over_at_once(clock: Clock):
    """Nobody waits for a rollout."""
    api = Leases()
    a, b = Lease(api, "gpunode", "share", "a", clock), Lease(api, "gpunode", "share", "b", clock)
    a.tend()
    b.tend()
    b.release()  # of no effect: it is not its own
    a.release()
    b.tend()
    assert (a.leads, b.leads) == (False, True)


def test_who_cannot_renew_stops_before_another_begins(clock: Clock):
    """By a request's length: its last binding has arrived by then."""
    api = Leases()
    a = Lease(api, "gpunode", "share", "a", clock)
    a.tend()
    api.fail = ApiError(0, "away")
    clock.now += SURE - 0.1
    a.tend()
    assert a.leads
    clock.now += 0.2
    assert not a.leads
    assert SURE + 4 * ANSWER <= SECONDS
    api.fail = None
    a.tend()
    assert a.leads


def test_of_two_that_find_none_one_leads(clock: Clock, monkeypatch):
    """The API server takes one of two writes; the other is no error."""
    api = Leases()
    a, b = Lease(api, "gpunode", "share", "a", clock), Lease(api, "gpunode", "share", "b", clock)
    a.tend()
    a.release()
    stale = api.get("")
    b.tend()
    monkeypatch.setattr(api, "get", lambda _path: stale)
    a.tend()
    assert (a.leads, b.leads) == (False, True)
