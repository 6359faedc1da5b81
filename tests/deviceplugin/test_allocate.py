"""What containers get: strategies, shares, and the choice among what is free."""

import asyncio
import random
from itertools import combinations

import pynvml
import pytest

from gpunode.contract.config import GPU, Config, Share
from gpunode.contract.offer import Device, Unit, offers
from gpunode.contract.status import Reason
from gpunode.deviceplugin import discovery
from gpunode.deviceplugin.gpus import read_links
from gpunode.deviceplugin.kubelet.allocate import (
    CONTROL_NODES,
    AllocationRefused,
    choose_units,
    grant,
    prefer_units,
)

from .nvml import FakeNvml, Gpu, handles


def device(number: int) -> Device:
    name = "ABCDEFGHIJKLMNOPQRST"[number]
    return Device(
        f"GPU-{name}", str(number), "P100", f"GPU-{name}", "0000:00:00.0", 1, nodes=(f"/dev/nvidia{number}",)
    )


def units(count: int) -> dict[str, Unit]:
    return {device(n).uuid: Unit(device(n).uuid, device(n)) for n in range(count)}


def shares(count: int, replicas: int, **more) -> dict[str, Unit]:
    share = Share("nvidia.com/gpu", replicas, "nvidia.com/gpu", **more)
    offered = offers([device(n) for n in range(count)], "none", (share,))
    return {unit.id: unit for unit in offered["nvidia.com/gpu"]}


def given(**settings):
    return grant(
        "nvidia.com/gpu",
        list(units(2).values()),
        Config(**settings),
        lambda path: path.startswith("/dev/") and not path.endswith("modeset"),
    )


def test_a_container_without_a_device_does_not_get_those_of_its_image():
    """An image may say `all`, and an empty value leaves that."""
    assert grant(GPU, [], Config(), lambda _: True).envs == {"NVIDIA_VISIBLE_DEVICES": "void"}


def test_a_share_of_an_unhealthy_gpu_is_refused():
    """The kubelet may not know yet."""
    with pytest.raises(AllocationRefused, match="device GPU-A::0 is unhealthy: it is lost"):
        choose_units(["GPU-A::0"], shares(1, 4), {"GPU-A": Reason("gpu-lost", "it is lost")})


def test_ids_by_index():
    """Device id strategy `index`."""
    assert given(device_id_strategy="index").envs == {"NVIDIA_VISIBLE_DEVICES": "0,1"}


def test_volume_mounts_name_the_devices_by_mount_points():
    """A user who may set variables but no mounts cannot help himself to GPUs."""
    answer = given(device_list_strategy=("volume-mounts",))
    root = "/var/run/nvidia-container-devices"
    assert answer.envs == {"NVIDIA_VISIBLE_DEVICES": root}
    assert answer.mounts == [(f"{root}/GPU-A", "/dev/null"), (f"{root}/GPU-B", "/dev/null")]


def test_device_specs_are_the_control_nodes_that_exist_and_the_devices_own():
    """Needed by runtimes that check the device cgroup. They are looked for in the plugin's own /dev, where the runtime has
    put them: the host's root of the driver, from which they are given, is not in its container."""
    answer = given(pass_device_specs=True, nvidia_driver_root="/run/nvidia/driver")
    paths = [
        *(node for node in CONTROL_NODES if not node.endswith("modeset")),
        "/dev/nvidia0",
        "/dev/nvidia1",
    ]
    assert answer.nodes == [(path, f"/run/nvidia/driver{path}") for path in paths]


@pytest.mark.parametrize(
    ("strategies", "nodes"),
    [(("cdi-cri",), 0), (("cdi-annotations", "cdi-cri"), 0), (("envvar", "cdi-cri"), 5)],
)
def test_where_cdi_alone_gives_the_devices_there_are_no_device_specs(strategies, nodes):
    """The specification has the nodes; NVIDIA's plugin does not say them twice either."""
    assert len(given(device_list_strategy=strategies, pass_device_specs=True).nodes) == nodes


def test_cdi_names_the_devices_in_the_plugins_specification():
    """By an annotation for runtimes before CRI had a field for it, or by that field; the environment stays free."""
    names = ["k8s.device-plugin.nvidia.com/gpu=GPU-A", "k8s.device-plugin.nvidia.com/gpu=GPU-B"]
    answer = given(device_list_strategy=("cdi-cri",))
    assert (answer.cdi, answer.envs, answer.annotations) == (names, {}, {})
    answer = given(device_list_strategy=("cdi-annotations",))
    assert (answer.cdi, answer.envs) == ([], {})
    assert answer.annotations == {"cdi.k8s.io/gpunode_gpu": ",".join(names)}


def test_optional_parts_are_switched_on_by_variables():
    """GDRCopy, GPUDirect Storage and MOFED, as the NVIDIA runtime reads them."""
    assert given(gds_enabled=True, gdrcopy_enabled=True, mofed_enabled=True).envs == {
        "NVIDIA_VISIBLE_DEVICES": "GPU-A,GPU-B",
        "NVIDIA_GDRCOPY": "enabled",
        "NVIDIA_GDS": "enabled",
        "NVIDIA_MOFED": "enabled",
    }


def test_two_shares_of_one_gpu_show_it_once():
    """Shares are of the device; its UUID is given once."""
    offered = shares(1, 4)
    both = choose_units(["GPU-A::0", "GPU-A::3"], offered, {})
    assert grant("nvidia.com/gpu", both, Config(), lambda _: True).envs == {"NVIDIA_VISIBLE_DEVICES": "GPU-A"}


def test_an_id_that_is_named_twice_counts_once():
    """It is one share, and one piece of memory."""
    twice = choose_units(["GPU-A::1", "GPU-A::1"], shares(1, 4), {}, one_share=True)
    assert [unit.id for unit in twice] == ["GPU-A::1"]


def test_more_than_one_share_is_refused_where_the_configuration_says_so():
    """NVIDIA's words, so that what people search for is found."""
    with pytest.raises(AllocationRefused, match="maximum request size for shared resources is 1; found 2"):
        choose_units(["GPU-A::0", "GPU-A::1"], shares(1, 4), {}, one_share=True)
    assert len(choose_units(["GPU-A", "GPU-B"], units(2), {}, one_share=True)) == 2


async def test_time_slicing_reaches_the_kubelet_under_the_new_name(kubelet, plugin):
    """Renamed, replicated, allocatable; an Unhealthy GPU takes all its shares with it."""
    gpu, name = Gpu("GPU-a"), "nvidia.com/gpu.shared"
    share = Share("nvidia.com/gpu", 2, name)

    async with plugin(FakeNvml(gpu), shares=(share,)):
        await kubelet.until(lambda: kubelet.devices(name) and gpu.sets)
        assert kubelet.requests[0].endpoint == "nvidia-gpu.shared.sock"
        answer = await kubelet.allocate("GPU-a::1", resource=name)
        assert answer.envs == {"NVIDIA_VISIBLE_DEVICES": "GPU-a"}
        gpu.raise_xid(79)
        await kubelet.until(
            lambda: kubelet.devices(name) == {"GPU-a::0": "Unhealthy", "GPU-a::1": "Unhealthy"}
        )


async def test_resources_that_differ_by_their_domain_alone_are_served_apart(kubelet, plugin):
    """Each has its socket and its annotation: the kubelet is not told of one GPU under both names."""
    other = "example.com/gpu"
    share = Share(GPU, 2, other, ("0",))
    gpus = FakeNvml(Gpu("GPU-a"), Gpu("GPU-b", minor=1))

    async with plugin(gpus, shares=(share,)):
        await kubelet.until(lambda: kubelet.devices() and kubelet.devices(other))
        assert set(kubelet.devices()) == {"GPU-b"}
        assert set(kubelet.devices(other)) == {"GPU-a::0", "GPU-a::1"}
        answer = await kubelet.allocate("GPU-a::1", resource=other)
        assert answer.envs == {"NVIDIA_VISIBLE_DEVICES": "GPU-a"}


def test_a_container_with_devices_of_two_resources_is_told_of_both_by_annotation():
    """The kubelet keeps one value a key."""
    by_annotation = Config(device_list_strategy=("cdi-annotations",))
    both = [grant(name, list(units(1).values()), by_annotation, bool) for name in (GPU, "example.com/gpu")]
    assert both[0].annotations.keys().isdisjoint(both[1].annotations)


def test_replicas_can_be_for_some_gpus_only():
    """The others stay whole; a device is named by index or UUID."""
    both = (
        Share("nvidia.com/gpu", 2, "nvidia.com/gpu.shared", ("0",)),
        Share("nvidia.com/gpu", 3, "nvidia.com/gpu.shared", ("GPU-B",)),
    )
    offered = offers([device(0), device(1), device(2)], "none", both)
    assert {name: [unit.id for unit in group] for name, group in offered.items()} == {
        "nvidia.com/gpu": ["GPU-C"],
        "nvidia.com/gpu.shared": ["GPU-A::0", "GPU-A::1", "GPU-B::0", "GPU-B::1", "GPU-B::2"],
    }


def test_shares_are_spread_or_packed():
    """Distributed takes from the GPU with most left; packed from the one with least left."""
    offered = shares(2, 3)
    free = [unit_id for unit_id in offered if unit_id != "GPU-B::0"]  # one share of B is in use
    assert prefer_units(free, [], 2, offered, {}) == ["GPU-A::0", "GPU-A::1"]
    assert prefer_units(free, [], 3, offered, {}, packed=True) == ["GPU-B::1", "GPU-B::2", "GPU-A::0"]


def test_whole_gpus_are_chosen_by_their_links():
    """Two pairs with NVLink: a request for two gets a pair; what must be included decides which."""
    pairs = {("A", "C"): 120, ("B", "D"): 120}
    weights = {frozenset((f"GPU-{a}", f"GPU-{b}")): points for (a, b), points in pairs.items()}
    offered = units(4)
    assert prefer_units(list(offered), [], 2, offered, {}, links=weights) == ["GPU-A", "GPU-C"]
    assert prefer_units(list(offered), ["GPU-D"], 2, offered, {}, links=weights) == ["GPU-D", "GPU-B"]
    # One alone: leave the pair that is still whole to others.
    assert prefer_units(["GPU-A", "GPU-B", "GPU-D"], [], 1, offered, {}, links=weights) == ["GPU-A"]


def test_no_other_choice_of_gpus_is_better_connected():
    """Nor, of those as good, leaves others better connected; of equals, the first by index is taken."""
    chance = random.Random(1)
    names, offered = [device(n).uuid for n in range(7)], units(7)

    def between(some, weights) -> int:
        return sum(weights[frozenset(pair)] for pair in combinations(some, 2))

    for size in range(1, 6):
        weights = {frozenset(pair): chance.choice([0, 10, 50, 110]) for pair in combinations(names, 2)}
        must, free = names[2:3], [*names[:2], *names[3:]]

        def value(some, weights=weights, must=must, free=free) -> tuple[int, int]:
            left = [name for name in free if name not in some]
            return between([*must, *some], weights), between(left, weights)

        best = list(max(combinations(free, size), key=value))
        assert prefer_units(names, must, size + 1, offered, {}, links=weights) == [*must, *best]


def test_many_gpus_are_chosen_quickly_and_well():
    """16 of 20 is too many sets to compare; a well connected group of eight is still found."""
    names = [device(n).uuid for n in range(20)]
    group = set(names[5:13])
    weights = {frozenset((a, b)): 100 if {a, b} <= group else 10 for a in names for b in names if a < b}
    offered = units(20)
    answer = prefer_units(names, [names[6]], 8, offered, {}, links=weights)
    assert set(answer) == group


def test_unhealthy_and_unknown_ids_come_last():
    """The kubelet may offer what has just gone."""
    offered = units(3)
    assert prefer_units(["GPU-X", "GPU-A", "GPU-C"], [], 2, offered, {"GPU-A": "lost"}) == ["GPU-C", "GPU-X"]


def test_links_are_counted_from_nvml():
    """Points for the closest common bridge, and 100 for every active NVLink between the two."""
    a = Gpu("GPU-A", bus="00000000:3B:00.0", nvlinks=("00000000:D8:00.0", "00000000:D8:00.0"))
    b = Gpu("GPU-B", bus="00000000:D8:00.0", nvlinks=("00000000:3B:00.0", "00000000:3B:00.0"))
    c = Gpu("GPU-C", bus="00000000:E1:00.0")
    gpus = [Device(g.uuid, "0", "", g.uuid, g.bus.lower()[4:], 1) for g in (a, b, c)]
    assert read_links(handles(a, b, c), gpus) == {
        frozenset(("GPU-A", "GPU-B")): 210,
        frozenset(("GPU-A", "GPU-C")): 10,
        frozenset(("GPU-B", "GPU-C")): 10,
    }


def test_links_after_a_gap_count():
    """A bridge or a disabled link leaves numbers without a link, and newer GPUs have more than 18."""
    other = "00000000:D8:00.0"
    gaps = [("", "", other), ("", other, "", other), (*[""] * 17, other, other, other)]
    for ends, number in zip(gaps, (1, 2, 3), strict=True):
        a, b = Gpu("GPU-A", nvlinks=ends), Gpu("GPU-B", bus=other)
        devices = [Device(g.uuid, "0", "", g.uuid, g.bus.lower()[4:], 1) for g in (a, b)]
        assert read_links(handles(a, b), devices) == {frozenset(("GPU-A", "GPU-B")): 10 + 100 * number}


def test_a_lost_gpu_leaves_the_others_their_links():
    """Its own are not known."""
    lost = Gpu("GPU-A", error=15)
    b = Gpu("GPU-B", bus="00000000:D8:00.0", nvlinks=("00000000:E1:00.0",))
    c = Gpu("GPU-C", bus="00000000:E1:00.0", nvlinks=("00000000:D8:00.0",))
    devices = [Device(g.uuid, "0", "", g.uuid, g.bus.lower()[4:], 1) for g in (lost, b, c)]
    assert read_links(handles(lost, b, c), devices)[frozenset(("GPU-B", "GPU-C"))] == 110


async def test_links_that_could_not_be_read_are_read_again(kubelet, plugin, monkeypatch, caplog):
    """A GPU that hangs just then costs the others their links only until it answers."""
    answers = iter([pynvml.NVMLError(pynvml.NVML_ERROR_UNKNOWN), asyncio.TimeoutError()])

    def read(*arguments):
        for error in answers:
            raise error
        return read_links(*arguments)

    monkeypatch.setattr(discovery, "read_links", read)
    caplog.set_level("INFO")
    ends = ("00000000:1A:00.0", "00000000:2A:00.0", "00000000:3A:00.0")
    gpus = [Gpu(f"GPU-{n}", minor=n, bus=bus) for n, bus in enumerate(ends)]
    gpus[1].nvlinks, gpus[2].nvlinks = (ends[2],), (ends[1],)

    async with plugin(FakeNvml(*gpus)):
        every = list(await kubelet.until(lambda: len(kubelet.devices()) == 3 and kubelet.devices()))
        while "resolved: cannot read how the GPUs are connected" not in caplog.text:
            await asyncio.sleep(0.01)
        assert sorted(await kubelet.prefer(every, [], 2)) == ["GPU-1", "GPU-2"]


async def test_links_of_gpus_that_come_later_count(kubelet, plugin):
    """How GPUs are connected is asked again when there are others."""
    first = Gpu("GPU-a", bus="00000000:1A:00.0")
    second = Gpu("GPU-b", minor=1, bus="00000000:2A:00.0")
    nvml = FakeNvml(first, second)

    async with plugin(nvml):
        await kubelet.until(lambda: len(kubelet.devices()) == 2)
        second.nvlinks = ("00000000:3A:00.0",)
        nvml.gpus.append(Gpu("GPU-c", minor=2, bus="00000000:3A:00.0", nvlinks=("00000000:2A:00.0",)))
        every = list(await kubelet.until(lambda: len(kubelet.devices()) == 3 and kubelet.devices()))
        assert sorted(await kubelet.prefer(every, [], 2)) == ["GPU-b", "GPU-c"]
