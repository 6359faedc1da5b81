"""The page `/gpus`: what each GPU does now, and who has it."""

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from gpunode.contract.offer import Device
from gpunode.contract.usage import Gpu, Offered, User, dumps

from .gpus import Handles
from .kubelet.podresources import FRESH, PodResources, pod_samples
from .metrics import Sample
from .state import NodeState
from .threads import Calls

DEADLINE = 2.0  # seconds for a GPU's readings; one that hangs has none


class GpuPage:
    """Makes the page from NVML, the node's state and the kubelet's answer."""

    def __init__(self, handles: Handles, state: NodeState, pods: PodResources, *, pods_known: bool) -> None:
        self._handles, self._state, self._pods = handles, state, pods
        self._pods_known = pods_known  # there is a socket to ask at
        self._calls = Calls()

    async def text(self) -> str:
        gpus = [device for device in self._state.devices if device.profile is None]
        asked = (self._calls.figures(DEADLINE, read_gpu, self._handles, device.uuid) for device in gpus)
        readings = await asyncio.gather(*asked)
        answer = await self._pods.ask(FRESH) if self._pods_known else None
        users: Mapping[str, tuple[User, ...]] | None = None
        if answer is not None:
            users = by_gpu(
                await asyncio.to_thread(pod_samples, answer, self._state.offers), self._state.devices
            )
        return dumps(
            tuple(
                _gpu(device, reading, self._state, users)
                for device, reading in zip(gpus, readings, strict=True)
            )
        )


def by_gpu(samples: Sequence[Sample], devices: Sequence[Device]) -> Mapping[str, tuple[User, ...]]:
    """Users by the UUID of their GPU, those of its MIG devices too. Pure."""
    parents = {device.uuid: device.gpu for device in devices}
    users: dict[str, tuple[User, ...]] = {}
    for _, labels, units in samples:
        gpu = parents.get(labels["gpu"], labels["gpu"])
        pod = f"{labels['namespace']}/{labels['pod']}"
        user = User(pod, labels["container"], labels["resource"], int(units))
        users[gpu] = (*users.get(gpu, ()), user)
    return users


def offered(gpu: str, state: NodeState) -> tuple[Offered, ...]:
    """The units of a GPU that pods can get, by resource."""
    counts = Counter(
        (resource, unit.way, unit.mib, unit.device.profile is not None)
        for resource, units in state.offers.items()
        for unit in units
        if unit.device.gpu == gpu and unit.device.uuid not in state.unhealthy and not unit.counted
    )
    return tuple(
        Offered(resource, count, way, mib, mig) for (resource, way, mib, mig), count in counts.items()
    )


def _gpu(
    device: Device,
    reading: Mapping[str, int],
    state: NodeState,
    users: Mapping[str, tuple[User, ...]] | None,
) -> Gpu:
    return Gpu(
        uuid=device.uuid,
        index=device.index,
        name=device.name,
        memory=device.memory,
        **reading,
        unhealthy=state.unhealthy.get(device.uuid),
        since=state.since.get(device.uuid, ""),
        users=None if users is None else users.get(device.uuid, ()),
        driver=state.driver,
        offered=offered(device.uuid, state),
    )


READS: Mapping[str, Callable[[Any, Any], Any]] = {  # of NVML and a handle
    "used": lambda nvml, gpu: nvml.nvmlDeviceGetMemoryInfo(gpu).used,
    "utilization": lambda nvml, gpu: nvml.nvmlDeviceGetUtilizationRates(gpu).gpu,
    "temperature": lambda nvml, gpu: nvml.nvmlDeviceGetTemperature(gpu, nvml.NVML_TEMPERATURE_GPU),
    "processes": lambda nvml, gpu: len(nvml.nvmlDeviceGetComputeRunningProcesses(gpu)),
}


def read_gpu(handles: Handles, uuid: str) -> dict[str, int]:
    """A GPU's values for `Gpu`, as far as NVML gives them: none of one that is lost."""
    nvml, values = handles.nvml, dict[str, int]()
    with suppress(nvml.NVMLError):
        handle = handles.of(uuid)
        for name, read in READS.items():
            with suppress(nvml.NVMLError, AttributeError):  # a library, or a driver, without this function
                values[name] = int(read(nvml, handle))
    return values
