"""Which of the replicas leads: a Lease that it renews, as in client-go's tools/leaderelection.

No clocks of two machines are compared: a holder is alive while its Lease changes.
"""

import logging
import time
from collections.abc import Callable
from datetime import datetime, timezone

from gpunode.deviceplugin.cluster.apiserver import ApiError, ApiServer, Object

log = logging.getLogger(__name__)

SECONDS = 20  # without renewal, until another may take it
SURE = 8.0  # seconds after a renewal in which this one leads
# Seconds for each part of a binding that it began then: connection, TLS, answer, and the API server's own work. All of it
# ends before another may lead: SURE + 4 * ANSWER <= SECONDS.
ANSWER = 3.0
RENEW = 2.0


class Lease:
    """The Lease `name` in `namespace`, for the candidate `me`. For one thread, but for `leads`."""

    def __init__(
        self, api: ApiServer, namespace: str, name: str, me: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._api = api
        self._collection = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
        self._name = name
        self._me = me
        self._clock = clock
        self._renewed = float("-inf")
        self._seen: tuple[object, object] = (None, None)  # holder and version of the Lease
        self._since = clock()  # when it was first seen so

    @property
    def leads(self) -> bool:
        """True if no other replica can lead now."""
        return self._clock() < self._renewed + SURE

    def tend(self) -> None:
        """Renew the Lease, or take one that no replica renews; a failure is logged. Call it every RENEW seconds."""
        began = self._clock()
        try:
            if self._try():
                self._renewed = began
        except ApiError as error:
            log.warning("the lease cannot be renewed: %s", error)

    def release(self) -> None:
        """Let another lead at once."""
        self._renewed = float("-inf")
        try:
            lease = self._api.get(f"{self._collection}/{self._name}")
            if lease["spec"].get("holderIdentity") == self._me:
                self._put(lease, "")
        except (ApiError, LookupError) as error:
            log.warning("the lease is not released: %s", error)

    def _try(self) -> bool:
        """Try to take or renew it; True if this candidate holds it then."""
        try:
            lease = self._api.get(f"{self._collection}/{self._name}")
        except ApiError as error:
            if error.code != 404:
                raise
            meta = {"name": self._name, "labels": {"app.kubernetes.io/managed-by": "gpunode"}}
            lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": meta}
            self._api.send("POST", self._collection, lease | {"spec": self._spec(self._me)})
            return True
        holder = (lease.get("spec") or {}).get("holderIdentity") or ""
        now = holder, lease["metadata"]["resourceVersion"]
        if now != self._seen:
            self._seen, self._since = now, self._clock()
        if holder not in ("", self._me) and self._clock() < self._since + SECONDS:
            return False
        try:
            self._put(lease, self._me)
        except ApiError as error:
            if error.code == 409:  # another was faster
                return False
            raise
        return True

    def _put(self, lease: Object, holder: str) -> None:
        """Refused (409) if it has changed since it was read."""
        self._api.send("PUT", f"{self._collection}/{self._name}", lease | {"spec": self._spec(holder)})

    def _spec(self, holder: str) -> Object:
        stamp = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        return {"holderIdentity": holder, "leaseDurationSeconds": SECONDS, "renewTime": stamp}
