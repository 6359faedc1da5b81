"""A simulated host's folders of sockets and its pods' address on this computer."""

import os
import secrets
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import gpunode
from gpunode.sim.forkserver import ForkServer
from gpunode.sim.host.machine import Now
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
        variables = {
            "KUBELET_SOCKET": str(self.plugins / "kubelet.sock"),
            "GPUNODE_SIM_ADDRESS": f"{self.address}:{self.port}",
        }
        if own.get("POD_RESOURCES_SOCKET"):
            variables["POD_RESOURCES_SOCKET"] = str(self.resources / "kubelet.sock")
        return variables


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


def _short(link: Path, folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    link.parent.mkdir(exist_ok=True)
    link.unlink(missing_ok=True)
    link.symlink_to(folder)
    return link


def _listens(address: str, port: int = 0) -> bool:
    try:
        socket.create_server((address, port)).close()
    except OSError:
        return False
    return True


# From the device plugin's image (gpunode/links/plugin/image/archive.py): no other program is run for a pod.
ENTRYPOINT, COMMAND = ("python3",), ("-m", "gpunode.deviceplugin")
MODULES = ("gpunode.deviceplugin", "gpunode.deviceplugin.vectoradd")
SLEEP = "import select, sys; select.select([0], [], [], float(sys.argv[1]))"  # or until its kubelet ends
ENVIRONMENT = {"PYTHONUNBUFFERED": "1", "NVIDIA_DRIVER_CAPABILITIES": "compute,utility"}


# What the plugin and vectoradd import.
LOAD = """
import gpunode.deviceplugin.cuda, gpunode.deviceplugin.cluster.incluster, gpunode.deviceplugin.plugin
import gpunode.sim.node.cuda, gpunode.sim.node.nvml
"""


def fork_server() -> ForkServer:
    return ForkServer(LOAD, flags=(), environment={**os.environ, "PYTHONPATH": _path()})


class CannotStart(Exception):
    """The runtime cannot start the container; the message is the runtime's."""


class Container:
    """One life of a container: a Python with `arguments`. Its output goes to `log`."""

    def __init__(
        self, forks: ForkServer, arguments: Sequence[str], environment: Mapping[str, str], log: Path
    ) -> None:
        log.parent.mkdir(parents=True, exist_ok=True)
        stdin, self._stdin = os.pipe()
        try:
            with log.open("wb") as output:
                streams = (stdin, output.fileno(), output.fileno())
                self._process = forks.start(
                    arguments, environment=environment, folder=Path.cwd(), streams=streams
                )
        except OSError:
            os.close(self._stdin)
            raise
        finally:
            os.close(stdin)
        self.log = log
        self.started = time.time()
        self._stopped = 0.0  # when it got SIGTERM; monotonic

    @property
    def stopping(self) -> bool:
        """True once it got SIGTERM."""
        return bool(self._stopped)

    def exit_code(self) -> int | None:
        """The exit status as a shell counts it (137: killed); None while it runs."""
        code = self._process.poll()
        if code is not None and self._stdin >= 0:
            os.close(self._stdin)
            self._stdin = -1
        return code if code is None or code >= 0 else 128 - code

    def stop(self, grace: float) -> None:
        """Send SIGTERM, and SIGKILL after `grace` seconds. To be called until it has ended."""
        if self.exit_code() is not None:
            return
        if not self._stopped:
            self._stopped = time.monotonic()
            self._process.terminate()
        elif time.monotonic() - self._stopped > grace:
            self._process.kill()

    def kill(self) -> None:
        """Send SIGKILL and wait for its end."""
        self._process.kill()
        self._process.wait()
        self.exit_code()


def command_of(spec: Mapping[str, Sequence[str]]) -> list[str]:
    """The container's command line, completed by the image of the device plugin."""
    command = [*(spec.get("command") or ENTRYPOINT)]
    return [*command, *(spec.get("args") or (() if spec.get("command") else COMMAND))]


def arguments_of(spec: Mapping[str, Sequence[str]]) -> list[str]:
    """Python's arguments on this computer. Raises CannotStart for programs that the plugin's image does not have."""
    command = command_of(spec)
    if command[0] in {"python3", "python"} and command[1:2] == ["-m"] and command[2] in MODULES:
        return ["-m", "gpunode.sim.node.inside", *command[2:]]
    if command[1:3] == ["-m", "gpunode.accept"]:  # no kernel of its runs without a GPU
        return ["-m", "gpunode.sim.node.inside", "gpunode.sim.node.accept", *command[3:]]
    if command == ["nvidia-smi"]:
        return ["-m", "gpunode.sim.node.inside", *command]
    if command[1:3] == ["-m", "gpunode.deviceplugin.mps"]:
        raise CannotStart(
            "this host is simulated, and sharing by MPS is not: there is no control daemon to run"
        )
    if command[0] == "sleep" and command[1:2] and command[1].isdigit():
        return ["-c", SLEEP, command[1]]
    if spec.get("name") == "hold":  # of a test pod
        return ["-c", "import sys; sys.stdin.read()"]  # until its kubelet ends
    raise CannotStart(
        "OCI runtime create failed: runc create failed: unable to start container process: "
        f'exec: "{command[0]}": executable file not found in $PATH: unknown'
    )


def environment_of(
    variables: Mapping[str, str], host: Path, now: Now, handler: str, place: Endpoints
) -> dict[str, str]:
    """The process's environment: its image's and its own `variables`, and those of the nvidia runtime.

    Nothing of the host is mounted: variables name the folders and ports on this computer, and the host of the driver.
    Raises CannotStart.
    """
    plain = {"PATH": os.environ.get("PATH", os.defpath), "PYTHONPATH": _path()}
    environment = {
        **plain,
        **ENVIRONMENT,
        **variables,
        **place.variables(variables),
        # the plugin writes there, not to this computer's folder
        "CDI_DIRECTORY": str(host / "root/var/run/cdi"),
    }
    if handler == "nvidia" and environment.get("NVIDIA_VISIBLE_DEVICES", "void") not in {"", "void"}:
        _check_driver(now)
        environment |= {"GPUNODE_SIM_HOST": str(host), "GPUNODE_SIM_LIBRARY": now.library}
    return environment


def _path() -> str:
    """Python's path to gpunode, and what this process was given."""
    inherited = os.environ.get("PYTHONPATH", "")
    return os.pathsep.join((str(Path(gpunode.__file__).parent.parent), inherited)).rstrip(os.pathsep)


def _check_driver(now: Now) -> None:
    """The check of the nvidia runtime's hook. Raises CannotStart without a driver."""
    hook = (
        "OCI runtime create failed: runc create failed: unable to start container process: error during container "
        "init: error running prestart hook #0: exit status 1, stdout: , stderr: Auto-detected mode as 'legacy'\n"
        "nvidia-container-cli: initialization error: "
    )
    if not now.library:
        why = "load library failed: libnvidia-ml.so.1: cannot open shared object file: no such file or directory"
        raise CannotStart(f"{hook}{why}: unknown")
    if "nvidia" not in now.modules:
        raise CannotStart(f"{hook}nvml error: driver not loaded: unknown")
    if now.modules["nvidia"] != now.library:
        raise CannotStart(f"{hook}nvml error: driver/library version mismatch: unknown")
