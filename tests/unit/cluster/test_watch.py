"""Waiting outlives what happens to watches."""

from __future__ import annotations

import threading

import pytest

from gpunode.cluster.api import Api
from gpunode.cluster.api.watch import follow
from gpunode.errors import HttpError

from .conftest import add_node
from .fake import FakeApi, Fault, plain


def test_what_is_there_comes_first_and_then_every_change(api: Api, fake: FakeApi) -> None:
    """Added, changed and deleted objects are all seen without asking again."""
    add_node(fake, "a")
    seen = follow(api, "Node", seconds=10)
    assert set(next(seen)) == {"a"}
    add_node(fake, "b")
    assert set(next(seen)) == {"a", "b"}
    fake.drop("/api/v1/nodes/a")
    assert set(next(seen)) == {"b"}
    lists = [one for one in fake.requests if not one[2].get("watch")]
    assert len(lists) == 1
    seen.close()


def test_it_ends_at_the_deadline_and_beats_until_then(api: Api, fake: FakeApi) -> None:
    """Even when nothing changes, the waiting one is woken now and then; and then it is over."""
    assert len(list(follow(api, "Node", seconds=1))) >= 2


@pytest.mark.parametrize(
    "fault",
    [
        Fault(410, "Expired", "too old"),
        Fault(503, "", "starting"),
        plain(502, "Bad Gateway"),
        plain(429, "Too many requests, please try again later."),
        plain(200, "{ rubbish\n"),
        plain(200, "[1]\n"),
        None,
    ],
)
def test_a_broken_watch_is_started_again(
    api: Api, fake: FakeApi, told: list[str], fault: Fault | None
) -> None:
    """An expired version, a restarting API server, a cut connection: listed again, and told."""
    for _ in range(2):  # one cut is mended by the client itself
        fake.fail("GET", "watch=true", fault)
    seen = follow(api, "Node", seconds=10, tell=told.append)
    assert next(seen) == {}
    timer = threading.Timer(0.1, add_node, (fake, "late"))
    timer.start()
    assert any("late" in found for found in seen)
    timer.join()
    assert told
    seen.close()


def test_a_watch_that_is_forbidden_is_an_error(api: Api, fake: FakeApi) -> None:
    """What waiting cannot mend is not waited for."""
    no = 'User "jane" cannot watch resource "nodes" in API group "" at the cluster scope'
    fake.fail("GET", "watch=true", Fault(403, "Forbidden", no))
    with pytest.raises(HttpError, match="does not let the user `jane` watch nodes"):
        list(follow(api, "Node", seconds=10))
