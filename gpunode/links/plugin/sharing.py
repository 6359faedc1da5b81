"""What a change of the plugin's configuration means for pods, in words. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from gpunode.contract.config import GPU, Config, Share
from gpunode.links.plugin.expected import in_force
from gpunode.model import PluginConfig

GIVEN = "Pods that have GPUs keep them: what they use is reserved until they end."


def meaning(
    before: PluginConfig | None, after: PluginConfig | None, labels: Mapping[str, str], gpus: int
) -> str:
    """What becomes of a node's GPUs; "" where they are shared as before. `gpus`: how many it offers whole, 0 if unknown."""
    old, new = in_force(before, labels), in_force(after, labels)
    if old is None or new is None or (old.shares, old.memory) == (new.shares, new.memory):
        return ""
    return "; ".join(_now(old, new, gpus))


def differ(before: PluginConfig | None, after: PluginConfig | None, labels: Mapping[str, str]) -> bool:
    """Whether another configuration comes into force on a node with these labels; one that names none keeps its own."""
    new = in_force(after, labels)
    return new is not None and new != in_force(before, labels)


def _now(old: Config, new: Config, gpus: int) -> Iterator[str]:
    if not new.shares and new.memory is None:
        yield "each GPU becomes whole again: one pod has all of it"
    known = gpus if not old.shares and old.memory is None else 0
    for share in new.shares:
        yield _shared(share, known)
    if new.memory is not None:
        yield f"GPUs are shared by memory: pods ask for {new.memory.resource}, and the driver limits them where it can"


def _shared(share: Share, gpus: int) -> str:
    if share.resource != GPU or share.devices or not gpus:
        what = "each GPU" if share.resource == GPU else f"each {share.resource}"
        some = f" of {', '.join(share.devices)}" if share.devices else ""
        start = f"{what}{some} becomes {share.replicas} shares"
    else:
        start = f"{gpus} GPU{'s become' if gpus > 1 else ' becomes'} {gpus * share.replicas} shares"
    name = f" ({share.rename})" if share.rename != share.resource else ""
    how = "MPS, with limits of memory and threads" if share.mps else "time-slicing, no memory isolation"
    return f"{start}{name} by {how}"
