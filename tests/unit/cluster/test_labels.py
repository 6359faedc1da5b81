"""The accelerator label, from the PCI bus."""

from __future__ import annotations

import re

from gpunode.links.machine import pci
from gpunode.links.node import labels
from gpunode.model import PciDevice
from gpunode.planning.tables import table


def gpu(slot: int, device: str, driver: str | None = None) -> PciDevice:
    return PciDevice(f"0000:{slot:02x}:00.0", "10de", device, "030200", driver)


def test_a_node_is_named_after_its_gpus() -> None:
    """The values that people know from GKE and the Kubernetes documentation."""
    assert labels.accelerator([gpu(1, "15f8"), gpu(2, "15f8")]) == {"accelerator": "nvidia-tesla-p100"}
    assert labels.accelerator([gpu(1, "2330")]) == {"accelerator": "nvidia-h100-80gb"}
    assert labels.accelerator([]) == {}


def test_of_several_models_the_most_numerous_names_the_node() -> None:
    """The others can be told; of equally many the first slot decides, whatever order they were found in."""
    mixed = [gpu(3, "2330"), gpu(1, "15f8"), gpu(2, "15f8")]
    assert labels.accelerator(mixed) == {"accelerator": "nvidia-tesla-p100"}
    assert labels.others(mixed) == ("nvidia-h100-80gb",)
    even = [gpu(2, "15f8"), gpu(1, "2330")]
    assert labels.accelerator(even) == labels.accelerator(even[::-1]) == {"accelerator": "nvidia-h100-80gb"}


def test_gpus_for_virtual_machines_do_not_name_the_node() -> None:
    """No pod can have them."""
    mixed = [gpu(1, "15f8", "vfio-pci"), gpu(2, "15f8", "vfio-pci"), gpu(3, "2330", "nvidia")]
    assert labels.accelerator(mixed) == {"accelerator": "nvidia-h100-80gb"}
    assert labels.others(mixed) == ()


def test_every_model_has_a_value_that_a_label_can_hold() -> None:
    """A value that Kubernetes refuses would fail only on that one node."""
    values = [
        pci.gpu(device).accelerator
        for device in [*table("gpunode.links.machine", "gpus.yaml")["gpus"], "1234", "1b00"]
    ]
    assert all(re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", value) for value in values)
