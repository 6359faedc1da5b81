"""One operator a cluster: a Lease that the run under way holds and renews.

A holder is alive while its Lease changes; no clocks are compared, as in Kubernetes' leader election (client-go,
tools/leaderelection). A wrong clock takes no Lease from its holder.
"""

import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime, timezone

from gpunode.cluster.api import Api
from gpunode.cluster.api.kinds import Object
from gpunode.cluster.api.watch import OnProgress
from gpunode.errors import AnotherRun, ClusterError, HttpError

NAMESPACE, NAME = "kube-system", "gpunode"
SECONDS = 15  # without renewal, until another may take it
RENEW = 5.0
RETRY = 1.0


class Held:
    """A Lease that this run holds. `lost`: why it holds it no more; nothing new may begin then. `renewed`: the last time, by
    `clock`, at which it certainly held it. `waited`: another run held it before, and may have changed nodes and hosts."""

    def __init__(self, holder: str) -> None:
        self.holder = holder
        self.lost = ""
        self.waited = False
        self.renewed = math.inf  # where there is no Lease
        self.ended = threading.Event()

    @property
    def exclusive(self) -> bool:
        """True if there is a Lease, which excludes other runs."""
        return self.renewed != math.inf

    def lost_reason(self, seconds: float, notify: OnProgress, stopped: Callable[[], bool]) -> str:
        """Why nothing new may begin; "" if no other run can hold the Lease. If it could not be renewed in time, as without an
        API server, another run may have taken it: waits up to `seconds` until that is known."""
        end = clock() + seconds
        while not self.lost and not stopped() and clock() - self.renewed >= SECONDS:
            if clock() >= end:
                self.lost = f"its lease could not be renewed for {seconds / 60:.0f} min"
            notify("waiting for the API server: nothing starts before this run holds the lease")
            time.sleep(RETRY)
        return self.lost


@contextmanager
def hold(api: Api, holder: str, notify: OnProgress) -> Iterator[Held]:
    """Hold the cluster's Lease within the block. Raises AnotherRun with the name of another live holder.

    A Lease that its holder did not renew for SECONDS is taken over. While the API server is away, started hosts continue;
    `Held.lost_reason` is asked before others start.
    """
    held = Held(holder)
    if not api.served.has("Lease"):
        notify(
            "this Kubernetes has no Leases (it is older than 1.12): make sure that no other operator changes its nodes"
        )
        yield held
        return
    held.renewed = clock()
    lease = _acquire(api, held, notify)
    thread = threading.Thread(target=_renew, args=(api, lease, held), name="lease", daemon=True)
    thread.start()
    try:
        yield held
    finally:
        held.ended.set()
        thread.join()
        _release(api, holder)


def holder(api: Api) -> str:
    """The holder of the cluster's Lease, by the API server; "" without one."""
    return _holder_of(api.get("Lease", NAME, NAMESPACE))


def clock() -> float:
    """Seconds that only go forward, also while this computer sleeps (on macOS they do so without the other clock)."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def _acquire(api: Api, held: Held, notify: OnProgress) -> Object:
    holder = held.holder
    seen: tuple[str, float] | None = None  # the version that was seen first, and when
    while True:
        held.renewed = clock()  # before it is asked for: no other run can have it for SECONDS from then
        live = api.get("Lease", NAME, NAMESPACE)
        by = _holder_of(live)
        try:
            if live is None:
                return api.create(_lease(holder, {}))
            if not by:
                return api.replace(_lease(holder, live))
            version = str(live["metadata"]["resourceVersion"])
            if seen is None:
                seen, held.waited = (version, clock()), True
                notify(f"{by} holds the cluster's lease: waiting to see whether it still works")
            elif seen[0] != version:
                raise AnotherRun(
                    f"{by} is changing this cluster's nodes",
                    hint="Wait until it has ended. Two runs at once could disturb more nodes than either of them shows.",
                )
            elif clock() - seen[1] > SECONDS:
                return api.replace(_lease(holder, live))
        except HttpError as error:
            if error.reason not in ("Conflict", "AlreadyExists"):
                raise
            continue  # another client was faster
        time.sleep(RETRY)


def _renew(api: Api, lease: Object, held: Held) -> None:
    while not held.ended.wait(RENEW):
        now = clock()
        try:
            lease = api.replace(_lease(held.holder, lease))
            held.renewed = now
        except HttpError as error:
            if error.reason not in ("Conflict", "NotFound"):
                continue
            with suppress(ClusterError):
                live = api.get("Lease", NAME, NAMESPACE)
                by = _holder_of(live)
                if live is not None and by == held.holder:  # an answer of ours was lost on its way
                    lease = live
                    continue
                held.lost = f"{by or 'another client'} has taken the cluster's lease"
                return
        except ClusterError:
            continue  # the API server is away


def _release(api: Api, holder: str) -> None:
    with suppress(ClusterError):
        live = api.get("Lease", NAME, NAMESPACE)
        if live is not None and _holder_of(live) == holder:
            api.replace(_lease("", live))


def _holder_of(live: Object | None) -> str:
    return str(((live or {}).get("spec") or {}).get("holderIdentity") or "")


def _lease(holder: str, live: Object) -> Object:
    now = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    spec = dict(live.get("spec") or {})
    if spec.get("holderIdentity") != holder:
        spec |= {"acquireTime": now}
    spec |= {"holderIdentity": holder, "leaseDurationSeconds": SECONDS, "renewTime": now}
    meta = {"name": NAME, "namespace": NAMESPACE, **(live.get("metadata") or {})}
    return {"kind": "Lease", "metadata": meta, "spec": spec}
