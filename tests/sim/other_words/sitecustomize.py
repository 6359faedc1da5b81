"""Every sentence of the device plugin, and of gpunode's cluster room, in other words. Python imports this at its start where
PYTHONPATH has the folder."""

from __future__ import annotations

import sys
import zlib

OTHER = "zzz"


def other(words: str) -> str:
    """Another sentence; the same one for the same words."""
    return f"{OTHER} {zlib.crc32(words.encode()):08x}" if words else ""


def _of_plugin() -> None:
    import logging
    from dataclasses import replace
    from typing import Any

    from gpunode.deviceplugin import logfmt, status
    from gpunode.deviceplugin.cluster import events
    from gpunode.deviceplugin.kubelet import allocate

    dumps, add, line = status.dumps, events.PendingEvents.add, logfmt.Logfmt.format

    def reason(found: status.Reason | None) -> status.Reason | None:
        return None if found is None else replace(found, words=other(found.words))

    def document(one: status.Status) -> str:
        changed = replace(
            one,
            problem=reason(one.problem),
            not_ready=reason(one.not_ready),
            lost=tuple(replace(lost, words=other(lost.words)) for lost in one.lost),
            reserved=tuple(replace(held, words=other(held.words)) for held in one.reserved),
            memory_limits={
                gpu: status.Reason(limit.code, other(limit.words)) for gpu, limit in one.memory_limits.items()
            },
        )
        return dumps(changed.refusing(reason(one.configuration.refused)))

    def event(self: Any, item: events.NodeEvent, now: float) -> None:
        add(self, replace(item, message=other(item.message)), now)

    def formatted(self: Any, record: logging.LogRecord) -> str:
        if not record.getMessage().startswith(status.MARK):
            record.msg, record.args = other(record.getMessage()), ()
        return line(self, record)

    def refusal(self: allocate.AllocationRefused, words: str) -> None:
        Exception.__init__(self, other(words))

    status.dumps = document
    events.PendingEvents.add = event  # type: ignore[method-assign]
    logfmt.Logfmt.format = formatted  # type: ignore[method-assign]
    allocate.AllocationRefused.__init__ = refusal  # type: ignore[method-assign]


def _of_cluster() -> None:
    from typing import Any

    from gpunode.cluster.reason import Reason
    from gpunode.errors import ClusterError

    made, failed = Reason.__init__, ClusterError.__init__

    def reason(
        self: Reason, code: str, words: str, holders: Any = (), fix: str = "", subject: str = ""
    ) -> None:
        made(self, code, other(words), holders, other(fix), subject)

    def error(self: ClusterError, words: str, *, hint: str = "", subject: str = "") -> None:
        failed(self, other(words), hint=other(hint), subject=subject)

    Reason.__init__ = reason  # type: ignore[method-assign]
    ClusterError.__init__ = error  # type: ignore[method-assign]


if "gpunode.deviceplugin" in sys.orig_argv:
    _of_plugin()
elif "gpunode" in sys.orig_argv:
    _of_cluster()
