"""Sharing GPUs by memory: units, their number, who gets which, and what cannot be."""

import asyncio
from dataclasses import replace

import grpc
import pytest

from gpunode.contract.config import GPU_COUNT, GPU_MEM, Config, MemorySharing, Share
from gpunode.contract.offer import MAX_LIST, MIB, CannotOffer, Device, Unit, count_pieces, list_bytes, offers
from gpunode.deviceplugin.gpus import GIB
from gpunode.deviceplugin.kubelet.allocate import AllocationRefused, check_one_gpu, grant, prefer_units
from gpunode.deviceplugin.settings import read
from gpunode.sim.node import v1beta1_pb2 as api

from .nvml import FakeNvml, Gpu, Mig

GIBS = MemorySharing()
MIBS = MemorySharing(chunk=1)


def gpu(number: int, mib: int, **more) -> Device:
    uuid = f"GPU-00000000-0000-0000-0000-{number:012d}"  # as long as real ones
    return Device(uuid, str(number), "P100", uuid, "0000:00:00.0", mib * MIB, **more)


def offered(*gpus: Device, sharing: MemorySharing = GIBS) -> dict[str, Unit]:
    return {unit.id: unit for unit in offers(gpus, "none", (), sharing)[sharing.resource]}


def file(tmp_path, sharing: str) -> Config:
    path = tmp_path / "config.yaml"
    path.write_text(f"version: v1\nsharing: {sharing}\n")
    return read([f"--config-file={path}"], {})


# What is offered.


@pytest.mark.parametrize(
    ("mib", "sharing", "units"),
    [
        (16280, GIBS, 15),  # P100: gpushare rounds down, too
        (81559, GIBS, 79),  # H100
        (1024, GIBS, 1),
        (16280, MIBS, 16280),
        (81559, MemorySharing(chunk=256), 318),
    ],
)
def test_a_gpu_is_worth_as_many_units_as_fit_into_it(mib, sharing, units):
    """GiB, MiB, chunks; what is left over is nobody's."""
    offer = offered(gpu(0, mib), sharing=sharing)
    assert len(offer) == units == count_pieces(gpu(0, mib), sharing)
    assert {unit.mib for unit in offer.values()} == {sharing.chunk}


def test_every_gpu_counts_with_its_own_size():
    """gpushare gives all the size of the first: a mixed node offers too much or too little there."""
    units = list(offered(gpu(0, 16280), gpu(1, 81559)))
    assert len(units) == 15 + 79
    assert units[0] == "GPU-00000000-0000-0000-0000-000000000000:1024:0"
    assert units[-1] == "GPU-00000000-0000-0000-0000-000000000001:1024:78"


def test_whole_gpus_and_memory_are_never_offered_of_the_same_gpu():
    """Two pods could have it otherwise; GPUs that are not named stay whole."""
    two = (gpu(0, 2048), gpu(1, 2048))
    assert set(offers(two, "none", (), GIBS)) == {GPU_MEM, GPU_COUNT}
    named = MemorySharing(devices=("1",))
    resources = offers(two, "none", (), named)
    assert [unit.device.index for unit in resources["nvidia.com/gpu"]] == ["0"]
    assert {unit.device.index for unit in resources[GPU_MEM]} == {"1"}
    by_uuid = MemorySharing(devices=(two[0].uuid,))
    assert {unit.device.index for unit in offers(two, "none", (), by_uuid)[GPU_MEM]} == {"0"}


def test_gpu_count_goes_with_gpushares_resource_only():
    """Who gives the memory another name has no gpushare tools that would look for it."""
    resources = offers((gpu(0, 2048), gpu(1, 4096)), "none", (), GIBS)
    assert [unit.device.index for unit in resources[GPU_COUNT]] == ["0", "1"]
    other = offers((gpu(0, 2048),), "none", (), MemorySharing(resource="example.com/memory"))
    assert set(other) == {"example.com/memory"}


def test_time_slices_of_mig_devices_go_beside_it():
    """Only whole GPUs cannot be shared in two ways."""
    cut = gpu(1, 40000, mig_enabled=True)
    part = Device("MIG-1", "1:0", "A100", cut.uuid, "0000:00:00.0", 10 * GIB, profile="1g.10gb")
    shares = (Share("nvidia.com/mig-1g.10gb", 2, "nvidia.com/mig-1g.10gb"),)
    resources = offers((gpu(0, 2048), cut, part), "mixed", shares, GIBS)
    assert {name: len(units) for name, units in resources.items()} == {
        GPU_MEM: 2,
        GPU_COUNT: 1,
        "nvidia.com/mig-1g.10gb": 2,
    }


@pytest.mark.parametrize(
    ("device", "message"),
    [
        (gpu(3, 40000, mig_enabled=True), "MIG is on for GPU 3"),
        (replace(gpu(3, 0), memory=None), "the memory of GPU 3 is shared with the host"),
        (gpu(3, 512), "GPU 3 has 512 MiB, less than one unit of 1 GiB"),
    ],
)
def test_a_gpu_that_cannot_be_shared_is_named_with_the_way_out(device, message):
    """Never left out in silence."""
    with pytest.raises(CannotOffer) as caught:
        offers((gpu(0, 2048), device), "none", (), GIBS)
    assert message in str(caught.value)
    assert "name only the other GPUs in sharing.memory.devices" in str(caught.value)


# The kubelet's 4 MiB.


@pytest.mark.parametrize("numa", [None, 0, 1])
@pytest.mark.parametrize("mib", [7, 1024, 60000])
def test_the_lists_length_is_foreseen(mib, numa):
    """Never shorter than the real message with every unit Unhealthy, and at most 2 % longer."""
    device = gpu(0, mib, numa=numa)
    topology = None if numa is None else api.TopologyInfo(nodes=[api.NUMANode(ID=numa)])
    answer = api.ListAndWatchResponse(
        devices=[
            api.Device(ID=unit_id, health="Unhealthy", topology=topology)
            for unit_id in offered(device, sharing=MIBS)
        ]
    )
    assert answer.ByteSize() <= list_bytes([device], 1) <= answer.ByteSize() * 1.05 + 2


def test_the_most_that_the_kubelet_can_take_is_offered_and_one_more_is_refused():
    """The refusal names the smallest chunk that fits; that chunk does fit."""
    most = next(mib for mib in range(60000, 80000) if list_bytes([gpu(0, mib + 1)], 1) > MAX_LIST)
    assert len(offered(gpu(0, most), sharing=MIBS)) == most
    with pytest.raises(CannotOffer) as caught:
        offered(gpu(0, most + 1), sharing=MIBS)
    assert f"{most + 1} units of 1 MiB make a list of up to" in str(caught.value)
    assert "set sharing.memory.chunk to 2 or more (MiB), or sharing.memory.unit to GiB" in str(caught.value)
    assert offered(gpu(0, most + 1), sharing=MemorySharing(chunk=2))


def test_the_smallest_chunk_that_fits_is_the_smallest():
    """Eight H100 in MiB: one less does not fit."""
    eight = [gpu(number, 81559) for number in range(8)]
    with pytest.raises(CannotOffer) as caught:
        offers(eight, "none", (), MIBS)
    assert "sharing.memory.chunk to 10 or more" in str(caught.value)
    assert list_bytes(eight, 10) <= MAX_LIST < list_bytes(eight, 9)


async def test_a_list_at_the_edge_reaches_the_kubelet(kubelet, plugin):
    """65,536 units of 1 MiB over a real socket, with gRPC's own limit on the other side."""
    nvml = FakeNvml(*(Gpu(gpu(n, 0).uuid, minor=n, memory=32 * GIB) for n in range(2)))

    async with plugin(nvml, memory=MIBS):
        await kubelet.until(lambda: len(kubelet.devices(GPU_MEM)) == 65536)
        ids = list(kubelet.devices(GPU_MEM))
        # an init container held all of GPU 0: the question is longer than the list
        chosen = await kubelet.prefer(ids, ids[:32768], 32768, GPU_MEM)
        assert chosen == ids[:32768]


async def test_too_many_units_are_reported_and_nothing_is_offered(kubelet, plugin, caplog):
    """With --fail-on-init-error=false the plugin waits; /readyz has the same words."""
    nvml = FakeNvml(Gpu("GPU-" + "a" * 36, memory=80 * GIB))

    async with plugin(nvml, memory=MIBS, fail_on_init_error=False):
        while "nothing is offered" not in caplog.text:
            await asyncio.sleep(0.01)
        assert not kubelet.requests
    assert "set sharing.memory.chunk to 2 or more" in caplog.text


# Who gets which.


def left(*free: int) -> tuple[list[str], dict[str, Unit]]:
    """Ids of which so many are free on GPU 0, 1 …, and all units; 8 GiB each."""
    units = offered(*(gpu(number, 8192) for number in range(len(free))))
    ids = list(units)
    return [
        unit_id for number, count in enumerate(free) for unit_id in ids[number * 8 : number * 8 + count]
    ], units


def on(ids: list[str], units: dict[str, Unit]) -> list[str]:
    return [units[unit_id].device.index for unit_id in ids]


@pytest.mark.parametrize(
    ("free", "size", "packed", "choice"),
    [
        ((8, 3, 5), 3, True, "1"),
        ((8, 3, 5), 4, True, "2"),
        ((8, 3, 5), 6, True, "0"),
        ((8, 3, 5), 1, True, "1"),
        ((8, 3, 5), 1, False, "0"),
        ((4, 3, 5), 3, False, "2"),
    ],
)
def test_the_smallest_gap_that_is_large_enough_is_filled(free, size, packed, choice):
    """So that large pods find room later; `distributed` takes the emptiest GPU instead."""
    available, units = left(*free)
    assert on(prefer_units(available, [], size, units, {}, packed=packed), units) == [choice] * size


def test_what_an_init_container_held_is_used_again_on_its_gpu():
    """The kubelet hands its units on; the rest has to come from the same GPU, even if another gap fits better."""
    available, units = left(8, 3)
    held = list(units)[:2]
    assert on(prefer_units(available, held, 3, units, {}, packed=True), units) == ["0"] * 3


def test_memory_of_an_unhealthy_gpu_comes_last():
    """The other GPU has less left, and is taken all the same."""
    available, units = left(8, 3)
    sick = {gpu(0, 0).uuid: "Xid 79"}
    assert on(prefer_units(available, [], 2, units, sick, packed=False), units) == ["1"] * 2


def test_what_no_gpu_has_left_is_answered_all_the_same():
    """An error here would fail the pod without a word; Allocate says why."""
    available, units = left(4, 4)
    ids = prefer_units(available, [], 6, units, {}, packed=True)
    assert len(ids) == 6
    with pytest.raises(AllocationRefused) as caught:
        check_one_gpu([units[unit_id] for unit_id in ids], {"0": 4, "1": 3})
    assert str(caught.value) == (
        "6 GiB asked for, but a container gets memory of one GPU, and the most that is free on one is 4 GiB (GPU 0)"
    )


@pytest.mark.parametrize(
    ("free", "message"),
    [
        (None, "the kubelet chose from 2 without asking the plugin"),
        (
            {"0": 8, "1": 8},
            "the units of the pod's init containers, which the kubelet reuses, are on another GPU",
        ),
    ],
)
def test_a_choice_of_several_gpus_is_refused_for_its_own_reason(free, message):
    """Kubelets of before 1.19 do not ask; init containers bind the pod to their GPU."""
    _, units = left(8, 8)
    with pytest.raises(AllocationRefused) as caught:
        check_one_gpu(list(units.values())[7:9], free)
    assert message in str(caught.value)


# What a container gets.


def test_a_container_is_told_its_share_in_gpushares_words():
    """Programs written for gpushare compute their part from these; the device list goes by the strategy."""
    units = list(offered(gpu(0, 16280), gpu(1, 16280)).values())[16:19]
    answer = grant(GPU_MEM, units, Config(memory=GIBS, device_id_strategy="index"), lambda path: False)
    assert answer.envs == {
        "ALIYUN_COM_GPU_MEM_IDX": "1",
        "ALIYUN_COM_GPU_MEM_POD": "3",
        "ALIYUN_COM_GPU_MEM_CONTAINER": "3",
        "ALIYUN_COM_GPU_MEM_DEV": "15",
        "NVIDIA_VISIBLE_DEVICES": "1",
    }


def test_a_whole_gpu_beside_shared_ones_has_none_of_that():
    """A node can have both."""
    whole = Unit("GPU-w", gpu(0, 16280))
    answer = grant(
        "nvidia.com/gpu", [whole], Config(memory=MemorySharing(devices=("1",))), lambda path: False
    )
    assert list(answer.envs) == ["NVIDIA_VISIBLE_DEVICES"]


async def test_memory_goes_all_the_way_through_the_kubelet(kubelet, plugin):
    """List, preference, allocation of one GPU; a request that spans two is refused; the count is not for pods."""
    nvml = FakeNvml(Gpu("GPU-a", memory=4 * GIB), Gpu("GPU-b", minor=1, memory=2 * GIB))

    async with plugin(nvml, memory=GIBS):
        await kubelet.until(lambda: len(kubelet.devices(GPU_MEM)) == 6 and kubelet.devices(GPU_COUNT))
        assert "nvidia.com/gpu" not in kubelet.plugins
        ids = list(kubelet.devices(GPU_MEM))
        chosen = await kubelet.prefer(ids, [], 2, GPU_MEM)
        answer = await kubelet.allocate(*chosen, resource=GPU_MEM)
        assert answer.envs["NVIDIA_VISIBLE_DEVICES"] == "GPU-b"
        assert answer.envs["ALIYUN_COM_GPU_MEM_CONTAINER"] == "2"
        chosen = await kubelet.prefer(ids, [], 5, GPU_MEM)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await kubelet.allocate(*chosen, resource=GPU_MEM)
        assert "5 GiB asked for" in caught.value.details()
        assert "the most that is free on one is 4 GiB (GPU 0)" in caught.value.details()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await kubelet.allocate("GPU-a", resource=GPU_COUNT)
        assert "aliyun.com/gpu-count: it only counts the GPUs" in caught.value.details()


async def test_all_units_of_an_unhealthy_gpu_are_unhealthy_and_of_no_other(kubelet, plugin):
    """One Xid, one GPU."""
    nvml = FakeNvml(Gpu("GPU-a", memory=2 * GIB), Gpu("GPU-b", minor=1, memory=2 * GIB))

    async with plugin(nvml, memory=GIBS):
        await kubelet.until(lambda: len(kubelet.devices(GPU_MEM)) == 4 and nvml.gpus[0].sets)
        nvml.gpus[0].raise_xid(79)
        await kubelet.until(lambda: "Unhealthy" in kubelet.devices(GPU_MEM).values())
        sick = {unit_id for unit_id, health in kubelet.devices(GPU_MEM).items() if health == "Unhealthy"}
        assert sick == {"GPU-a:1024:0", "GPU-a:1024:1"}


async def test_a_mig_gpu_stops_the_plugin_with_the_reason(kubelet, plugin):
    """--fail-on-init-error, the default: the reason is the last word."""
    async with plugin(FakeNvml(Gpu("GPU-a", mig=[Mig("MIG-1")])), memory=GIBS) as task:
        with pytest.raises(CannotOffer, match="sharing by memory: MIG is on for GPU 0"):
            await task


# The file.


@pytest.mark.parametrize(
    ("section", "memory"),
    [
        ("{memory: {}}", MemorySharing("aliyun.com/gpu-mem", 1024, (), packed=True)),
        ("{memory: {unit: MiB}}", MemorySharing(chunk=1)),
        ("{memory: {unit: MiB, chunk: 256}}", MemorySharing(chunk=256)),
        (
            '{memory: {name: example.com/mem, devices: ["0", GPU-x], policy: distributed}}',
            MemorySharing("example.com/mem", 1024, ("0", "GPU-x"), packed=False),
        ),
    ],
)
def test_the_section_is_read(tmp_path, section, memory):
    """Every key, and what holds without it: gpushare's own name and unit."""
    assert file(tmp_path, section).memory == memory


def test_the_policy_for_replicas_does_not_concern_memory(tmp_path):
    """NVIDIA's option spreads by default; memory is packed unless its own section says otherwise."""
    config = file(tmp_path, "{memory: {}}")
    assert config.packs(GPU_MEM)
    assert not config.packs("nvidia.com/gpu")
