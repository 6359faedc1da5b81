"""A container of a simulated node: a real process with the environment that its runtime would give it."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import gpunode
from gpunode.sim.forkserver import ForkServer
from gpunode.sim.host.machine import Now
from gpunode.sim.node.endpoints import Endpoints

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
    """The server of the processes of containers."""
    return ForkServer(LOAD, flags=(), environment={**os.environ, "PYTHONPATH": _path()})


class CannotStart(Exception):
    """The runtime cannot start the container; the message is the runtime's."""


class Container:
    """One life of a container, a Python with arguments `words`. Its output goes to `log`."""

    def __init__(
        self, forks: ForkServer, words: Sequence[str], environment: Mapping[str, str], log: Path
    ) -> None:
        log.parent.mkdir(parents=True, exist_ok=True)
        stdin, self._stdin = os.pipe()
        try:
            with log.open("wb") as output:
                streams = (stdin, output.fileno(), output.fileno())
                self._process = forks.start(
                    words, environment=environment, folder=Path.cwd(), streams=streams
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

    def ended(self) -> int | None:
        """The exit status as a shell counts it (137: killed); None while it runs."""
        code = self._process.poll()
        if code is not None and self._stdin >= 0:
            os.close(self._stdin)
            self._stdin = -1
        return code if code is None or code >= 0 else 128 - code

    def stop(self, grace: float) -> None:
        """Send SIGTERM, and SIGKILL after `grace` seconds. To be called until it has ended."""
        if self.ended() is not None:
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
        self.ended()


def command_of(spec: Mapping[str, Sequence[str]]) -> list[str]:
    """The container's command line, completed by the image of the device plugin."""
    command = [*(spec.get("command") or ENTRYPOINT)]
    return [*command, *(spec.get("args") or (() if spec.get("command") else COMMAND))]


def words_of(spec: Mapping[str, Sequence[str]]) -> list[str]:
    """Python's arguments on this computer. Raises CannotStart for programs that the plugin's image does not have."""
    command = command_of(spec)
    if command[0] in {"python3", "python"} and command[1:2] == ["-m"] and command[2] in MODULES:
        return ["-m", "gpunode.sim.node.inside", *command[2:]]
    if command == ["nvidia-smi"]:
        return ["-m", "gpunode.sim.node.inside", *command]
    if command[1:3] == ["-m", "gpunode.deviceplugin.mps"]:
        raise CannotStart(
            "this host is simulated, and sharing by MPS is not: there is no control daemon to run"
        )
    if command[0] == "sleep" and command[1:2] and command[1].isdigit():
        return ["-c", SLEEP, command[1]]
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
    given = {
        **plain,
        **ENVIRONMENT,
        **variables,
        **place.variables(variables),
        # the plugin writes there, not to this computer's folder
        "CDI_DIRECTORY": str(host / "root/var/run/cdi"),
    }
    if handler == "nvidia" and given.get("NVIDIA_VISIBLE_DEVICES", "void") not in {"", "void"}:
        _check_driver(now)
        given |= {"GPUNODE_SIM_HOST": str(host), "GPUNODE_SIM_LIBRARY": now.library}
    return given


def _path() -> str:
    """Python's path to gpunode, and what this process was given."""
    given = os.environ.get("PYTHONPATH", "")
    return os.pathsep.join((str(Path(gpunode.__file__).parent.parent), given)).rstrip(os.pathsep)


def _check_driver(now: Now) -> None:
    """The check of the nvidia runtime's hook. Raises CannotStart without a driver."""
    hook = (
        "OCI runtime create failed: runc create failed: unable to start container process: error during container "
        "init: error running prestart hook #0: exit status 1, stdout: , stderr: Auto-detected mode as 'legacy' "
        "nvidia-container-cli: initialization error: "
    )
    if not now.library:
        why = "load library failed: libnvidia-ml.so.1: cannot open shared object file: no such file or directory"
        raise CannotStart(f"{hook}{why}: unknown")
    if "nvidia" not in now.modules:
        raise CannotStart(f"{hook}nvml error: driver not loaded: unknown")
    if now.modules["nvidia"] != now.library:
        raise CannotStart(f"{hook}nvml error: driver/library version mismatch: unknown")
