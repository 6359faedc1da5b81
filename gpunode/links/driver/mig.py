"""MIG modes of a host's GPUs that are not in effect yet."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gpunode.model import Gpu


def pending(gpus: Sequence[Gpu]) -> tuple[str, str] | None:
    """Which GPUs change their MIG mode at the next reset, and how to reset them; None where none does."""
    waiting = [gpu for gpu in gpus if gpu.mig_on != gpu.mig_pending]
    if not waiting:
        return None
    words = [
        f"GPU {_indexes(some, ', ')}: MIG is {'on' if on else 'off'}, and {'off' if on else 'on'} only after the GPU's next reset"
        for on in (True, False)
        if (some := [gpu for gpu in waiting if gpu.mig_on == on])
    ]
    return (
        "\n".join(words),
        f"With the node drained and the device plugin's pod deleted, `nvidia-smi -i {_indexes(waiting, ',')} --gpu-reset`; "
        "or reboot the host.",
    )


def _indexes(gpus: Iterable[Gpu], comma: str) -> str:
    return comma.join(str(gpu.index) for gpu in gpus)
