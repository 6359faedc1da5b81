"""Puts the plugin together for one configuration and runs it: discovery, servers, metrics, published status."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

from gpunode.contract.config import Config
from gpunode.contract.usage import PATH

from .cdi import Specs
from .cluster.apiserver import InCluster
from .cluster.follow import Reads
from .cluster.publish import Publisher
from .discovery import Discovery
from .gpupage import GpuPage
from .gpus.handles import Handles
from .health import Health, XidPolicy
from .health.watches import GpuWatches
from .kubelet.podresources import PodResources
from .kubelet.promised import Promised
from .kubelet.reclaim import Reclaim
from .kubelet.server import ResourceServer
from .metrics import (
    Metrics,
    Sample,
    memory_limit_samples,
    not_offered_samples,
    render,
    reserved_samples,
    serving,
    unit_samples,
)
from .mps.follower import Follower
from .offer.state import NodeState
from .readiness import Readiness
from .settings import mps_paths

REPEAT = 3600.0  # seconds after which the status is logged again: a log may have been rotated


async def serve(
    nvml: Any,
    config: Config,
    xid_policy: XidPolicy,
    publisher: Publisher | None = None,
    health: dict[str, Health] | None = None,
    api: Reads | None = None,
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
    promised = _promised(config, pods, state, api)
    servers: dict[str, ResourceServer] = {}
    mps = Follower(mps_paths.status(config.mps_root), state) if config.mps else None
    pod_resources, kubelet = Path(config.pod_resources_socket), Path(config.kubelet_socket)
    reclaim = Reclaim(pods, state, pod_resources, kubelet) if config.pod_resources_socket else None
    readiness = Readiness(state, servers)
    watches = GpuWatches(handles, state, config, xid_policy, metrics, health)
    discovery = Discovery(handles, state, config, watches, specs, mps, reclaim)
    tasks = [asyncio.create_task(discovery.run(), name="discovery")]
    if reclaim is not None:
        tasks.append(asyncio.create_task(reclaim.run(), name="reclaim"))
    if mps is not None:
        tasks.append(asyncio.create_task(mps.run(), name="MPS"))
    if promised is not None:
        tasks.append(asyncio.create_task(promised.run(), name="promises"))

    page = GpuPage(handles, state, pods, pods_known=bool(config.pod_resources_socket))

    def probe() -> str | None:
        why = readiness.why_not()
        return None if why is None else why.words

    async def metrics_page() -> str:
        registered: list[Sample] = [
            ("registered", {"resource": name}, float(server.registered)) for name, server in servers.items()
        ]
        return render(
            [
                *metrics.samples(),
                *unit_samples(state),
                *memory_limit_samples(state),
                *not_offered_samples(state),
                *reserved_samples(state),
                *registered,
                *await pods.samples(state.offers),
            ]
        )

    try:
        async with (
            serving(config.probe_address, probe, {PATH: page.text}),
            serving(config.metrics_address, probe, {"/metrics": metrics_page}),
        ):
            again = False
            while True:
                registrations.clear()
                changes = [asyncio.create_task(one.wait()) for one in (state.changed(), registrations)]
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


def _promised(config: Config, pods: PodResources, state: NodeState, api: Reads | None) -> Promised | None:
    if not config.follow_promises or config.memory is None:
        return None
    if api is None:
        api = InCluster(os.environ, Path(config.service_account_directory))
    return Promised(api, pods, state, config.node_name, config.memory.resource)
