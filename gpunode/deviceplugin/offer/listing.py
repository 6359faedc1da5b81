"""The size of a resource's list in the device plugin protocol, computed before the list is made. Pure."""

from __future__ import annotations

from ..gpus.devices import Device

MAX_LIST = 4 * 1024 * 1024  # bytes of a message that the kubelet takes (gRPC's default)


def unit_bytes(longest_id: str, device: Device) -> int:
    """The most bytes that one unit of a device takes.

    Counted with the longest id and as Unhealthy, the longer of the two words: the list must also fit when GPUs fail.
    """
    topology = 0 if device.numa is None else 6
    one = (2 + len(longest_id)) + (2 + len("Unhealthy")) + topology
    return one + 2  # each field's and each message's tag and length are a byte each, below 128
