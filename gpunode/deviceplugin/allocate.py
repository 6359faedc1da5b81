"""What a container gets for the units that the kubelet chose for it. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from .config import Config
from .resources import Unit

VOLUME_MOUNTS = "/var/run/nvidia-container-devices"
# The kind of the CDI spec that the NVIDIA Container Toolkit keeps on the host (nvidia-cdi-refresh, or nvidia-ctk cdi
# generate); it names every device by UUID and by index.
CDI_KIND = "nvidia.com/gpu"
CONTROL_NODES = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset")


class Refused(Exception):
    """An allocation that cannot be; says why, for the pod's event."""


@dataclass(slots=True)
class Grant:
    """The edits to one container. Mounts and nodes are pairs (path in the container, path on the host)."""

    envs: dict[str, str] = field(default_factory=dict)
    mounts: list[tuple[str, str]] = field(default_factory=list)
    nodes: list[tuple[str, str]] = field(default_factory=list)
    annotations: dict[str, str] = field(default_factory=dict)
    cdi: list[str] = field(default_factory=list)


def chosen(
    ids: Iterable[str], offered: Mapping[str, Unit], sick: Mapping[str, str], *, one_share: bool = False
) -> list[Unit]:
    """The units behind `ids`, each once. Raises Refused for ids that are unknown or whose device is Unhealthy.

    `one_share`: more than one share is refused, as it brings no more of a device than one does.
    """
    units = []
    for unit_id in dict.fromkeys(ids):
        unit = offered.get(unit_id)
        if unit is None:
            raise Refused(f"unknown device {unit_id!r}: it is not (or no longer) on this node")
        if unit.device.uuid in sick:
            raise Refused(f"device {unit_id} is unhealthy: {sick[unit.device.uuid]}")
        units.append(unit)
    if one_share and len(units) > 1 and any(unit.shared for unit in units):
        raise Refused(f"invalid request: maximum request size for shared resources is 1; found {len(units)}")
    return units


def grant(resource: str, units: Sequence[Unit], config: Config, exists: Callable[[str], bool]) -> Grant:
    """The edits that show a container the devices of `units` and no others.

    `exists` tells whether a device node is there below the driver's device root.
    """
    devices = list({unit.device.uuid: unit.device for unit in units}.values())
    names = [device.index if config.device_id_strategy == "index" else device.uuid for device in devices]
    given = Grant()
    if "envvar" in config.device_list_strategy:
        # "void": an empty value would mean "as the image says" to the NVIDIA runtime, which may be "all".
        given.envs["NVIDIA_VISIBLE_DEVICES"] = ",".join(names) or "void"
    if "volume-mounts" in config.device_list_strategy:
        given.envs["NVIDIA_VISIBLE_DEVICES"] = VOLUME_MOUNTS
        given.mounts += [(f"{VOLUME_MOUNTS}/{name}", "/dev/null") for name in names]
    qualified = [f"{CDI_KIND}={name}" for name in names]
    if "cdi-annotations" in config.device_list_strategy and names:
        # One key a resource: a container may have devices of several.
        key = f"{config.cdi_annotation_prefix}gpunode_{resource.rpartition('/')[2]}"
        given.annotations[key] = ",".join(qualified)
    if "cdi-cri" in config.device_list_strategy:
        given.cdi += qualified
    if config.pass_device_specs:
        own = dict.fromkeys(node for device in devices for node in device.nodes)
        root = config.dev_root
        given.nodes += [
            (node, root + node) for node in (*CONTROL_NODES, *own) if node in own or exists(root + node)
        ]
    for enabled, name in (
        (config.gdrcopy_enabled, "NVIDIA_GDRCOPY"),
        (config.gds_enabled, "NVIDIA_GDS"),
        (config.mofed_enabled, "NVIDIA_MOFED"),
    ):
        if enabled:
            given.envs[name] = "enabled"
    return given
