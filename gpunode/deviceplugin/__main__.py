# ruff: noqa: E402 (asyncio first)
"""`python -m gpunode.deviceplugin`: offers this node's GPUs to the kubelet until SIGTERM or SIGINT."""

import sys

# asyncio does without TLS, as in a Python without it: OpenSSL is 4 MiB. What speaks to an API server imports it then.
sys.modules.setdefault("ssl", None)  # type: ignore[arg-type]
import asyncio

if sys.modules["ssl"] is None:
    del sys.modules["ssl"]

import logging
import os
from typing import Any

from gpunode.contract.config import BadConfig
from gpunode.contract.offer import CannotOffer

from .cluster.events import NodeEvent
from .cluster.publish import Publisher
from .discovery import NvmlUnavailable
from .health import Health, XidPolicy
from .logfmt import log_to_stderr
from .metrics import CannotListen
from .nvml import Nvml
from .plugin import serve
from .reload import CHANGED, HANGUP, ConfigSource, Signals

log = logging.getLogger("gpunode.deviceplugin")


def main() -> int:
    """Exit status: 0 after SIGTERM or SIGINT; 1 where NVML, the MIG layout or an address cannot be used; 2 for a bad configuration."""
    log_to_stderr()
    signals = Signals()
    try:
        source, xid_policy = ConfigSource(sys.argv[1:], os.environ), XidPolicy.read(os.environ)
    except BadConfig as error:
        log.critical("%s", error)
        return 2
    publisher = Publisher.of(source.config, os.environ)
    source.on_refused, source.on_accepted = publisher.config_refused, publisher.config_accepted
    try:
        return _run(Nvml(), source, xid_policy, publisher, signals)
    finally:
        publisher.close()


def _run(
    nvml: Any, source: ConfigSource, xid_policy: XidPolicy, publisher: Publisher, signals: Signals
) -> int:
    """The exit status, after serving one configuration after the other."""
    health: dict[str, Health] = {}
    cause = ""
    while True:
        log.setLevel(source.config.log_level.upper())
        log.info("starting again" if cause else "starting", extra={"because": cause} if cause else {})
        try:
            publisher.begin()
            work = serve(nvml, source.config, xid_policy, publisher, health)
            cause = asyncio.run(signals.run(work, source))
        except (NvmlUnavailable, CannotOffer) as error:
            log.critical("%s (to wait until this is fixed instead: --fail-on-init-error=false)", error)
            publisher.publish_event(
                NodeEvent("GPUsNotOffered", f"No GPU of this node can be offered: {error}")
            )
            return 1
        except CannotListen as error:
            log.critical("%s", error)
            return 1
        if cause not in (HANGUP, CHANGED):
            log.info("stopping", extra={"signal": cause})
            return 0
        if cause == HANGUP:
            source.reload()


if __name__ == "__main__":
    sys.exit(main())
