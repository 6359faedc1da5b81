"""`python -m gpunode.deviceplugin`: offers this node's GPUs to the kubelet until it is told to stop."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import time
from typing import Any

from .board import Board
from .config import BadConfig, Config, read
from .health import Attention
from .node import Node, NvmlUnavailable
from .resources import Unfit
from .server import ResourceServer

log = logging.getLogger("gpunode.deviceplugin")


class Logfmt(logging.Formatter):
    """One line an event: time, level, sentence, then the fields given with `extra=` as key=value."""

    _own = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}

    def format(self, record: logging.LogRecord) -> str:
        stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(record.created))
        fields = "".join(f" {key}={value}" for key, value in vars(record).items() if key not in self._own)
        line = f"{stamp} {record.levelname} {record.getMessage()}{fields}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


async def offer(nvml: Any, config: Config, attention: Attention) -> None:
    """Run the node and a server for each resource that appears on the board."""
    board = Board()
    tasks = [asyncio.create_task(Node(nvml, board, config, attention).run(), name="node")]
    served: set[str] = set()
    try:
        while True:
            change = asyncio.create_task(board.change().wait())
            for resource in board.offers.keys() - served:
                served.add(resource)
                tasks.append(
                    asyncio.create_task(ResourceServer(resource, board, config).run(), name=resource)
                )
            await asyncio.wait((change, *tasks), return_when=asyncio.FIRST_COMPLETED)
            change.cancel()
            for task in tasks:
                if task.done():
                    task.result()  # none of them ends but by an error
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def until_signal(nvml: Any, config: Config, attention: Attention) -> signal.Signals:
    """Offer until SIGTERM, SIGINT, SIGQUIT or SIGHUP comes; says which."""
    loop = asyncio.get_running_loop()
    heard: asyncio.Future[signal.Signals] = loop.create_future()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
        loop.add_signal_handler(number, _settle, heard, number)
    work = asyncio.create_task(offer(nvml, config, attention))
    try:
        await asyncio.wait((work, heard), return_when=asyncio.FIRST_COMPLETED)
        if work.done():
            work.result()
        return await heard
    finally:
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)


def _settle(heard: asyncio.Future[signal.Signals], number: signal.Signals) -> None:
    if not heard.done():
        heard.set_result(number)


def main() -> int:
    """Exit status: 0 after SIGTERM or SIGINT; 1 where NVML or the MIG layout cannot be used; 2 for a bad configuration."""
    import pynvml

    output = logging.StreamHandler(sys.stderr)
    output.setFormatter(Logfmt())
    logging.basicConfig(level=logging.INFO, handlers=[output])
    while True:
        try:
            config = read(sys.argv[1:], os.environ)
            attention = Attention.read(os.environ)
        except (BadConfig, ValueError) as error:
            log.critical("%s", error)
            return 2
        logging.getLogger().setLevel(config.log_level.upper())
        try:
            number = asyncio.run(until_signal(pynvml, config, attention))
        except (NvmlUnavailable, Unfit) as error:
            log.critical("%s (--fail-on-init-error=false: wait for it to be mended instead)", error)
            return 1
        if number is not signal.SIGHUP:
            log.info("stopping", extra={"signal": number.name})
            return 0
        log.info("starting anew", extra={"signal": number.name})


if __name__ == "__main__":
    sys.exit(main())
