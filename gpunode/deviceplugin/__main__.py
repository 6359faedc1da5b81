"""`python -m gpunode.deviceplugin`: offers this node's GPUs to the kubelet until it is told to stop."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from pathlib import Path
from typing import Any

from .cdi import Specs
from .cluster.events import Event
from .cluster.publish import Publisher
from .health import Attention, Health
from .health.watches import Watches
from .kubelet.podresources import PodResources
from .kubelet.returns import Returns
from .kubelet.server import ResourceServer
from .logfmt import log_to_stderr
from .metrics import CannotListen, Metrics, held, left_out, limited, offered, serving, text
from .mps import files
from .mps.follow import Follower
from .node import Node, NvmlUnavailable
from .offer.board import Board
from .offer.resources import Unfit
from .ready import Ready
from .settings.config import BadConfig, Config
from .source import Source
from .told import AGAIN, CHANGED, Told

log = logging.getLogger("gpunode.deviceplugin")

REPEAT = 3600.0  # seconds after which the status is logged again: a log may have been rotated


async def offer(
    nvml: Any,
    config: Config,
    attention: Attention,
    publisher: Publisher | None = None,
    health: dict[str, Health] | None = None,
) -> None:
    """Run the node and a server for each resource that appears on the board.

    `health` is what is known of devices from before, by UUID, and in the end what is known then.
    """
    publisher, health = publisher or Publisher(), {} if health is None else health
    board = Board({uuid: known.why for uuid, known in health.items() if known.why is not None})
    metrics = Metrics()
    news = asyncio.Event()  # a registration has come or gone
    specs = Specs(Path(config.cdi_directory)) if config.cdi else None
    pods = PodResources(config.pod_resources_socket)
    servers: dict[str, ResourceServer] = {}
    mps = Follower(files.status(config.mps_root), board) if config.mps else None
    theirs, kubelet = Path(config.pod_resources_socket), Path(config.kubelet_socket)
    returns = Returns(pods, board, theirs, kubelet) if config.pod_resources_socket else None
    ready = Ready(board, servers)
    watches = Watches(nvml, board, config, attention, metrics, health)
    node = Node(nvml, board, config, watches, specs, mps, returns)
    tasks = [asyncio.create_task(node.run(), name="node")]
    if returns is not None:
        tasks.append(asyncio.create_task(returns.run(), name="returns"))
    if mps is not None:
        tasks.append(asyncio.create_task(mps.run(), name="MPS"))

    def probe() -> str | None:
        why = ready.why_not()
        return None if why is None else why.words

    async def state() -> str:
        registered = [
            ("registered", {"resource": name}, float(server.registered)) for name, server in servers.items()
        ]
        given = await pods.samples(board.offers)
        return text(
            [
                *metrics.samples(),
                *offered(board),
                *limited(board),
                *left_out(board),
                *held(board),
                *registered,
                *given,
            ]
        )

    try:
        async with serving(config.probe_address, probe), serving(config.metrics_address, probe, state):
            again = False
            while True:
                news.clear()
                changes = [asyncio.create_task(one.wait()) for one in (board.change(), news)]
                registered = {name: server.registered for name, server in servers.items()}
                publisher.publish(board, config, registered, ready.reason(), again=again)
                for name in board.offers.keys() - servers.keys():
                    servers[name] = ResourceServer(name, board, config, metrics, specs, news.set)
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
                        task.result()  # none of them ends but by an error
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        health.update(watches.health)


def main() -> int:
    """Exit status: 0 after SIGTERM or SIGINT; 1 where NVML, the MIG layout or an address cannot be used; 2 for a bad configuration."""
    import pynvml

    log_to_stderr()
    told = Told()
    try:
        source, attention = Source(sys.argv[1:], os.environ), Attention.read(os.environ)
    except BadConfig as error:
        log.critical("%s", error)
        return 2
    publisher = Publisher.of(source.config, os.environ)
    source.refused, source.taken = publisher.refused, publisher.taken
    try:
        return _run(pynvml, source, attention, publisher, told)
    finally:
        publisher.close()


def _run(nvml: Any, source: Source, attention: Attention, publisher: Publisher, told: Told) -> int:
    """Offer with one configuration after the other; the exit status."""
    health: dict[str, Health] = {}
    word = ""
    while True:
        log.setLevel(source.config.log_level.upper())
        log.info("starting anew" if word else "starting", extra={"because": word} if word else {})
        try:
            publisher.begin()
            work = offer(nvml, source.config, attention, publisher, health)
            word = asyncio.run(told.until(work, source))
        except (NvmlUnavailable, Unfit) as error:
            log.critical("%s (--fail-on-init-error=false: wait for it to be mended instead)", error)
            publisher.say(Event("GPUsNotOffered", f"No GPU of this node can be offered: {error}"))
            return 1
        except CannotListen as error:
            log.critical("%s", error)
            return 1
        if word not in (AGAIN, CHANGED):
            log.info("stopping", extra={"signal": word})
            return 0
        if word == AGAIN:
            source.renew()


if __name__ == "__main__":
    sys.exit(main())
