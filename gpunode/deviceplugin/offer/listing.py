"""How long the list of a resource's units becomes in the device plugin's protocol: known before it is made. Pure."""

from __future__ import annotations

from ..gpus.devices import Device

MAX_LIST = 4 * 1024 * 1024  # bytes of a message that the kubelet takes (gRPC's default)


def unit_bytes(longest_id: str, device: Device) -> int:
    """How many bytes one unit of a device takes at most.

    Counted with the longest id and as Unhealthy, the longer word of the two: a list that fits only as long as all is
    well would be lost when it is needed most.
    """
    topology = 0 if device.numa is None else 6
    one = (2 + len(longest_id)) + (2 + len("Unhealthy")) + topology
    return one + 2  # each field's and each message's tag and length are a byte each, below 128
