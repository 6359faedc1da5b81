"""`python -m gpunode.deviceplugin`: offers this node's GPUs to the kubelet until it is told to stop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from .board import Board
from .config import BadConfig, Config, read
from .directory import Directory
from .health import Attention
from .metrics import Metrics, offered, serving, text
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
    board, metrics = Board(), Metrics()
    servers: dict[str, ResourceServer] = {}
    tasks = [asyncio.create_task(Node(nvml, board, config, attention, metrics).run(), name="node")]

    def state() -> str:
        registered = [
            ("registered", {"resource": name}, float(server.registered)) for name, server in servers.items()
        ]
        return text([*metrics.samples(), *offered(board), *registered])

    def not_ready() -> str | None:
        if board.missing is not None:
            return board.missing
        waiting = [name for name, server in servers.items() if not server.registered]
        return f"not registered with the kubelet: {', '.join(waiting)}" if waiting else None

    try:
        async with serving(config.metrics_address, state, not_ready):
            while True:
                change = asyncio.create_task(board.change().wait())
                for name in board.offers.keys() - servers.keys():
                    servers[name] = ResourceServer(name, board, config, metrics)
                    tasks.append(asyncio.create_task(servers[name].run(), name=name))
                await asyncio.wait((change, *tasks), return_when=asyncio.FIRST_COMPLETED)
                change.cancel()
                for task in tasks:
                    if task.done():
                        task.result()  # none of them ends but by an error
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def until_told(nvml: Any, config: Config, attention: Attention) -> str:
    """Offer until a signal comes or the configuration file changes; says which: a signal's name, or "changed"."""
    loop = asyncio.get_running_loop()
    heard: asyncio.Future[str] = loop.create_future()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
        loop.add_signal_handler(number, _settle, heard, number.name)
    work = asyncio.create_task(offer(nvml, config, attention))
    with contextlib.ExitStack() as watched:
        if config.config_file:
            path = Path(config.config_file)
            before = path.read_bytes()

            def look() -> None:
                with contextlib.suppress(OSError):
                    if path.read_bytes() != before:
                        _settle(heard, "changed")

            watched.enter_context(Directory(path.parent, look))
        try:
            await asyncio.wait((work, heard), return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                work.result()
            return await heard
        finally:
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)


def _settle(heard: asyncio.Future[str], what: str) -> None:
    if not heard.done():
        heard.set_result(what)


def main() -> int:
    """Exit status: 0 after SIGTERM or SIGINT; 1 where NVML or the MIG layout cannot be used; 2 for a bad configuration."""
    import pynvml

    output = logging.StreamHandler(sys.stderr)
    output.setFormatter(Logfmt())
    logging.basicConfig(level=logging.WARNING, handlers=[output])
    try:
        config, attention = read(sys.argv[1:], os.environ), Attention.read(os.environ)
    except BadConfig as error:
        log.critical("%s", error)
        return 2
    while True:
        log.setLevel(config.log_level.upper())
        try:
            told = asyncio.run(until_told(pynvml, config, attention))
        except (NvmlUnavailable, Unfit) as error:
            log.critical("%s (--fail-on-init-error=false: wait for it to be mended instead)", error)
            return 1
        if told not in ("SIGHUP", "changed"):
            log.info("stopping", extra={"signal": told})
            return 0
        try:
            config = read(sys.argv[1:], os.environ)
            log.info("starting anew", extra={"because": told})
        except BadConfig as error:
            log.error("the configuration stays as it was: %s", error)  # noqa: TRY400 (the message is the cause)


if __name__ == "__main__":
    sys.exit(main())
