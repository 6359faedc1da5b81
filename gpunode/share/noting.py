"""Notes on pods which GPUs they have, where their node publishes others than are noted: the kubelet decides, books follow it."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from gpunode.contract.promises import Demand, Malformed, Part, bound_demand, placement_of
from gpunode.deviceplugin.cluster.apiserver import ApiError

from . import notes
from .api import Api
from .ledger import Ledger, Moved

log = logging.getLogger(__name__)

MOST = 20  # pods noted in a round
PASSED = (404, 409)  # statuses: the pod is gone, or has changed; the next round sees it as it is


class Noting:
    """Writes the annotations of pods that have other GPUs than they are noted on. Until an event shows the new ones both count."""

    def __init__(self, ledger: Ledger, api: Api) -> None:
        self._ledger = ledger
        self._api = api

    def tend(self) -> None:
        """Try each once; a failure is logged, and the next round tries again."""
        for one in self._ledger.moved()[:MOST]:
            try:
                self._note(one)
            except ApiError as error:
                if error.code not in PASSED:
                    log.warning(
                        "%s has other GPUs than noted, which cannot be written: %s", one.promise.pod, error
                    )
                    return

    def _note(self, one: Moved) -> None:
        namespace, _, name = one.promise.pod.partition("/")
        path = f"/api/v1/namespaces/{quote(namespace, safe='')}/pods/{quote(name, safe='')}"
        pod = self._api.get(path)
        meta = pod["metadata"]
        if meta["uid"] != one.uid or (pod.get("spec") or {}).get("nodeName") != one.node:
            return
        written = written_of(pod, one, self._ledger.resource, time.time_ns())
        if written:
            log.info("%s is noted on the GPUs that it has", one.promise.pod)
            same = {key: meta[key] for key in ("uid", "resourceVersion") if key in meta}
            self._api.send("PATCH", f"{path}/status", {"metadata": {**same, "annotations": written}})


def written_of(pod: Mapping[str, Any], one: Moved, resource: str, now: int) -> dict[str, str]:
    """The annotations that place the pod where it is; {} where annotations cannot say so, or not all of it is known."""
    try:
        held = bound_demand(pod, resource)
    except Malformed:
        return {}
    parts = _parts(held, one)
    if parts is None:
        return {}
    found = notes.of(one.node, held, parts, one.gpus, now)
    read = placement_of({"metadata": {"annotations": found}}, one.node, held)
    return found if read is not None and set(read) == set(parts) else {}


def _parts(held: Demand, one: Moved) -> tuple[Part, ...] | None:
    known = {gpu.uuid for gpu in one.gpus}
    parts = tuple(part for ask in held.asks for part in one.promise.has if part.container == ask.container)
    complete = all(
        sum(part.units for part in parts if part.container == ask.container) == ask.units for ask in held.asks
    )
    return parts if parts and complete and not held.init and {part.uuid for part in parts} <= known else None
