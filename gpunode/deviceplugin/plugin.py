"""Puts the plugin together for one configuration and runs it: discovery, servers, metrics, published status, readiness."""

import asyncio
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpunode.contract.config import Config
from gpunode.contract.status import Reason
from gpunode.contract.usage import PATH

from .cdi import Specs
from .cluster.apiserver import ApiServer
from .cluster.publish import Publisher
from .cordon import Cordons
from .discovery import Discovery
from .gpupage import GpuPage
from .gpus import Handles
from .health import Health, XidPolicy
from .kubelet.podresources import PodResources
from .kubelet.promised import Promised
from .kubelet.reclaim import Reclaim
from .kubelet.server import ResourceServer
from .metrics import Metrics, Sample, render, serving, state_samples
from .mps.report import Follower, status_path
from .state import NodeState
from .threads import Calls
from .watch import GpuWatches

log = logging.getLogger(__name__)


class Readiness:
    """Derives readiness from the state and the servers, by resource."""

    def __init__(self, state: NodeState, servers: Mapping[str, ResourceServer]) -> None:
        self._state = state
        self._servers = servers
        self._logged: Reason | None = None

    def why_not(self) -> Reason | None:
        """Why pods can get nothing here, or None; a new reason is logged.

        A node without GPUs is ready, and so is one with only some GPUs Unhealthy.
        """
        why = self.reason()
        if why is not None and why != self._logged:
            log.info("not ready: %s", why)
        self._logged = why
        return why

    def reason(self) -> Reason | None:
        """The same, not logged."""
        state = self._state
        if state.problem is not None:
            return state.problem
        registered = {name for name, server in self._servers.items() if server.registered}
        waiting = [name for name in state.offers if name not in registered]
        if waiting:
            return self._not_registered(waiting)
        offered = {unit.device.uuid for units in state.offers.values() for unit in units}
        if offered and offered <= state.excluded.keys():
            why = next(iter(state.excluded.values()))
            return Reason(why.code, "; ".join(dict.fromkeys(str(cause) for cause in state.excluded.values())))
        return None

    def _not_registered(self, names: list[str]) -> Reason:
        taken = [name for name in names if name in self._servers and self._servers[name].standing_by]
        if taken:
            which = ", ".join(taken)
            message = (
                f"another device plugin on this node has taken over {which}; remove it: this one stands by"
            )
            return Reason("taken-over", message)
        return Reason("not-registered", f"not registered with the kubelet: {', '.join(names)}")


REPEAT = 3600.0  # seconds after which the status is logged again: a log may have been rotated


async def serve(
    nvml: Any,
    config: Config,
    xid_policy: XidPolicy,
    publisher: Publisher | None = None,
    health: dict[str, Health] | None = None,
    api: ApiServer | None = None,
) -> None:
    """Offer this node's GPUs until cancelled, with one server for each resource.

    `health`, by UUID, is what an earlier configuration knew of the devices; it is updated at the end.
    `api` has the scheduler extender's promises.
    Raises NvmlUnavailable, CannotOffer, CannotListen.
    """
    publisher, health = publisher or Publisher(), {} if health is None else health
    state = NodeState({uuid: known.why for uuid, known in health.items() if known.why is not None})
    metrics, handles = Metrics(), Handles(nvml)
    registrations = asyncio.Event()  # one has come or gone
    specs = Specs(Path(config.cdi_directory)) if config.cdi else None
    pods = PodResources(config.pod_resources_socket)
    promised = _promises(config, pods, state, api)
    servers: dict[str, ResourceServer] = {}
    mps = Follower(status_path(config.mps_root), state) if config.mps else None
    pod_resources, kubelet = Path(config.pod_resources_socket), Path(config.kubelet_socket)
    reclaim = Reclaim(pods, state, pod_resources, kubelet) if config.pod_resources_socket else None
    readiness = Readiness(state, servers)
    watches = GpuWatches(handles, state, config, xid_policy, metrics, health)
    cordons = Cordons(kubelet.parent, state)
    discovery = Discovery(handles, state, config, watches, specs, mps, reclaim, cordons)
    workers: dict[str, Any] = {
        "discovery": discovery,
        "cordons": cordons,
        "reclaim": reclaim,
        "MPS": mps,
        "promises": promised,
    }
    tasks = [asyncio.create_task(each.run(), name=name) for name, each in workers.items() if each]

    hostname, calls = config.node_name or os.uname().nodename, Calls()
    page = GpuPage(handles, state, pods, pods_known=bool(config.pod_resources_socket))

    def probe() -> str | None:
        why = readiness.why_not()
        return None if why is None else why.words

    async def metrics_page() -> str:
        registered: list[Sample] = [
            ("registered", {"resource": name}, float(server.registered)) for name, server in servers.items()
        ]
        from .dcgm import page as figures  # only where somebody scrapes

        users = await pods.samples(state.offers)
        own = render([*metrics.samples(), *state_samples(state), *registered, *users])
        return own + await figures(handles, state.devices, users, metrics.xids, hostname, calls)

    try:
        async with (
            serving(config.probe_address, probe, {PATH: page.text}),
            serving(config.metrics_address, probe, {"/metrics": metrics_page}),
        ):
            again = False
            while True:
                registrations.clear()
                changes = [asyncio.create_task(event.wait()) for event in (state.changed(), registrations)]
                registered = {name: server.registered for name, server in servers.items()}
                publisher.publish(state, config, registered, readiness.reason(), again=again)
                for name in state.offers.keys() - servers.keys():
                    servers[name] = ResourceServer(
                        name, state, config, metrics, specs, registrations.set, promised
                    )
                    tasks.append(asyncio.create_task(servers[name].run(), name=name))
                try:
                    done, _ = await asyncio.wait(
                        (*changes, *tasks), timeout=REPEAT, return_when=asyncio.FIRST_COMPLETED
                    )
                finally:
                    for change in changes:
                        change.cancel()
                again = not done
                for task in tasks:
                    if task.done():
                        task.result()  # a task ends only by an error
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        health.update(watches.health)


def _promises(config: Config, pods: PodResources, state: NodeState, api: ApiServer | None) -> Promised | None:
    if not config.follow_promises or config.memory is None:
        return None
    if api is None:
        from .cluster.incluster import InCluster

        api = InCluster(os.environ, Path(config.service_account_directory))
    return Promised(api, pods, state, config.node_name, config.memory.resource)
