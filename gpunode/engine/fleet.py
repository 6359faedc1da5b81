"""Many hosts at once, each over its one connection. One host's failure is an outcome, never an exception."""

import queue
import time
import traceback
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any, TypeAlias

from gpunode.engine import chain
from gpunode.errors import (
    AgentFailed,
    AgentUnusable,
    HostError,
    Problem,
    Refused,
    UnexpectedAnswer,
    Unreachable,
)
from gpunode.host import reach, wire
from gpunode.local.password import Password
from gpunode.model import Event, Facts, Host, OnEvent, Outcome, PluginImage, Status
from gpunode.packages import hint_of
from gpunode.wording import BUG, advise

Task: TypeAlias = Callable[[Host, OnEvent], Outcome]


def run(hosts: Sequence[Host], task: Task, *, forks: int) -> Iterator[Event | Outcome]:
    """Run `task` on every host, `forks` at a time; yields their events as they happen and one Outcome each.

    KeyboardInterrupt leaves work that runs on the hosts running.
    """
    results: queue.SimpleQueue[Event | Future[Outcome]] = queue.SimpleQueue()
    pool = ThreadPoolExecutor(max_workers=max(1, min(forks, len(hosts))), thread_name_prefix="host")
    try:
        for host in hosts:
            pool.submit(_run_task, host, task, results.put).add_done_callback(results.put)
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


def _run_task(host: Host, task: Task, emit: OnEvent) -> Outcome:
    start = time.monotonic()
    try:
        outcome = task(host, emit)
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
            fix=advise(f"Work already started on the host continues. {BUG}"),
        ),
    )


def failure(error: HostError) -> Outcome:
    status: Status = "failed"
    if isinstance(error, Unreachable):
        status = "unreachable"
    elif isinstance(error, Refused):
        status = "refused"
    install = error.install if isinstance(error, AgentUnusable) else ""
    return Outcome(error.host, status, problem=error.problem, install=install)


INSTALL_SECONDS = 900.0  # for a package manager that installs Python

Planner: TypeAlias = Callable[[Facts], Outcome]
Dial = Callable[[Host], reach.Connection]


class Visit:
    """A host during a run, with its one connection: opened by the first job, kept until closed."""

    def __init__(
        self, host: Host, dial: Dial, image: PluginImage | None, password: Password | None = None
    ) -> None:
        self.host = host
        self.image = image
        self.install = ""  # the command by which the host gets a Python first, where it has none
        self.watch = replace(chain.watch(image), mig=bool(host.mig))
        # Of commands that make a host other than the inventory has it: called once, before the first probe.
        self.choose_planner: Callable[[Visit], Planner] | None = None
        self.planner: Planner | None = None
        # Of a planner that rests on the host's journal: the applies that it knows, and the run that it undoes.
        self.known: tuple[str, ...] | None = None
        self.undoes = ""
        self._dial = dial
        self._password = password
        self._connection: reach.Connection | None = None

    def ask(
        self, job: Mapping[str, Any], archives: Sequence[str] = ()
    ) -> Generator[dict[str, Any], None, None]:
        """Run one job with the agent; yields its messages, read. Raises AgentFailed when the agent refuses the job, or for a message
        that no agent sends."""
        if self._connection is None:
            self._connection = self._dial(self.host)
        try:
            for message in reach.talk(
                self.host,
                self._connection,
                job,
                archives=archives,
                password=self._password,
                install=self.install,
                silence=INSTALL_SECONDS if self.install else reach.SILENT_SECONDS,
            ):
                try:
                    known = wire.read(message)
                except UnexpectedAnswer as error:
                    raise unexpected_answer(self.host, error) from error
                if known["type"] == "failed" and known["n"] is None:
                    code = known["code"]
                    raise AgentFailed(self.host.name, known["error"], hint=hint_of(code), code=code)
                yield known
        except Unreachable:
            self.close()
            raise

    def close(self) -> None:
        """Close the connection; the next `ask` opens a new one."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def unexpected_answer(host: Host, error: UnexpectedAnswer) -> AgentFailed:
    """The failure of a host with an answer that the agent never gives."""
    return AgentFailed(
        host.name,
        f"the host answered {error}",
        hint="gpunode's agent did not answer. Check that python3 on the host is Python, and that its login shell prints nothing.",
    )
