"""What the runtimes share: the entry of NVIDIA's in their configuration, and how they start containers."""

from collections.abc import Iterable
from typing import NamedTuple

TOOLKIT_CONFIG = "/etc/nvidia-container-runtime/config.toml"  # comes with NVIDIA's container toolkit
BINARY = "/usr/bin/nvidia-container-runtime"
# The GPU operator's toolkit container has its programs in this folder, and restores its entries at every start.
OPERATOR = "/usr/local/nvidia/toolkit/"
WRITES_BACK = "the GPU Operator wrote the current entry, and writes it again while its toolkit is enabled"


class Containers(NamedTuple):
    """How a runtime starts containers. `runc`: by the name that facts have its version under; "" for another program."""

    labelled: bool  # with SELinux labels of their own
    by_systemd: bool  # systemd keeps their cgroups, and with them the devices that they may use
    runc: str


def reason(*, default: bool, binaries: Iterable[object] = ()) -> str:
    """Why the entry is written. `binaries`: those that the present entry starts."""
    why = "pods get GPUs from the nvidia runtime" + (", here as the default one" if default else "")
    return f"{why}; {WRITES_BACK}" if is_operators(binaries) else why


def is_operators(binaries: Iterable[object]) -> bool:
    """Whether the GPU operator wrote an entry that starts these binaries."""
    return any(str(binary).startswith(OPERATOR) for binary in binaries)
