"""Sharing by memory with the two real kubelets: who gets which GPU, what is refused, how long a list may be."""

from collections.abc import Callable

import pytest
import yaml

from . import machine
from .api import Lab
from .conftest import Ran
from .plugin_log import plugin_log
from .pods import Pods
from .progress import wait

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("provisioned")]

MEM, COUNT = "aliyun.com/gpu-mem", "aliyun.com/gpu-count"
GPUS = {"legacy": 2, "modern": 4}
GIB = {"legacy": 16, "modern": 79}  # of each GPU, rounded down
BY_GIB = "version: v1\nsharing: {memory: {}}\n"


@pytest.fixture(scope="module")
def deploy(lab: Lab, gpunode: Callable[..., Ran]) -> Callable[[str], None]:
    """Roll the plugin out with a configuration file, as a user does."""

    def rollout(config: str) -> None:
        lab.inventory.with_name("memory-plugin.yaml").write_text(config)
        inventory = yaml.safe_load(lab.inventory.read_text())
        inventory["cluster"]["plugin"]["config"] = "memory-plugin.yaml"
        file = lab.inventory.with_name("memory.yaml")
        file.write_text(yaml.safe_dump(inventory))
        ran = gpunode("plugin deploy", "--yes", "--json", inventory=file)
        assert ran.code == 0, ran

    return rollout


@pytest.fixture(scope="module")
def by_gib(lab: Lab, deploy: Callable[[str], None]) -> None:
    """The shortest configuration there is, and both nodes offer all their memory."""
    deploy(BY_GIB)
    for name, gpus in GPUS.items():
        offered(lab, name, gpus * GIB[name])


def offered(lab: Lab, node: str, number: int) -> None:
    wait(f"{number} {MEM} on {node}", lambda: lab.units(node, MEM) == number, 90)


def test_a_gpu_that_a_pod_has_whole_is_shared_when_the_pod_is_gone(
    lab: Lab, deploy: Callable[[str], None], made: Pods
):
    """Until then the kubelets, for which its memory is free, do not give it; the pod that waits for it gets it."""
    whole = dict(zip(GPUS, made.seen(*(made.make(f"whole-{name}", name) for name in GPUS)), strict=True))
    deploy(BY_GIB)
    for name, gpus in GPUS.items():
        offered(lab, name, (gpus - 1) * GIB[name])
        assert lab.units(name, MEM, "capacity") == gpus * GIB[name]
        assert f"pod default/whole-{name} still uses it as nvidia.com/gpu" in plugin_log(lab, name)
    rest = [
        made.make(f"rest-{name}-{n}", name, GIB[name], MEM)
        for name, gpus in GPUS.items()
        for n in range(gpus - 1)
    ]
    others = {uuid for view in made.seen(*rest) for uuid in view.uuids}
    late = [made.make(f"late-{name}", name, GIB[name], MEM) for name in GPUS]
    for name in late:
        assert f"Insufficient {MEM}" in made.unschedulable(name)
    made.delete(*(f"whole-{name}" for name in GPUS))
    for name, seen in zip(GPUS, made.seen(*late), strict=True):
        assert seen.uuids == whole[name].uuids
        assert not others & set(seen.uuids)
        offered(lab, name, GPUS[name] * GIB[name])


def test_nodes_offer_their_memory_and_say_how_many_gpus_it_is_of(lab: Lab, by_gib: None):
    """By size of each node's GPUs; gpushare's tools look for the count in capacity and in allocatable."""
    for name, gpus in GPUS.items():
        assert lab.units(name, MEM, "capacity") == gpus * GIB[name]
        assert lab.units(name, COUNT) == lab.units(name, COUNT, "capacity") == gpus
        assert lab.units(name) == 0


@pytest.mark.parametrize("name", GPUS)
def test_pods_share_one_gpu_until_it_is_full(lab: Lab, by_gib: None, made: Pods, name: str):
    """Each sees one GPU and is told its share; the third does not fit beside them and has the next GPU."""
    half = GIB[name] // 2
    shared = [made.make(f"{name}-{n}", name, half, MEM) for n in range(2)]
    first, second = made.seen(*shared)
    (third,) = made.seen(made.make(f"{name}-2", name, half, MEM))
    assert first.uuids == second.uuids
    assert first.uuids != third.uuids
    assert [len(each.uuids) for each in (first, third)] == [1, 1]
    for view in (first, third):
        assert {key: view.env[key] for key in view.env if key.startswith("ALIYUN")} == {
            "ALIYUN_COM_GPU_MEM_IDX": view.nodes[0].removeprefix("/dev/nvidia"),
            "ALIYUN_COM_GPU_MEM_POD": str(half),
            "ALIYUN_COM_GPU_MEM_CONTAINER": str(half),
            "ALIYUN_COM_GPU_MEM_DEV": str(GIB[name]),
        }


def test_what_is_free_in_sum_but_on_no_gpu_is_refused_with_the_most_that_is(
    lab: Lab, by_gib: None, made: Pods
):
    """The scheduler sees the sum only. What does not fit the sum either waits at the scheduler."""
    full = [made.make(f"part-{n}", "legacy", 10, MEM) for n in range(2)]
    made.seen(*full)
    large = made.make("large", "legacy", 8, MEM)
    assert (
        f"{MEM}: 8 GiB asked for, but a container gets memory of one GPU, and the most that is free on one is 6 GiB"
        in made.refusal(large)
    )
    waiting = made.make("waiting", "legacy", 13, MEM)
    assert f"Insufficient {MEM}" in made.unschedulable(waiting)


def test_limits_that_this_host_cannot_have_break_nothing(lab: Lab, deploy: Callable[[str], None], made: Pods):
    """Drivers before 615, on cgroup v1 too: the log names each, the pod runs, and is told no limit."""
    config = "flags: {plugin: {deviceListStrategy: cdi-cri}}\nsharing: {memory: {devices: ['0']}}\n"
    deploy(f"version: v1\n{config}")
    offered(lab, "modern", GIB["modern"])
    (seen,) = made.seen(made.make("unlimited", "modern", 4, MEM))
    assert len(seen.uuids) == 1
    assert not [key for key in seen.env if key.startswith("NVIDIA_GPU_MEMORY")]
    wait("the others to be whole", lambda: lab.units("modern") == 3, 60)
    log = plugin_log(lab, "modern")
    assert "the driver does not enforce memory limits" in log
    assert "615 is the first that limits memory" in log
    assert ("the host has cgroup v1" in log) is not machine.has_cgroup2()


def test_the_longest_list_that_is_sent_is_one_that_kubelets_take(
    lab: Lab, deploy: Callable[[str], None], made: Pods
):
    """Some 54,000 units of 6 MiB, 3.6 MB, near the limit of 4 MiB; a pod gets a thousand of one GPU."""
    deploy("version: v1\nsharing: {memory: {unit: MiB, chunk: 6}}\n")
    for name, gpus in GPUS.items():
        mib = lab.node(name).exec(["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"])
        units = sum(int(line) // 6 for line in mib.stdout.split())
        offered(lab, name, units)
        (seen,) = made.seen(made.make(f"thousand-{name}", name, 1000, MEM))
        assert len(seen.uuids) == 1
        assert seen.env["ALIYUN_COM_GPU_MEM_CONTAINER"] == "1000"
        assert int(seen.env["ALIYUN_COM_GPU_MEM_DEV"]) * gpus == units
