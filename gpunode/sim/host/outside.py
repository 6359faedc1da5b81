"""Where a simulated host meets this computer: its folders of sockets, and the address of its pods."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gpunode.sim.host.state import State

METRICS = 9400
KUBELET = "var/lib/kubelet"


@dataclass(frozen=True, slots=True)
class Outside:
    """Of one host. The folders have short names here: the path of a socket may have 103 bytes (macOS)."""

    plugins: Path  # /var/lib/kubelet/device-plugins
    resources: Path  # /var/lib/kubelet/pod-resources
    address: str = "127.0.0.1"  # of all its pods
    port: int = 0  # what their servers have in the place of 9400, and the next for 9401; 0: what they ask for

    @property
    def metrics(self) -> str:
        """Where the device plugin's metrics are, if it serves any."""
        return f"http://{self.address}:{self.at(METRICS)}/metrics"

    def at(self, port: int) -> int:
        """What a port that a server of a pod asks for is here."""
        return self.port + port - METRICS if self.port else port

    def variables(self, asked: Mapping[str, str]) -> dict[str, str]:
        """What a container must know of it, beside the variables that its pod asks for."""
        given = {
            "KUBELET_SOCKET": str(self.plugins / "kubelet.sock"),
            "GPUNODE_SIM_ADDRESS": f"{self.address}:{self.port}",
        }
        if asked.get("POD_RESOURCES_SOCKET"):
            given["POD_RESOURCES_SOCKET"] = str(self.resources / "kubelet.sock")
        return given


class Loopback:
    """Addresses for the pods of hosts. Linux's loopback has 16 million, others' one: there, ports make up for it."""

    def __init__(self) -> None:
        # Another for every demo: two stand side by side. 127.0 and 127.1 have those that everybody uses.
        self._network = f"127.{2 + secrets.randbelow(250)}"
        self._many = _listens(f"{self._network}.0.1")

    def host(self, number: int) -> tuple[str, int]:
        """Address and port of the pods of a host, as Outside has them."""
        if self._many:
            return f"{self._network}.{number // 250}.{number % 250 + 1}", 0
        while True:
            with socket.create_server(("127.0.0.1", 0)) as free:
                port = int(free.getsockname()[1])
                if _listens("127.0.0.1", port + 1):
                    return "127.0.0.1", port


def outside(demo: Path, state: State, number: int, loopback: Loopback) -> Outside:
    """That of a demo's host of this number, its folders made."""
    plugins = _short(demo / "s" / str(number), state.root / KUBELET / "device-plugins")
    resources = _short(demo / "r" / str(number), state.root / KUBELET / "pod-resources")
    return Outside(plugins, resources, *loopback.host(number))


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
