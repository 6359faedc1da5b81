"""The host's driver and the GPUs of this container, for both libraries."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from gpunode.sim.host.machine import SimGpu
from gpunode.sim.host.state import State


class Driver:
    """The kernel module of a host, used through a library of the `version` at the container's start."""

    def __init__(self, host: Path, environment: Mapping[str, str]) -> None:
        self._state = State(host)
        self.version = environment["GPUNODE_SIM_LIBRARY"]
        gpus = self._state.machine().gpus
        visible = environment["NVIDIA_VISIBLE_DEVICES"].split(",")
        seen = [gpu for n, gpu in enumerate(gpus) if {"all", gpu.uuid, str(n)} & set(visible)]
        self.gpus: tuple[SimGpu, ...] = tuple(seen)
        self.minors = {gpu.uuid: number for number, gpu in enumerate(gpus)}

    def module(self) -> str:
        """Version of the loaded kernel module; "" if none is loaded."""
        return self._state.now().modules.get("nvidia", "")

    def lost(self, gpu: SimGpu) -> bool:
        """True if a GPU has fallen off the bus."""
        return gpu.uuid in self._state.now().lost

    def xids(self) -> list[tuple[str, int]]:
        """(GPU's UUID, Xid) of all Xids since the host was made."""
        return self._state.now().xids
