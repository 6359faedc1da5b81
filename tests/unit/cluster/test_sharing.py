"""What another sharing of GPUs means, as plans say it."""

import pytest

from gpunode.links.plugin.configuration import meaning
from gpunode.model import PluginConfig

WAY = "version: v1\nsharing: {{{}: {{resources: [{{name: nvidia.com/gpu, replicas: {}}}]}}}}\n"
NONE, SLICED, MORE = (
    None,
    PluginConfig(WAY.format("timeSlicing", 4)),
    PluginConfig(WAY.format("timeSlicing", 8)),
)
MPS = PluginConfig(WAY.format("mps", 2))


@pytest.mark.parametrize(
    ("before", "after", "gpus", "words"),
    [
        (NONE, NONE, 2, ""),
        (SLICED, SLICED, 8, ""),
        (NONE, SLICED, 2, "2 GPUs become 8 shares by time-slicing, no memory isolation"),
        (NONE, SLICED, 1, "1 GPU becomes 4 shares by time-slicing, no memory isolation"),
        (NONE, SLICED, 0, "each GPU becomes 4 shares by time-slicing, no memory isolation"),
        (SLICED, MORE, 8, "each GPU becomes 8 shares by time-slicing, no memory isolation"),
        (NONE, MPS, 2, "2 GPUs become 4 shares by MPS, with limits of memory and threads"),
        (SLICED, NONE, 8, "each GPU becomes whole again: one pod has all of it"),
    ],
)
def test_sharing_is_reported_as_what_pods_get(
    before: PluginConfig | None, after: PluginConfig | None, gpus: int, words: str
):
    assert meaning(before, after, {}, gpus) == words
