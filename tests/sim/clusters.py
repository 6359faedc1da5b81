"""What the tests of the simulated cluster stand on: its API asked by hand, and hosts that are ready for GPUs."""

import base64
import contextlib
import http.client
import json
import ssl
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from gpunode.sim.host import hosts
from gpunode.sim.host.machine import Machine, RuntimeNow, UnitNow
from gpunode.sim.host.state import State

IMAGE = "plugin:1"
APPLY = "application/apply-patch+yaml"


class Client:
    """Asks an API with the user of a kubeconfig, in bare HTTP: what it answers is judged, not what a library makes of it."""

    def __init__(self, kubeconfig: Path, *, token: str | None = None) -> None:
        config = json.loads(kubeconfig.read_text())
        cluster = config["clusters"][0]["cluster"]
        self.host = cluster["server"].removeprefix("https://")
        trust = base64.b64decode(cluster["certificate-authority-data"]).decode()
        self.trust = ssl.create_default_context(cadata=trust)
        self.trust.verify_flags |= ssl.VERIFY_X509_STRICT  # as Python does it since 3.13
        self.token = config["users"][0]["user"]["token"] if token is None else token

    def ask(
        self,
        method: str,
        path: str,
        body: object = None,
        content: str = "application/json",
        **query: str,
    ) -> tuple[int, Any]:
        """The HTTP status and the object; text where the answer is none; a list of events for a watch."""
        with self.begin(method, path, body, content, **query) as response:
            text = response.read().decode()
        if "watch" in query and response.status == 200:
            return response.status, [json.loads(line) for line in text.splitlines()]
        json_ = response.headers["Content-Type"] == "application/json"
        return response.status, json.loads(text) if json_ else text

    @contextlib.contextmanager
    def begin(
        self,
        method: str,
        path: str,
        body: object = None,
        content: str = "application/json",
        **query: str,
    ) -> Iterator[http.client.HTTPResponse]:
        """The answer, of which the head has come."""
        connection = http.client.HTTPSConnection(self.host, timeout=30, context=self.trust)
        headers = {"Content-Type": content, "Accept": "application/json"}
        if self.token:
            headers["Authorization"] = f"Bearer {self.token}"
        data = body if body is None or isinstance(body, bytes) else json.dumps(body)
        connection.request(method, f"{path}?{urlencode(query)}", data, headers)
        with contextlib.closing(connection):
            yield connection.getresponse()

    def apply(
        self, item: dict[str, Any], path: str, manager: str = "gpunode", **query: str
    ) -> tuple[int, Any]:
        """Server-side apply."""
        return self.ask("PATCH", path, item, APPLY, fieldManager=manager, **query)


def until(condition: Callable[[], Any], seconds: float = 120.0) -> Any:
    """The condition's value once it is true."""
    end = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < end, "it did not come to be in time"
        time.sleep(0.05)
    return value


def ready(demo: Path, machine: Machine) -> State:
    """A host that gpunode has finished with: driver, runtime and image are there."""
    state = hosts.create(demo, machine)
    with state.change() as now:
        now.modules["nvidia"] = now.library = "580.178.04"
        default = "nvidia" if machine.runtime == "docker" else "runc"
        now.runtime = RuntimeNow(["runc", "nvidia"], default)
        now.images[IMAGE] = "sha256:5e1f"
        for name in now.units:
            now.units[name] = UnitNow("active", "running", time.time(), pid=1000 + len(name))
    return state
