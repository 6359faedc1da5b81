"""A simulated host's folders of sockets and its pods' address on this computer."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gpunode.sim.host.state import State

METRICS = 9400
NODE_ADDRESS = "127.0.0.1"
KUBELET = "var/lib/kubelet"


@dataclass(frozen=True, slots=True)
class Endpoints:
    """The endpoints of one host. The folders have short names: the path of a socket may have 103 bytes (macOS)."""

    plugins: Path  # /var/lib/kubelet/device-plugins
    resources: Path  # /var/lib/kubelet/pod-resources
    address: str = "127.0.0.1"  # of all its pods
    port: int = 0  # replaces 9400, and the next one 9401; 0: ports are not replaced

    @property
    def metrics(self) -> str:
        """The URL of the device plugin's metrics, if it serves any."""
        return f"http://{self.address}:{self.at(METRICS)}/metrics"

    def at(self, port: int) -> int:
        """The port on this computer for a port of a pod's server."""
        return self.port + port - METRICS if self.port else port

    def variables(self, own: Mapping[str, str]) -> dict[str, str]:
        """The variables that tell a container its endpoints, in addition to its `own`."""
        given = {
            "KUBELET_SOCKET": str(self.plugins / "kubelet.sock"),
            "GPUNODE_SIM_ADDRESS": f"{self.address}:{self.port}",
        }
        if own.get("POD_RESOURCES_SOCKET"):
            given["POD_RESOURCES_SOCKET"] = str(self.resources / "kubelet.sock")
        return given


class Loopback:
    """Addresses for the pods of hosts. Linux's loopback has 16 million; elsewhere it has one, and ports differ."""

    def __init__(self) -> None:
        # Another block of a thousand addresses for every demo: many may run at the same time. 127.0 and 127.1 are in common use.
        self._network, self._block = f"127.{2 + secrets.randbelow(250)}", 4 * secrets.randbelow(62)
        self._many = _listens(f"{self._network}.{self._block}.1")

    def host(self, number: int) -> tuple[str, int]:
        """Address and port of the pods of a host, as in Endpoints."""
        if self._many:
            return f"{self._network}.{self._block + number // 250}.{number % 250 + 1}", 0
        while True:
            with socket.create_server(("127.0.0.1", 0)) as free:
                port = int(free.getsockname()[1])
                if _listens("127.0.0.1", port + 1):
                    return "127.0.0.1", port


def endpoints(demo: Path, state: State, number: int, loopback: Loopback) -> Endpoints:
    """The endpoints of a demo's host of this number; creates their folders."""
    plugins = _short(demo / "s" / str(number), state.root / KUBELET / "device-plugins")
    resources = _short(demo / "r" / str(number), state.root / KUBELET / "pod-resources")
    return Endpoints(plugins, resources, *loopback.host(number))


def _short(link: Path, there: Path) -> Path:
    there.mkdir(parents=True, exist_ok=True)
    link.parent.mkdir(exist_ok=True)
    link.unlink(missing_ok=True)
    link.symlink_to(there)
    return link


def _listens(address: str, port: int = 0) -> bool:
    try:
        socket.create_server((address, port)).close()
    except OSError:
        return False
    return True
