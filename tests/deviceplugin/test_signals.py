"""Signals are heard whatever the process does just then."""

import asyncio
import os
import signal
from collections.abc import Iterator

import pytest

from gpunode.deviceplugin.reload import ConfigSource, Signals

NUMBERS = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGHUP)


@pytest.fixture
def signals() -> Iterator[Signals]:
    """This process's signals go to it meanwhile."""
    before = [signal.getsignal(number) for number in NUMBERS]
    yield Signals()
    for number, handler in zip(NUMBERS, before, strict=True):
        signal.signal(number, handler)


def hear(number: signal.Signals) -> None:
    os.kill(os.getpid(), number)


def test_an_end_that_comes_while_the_work_is_being_ended_counts(signals: Signals):
    """SIGTERM right behind SIGHUP: a pod's end comes once, and is not to wait for SIGKILL."""

    async def work() -> None:
        asyncio.get_running_loop().call_soon(hear, signal.SIGHUP)
        try:
            await asyncio.Event().wait()
        finally:
            hear(signal.SIGTERM)

    assert asyncio.run(signals.run(work(), ConfigSource([], {}))) == "SIGTERM"


def test_what_comes_between_two_works_is_heard_by_the_next(signals: Signals):
    """Nobody listens then, and the kernel's own answer to SIGHUP would be to end the process."""

    async def work() -> None:
        await asyncio.Event().wait()

    for number in (signal.SIGHUP, signal.SIGHUP, signal.SIGTERM):
        hear(number)
        assert asyncio.run(signals.run(work(), ConfigSource([], {}))) == number.name


def test_an_end_before_the_first_work_is_one_at_once(signals: Signals):
    """A start may wait for the API server, for long; SIGHUP ends nothing then."""
    hear(signal.SIGHUP)
    with pytest.raises(SystemExit) as ended:
        hear(signal.SIGTERM)
    assert ended.value.code == 0
