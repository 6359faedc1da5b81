"""What has to wait for a container that has a device by an earlier configuration: every pair of then and now."""

from dataclasses import replace

import pytest

from gpunode.contract.config import GPU, GPU_COUNT, GPU_MEM, Config, MemorySharing, Share
from gpunode.contract.offer import Device, offers
from gpunode.contract.status import Pod
from gpunode.deviceplugin.gpus import GIB
from gpunode.deviceplugin.state import ContainerDevices, Reservation, reservations

A = Device("GPU-a", "0", "A100", "GPU-a", "0000:3b:00.0", 8 * GIB)
B = Device("GPU-b", "1", "A100", "GPU-b", "0000:86:00.0", 8 * GIB)
CUT = Device("GPU-c", "2", "A100", "GPU-c", "0000:af:00.0", 8 * GIB, mig_enabled=True)
PARTS = tuple(
    Device(f"MIG-{n}", f"2:{n}", "A100", "GPU-c", "0000:af:00.0", GIB, profile="1g.5gb") for n in range(2)
)


def sliced(replicas: int, rename: str = GPU, *, mps: bool = False) -> Config:
    return Config(shares=(Share(GPU, replicas, rename, mps=mps),))


def by_memory(chunk: int, resource: str = GPU_MEM) -> Config:
    return Config(memory=MemorySharing(resource=resource, chunk=chunk))


def offered(config: Config, *devices: Device):
    return offers(devices, config.mig_strategy, config.shares, config.memory)


def has(resource: str, *ids: str, pod: str = "ml/train") -> ContainerDevices:
    return ContainerDevices(Pod(pod), "main", resource, ids)


def waiting(config: Config, *holders: ContainerDevices, devices=(A, B), before=()) -> dict[str, list[str]]:
    """Ids that are held back, by resource."""
    reserved = reservations(offered(config, *devices), devices, holders, before)
    return {
        resource: sorted(
            unit_id
            for reservation in reserved
            if reservation.resource == resource
            for unit_id in reservation.ids
        )
        for resource in dict.fromkeys(reservation.resource for reservation in reserved)
    }


WHOLE, SLICED, MPS, GIBS = Config(), sliced(2), sliced(2, mps=True), by_memory(4096)
SHARES, MPS_SHARES, PIECES = (
    ["GPU-a::0", "GPU-a::1"],
    ["GPU-a::mps-0", "GPU-a::mps-1"],
    ["GPU-a:4096:0", "GPU-a:4096:1"],
)


@pytest.mark.parametrize(
    ("now", "held", "resource", "wait"),
    [
        # The GPU as a whole: nothing of it is left for others, however it is shared.
        (SLICED, "GPU-a", GPU, {GPU: SHARES}),
        (MPS, "GPU-a", GPU, {GPU: MPS_SHARES}),
        (GIBS, "GPU-a", GPU, {GPU_MEM: PIECES}),
        # A share by time-slicing is not held to any part: it keeps the GPU from all but its like.
        (WHOLE, "GPU-a::0", GPU, {GPU: ["GPU-a"]}),
        (MPS, "GPU-a::0", GPU, {GPU: MPS_SHARES}),
        (GIBS, "GPU-a::0", GPU, {GPU_MEM: PIECES}),
        (sliced(2, "nvidia.com/gpu.shared"), "GPU-a::0", GPU, {"nvidia.com/gpu.shared": ["GPU-a::1"]}),
        (SLICED, "GPU-a::0", "nvidia.com/gpu.shared", {GPU: ["GPU-a::1"]}),
        # A client of MPS.
        (WHOLE, "GPU-a::mps-0", GPU, {GPU: ["GPU-a"]}),
        (SLICED, "GPU-a::mps-0", GPU, {GPU: SHARES}),
        (GIBS, "GPU-a::mps-0", GPU, {GPU_MEM: PIECES}),
        (sliced(2, "shared", mps=True), "GPU-a::mps-0", GPU, {"shared": ["GPU-a::mps-1"]}),
        # Memory.
        (WHOLE, "GPU-a:1024:0", GPU_MEM, {GPU: ["GPU-a"]}),
        (SLICED, "GPU-a:1024:0", GPU_MEM, {GPU: SHARES}),
        (MPS, "GPU-a:1024:0", GPU_MEM, {GPU: MPS_SHARES}),
        # gpushare's own: the GPU is not the one that the id names, so it may be any.
        (WHOLE, "GPU-a-_-3", GPU_MEM, {GPU: ["GPU-a", "GPU-b"]}),
    ],
)
def test_what_a_container_has_otherwise_is_not_given_to_another(now, held, resource, wait):
    """Under another resource, or by another id, the kubelet counts it as free."""
    assert waiting(now, has(resource, held)) == wait


GPUSHARES = has(GPU_MEM, "GPU-a-_-3", pod="ml/theirs")
CROSSED = tuple(replace(gpu, nodes=(f"/dev/nvidia{minor}",)) for gpu, minor in ((A, 1), (B, 0)))


@pytest.mark.parametrize(
    ("index", "devices", "gpus"),
    [
        ("1", (A, B), {"GPU-b"}),
        ("1", CROSSED, {"GPU-a"}),  # gpushare counts by /dev/nvidiaN, not as NVML does
        ("", (A, B), {"GPU-a", "GPU-b"}),
        ("-1", (A, B), {"GPU-a", "GPU-b"}),  # its plugin found none
        ("7", (A, B), {"GPU-a", "GPU-b"}),  # counted otherwise, as after a GPU was lost
        ("0,1", (A, B), {"GPU-a", "GPU-b"}),
    ],
)
def test_a_pod_of_gpushare_reserves_the_gpu_that_its_plugin_gave_or_all(index, devices, gpus):
    """As a whole: how much a unit of gpushare's was is not known."""
    reserved = reservations(offered(GIBS, *devices), devices, [replace(GPUSHARES, index=index)])
    assert {reservation.device for reservation in reserved} == gpus
    assert all(len(reservation.ids) == 2 for reservation in reserved)


@pytest.mark.parametrize(
    ("now", "resource", "ids"),
    [
        (WHOLE, GPU, ["GPU-a"]),
        (SLICED, GPU, ["GPU-a::0"]),
        (sliced(4), GPU, ["GPU-a::0"]),  # more shares than when it was given
        (MPS, GPU, ["GPU-a::mps-1"]),
        (GIBS, GPU_MEM, ["GPU-a:4096:1"]),
        (
            Config(device_id_strategy="index"),
            GPU,
            ["GPU-a"],
        ),  # containers are told otherwise, the kubelet is not
        (GIBS, GPU_COUNT, ["GPU-a"]),
        # Nobody's here: others' devices, a GPU that has gone, words that mean nothing.
        (SLICED, "amd.com/gpu", ["0000:c3:00.0"]),
        (SLICED, GPU, ["GPU-gone"]),
        (SLICED, "example.com/fpga", ["f0", "", "GPU-a::b", "GPU-a:b:0", "GPU-a:1:b", "GPU-a:²:0"]),
    ],
)
def test_what_the_kubelet_counts_itself_is_left_to_it(now, resource, ids):
    assert waiting(now, has(resource, *ids)) == {}


@pytest.mark.parametrize(
    ("chunk", "held", "units"),
    [
        (256, ["GPU-a:1024:0", "GPU-a:1024:1"], 8),  # smaller chunks: 2 GiB are 8 of them
        (3000, ["GPU-a:1024:0", "GPU-a:1024:1", "GPU-a:1024:2"], 2),  # larger: rounded up
        (1024, ["GPU-a:4096:0", "GPU-a:1024:7"], 4),  # what is counted already is not counted again
        (4096, [f"GPU-a:1:{n}" for n in range(8192)], 2),
        (1024, [f"GPU-a:4096:{n}" for n in range(9)], 8),  # never more than there are
    ],
)
def test_another_chunk_holds_back_as_much_memory_as_containers_have(chunk, held, units):
    """No more: the rest of the GPU is free for others, and so are the other GPUs."""
    (ids,) = waiting(by_memory(chunk), has(GPU_MEM, *held)).values()
    assert len(ids) == units
    assert all(unit_id.startswith(f"GPU-a:{chunk}:") for unit_id in ids)
    assert not set(ids) & set(held)


def test_another_name_holds_back_as_much_memory_too():
    """Memory under another resource is the same memory."""
    wait = waiting(by_memory(1024, "example.com/mem"), has(GPU_MEM, "GPU-a:1024:0", "GPU-a:1024:1"))
    assert wait == {"example.com/mem": ["GPU-a:1024:6", "GPU-a:1024:7"]}


def test_fewer_shares_are_no_more_than_configured_with_those_that_are_left_over():
    """The share with the number 3 is not offered any more, and not counted: one of the others waits for it."""
    assert waiting(sliced(3), has(GPU, "GPU-a::3")) == {GPU: ["GPU-a::2"]}
    assert waiting(sliced(3), has(GPU, "GPU-a::3"), has(GPU, "GPU-a::2")) == {GPU: ["GPU-a::1"]}
    assert waiting(sliced(3), has(GPU, "GPU-a::3"), has(GPU, "GPU-a::4")) == {GPU: ["GPU-a::1", "GPU-a::2"]}


def test_where_too_few_are_free_none_is_given_on():
    """A share that becomes free is the one that another container has too much."""
    four = [has(GPU, f"GPU-a::{n}", pod=f"ml/{n}") for n in range(4)]
    assert waiting(sliced(2), *four) == {GPU: SHARES}
    assert waiting(sliced(2), *four[1:]) == {GPU: SHARES}
    assert waiting(sliced(2), *four[1:3]) == {GPU: ["GPU-a::0"]}


def test_the_same_units_go_on_waiting():
    """A unit that becomes free behind them does not take their place: the kubelet may have given one of them meanwhile."""
    train, other = has(GPU_MEM, "GPU-a:4096:0"), has(GPU_MEM, "GPU-a:1024:7", pod="ml/other")
    before = reservations(offered(by_memory(1024), A), (A,), [train, other])
    assert [sorted(reservation.ids) for reservation in before] == [[f"GPU-a:1024:{n}" for n in (3, 4, 5, 6)]]
    assert reservations(offered(by_memory(1024), A), (A,), [train], before)[0].ids == before[0].ids


MIXED, SINGLE, NONE = Config(mig_strategy="mixed"), Config(mig_strategy="single"), Config()
PART = "nvidia.com/mig-1g.5gb"


@pytest.mark.parametrize(
    ("now", "resource", "held", "wait"),
    [
        (SINGLE, PART, "MIG-0", {GPU: ["MIG-0"]}),  # the MIG device alone
        (MIXED, GPU, "MIG-0", {PART: ["MIG-0"]}),
        (NONE, PART, "MIG-0", {GPU: ["GPU-c"]}),  # the GPU that it is a part of
        (MIXED, GPU, "GPU-c", {PART: ["MIG-0", "MIG-1"]}),  # all parts of the GPU
        (SINGLE, GPU, "GPU-c", {GPU: ["MIG-0", "MIG-1"]}),
        (MIXED, PART, "MIG-0", {}),
        (
            Config(mig_strategy="mixed", shares=(Share(PART, 2, PART),)),
            PART,
            "MIG-0",
            {PART: ["MIG-0::0", "MIG-0::1"]},
        ),
        (MIXED, PART, "MIG-0::1", {PART: ["MIG-0"]}),
    ],
)
def test_mig_devices_wait_for_themselves_and_for_their_gpu(now, resource, held, wait):
    """And a GPU for its MIG devices."""
    assert waiting(now, has(resource, held), devices=(CUT, *PARTS)) == wait


def test_the_reason_names_the_container_and_what_it_has():
    """A refused pod's event tells the user nothing else."""
    (reservation,) = reservations(offered(GIBS, A), (A,), [has(GPU, "GPU-a")])
    assert reservation == Reservation(
        GPU_MEM,
        "GPU-a",
        frozenset(PIECES),
        "container main of pod ml/train still uses it as nvidia.com/gpu, which it got before the configuration changed",
        (Pod("ml/train"),),
    )
    two = [has(GPU_MEM, *(f"GPU-a:1024:{n}" for n in range(3))), has(GPU_MEM, "GPU-a:1024:5", pod="ml/b")]
    (reservation,) = reservations(offered(WHOLE, A), (A,), two)
    assert reservation.why == (
        "container main of pod ml/train still uses 3 GiB of it as aliyun.com/gpu-mem, which it got before the configuration changed "
        "(2 pods in all)"
    )
