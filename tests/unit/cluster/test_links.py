"""What verify says of capacity and pods where GPUs are shared."""

from dataclasses import replace

import pytest

from gpunode.errors import Problem
from gpunode.links.capacity import mig
from gpunode.links.capacity.link import judge_offer
from gpunode.links.driver.link import pending_mig as pending
from gpunode.links.node import parse
from gpunode.links.plugin import expected
from gpunode.links.pod.link import judge_pod
from gpunode.links.pod.vectoradd import NodeResult, Result
from gpunode.model import Gpu, MigDevice, PluginConfig
from tests import tables

from .conftest import add_node
from .fake import FakeApi


@pytest.mark.parametrize(
    ("whole", "shared", "status", "text"),
    [
        (0, (4, 316), "ok", "4 of 4 GPUs allocatable, all shared by memory: 316 aliyun.com/gpu-mem"),
        (3, (1, 79), "ok", "4 of 4 GPUs allocatable, 1 shared by memory: 79 aliyun.com/gpu-mem"),
        (0, (3, 237), "broken", "3 of 4 GPUs allocatable, all shared by memory: 237 aliyun.com/gpu-mem"),
        (4, None, "ok", "4 of 4 GPUs allocatable"),
    ],
)
def test_gpus_shared_by_memory_count_as_gpus(
    fake: FakeApi, whole: int, shared: tuple[int, int] | None, status: str, text: str
):
    """The plugin says how many there are; all of a host's GPUs have to be offered one way or the other."""
    link = judge_offer(parse(add_node(fake, "a", whole, shared=shared)), 4, None)
    assert (link.status, link.text) == (status, text)


def test_memory_that_is_not_offered_breaks_the_link_though_all_gpus_are(fake: FakeApi):
    """A GPU whose units are unhealthy still counts as shared."""
    node = add_node(fake, "a", 0, shared=(4, 316))
    node["status"]["allocatable"]["aliyun.com/gpu-mem"] = "237"
    link = judge_offer(parse(node), 4, None)
    text = "4 of 4 GPUs allocatable, all shared by memory: 237 of 316 aliyun.com/gpu-mem"
    assert (link.status, link.text) == ("broken", text)


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        ([16384, 16384], "; the driver held each to its share of memory: 16384 MiB"),
        ([None, None], "; shares of memory are not limited by the driver, see the plugin's log"),
        (
            [16384, None],
            "; the driver held some to their share of memory: 16384 MiB, but none on GPU-1, see the plugin's log",
        ),
    ],
)
def test_whether_shares_are_limited_is_reported_with_the_pods(limits: list[int | None], words: str):
    """The pods have seen it from inside, which is the proof. One with a whole GPU has no limit, and needs none."""
    results = [
        Result("a", f"pod-{n}", f"GPU-{n}", "H100", True, 1.0, "", (), limit, 16384)
        for n, limit in enumerate(limits)
    ]
    whole = Result("a", "pod-2", "GPU-2", "H100", True, 1.0, "", ())
    link = judge_pod(NodeResult("a", (*results, whole), shared=True))
    assert (link.status, link.text) == ("ok", f"vectoradd passed on GPU-0, GPU-1, GPU-2{words}")


def test_nothing_is_said_of_limits_where_no_pod_had_a_share_of_memory():
    """All of it is in use, and a whole GPU was tried."""
    whole = Result("a", "pod", "GPU-2", "H100", True, 1.0, "", ())
    assert judge_pod(NodeResult("a", (whole,), shared=True)).text == "vectoradd passed on GPU-2"


@pytest.mark.parametrize(("users", "status"), [((), "broken"), (("default/x (1 nvidia.com/gpu)",), "ok")])
def test_a_gpu_that_no_pod_saw_breaks_the_link_unless_it_may_be_in_use(users: tuple[str, ...], status: str):
    """Which GPU a user has is not known."""
    result = Result("a", "pod", "GPU-2", "H100", True, 1.0, "", ())
    assert judge_pod(NodeResult("a", (result,), ("GPU-3",), users)).status == status


ON_1, AGAIN_ON_1, ON_2 = (
    Result("a", f"pod-{number}", f"GPU-{gpu}", "H100", True, 1.0, "", ())
    for number, gpu in enumerate((1, 1, 2))
)


@pytest.mark.parametrize(
    ("results", "divided", "words"),
    [
        ((ON_1, AGAIN_ON_1, ON_2), True, "passed on GPU-1, GPU-2; two pods at the same time on GPU-1"),
        (
            (ON_1, ON_2),
            True,
            "passed on GPU-1, GPU-2; no two pods shared a GPU: too little is known to be free",
        ),
        (
            (ON_1, replace(ON_2, pod=ON_1.pod)),
            True,
            "GPU-2; no two pods shared a GPU: too little is known to be free",
        ),
        ((ON_1, ON_2), False, "passed on GPU-1, GPU-2"),
    ],
)
def test_whether_pods_were_seen_to_share_a_gpu_is_reported(
    results: tuple[Result, ...], divided: bool, words: str
):
    """Where GPUs can be shared. Two pods that had it at once are the proof."""
    link = judge_pod(NodeResult("a", results, divided=divided))
    assert link.status == "ok"
    assert link.text.endswith(words)


def test_pods_that_failed_are_counted_whatever_gpus_they_had():
    """A pod that had several has a line for each that failed."""
    wrong = replace(ON_1, passed=False, why="wrong sum")
    link = judge_pod(NodeResult("a", (wrong, replace(wrong, uuid="GPU-2"), AGAIN_ON_1), divided=True))
    assert (link.status, link.text) == ("broken", "vectoradd failed in 1 of 2 pods")
    assert link.cause == "pod-0 on GPU-1: wrong sum\npod-0 on GPU-2: wrong sum"


def test_pods_that_failed_alike_on_one_gpu_are_one_line():
    """There may be dozens of them."""
    results = tuple(replace(ON_1, pod=f"pod-{n}", passed=False, why="busy") for n in range(5))
    assert judge_pod(NodeResult("a", results)).cause == "pod-0, pod-1, pod-2 and 2 more on GPU-1: busy"


GPUS = tuple(Gpu(number, f"GPU-{number}", "H100", f"0000:0{number}:00.0", 81559) for number in range(4))


def config(sharing: str, strategy: str = "none") -> PluginConfig:
    return PluginConfig(f"version: v1\nflags: {{migStrategy: {strategy}}}\nsharing: {{{sharing}}}\n")


@tables.rows("replicas")
def test_what_replicas_make_of_a_hosts_gpus_is_what_the_plugin_makes_of_them(
    sharing: str, units: dict[str, int] | None
):
    """By the plugin's own code; what it would refuse is not expected of a node."""
    assert expected.units(config(sharing), GPUS, {}) == units
    assert expected.units(None, GPUS, {}) is None
    assert expected.units(config(sharing, "single"), GPUS, {}) == units  # none of them is cut


def cut(gpu: Gpu, *profiles: str) -> Gpu:
    """This GPU, in MIG devices of these profiles."""
    parts = (MigDevice(n, f"MIG-{gpu.index}-{n}", profile) for n, profile in enumerate(profiles))
    return replace(gpu, mig=tuple(parts), mig_on=True, mig_pending=True)


FIRST_CUT = (cut(GPUS[0], "3g.40gb", "1g.10gb+me"), *GPUS[1:])
ALL_CUT = tuple(cut(gpu, "3g.40gb", "3g.40gb") for gpu in GPUS)
SLICED = "timeSlicing: {resources: [{name: nvidia.com/mig-3g.40gb, replicas: 5}]}"


@pytest.mark.parametrize(
    ("gpus", "strategy", "sharing", "units", "uuids"),
    [
        (
            FIRST_CUT,
            "mixed",
            "",
            {"nvidia.com/gpu": 3, "nvidia.com/mig-3g.40gb": 1, "nvidia.com/mig-1g.10gb.me": 1},
            ["GPU-1", "GPU-2", "GPU-3", "MIG-0-0", "MIG-0-1"],
        ),
        (
            FIRST_CUT[:1],
            "mixed",
            SLICED,
            {"nvidia.com/mig-3g.40gb": 5, "nvidia.com/mig-1g.10gb.me": 1},
            ["MIG-0-0", "MIG-0-1"],
        ),
        (ALL_CUT, "single", "", {"nvidia.com/gpu": 8}, [f"MIG-{g}-{n}" for g in range(4) for n in range(2)]),
        (FIRST_CUT, "single", "", None, [gpu.uuid for gpu in GPUS]),  # the plugin refuses, in words
        (FIRST_CUT, "none", "", None, [gpu.uuid for gpu in GPUS]),
        (GPUS, "mixed", "", None, [gpu.uuid for gpu in GPUS]),
        ((GPUS[0], cut(GPUS[1])), "mixed", "", {"nvidia.com/gpu": 1}, ["GPU-0"]),
        ((cut(GPUS[1]),), "mixed", "", None, ["GPU-1"]),  # nothing
    ],
)
def test_mig_devices_are_expected_as_the_plugin_offers_them(
    gpus: tuple[Gpu, ...], strategy: str, sharing: str, units: dict[str, int] | None, uuids: list[str]
):
    """By strategy: under the name of their profile, as GPUs, or not at all; pods are to see every one of them."""
    assert expected.units(config(sharing, strategy), gpus, {}) == units
    assert list(expected.uuids(config(sharing, strategy), gpus, {})) == uuids


UNCUT = (GPUS[0], cut(GPUS[1]), *GPUS[2:])
NOT_LISTED = (GPUS[0], replace(GPUS[1], mig_on=True, mig_pending=True, mig=None), *GPUS[2:])


def test_mig_devices_that_are_not_known_are_not_none():
    """By strategy none they do not matter."""
    for strategy in ("mixed", "single"):
        assert expected.is_unlisted(config("", strategy), NOT_LISTED, {})
        assert expected.units(config("", strategy), NOT_LISTED, {}) is None
        assert expected.uuids(config("", strategy), NOT_LISTED, {}) == ()
    assert not expected.is_unlisted(None, NOT_LISTED, {})
    assert len(expected.uuids(None, NOT_LISTED, {})) == 4
    assert not expected.is_unlisted(config("", "mixed"), FIRST_CUT, {})


@pytest.mark.parametrize(
    ("gpus", "strategy", "what", "fix", "missing"),
    [
        (GPUS, "mixed", None, "", ""),
        (FIRST_CUT, "mixed", None, "", ""),
        (ALL_CUT, "single", None, "", ""),
        (NOT_LISTED, "mixed", None, "", ""),
        (NOT_LISTED, "single", None, "", ""),
        (
            UNCUT,
            "mixed",
            "GPU 1: MIG is on, but no MIG device was made, so nothing of it is offered",
            "`nvidia-smi mig -i 1 -cgi PROFILE -C` makes MIG devices",
            "GPU 1",
        ),
        (
            tuple(cut(gpu) for gpu in GPUS),
            "single",
            "MIG strategy single: MIG is on for GPU 0, 1, 2, 3, but the plugin sees no MIG device there",
            "`nvidia-smi -i 0,1,2,3 -mig 0` switches MIG off",
            "all GPUs",
        ),
        (
            FIRST_CUT,
            "single",
            "MIG strategy single: MIG is on for some GPUs but off for GPU 1, 2, 3; make them alike, or use MIG strategy mixed",
            "Make them alike (`nvidia-smi -i 0 -mig 0` switches MIG off), or set flags.migStrategy to mixed",
            "all GPUs",
        ),
        (
            UNCUT,
            "none",
            "GPU 1: MIG is on, but pods get it whole, as the plugin's migStrategy is none",
            "On the host, `nvidia-smi -i 1 -mig 0` switches MIG off. Or set flags.migStrategy to mixed",
            "",
        ),
        (
            FIRST_CUT,
            "none",
            "GPU 0: MIG is on, but pods get it whole, as the plugin's migStrategy is none",
            "set flags.migStrategy to mixed",
            "",
        ),
    ],
)
def test_gpus_of_no_use_for_their_mig_are_reported_by_strategy(
    gpus: tuple[Gpu, ...], strategy: str, what: str | None, fix: str, missing: str
):
    """With what to do on the host or in the configuration; whether the node lacks them for it."""
    trouble = mig.problem(config("", strategy), gpus, {})
    assert (trouble and trouble.what) == what
    if trouble:
        assert fix in trouble.fix
        assert trouble.subject == missing


@pytest.mark.parametrize(
    ("gpus", "strategy", "fix"),
    [
        (
            FIRST_CUT,
            "none",
            "`mig: off` in the inventory and a run of `gpunode provision` switch MIG off. Or set flags",
        ),
        (
            UNCUT,
            "mixed",
            "`gpunode provision` makes the MIG devices that the inventory has (`mig`); `mig: off` in",
        ),
        (
            FIRST_CUT,
            "single",
            "Make them alike (`mig: off` in the inventory and a run of `gpunode provision` switch MIG off), or",
        ),
    ],
)
def test_mig_that_the_inventory_has_is_not_changed_by_hand(gpus: tuple[Gpu, ...], strategy: str, fix: str):
    """The next boot or run would undo it."""
    reported = mig.problem(config("", strategy), gpus, {}, {gpu.pci: ("7g.80gb",) for gpu in gpus})
    assert reported
    assert reported.fix.startswith(fix)
    assert "nvidia-smi" not in reported.fix


def test_a_mig_mode_that_waits_for_a_reset_is_reported():
    """Each way, with what it takes."""
    assert pending(ALL_CUT) is None
    to_be = (replace(GPUS[0], mig_pending=True), replace(cut(GPUS[1]), mig_pending=False), GPUS[2])
    waiting = pending(to_be)
    assert waiting
    what, fix = waiting
    assert what.splitlines() == [
        "GPU 1: MIG is on, and off only after the GPU's next reset",
        "GPU 0: MIG is off, and on only after the GPU's next reset",
    ]
    assert "`nvidia-smi -i 0,1 --gpu-reset`; or reboot" in fix


def test_the_nodes_label_says_which_of_several_configurations_is_expected():
    """As the plugin chooses it; nothing is told where the label names none."""
    shared = config("timeSlicing: {resources: [{name: gpu, replicas: 3}]}").text
    several = PluginConfig(files={"default": "version: v1\n", "shared": shared})
    label = "nvidia.com/device-plugin.config"
    assert expected.units(several, GPUS, {}) is None
    assert expected.units(several, GPUS, {label: "shared"}) == {"nvidia.com/gpu": 12}
    assert expected.units(several, GPUS, {label: "none of them"}) is None
    assert expected.units(PluginConfig(files={"only": shared}), GPUS, {}) == {"nvidia.com/gpu": 12}


def test_memory_has_the_name_that_the_nodes_configuration_gives_it():
    """Only one of its own: of the usual one the node tells how many GPUs it stands for."""
    named = config("memory: {name: example.com/mem}")
    assert expected.memory(named, {}) == "example.com/mem"
    assert expected.memory(config("memory: {}"), {}) == ""
    assert expected.memory(None, {}) == ""
    several = PluginConfig(files={"default": "version: v1\n", "mem": named.text})
    assert expected.memory(several, {}) == ""
    assert expected.memory(several, {"nvidia.com/device-plugin.config": "mem"}) == "example.com/mem"


@pytest.mark.parametrize(("shares", "status"), [(4, "ok"), (2, "broken"), (0, "broken")])
def test_a_node_is_to_offer_all_shares_and_all_whole_gpus(fake: FakeApi, shares: int, status: str):
    """Each resource with its own number."""
    node = parse(add_node(fake, "a", 2, gpu_shared=shares))
    link = judge_offer(node, {"nvidia.com/gpu": 2, "nvidia.com/gpu.shared": 4}, Problem("x", "why"))
    assert (link.status, link.text) == (
        status,
        f"2 of 2 nvidia.com/gpu, {shares} of 4 nvidia.com/gpu.shared allocatable",
    )
