"""vectoradd on shares of GPUs, which the real plugin gives out as it is told to."""

from collections.abc import Iterator

import pytest

from gpunode.model import PluginConfig

from .deployed import NEW, Fleet, fleet

BY_TIME = """\
sharing:
  timeSlicing:
    renameByDefault: true
    failRequestsGreaterThanOne: false
    resources: [{name: nvidia.com/gpu, replicas: 3}]
"""
PACKED = "flags: {plugin: {sharedDevicesAllocationPolicy: packed}}\n"
BY_MEMORY = "sharing: {memory: {unit: GiB, policy: packed}}\n"
UNITS = {"aliyun.com/gpu-mem": sum(gpu.memory_mib // 1024 for gpu in NEW.gpus)}


@pytest.fixture(scope="module")
def deployed() -> Iterator[Fleet]:
    with fleet(NEW) as made:
        yield made


@pytest.mark.parametrize(
    ("text", "offered", "count"),
    [
        (BY_TIME, {"nvidia.com/gpu.shared": 6}, 3),
        (BY_TIME + PACKED, {"nvidia.com/gpu.shared": 6}, 4),  # three on one GPU, then one on the other
        (BY_TIME.replace("false", "true") + PACKED, {"nvidia.com/gpu.shared": 6}, 4),
        (BY_MEMORY, UNITS, 3),
        (BY_MEMORY.replace("packed", "distributed"), UNITS, 3),
    ],
    ids=["spread", "packed", "packed, one a pod", "memory packed", "memory spread"],
)
def test_both_gpus_and_that_two_pods_share_one_are_seen_in_no_more_pods_than_it_takes(
    deployed: Fleet, text: str, offered: dict[str, int], count: int
):
    """However the plugin chooses the GPU of a pod."""
    config = PluginConfig(text)
    rollout = deployed.deploy(config)
    assert rollout.good, rollout.states
    deployed.wait(NEW, offered)
    (result,) = deployed.run(NEW, config=config)
    assert result.passed, result
    assert {gpu.uuid for gpu in result.results} == {gpu.uuid for gpu in NEW.gpus}
    assert result.together
    assert len({each.pod for each in result.results}) == count
