"""Many hosts at once. One host's failure is a result, never an exception."""

from __future__ import annotations

import queue
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import TypeAlias

from gpunode.errors import HostError, Refused, Unreachable
from gpunode.model import Event, Host, Outcome, Status

Tell: TypeAlias = Callable[[Event], None]
Story: TypeAlias = Callable[[Host, Tell], Outcome]


def run(
    hosts: Sequence[Host],
    story: Story,
    *,
    forks: int,
    batch: int | None = None,
    max_fail: int | None = None,
) -> Iterator[Event | Outcome]:
    """Tell `story` of every host, `forks` at a time; yields their events as they happen and one Outcome each.

    `batch` hosts are finished before the next begin. When more than `max_fail` hosts have failed or been lost, no
    further batch is begun and the hosts left are reported as not tried. KeyboardInterrupt leaves what is running on the
    hosts to go on there.
    """
    size = batch or len(hosts) or 1
    failed = 0
    for start in range(0, len(hosts), size):
        part = hosts[start : start + size]
        if max_fail is not None and failed > max_fail:
            for host in part:
                yield Outcome(
                    host.name,
                    "failed",
                    error=f"not tried: {failed} hosts before it failed",
                    hint="Mend those, then run again; nothing was changed here.",
                )
            continue
        for item in _batch(part, story, forks):
            if isinstance(item, Outcome) and item.status in ("failed", "unreachable"):
                failed += 1
            yield item


def _batch(hosts: Sequence[Host], story: Story, forks: int) -> Iterator[Event | Outcome]:
    results: queue.SimpleQueue[Event | Future[Outcome]] = queue.SimpleQueue()
    pool = ThreadPoolExecutor(max_workers=max(1, min(forks, len(hosts))), thread_name_prefix="host")
    try:
        for host in hosts:
            pool.submit(_guarded, host, story, results.put).add_done_callback(results.put)
        left = len(hosts)
        while left:
            item = results.get()
            if isinstance(item, Event):
                yield item
            else:
                left -= 1
                yield item.result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _guarded(host: Host, story: Story, tell: Tell) -> Outcome:
    start = time.monotonic()
    try:
        outcome = story(host, tell)
    except HostError as error:
        outcome = failure(error)
    except Exception as error:  # noqa: BLE001 - the other hosts' stories go on
        outcome = _mistake(host, error)
    return replace(outcome, seconds=time.monotonic() - start)


def _mistake(host: Host, error: Exception) -> Outcome:
    """What no code expected, with its traceback."""
    lines = "".join(traceback.format_exception(error)).rstrip()
    return Outcome(
        host.name,
        "failed",
        error=f"a mistake in gpunode: {type(error).__name__}: {error}\n{lines}",
        hint="Please report it with these lines; what was begun on this host goes on there.",
    )


def failure(error: HostError) -> Outcome:
    """An error of one host as its outcome."""
    status: Status = "failed"
    if isinstance(error, Unreachable):
        status = "unreachable"
    elif isinstance(error, Refused):
        status = "refused"
    return Outcome(error.host, status, error=error.message, hint=error.hint)
