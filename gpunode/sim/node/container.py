"""A container of a simulated node: a real process, started with what its runtime would have given it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import gpunode
from gpunode.sim.host.machine import Now
from gpunode.sim.host.outside import Outside

# What the image of the device plugin brings (its Dockerfile): no other program is ever run for a pod.
ENTRYPOINT, COMMAND = ("python3",), ("-m", "gpunode.deviceplugin")
MODULES = ("gpunode.deviceplugin", "gpunode.deviceplugin.vectoradd")
SLEEP = "import select, sys; select.select([0], [], [], float(sys.argv[1]))"  # or until its kubelet is gone
ENVIRONMENT = {"PYTHONUNBUFFERED": "1", "NVIDIA_DRIVER_CAPABILITIES": "compute,utility"}


class CannotStart(Exception):
    """A container that its runtime cannot start; says why, in the runtime's words."""


class Container:
    """One life of a container. Its output goes to `log`."""

    def __init__(self, words: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                words, stdin=subprocess.PIPE, stdout=output, stderr=output, env=dict(environment)
            )
        self.log = log
        self.started = time.time()
        self._asked = 0.0  # when it was asked to end

    @property
    def asked(self) -> bool:
        """Whether it was asked to end."""
        return bool(self._asked)

    def ended(self) -> int | None:
        """The exit status as a shell counts it (137: killed); None while it runs."""
        code = self._process.poll()
        if code is not None and self._process.stdin:
            self._process.stdin.close()
        return code if code is None or code >= 0 else 128 - code

    def stop(self, grace: float) -> None:
        """Ask it to end, and end it when it has not after `grace` seconds. To be called until it has ended."""
        if self.ended() is not None:
            return
        if not self._asked:
            self._asked = time.monotonic()
            self._process.terminate()
        elif time.monotonic() - self._asked > grace:
            self._process.kill()

    def kill(self) -> None:
        """End it at once, and wait until it has."""
        self._process.kill()
        self._process.wait()
        self.ended()


def asked_for(spec: Mapping[str, Sequence[str]]) -> list[str]:
    """The command line that a pod asks for, completed by the plugin's image."""
    asked = [*(spec.get("command") or ENTRYPOINT)]
    return [*asked, *(spec.get("args") or (() if spec.get("command") else COMMAND))]


def words_of(spec: Mapping[str, Sequence[str]]) -> list[str]:
    """The command line of a container of the plugin's image. Raises CannotStart for programs that it has not."""
    asked = asked_for(spec)
    if asked[0] in {"python3", "python"} and asked[1:2] == ["-m"] and asked[2] in MODULES:
        return [sys.executable, "-m", "gpunode.sim.node.inside", *asked[2:]]
    if asked[1:3] == ["-m", "gpunode.deviceplugin.mps"]:
        raise CannotStart(
            "this host is simulated, and sharing by MPS is not: there is no control daemon to run"
        )
    if asked[0] == "sleep" and asked[1:2] and asked[1].isdigit():
        return [sys.executable, "-S", "-c", SLEEP, asked[1]]
    raise CannotStart(
        "OCI runtime create failed: runc create failed: unable to start container process: "
        f'exec: "{asked[0]}": executable file not found in $PATH: unknown'
    )


def environment_of(
    asked: Mapping[str, str], host: Path, now: Now, handler: str, place: Outside
) -> dict[str, str]:
    """What the process sees: its image's and its own variables, and what the nvidia runtime puts into a container.

    There is no mount of the host: the process is told where it meets this computer, and which host's driver it has.
    Raises CannotStart.
    """
    python = os.pathsep.join((str(Path(gpunode.__file__).parent.parent), os.environ.get("PYTHONPATH", "")))
    plain = {"PATH": os.environ.get("PATH", os.defpath), "PYTHONPATH": python.rstrip(os.pathsep)}
    given = {
        **plain,
        **ENVIRONMENT,
        **asked,
        **place.variables(asked),
        "CDI_DIRECTORY": str(
            host / "root/var/run/cdi"
        ),  # a plugin that is told to writes there, not on this computer
    }
    if handler == "nvidia" and given.get("NVIDIA_VISIBLE_DEVICES", "void") not in {"", "void"}:
        _driver(now)
        given |= {"GPUNODE_SIM_HOST": str(host), "GPUNODE_SIM_LIBRARY": now.library}
    return given


def _driver(now: Now) -> None:
    """The nvidia runtime's hook looks for a driver that it can mount."""
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
