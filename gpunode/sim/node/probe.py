"""The readiness probe of a container, over HTTP as a kubelet's."""

from __future__ import annotations

import http.client
import time

from gpunode.sim.apiserver.store import Object
from gpunode.sim.host.endpoints import Endpoints

SECONDS = 1.0  # that the simulation waits for an answer; its kubelet does nothing else meanwhile


class Probe:
    """Whether one life of a container is ready. `place` has its address on this computer."""

    def __init__(self, spec: Object, place: Endpoints) -> None:
        self._place = place
        self._spec = spec.get("readinessProbe") or {}
        self._due = time.monotonic() + self._spec.get("initialDelaySeconds", 0)
        self._failed = 0  # times in a row
        self.ready = "httpGet" not in self._spec

    def probe(self) -> str:
        """Probe if the period has passed; returns the kubelet's message if that failed, else ""."""
        if "httpGet" not in self._spec or time.monotonic() < self._due:
            return ""
        self._due = time.monotonic() + self._spec["periodSeconds"]
        why = self._get()
        self._failed = self._failed + 1 if why else 0
        if not why or self._failed >= self._spec["failureThreshold"]:
            self.ready = not why
        return f"Readiness probe failed: {why}" if why else ""

    def _get(self) -> str:
        port, path = self._spec["httpGet"]["port"], self._spec["httpGet"]["path"]
        address = self._place.address
        connection = http.client.HTTPConnection(address, self._place.at(port), timeout=SECONDS)
        try:
            connection.request("GET", path)
            status = connection.getresponse().status
        except OSError as error:
            return f'Get "http://{address}:{port}{path}": {str(error.strerror or error).lower()}'
        except http.client.HTTPException as error:
            return f'Get "http://{address}:{port}{path}": {error}'
        finally:
            connection.close()
        return "" if 200 <= status < 400 else f"HTTP probe failed with statuscode: {status}"
