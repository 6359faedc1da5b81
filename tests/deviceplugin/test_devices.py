"""What NVML tells, as devices; devices as resources; NVML that cannot be used."""

import asyncio
import logging
import re

import pynvml
import pytest

from gpunode.contract import offer, status
from gpunode.contract.config import Config, MemorySharing, Share
from gpunode.contract.offer import MAX_LIST, CannotOffer, ClientLimits, Device, Unit, offers, warnings
from gpunode.deviceplugin.discovery import NvmlUnavailable
from gpunode.deviceplugin.gpus import describe, explain, pci_address
from gpunode.deviceplugin.kubelet.allocate import grant
from gpunode.sim.node import v1beta1_pb2 as api

from .nvml import GIB, FakeNvml, Gpu, Mig, handles


def described(*gpus: Gpu):
    taken = handles(*gpus)
    return [device for index in range(len(gpus)) for device in describe(taken, index).devices]


def h100(uuid: str, *mig: Mig) -> Gpu:
    return Gpu(uuid, name="NVIDIA H100 80GB HBM3", memory=80 * GIB, mig=list(mig))


def test_a_gpu_is_described_with_address_node_and_memory(tmp_path):
    """UUID, index, PCI address as the kernel writes it, NUMA node from sysfs, device node from the minor number."""
    where = tmp_path / "sys/bus/pci/devices/0000:3b:00.0"
    where.mkdir(parents=True)
    (where / "numa_node").write_text("1\n")
    (gpu,) = describe(handles(Gpu("GPU-a", minor=3)), 0, tmp_path).devices
    assert (gpu.uuid, gpu.index, gpu.bus, gpu.numa) == ("GPU-a", "0", "0000:3b:00.0", 1)
    assert (gpu.nodes, gpu.memory, gpu.mig_enabled) == (("/dev/nvidia3",), 16 * GIB, False)


def test_a_gpu_without_a_minor_number_has_no_device_node():
    """As in WSL2: nothing but device specs need it."""
    (gpu,) = described(Gpu("GPU-a", minor=None))
    assert (gpu.uuid, gpu.nodes) == ("GPU-a", ())


def test_a_gpu_that_shares_the_hosts_memory_has_none_of_its_own():
    """Not 0 bytes: GB10 reports no memory. It is offered whole and by shares, by memory it is refused."""
    (gpu,) = gpus = described(Gpu("GPU-a", name="NVIDIA GB10", memory=None))
    assert gpu.memory is None
    assert [unit.id for unit in offers(gpus, "none")["nvidia.com/gpu"]] == ["GPU-a"]
    share = Share("nvidia.com/gpu", 2, "nvidia.com/gpu", mps=True)
    (limits,) = {unit.mps for unit in offers(gpus, "none", [share])["nvidia.com/gpu"]}
    assert limits == ClientLimits(None, 50)
    with pytest.raises(CannotOffer, match="the memory of GPU 0 is shared with the host"):
        offers(gpus, "none", by_memory=MemorySharing())


@pytest.mark.parametrize("text", ["-1\n", "", None])
def test_no_numa_node_where_the_kernel_knows_none(tmp_path, text):
    """-1, an empty file and no file all mean: no hint."""
    where = tmp_path / "sys/bus/pci/devices/0000:3b:00.0"
    where.mkdir(parents=True)
    if text is not None:
        (where / "numa_node").write_text(text)
    assert describe(handles(Gpu("GPU-a")), 0, tmp_path).devices[0].numa is None


def test_a_wide_pci_domain_is_kept():
    """Domains above ffff exist on some machines."""
    assert pci_address("00010001:0A:1F.7") == "10001:0a:1f.7"


async def test_numa_nodes_reach_the_kubelet(kubelet, plugin, monkeypatch):
    """Topology hints are per device; a device without a node has none."""
    monkeypatch.setattr(
        "gpunode.deviceplugin.gpus.numa_node",
        lambda bus, root: {"0000:3b:00.0": 0, "0000:d8:00.0": None}[bus],
    )

    async with plugin(FakeNvml(Gpu("GPU-a"), Gpu("GPU-b", bus="00000000:D8:00.0"))):
        await kubelet.until(kubelet.devices)
        assert kubelet.plugins["nvidia.com/gpu"].numa == {"GPU-a": [0], "GPU-b": []}


def test_mig_devices_carry_profile_instance_and_nodes(tmp_path):
    """The profile is the driver's word; the capability nodes are found through /proc."""
    caps = tmp_path / "proc/driver/nvidia/capabilities/gpu0/mig/gi1"
    (caps / "ci0").mkdir(parents=True)
    (caps / "access").write_text("DeviceFileMinor: 30\nDeviceFileMode: 292\n")
    (caps / "ci0/access").write_text("DeviceFileMinor: 31\nDeviceFileMode: 292\n")
    gpu, mig = describe(handles(h100("GPU-a", Mig("MIG-1", "1g.10gb+me"))), 0, tmp_path).devices
    assert gpu.mig_enabled
    assert (mig.profile, mig.index, mig.gpu, mig.instance) == ("1g.10gb+me", "0:0", "GPU-a", (1, 0))
    assert mig.nodes == ("/dev/nvidia0", "/dev/nvidia-caps/nvidia-cap30", "/dev/nvidia-caps/nvidia-cap31")


async def test_a_mig_device_that_may_not_be_seen_leaves_the_others_offered(kubelet, plugin, caplog):
    """Without CAP_SYS_ADMIN NVML refuses questions about its instances: it is named, with the fix."""
    unseen = Mig("MIG-2", instance=(2, 0), error=pynvml.NVML_ERROR_NO_PERMISSION)

    async with plugin(
        FakeNvml(h100("GPU-a", Mig("MIG-1"), unseen), Gpu("GPU-b", minor=1)), mig_strategy="mixed"
    ):
        await kubelet.until(lambda: kubelet.devices() == {"GPU-b": "Healthy"})
        await kubelet.until(lambda: kubelet.devices("nvidia.com/mig-1g.10gb") == {"MIG-1": "Healthy"})
    (lost,) = status.loads(status.find_last(caplog.text) or "").lost
    assert (lost.index, lost.code, lost.listed) == ("0:1", "nvml-no-permission", False)
    assert "MIG device 0:1 is not offered" in lost.sentence
    assert "SYS_ADMIN" in lost.words


@pytest.mark.parametrize(
    ("memory_mib", "slices", "profile"),
    [
        (9984, (1, 1), "1g.10gb"),
        (20096, (2, 2), "2g.20gb"),
        (40448, (4, 4), "4g.40gb"),
        (40448, (3, 1), "1c.3g.40gb"),
    ],
)
def test_a_profile_is_counted_where_the_driver_does_not_name_it(memory_mib, slices, profile):
    """Older drivers name only the product; NVIDIA's rule rounds memory to eighths of the GPU."""
    mig = Mig("MIG-1", memory_mib=memory_mib, slices=slices, named=False)
    assert described(h100("GPU-a", mig))[1].profile == profile


def test_strategy_none_offers_gpus_and_nothing_else():
    """MIG is not looked at."""
    offered = offers(described(h100("GPU-a", Mig("MIG-1")), Gpu("GPU-b")), "none")
    assert {name: [unit.id for unit in units] for name, units in offered.items()} == {
        "nvidia.com/gpu": ["GPU-a", "GPU-b"]
    }


def test_strategy_mixed_offers_each_profile_as_a_resource_of_its_own():
    """Whole GPUs remain nvidia.com/gpu; `+` cannot be in a resource name."""
    devices = described(h100("GPU-a", Mig("MIG-1"), Mig("MIG-2", "1g.10gb+me", (2, 0))), Gpu("GPU-b"))
    assert {name: [unit.id for unit in units] for name, units in offers(devices, "mixed").items()} == {
        "nvidia.com/gpu": ["GPU-b"],
        "nvidia.com/mig-1g.10gb": ["MIG-1"],
        "nvidia.com/mig-1g.10gb.me": ["MIG-2"],
    }


def test_a_mig_device_of_an_old_driver_is_offered_and_given_by_its_name():
    """Before branch 470 it has no UUID of its own but its GPU's, and the ids of its instances."""
    old = "MIG-GPU-a/7/0"
    devices = described(h100("GPU-a", Mig(old, "1g.5gb", (7, 0))))
    shares = (Share("nvidia.com/mig-1g.5gb", 2, "nvidia.com/mig-1g.5gb"),)
    (unit,) = offers(devices, "mixed")["nvidia.com/mig-1g.5gb"]
    assert offer.claim_of(unit.id) == offer.Claim(old, offer.WHOLE)
    given = grant("nvidia.com/mig-1g.5gb", [unit], Config(), lambda _: True)
    assert given.envs == {"NVIDIA_VISIBLE_DEVICES": old}
    first, _ = offers(devices, "mixed", shares)["nvidia.com/mig-1g.5gb"]
    assert offer.claim_of(first.id) == offer.Claim(old, offer.TIME_SLICING)
    mounts = Config(
        device_list_strategy=("volume-mounts",)
    )  # the runtime takes what is below the folder for the name
    mounted = grant("nvidia.com/mig-1g.5gb", [unit], mounts, lambda _: True).mounts
    assert mounted == [(f"/var/run/nvidia-container-devices/{old}", "/dev/null")]


def test_strategy_single_offers_alike_mig_devices_as_gpus():
    """All GPUs cut alike: their parts are nvidia.com/gpu. No GPU cut: the GPUs are."""
    cut = described(h100("GPU-a", Mig("MIG-1")), h100("GPU-b", Mig("MIG-2")))
    assert [unit.id for unit in offers(cut, "single")["nvidia.com/gpu"]] == ["MIG-1", "MIG-2"]
    assert [unit.id for unit in offers(described(Gpu("GPU-a")), "single")["nvidia.com/gpu"]] == ["GPU-a"]


@pytest.mark.parametrize(
    ("gpus", "why"),
    [
        ((h100("GPU-a", Mig("MIG-1")), Gpu("GPU-b")), "MIG is on for some GPUs but off for GPU 1"),
        ((h100("GPU-a"),), "MIG is on for GPU 0, but the plugin sees no MIG device there"),
        ((h100("GPU-a", Mig("MIG-1"), Mig("MIG-2", "2g.20gb")),), "profiles 1g.10gb, 2g.20gb"),
    ],
)
def test_strategy_single_says_why_it_cannot(gpus, why):
    """What is not alike is named, with the way out."""
    with pytest.raises(CannotOffer, match=why):
        offers(described(*gpus), "single")


@pytest.mark.parametrize(
    ("gpus", "strategy", "shares", "messages"),
    [
        ((Gpu("GPU-a"), h100("GPU-b", Mig("MIG-1"))), "mixed", (), []),
        (
            (Gpu("GPU-a"), h100("GPU-b")),
            "mixed",
            (),
            ["GPU 1 is not offered: MIG is on, but the plugin sees no MIG device there"],
        ),
        (
            (Gpu("GPU-a"), h100("GPU-b")),
            "none",
            (),
            [
                "GPU 1 is offered whole, though MIG is on: CUDA finds no device in it; switch MIG off, or set "
                "another MIG strategy"
            ],
        ),
        (
            (Gpu("GPU-a"),),
            "none",
            (Share("nvidia.com/gpu", 2, "nvidia.com/gpu", ("0", "7")),),
            ["sharing of nvidia.com/gpu names device 7, which this node does not have"],
        ),
        (
            (Gpu("GPU-a"),),
            "none",
            (Share("nvidia.com/mig-1g.10gb", 2, "nvidia.com/mig-1g.10gb"),),
            ["sharing of nvidia.com/mig-1g.10gb has no effect: this node has no such device"],
        ),
    ],
    ids=[
        "nothing",
        "an uncut GPU",
        "a GPU with MIG given whole",
        "a device that is not there",
        "a resource that is not there",
    ],
)
def test_what_comes_to_nothing_is_reported(gpus, strategy, shares, messages):
    """A GPU that nobody can ask for, a share of nothing: no error, but not silent either."""
    assert warnings(described(*gpus), strategy, shares) == messages


def sixteen(replicas: int, rename: str = "nvidia.com/gpu") -> dict[str, tuple[Unit, ...]]:
    """Of that many GPUs, with UUIDs as long as real ones."""
    uuids = [f"GPU-00000000-0000-0000-0000-{number:012d}" for number in range(16)]
    gpus = [Device(uuid, str(n), "H100", uuid, "0000:00:00.0", 0, numa=1) for n, uuid in enumerate(uuids)]
    return offers(gpus, "none", (Share("nvidia.com/gpu", replicas, rename),))


def test_a_list_of_shares_that_the_kubelet_cannot_take_is_refused_before_it_is_made(monkeypatch):
    """A million of them would take the pod's memory; the refusal says how many fit."""
    with monkeypatch.context() as patched:
        patched.setattr(offer, "share_ids", None)
        with pytest.raises(
            CannotOffer, match=r"1120000 gpu\.example/share make a list of up to .* use fewer"
        ) as refused:
            sixteen(70_000, "gpu.example/share")
    fits = int(re.search(r"replicas; (\d+) of each device fit", str(refused.value))[1])
    with pytest.raises(CannotOffer):
        sixteen(fits * 102 // 100)
    devices = [
        api.Device(ID=unit.id, health="Unhealthy", topology=api.TopologyInfo(nodes=[api.NUMANode(ID=1)]))
        for unit in sixteen(fits)["nvidia.com/gpu"]
    ]
    assert 0.95 * MAX_LIST < api.ListAndWatchResponse(devices=devices).ByteSize() <= MAX_LIST


async def test_why_a_gpu_is_not_offered_is_in_the_log_once(kubelet, plugin, caplog):
    """Not at every look."""
    nvml = FakeNvml(Gpu("GPU-a"), h100("GPU-b"))
    async with plugin(nvml, mig_strategy="mixed"):
        await kubelet.until(kubelet.devices)
        nvml.gpus.append(Gpu("GPU-c", minor=2))  # another look has been taken when it is there
        await kubelet.until(lambda: "GPU-c" in kubelet.devices())
    lines = [message for message in caplog.messages if message.startswith("GPU 1 is not offered: MIG is on")]
    assert len(lines) == 1


async def test_a_gpu_that_is_left_out_again_is_said_again(kubelet, plugin, caplog):
    """And that it was not meanwhile: whoever reads the log is to know how things are."""
    message = "GPU 1 is not offered: MIG is on, but the plugin sees no MIG device there"
    part = "nvidia.com/mig-1g.10gb"

    gpu = h100("GPU-b")
    with caplog.at_level("INFO"):
        async with plugin(FakeNvml(Gpu("GPU-a"), gpu), mig_strategy="mixed"):
            await kubelet.until(kubelet.devices)
            assert message in caplog.messages
            gpu.mig = [Mig("MIG-1")]
            await kubelet.until(lambda: kubelet.devices(part))
            assert f"resolved: {message}" in caplog.messages
            gpu.mig = []
            await kubelet.until(lambda: not kubelet.devices(part))
            assert caplog.messages.count(message) == 2


async def test_an_xid_of_one_mig_device_leaves_its_neighbour_alone(kubelet, plugin):
    """Events of MIG devices carry the instance; events without one concern all parts of the GPU."""
    gpu = h100("GPU-a", Mig("MIG-1", instance=(1, 0)), Mig("MIG-2", instance=(2, 0)))
    name = "nvidia.com/mig-1g.10gb"

    async with plugin(FakeNvml(gpu), mig_strategy="mixed"):
        await kubelet.until(lambda: kubelet.devices(name) and gpu.sets)
        gpu.raise_xid(95, (2, 0))
        await kubelet.until(lambda: kubelet.devices(name) == {"MIG-1": "Healthy", "MIG-2": "Unhealthy"})
        gpu.raise_xid(95)
        await kubelet.until(lambda: kubelet.devices(name) == {"MIG-1": "Unhealthy", "MIG-2": "Unhealthy"})


async def test_an_xid_of_a_gpu_instance_concerns_its_compute_instances_alone(kubelet, plugin):
    """Such an event names no compute instance; those of the other GPU instance go on. An event of an instance that the plugin does not
    know may concern any."""
    gpu = h100("GPU-a", *(Mig(f"MIG-{gi}{ci}", instance=(gi, ci)) for gi, ci in ((1, 0), (1, 1), (2, 0))))
    name = "nvidia.com/mig-1g.10gb"

    async with plugin(FakeNvml(gpu), mig_strategy="mixed", recovery_seconds=60.0):
        await kubelet.until(lambda: kubelet.devices(name) and gpu.sets)
        gpu.raise_xid(95, (1, 0xFFFFFFFF))
        here = {"MIG-10": "Unhealthy", "MIG-11": "Unhealthy", "MIG-20": "Healthy"}
        await kubelet.until(lambda: kubelet.devices(name) == here)
        gpu.raise_xid(95, (7, 0))
        await kubelet.until(lambda: kubelet.devices(name) == dict.fromkeys(here, "Unhealthy"))


async def test_devices_that_come_and_go_while_running(kubelet, plugin):
    """A second GPU appears, then the first vanishes; a resource without devices is told as empty, not withdrawn."""
    nvml = FakeNvml(Gpu("GPU-a"))

    async with plugin(nvml):
        await kubelet.until(lambda: kubelet.devices() == {"GPU-a": "Healthy"})
        nvml.gpus.append(Gpu("GPU-b", minor=1))
        await kubelet.until(lambda: kubelet.devices() == {"GPU-a": "Healthy", "GPU-b": "Healthy"})
        del nvml.gpus[0]
        await kubelet.until(lambda: kubelet.devices() == {"GPU-b": "Healthy"})
        nvml.gpus.clear()
        await kubelet.until(lambda: kubelet.plugins["nvidia.com/gpu"].lists[-1] == {})


async def test_one_gpu_that_cannot_be_described_does_not_hide_the_others(kubelet, plugin, caplog):
    """A GPU that is lost before the plugin starts has no UUID to offer; the log says why it is missing."""
    async with plugin(FakeNvml(Gpu("GPU-a", error=pynvml.NVML_ERROR_GPU_IS_LOST), Gpu("GPU-b", minor=1))):
        await kubelet.until(lambda: kubelet.devices() == {"GPU-b": "Healthy"})
    assert "GPU 0 is not offered: NVML: GPU is lost" in caplog.text


async def test_nvml_that_cannot_start_is_fatal_unless_told_otherwise(kubelet, plugin):
    """The default is NVIDIA's: end with the reason."""
    async with plugin(FakeNvml(init_error=pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)) as task:
        with pytest.raises(NvmlUnavailable, match=r"no libnvidia-ml\.so\.1 in this container"):
            await task
    assert not kubelet.requests


async def test_nvml_that_cannot_start_is_waited_for_when_told_so(kubelet, plugin, caplog):
    """--fail-on-init-error=false: the reason is logged once, and GPUs are offered as soon as NVML works."""
    nvml = FakeNvml(Gpu("GPU-a"), init_error=pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH)

    async with plugin(nvml, fail_on_init_error=False):
        while "no GPU can be offered" not in caplog.text:
            await asyncio.sleep(0.01)
        nvml.init_error = None
        await kubelet.until(lambda: kubelet.devices() == {"GPU-a": "Healthy"})
    messages = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert sum("Driver/library version mismatch" in message for message in messages) == 1


async def test_a_node_without_gpus_registers_nothing_and_says_so(kubelet, plugin, caplog):
    """No empty resource appears on such a node; a GPU that comes later is offered."""
    nvml = FakeNvml()

    async with plugin(nvml):
        while "no GPU on this node" not in caplog.text:
            await asyncio.sleep(0.01)
        assert not kubelet.requests
        nvml.gpus.append(Gpu("GPU-a"))
        await kubelet.until(lambda: kubelet.devices() == {"GPU-a": "Healthy"})


def test_an_error_without_a_known_meaning_is_shown_as_nvml_words():
    """Nothing is hidden behind a general phrase."""
    assert explain(pynvml.NVMLError(pynvml.NVML_ERROR_IRQ_ISSUE)) == "NVML: Interrupt Request Issue"
