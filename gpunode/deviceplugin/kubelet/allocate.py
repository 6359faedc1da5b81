"""The edits to a container for the units that the kubelet allocated to it. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from gpunode.contract.config import CDI, Config, file_word
from gpunode.contract.offer import Unit, format_mib
from gpunode.contract.status import Reason

from ..cdi.spec import qualified
from ..gpus import limits
from ..offer import memory
from ..settings import mps_paths

VOLUME_MOUNTS = "/var/run/nvidia-container-devices"
CONTROL_NODES = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset")


class AllocationRefused(Exception):
    """An allocation that is refused; the message, with the reason, goes into the pod's event."""


@dataclass(slots=True)
class Grant:
    """The edits to one container. Mounts and nodes are pairs (path in the container, path on the host)."""

    envs: dict[str, str] = field(default_factory=dict)
    mounts: list[tuple[str, str]] = field(default_factory=list)
    nodes: list[tuple[str, str]] = field(default_factory=list)
    annotations: dict[str, str] = field(default_factory=dict)
    cdi: list[str] = field(default_factory=list)


def chosen(
    ids: Iterable[str],
    offered: Mapping[str, Unit],
    unhealthy: Mapping[str, Reason],
    reserved: Mapping[str, str] | None = None,
    *,
    one_share: bool = False,
) -> list[Unit]:
    """The units with these ids, each once. Raises AllocationRefused for unknown ids, reserved units, Unhealthy devices.

    `one_share`: refuse more than one share, because it gives no more of a device than one does.
    """
    units = []
    for unit_id in dict.fromkeys(ids):
        unit = offered.get(unit_id)
        if unit is None:
            raise AllocationRefused(f"unknown device {unit_id!r}: it is not (or no longer) on this node")
        if unit.device.uuid in unhealthy:
            raise AllocationRefused(f"device {unit_id} is unhealthy: {unhealthy[unit.device.uuid]}")
        if reserved and unit_id in reserved:
            raise AllocationRefused(f"device {unit_id} is not free yet: {reserved[unit_id]}")
        if unit.counted:
            raise AllocationRefused(
                "it only counts the GPUs that this node shares by memory; ask for memory instead"
            )
        units.append(unit)
    if one_share and len(units) > 1 and any(unit.shared for unit in units):
        raise AllocationRefused(
            f"invalid request: maximum request size for shared resources is 1; found {len(units)}"
        )
    return units


def of_one_gpu(units: Sequence[Unit], free: Mapping[str, int] | None) -> None:
    """Raises AllocationRefused for memory of more than one GPU.

    `free`: units by GPU index that were free when the kubelet asked for a preferred allocation; None: it did not ask.
    """
    gpus = {unit.device.gpu for unit in units if unit.mib}
    if len(gpus) < 2:
        return
    chunk = units[0].mib
    asked = f"{format_mib(len(units) * chunk)} asked for, but a container gets memory of one GPU"
    if free is None:
        raise AllocationRefused(
            f"{asked}, and the kubelet chose from {len(gpus)} without asking the plugin (Kubernetes before 1.19 never asks)"
        )
    index, most = max(free.items(), key=lambda item: item[1], default=("?", 0))
    if most < len(units):
        raise AllocationRefused(
            f"{asked}, and the most that is free on one is {format_mib(most * chunk)} (GPU {index})"
        )
    raise AllocationRefused(
        f"{asked}, and what the pod's init containers hold, which the kubelet uses again, is another GPU's"
    )


def of_each_gpu(units: Sequence[Unit]) -> int:
    """MiB of each GPU that a container gets: where the extender promised several, the same of each."""
    mib: dict[str, int] = {}
    for unit in units:
        mib[unit.device.gpu] = mib.get(unit.device.gpu, 0) + unit.mib
    return max(mib.values(), default=0)


def grant(
    resource: str,
    units: Sequence[Unit],
    config: Config,
    exists: Callable[[str], bool],
    made: str | None = None,
    features: Sequence[str] = (),
) -> Grant:
    """The edits that give a container exactly the devices of `units`.

    `exists` returns True if a device node exists in the plugin's own container. `made` is the qualified name of a CDI
    device made for this container to limit its memory; it replaces the devices. `features` are CDI devices that every
    container with a GPU gets.
    """
    devices = list({unit.device.uuid: unit.device for unit in units}.values())
    names = [device.index if config.device_id_strategy == "index" else device.uuid for device in devices]
    given = Grant()
    if made is not None:
        given.envs |= limits.variables(of_each_gpu(units))
    if config.memory is not None and any(unit.mib for unit in units):
        given.envs |= memory.environment(devices, len(units), config.memory)
    if "envvar" in config.device_list_strategy:
        # "void": an empty value makes the NVIDIA runtime use the image's value, which may be "all".
        given.envs["NVIDIA_VISIBLE_DEVICES"] = ",".join(names) or "void"
    if "volume-mounts" in config.device_list_strategy:
        given.envs["NVIDIA_VISIBLE_DEVICES"] = VOLUME_MOUNTS
        given.mounts += [(f"{VOLUME_MOUNTS}/{name}", "/dev/null") for name in names]
    by_cdi = [qualified(name) for name in names] if made is None else [made]
    by_cdi += features if names else ()
    if "cdi-annotations" in config.device_list_strategy and names:
        # One key per resource: a container may have devices of several.
        key = f"{config.cdi_annotation_prefix}gpunode_{file_word(resource)}"
        given.annotations[key] = ",".join(by_cdi)
    if "cdi-cri" in config.device_list_strategy:
        given.cdi += by_cdi
    if config.pass_device_specs and set(config.device_list_strategy) - CDI:
        own = dict.fromkeys(node for device in devices for node in device.nodes)
        root = config.dev_root
        given.nodes += [(node, root + node) for node in (*CONTROL_NODES, *own) if node in own or exists(node)]
    for unit in units:
        if unit.mps is not None:
            pipe = str(mps_paths.pipe(config.mps_root, unit.device.uuid))
            given.envs["CUDA_MPS_PIPE_DIRECTORY"] = pipe
            given.mounts += [(pipe, pipe), ("/dev/shm", str(mps_paths.shm(config.mps_root)))]  # noqa: S108
    for feature in config.features:
        given.envs[f"NVIDIA_{feature.upper()}"] = "enabled"
    return given
