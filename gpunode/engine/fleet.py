"""Many hosts at once. One host's failure is an outcome, never an exception."""

from __future__ import annotations

import queue
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import TypeAlias

from gpunode.errors import AgentUnusable, HostError, Problem, Refused, Unreachable
from gpunode.model import Event, Host, OnEvent, Outcome, Status

Task: TypeAlias = Callable[[Host, OnEvent], Outcome]


def run(hosts: Sequence[Host], task: Task, *, forks: int) -> Iterator[Event | Outcome]:
    """Run `task` on every host, `forks` at a time; yields their events as they happen and one Outcome each.

    KeyboardInterrupt leaves work that runs on the hosts running.
    """
    results: queue.SimpleQueue[Event | Future[Outcome]] = queue.SimpleQueue()
    pool = ThreadPoolExecutor(max_workers=max(1, min(forks, len(hosts))), thread_name_prefix="host")
    try:
        for host in hosts:
            pool.submit(_guarded, host, task, results.put).add_done_callback(results.put)
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


def _guarded(host: Host, task: Task, on_event: OnEvent) -> Outcome:
    start = time.monotonic()
    try:
        outcome = task(host, on_event)
    except HostError as error:
        outcome = failure(error)
    except Exception as error:  # noqa: BLE001 - the other hosts' stories go on
        outcome = _bug(host, error)
    return replace(outcome, seconds=time.monotonic() - start)


def _bug(host: Host, error: Exception) -> Outcome:
    """An exception that no code expects, with its traceback."""
    lines = "".join(traceback.format_exception(error)).rstrip()
    return Outcome(
        host.name,
        "failed",
        problem=Problem(
            "",
            f"a bug in gpunode: {type(error).__name__}: {error}\n{lines}",
            fix="Please report it with this traceback. Work already started on the host continues.",
        ),
    )


def failure(error: HostError) -> Outcome:
    """The outcome of a host that raised this error."""
    status: Status = "failed"
    if isinstance(error, Unreachable):
        status = "unreachable"
    elif isinstance(error, Refused):
        status = "refused"
    install = error.install if isinstance(error, AgentUnusable) else ""
    return Outcome(error.host, status, problem=error.problem, install=install)
