"""Waiting until the work on a host has ended: its pods, and then every process that uses the GPUs."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

from gpunode.cluster.api import Api
from gpunode.cluster.api.watch import answering
from gpunode.engine import converge, stake
from gpunode.engine.member import Member
from gpunode.engine.visit import Visit
from gpunode.links.node import drain
from gpunode.links.node.drain import Work
from gpunode.model import Event, GpuUser, OnEvent, Outcome
from gpunode.wording import few

LOOK = 5.0  # seconds between two looks at the processes of a host
NAMED = 3


@dataclass(frozen=True, slots=True)
class End:
    """How the wait for a host's work ended. `left`: what still uses the GPUs when the time is over, in words; "" for nothing.
    `outcome`: the host as it was probed then. `spared`: pods that stand still were left there."""

    left: str
    outcome: Outcome
    spared: bool = False


def ended(api: Api | None, one: Member, visit: Visit, tell: OnEvent, stopped: Callable[[], bool]) -> End:
    """Wait until nothing that is work uses the GPUs, as `work` of the host has it."""
    assert one.outcome is not None
    mode, seconds = one.host.work, one.host.work_timeout
    if mode == "kill":
        return End("", one.outcome)

    def sentence(text: str) -> None:
        tell(Event("stage", one.host.name, text))

    end = time.monotonic() + seconds
    services: set[str] | None = (
        None  # pods, by uid and by name: that of a static pod's processes is not its object's
    )
    found: Sequence[Work] = ()
    while True:
        if api and one.node and (services is None or found):  # what stood still may run by now
            node, concerns, boot = one.node.name, _concerns(mode), stake.booted(one)
            seconds, evict, before = max(0.0, end - time.monotonic()), mode == "drain", found
            answering(api, seconds=seconds, tell=sentence)
            found = drain.wait(
                api, node, concerns, evict=evict, seconds=seconds, tell=sentence, stopped=stopped, boot=boot
            )
            if left := [pod for pod in found if not pod.standstill]:
                blocked = "; ".join(pod.obstacle for pod in left if pod.obstacle)
                names = few([pod.name for pod in left], NAMED)
                return End(names + (f" ({blocked})" if blocked else ""), one.outcome)
            services = {key for pod in drain.on_node(api, node) if pod.service for key in (pod.uid, pod.name)}
            if found and not before:
                names = few([f"{pod.name} ({pod.standstill})" for pod in found], NAMED)
                sentence(f"not waited for, as nothing runs there on GPUs: {names}")
        outcome = converge.look(visit, tell)
        users = users_of(outcome.facts.gpu_users if outcome.facts else (), services)
        if not users or time.monotonic() >= end or stopped():
            return End(users, outcome, bool(found))
        sentence(f"waiting for {users} to leave the GPUs")
        time.sleep(LOOK)


def users_of(users: Iterable[GpuUser], services: Collection[str] | None) -> str:
    """Processes that use the GPUs and are no service's. `services` None: pods are not known, and none is waited for."""
    work = [
        one
        for one in stake.work_of(users)
        if (one.pod is None if services is None else one.pod not in services and one.name not in services)
    ]
    return few([str(one) for one in work], NAMED)


def _concerns(mode: str) -> Callable[[Work], bool]:
    return lambda pod: not pod.service and (bool(pod.asks) or mode == "drain")
