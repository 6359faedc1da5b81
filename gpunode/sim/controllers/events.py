"""Events about objects. A repeated one increases `count`."""

from __future__ import annotations

import time

from gpunode.sim.apiserver.store import Object, Store, key, now


def record(
    store: Store, about: Object, component: str, kind: str, reason: str, message: str, host: str = ""
) -> None:
    """Record an event of `kind` Normal or Warning about an object."""
    meta = about["metadata"]
    namespace = meta.get("namespace", "default")
    identity = (namespace, meta.get("uid", meta["name"]), component, reason, message)
    with store.changed:
        # named by time: lists show them in their order
        name = store.events.setdefault(identity, f"{meta['name']}.{time.time_ns():x}")
        there = store.get("Event", namespace, name)
        if there is not None:
            store.put({**there, "count": there["count"] + 1, "lastTimestamp": now()})
            return
        place = store.get("Namespace", "", namespace)
        if place is None or "deletionTimestamp" in place["metadata"]:
            return  # no new object is allowed in it
        about_kind, _, about_name = key(about)
        store.put(
            {
                "kind": "Event",
                "apiVersion": "v1",
                "metadata": {"name": name, "namespace": namespace},
                "involvedObject": {
                    "kind": about_kind,
                    "name": about_name,
                    # the kubelet knows its node by name only
                    "uid": about_name if about_kind == "Node" else meta.get("uid", ""),
                    **({"namespace": namespace} if meta.get("namespace") else {}),
                },
                "reason": reason,
                "message": message,
                "source": {"component": component, **({"host": host} if host else {})},
                "firstTimestamp": now(),
                "lastTimestamp": now(),
                "count": 1,
                "type": kind,
                "eventTime": None,
                "reportingComponent": component,
                "reportingInstance": host,
            }
        )
