"""A pod per GPU, every free GPU once, always cleaned up."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest

from gpunode.cluster import lease, pods
from gpunode.cluster.api import Api
from gpunode.links import node as nodes
from gpunode.links.pod import vectoradd
from gpunode.links.pod.requests import Target
from gpunode.links.pod.run_pod import PodRun, make_pod
from gpunode.links.pod.vectoradd import Job, NodeResult
from gpunode.model import PluginConfig, PluginImage
from tests import tables

from .conftest import NS, Kubelet, add_node, pod
from .fake import FakeApi, Fault

GPUS = {"a": ["GPU-1", "GPU-2"], "b": ["GPU-3", "GPU-4", "GPU-5"]}
Run = Callable[..., tuple[NodeResult, ...]]
A, B = Target("a", tuple(GPUS["a"])), Target("b", tuple(GPUS["b"]))


@pytest.fixture
def kubelet(fake: FakeApi) -> Kubelet:
    for name, uuids in GPUS.items():
        add_node(fake, name, len(uuids))
    return Kubelet(fake, GPUS)


@pytest.fixture
def run(api: Api, told: list[str]) -> Run:
    """Runs vectoradd on these targets, for 20 seconds at most and telling `told`, unless `more` has it otherwise."""
    usual = PodRun(NS, PluginImage("plugin:1"), 20, told.append)

    def vectoradds(*targets: Target, **more: Any) -> tuple[NodeResult, ...]:
        own = {name: more.pop(name) for name in ("args", "alone") if name in more}
        return vectoradd.run(api, targets, replace(usual, **more), **own)

    return vectoradds


def test_pods_name_the_scheduler_of_their_resource():
    """A second one places those that ask for memory; the cluster's own all others."""
    node = nodes.parse({"metadata": {"name": "a", "uid": "1"}, "status": {}})
    second = PodRun(NS, PluginImage("plugin:1"), 20, schedulers={pods.MEMORY: "gpunode"})
    past = make_pod("vectoradd.yaml.j2", "one", node, second, resource=pods.GPU, amount=1)
    named = make_pod("vectoradd.yaml.j2", "one", node, second, resource=pods.MEMORY, amount=1)
    assert ("schedulerName" in past["spec"], named["spec"]["schedulerName"]) == (False, "gpunode")


@pytest.mark.parametrize(("args", "program"), [(("-m", "x"), "python3"), ((), "sleep")])
def test_a_pods_gpu_is_held_by_a_program_that_its_image_has(args: tuple[str, ...], program: str):
    """The plugin's has Python, and NVIDIA's sample none. Python ends on SIGTERM where it runs as the first process, too."""
    node = nodes.parse({"metadata": {"name": "a", "uid": "1"}, "status": {}})
    settings = PodRun(NS, PluginImage("i:1"), 20)
    made = make_pod("vectoradd.yaml.j2", "one", node, settings, resource=pods.GPU, amount=1, args=args)
    [command] = [box["command"] for box in made["spec"]["containers"] if box["name"] == "hold"]
    assert command[0] == program
    if program == "python3":
        assert ends_as_first_process([sys.executable, *command[1:]])


def ends_as_first_process(command: Sequence[str]) -> bool:
    """Whether it ends well on SIGTERM, which the kernel keeps from a first process that has not asked for it."""
    namespace = ("unshare", "--pid", "--fork", "--kill-child")
    tried = shutil.which("unshare") and subprocess.run([*namespace, "true"], check=False, capture_output=True)
    if not tried or tried.returncode:
        pytest.skip("needs the right to make a pid namespace")
    with subprocess.Popen([*namespace, *command]) as outer:
        children, end = Path(f"/proc/{outer.pid}/task/{outer.pid}/children"), time.monotonic() + 20
        while outer.poll() is None and time.monotonic() < end:
            for pid in children.read_text().split():
                os.kill(int(pid), signal.SIGTERM)  # again and again: it does not ask for it at once
            time.sleep(0.05)
        outer.kill()
    return outer.returncode == 0


def test_every_gpu_of_every_node_is_covered_once(fake: FakeApi, kubelet: Kubelet, run: Run):
    """One pod per GPU, all at the same time; each says which GPU it was given and how long it ran."""
    first, second = run(A, B)
    assert sorted(result.uuid for result in first.results) == GPUS["a"]
    assert sorted(result.uuid for result in second.results) == GPUS["b"]
    assert first.passed
    assert second.passed
    assert {(result.gpu, result.seconds) for result in first.results} == {("Tesla P100-PCIE-16GB", 2.0)}
    assert fake.all("Pod") == []


def test_a_pod_that_its_kubelet_refused_too_early_is_made_again(
    fake: FakeApi, kubelet: Kubelet, told: list[str], run: Run
):
    """A plugin that was just replaced: the API still shows GPUs of which the kubelet knows nothing for a moment."""
    kubelet.stuck["a"] = {
        "phase": "Failed",
        "reason": "UnexpectedAdmissionError",
        "message": "Allocate failed due to requested number of devices unavailable for nvidia.com/gpu",
    }

    def registered(words: str) -> None:
        told.append(words)
        kubelet.stuck.clear()

    (result,) = run(A, seconds=60, notify=registered)
    assert result.passed
    assert sorted(gpu.uuid for gpu in result.results) == GPUS["a"]
    assert fake.all("Pod") == []


def stuck(reason: str) -> dict[str, object]:
    """The status of a pod whose image cannot be had."""
    waiting = {"reason": reason, "message": "pull access denied for plugin"}
    return {
        "phase": "Pending",
        "containerStatuses": [
            {"name": name, "state": {"waiting": waiting}} for name in ("vectoradd", "hold")
        ],
    }


@pytest.mark.parametrize(
    "reason", ["ErrImageNeverPull", "InvalidImageName", "ErrImagePull", "ImagePullBackOff"]
)
def test_an_image_that_cannot_be_had_is_not_waited_for_to_the_end(
    fake: FakeApi, kubelet: Kubelet, monkeypatch, reason: str, run: Run
):
    """At once where the kubelet does not try, else when it has tried some times; its words say why."""
    kubelet.stuck["a"] = stuck(reason)
    monkeypatch.setattr(pods, "PULL", 0.0)
    (result,) = run(A, seconds=5)
    told_as = "ImagePullBackOff" if "Pull" in reason and "Never" not in reason else reason
    assert [item.why for item in result.results] == [f"{told_as}: pull access denied for plugin"] * 2
    assert fake.all("Pod") == []


def test_a_gpu_that_computes_wrongly_is_named_with_its_error(fake: FakeApi, kubelet: Kubelet, run: Run):
    """The others pass; the bad one has the program's own words, not only an exit status."""
    kubelet.broken.add("GPU-2")
    (result,) = run(A)
    assert not result.passed
    (bad,) = [item for item in result.results if not item.passed]
    assert (bad.uuid, bad.why) == ("GPU-2", "element 7 is 0.0, should be 3.5")
    assert bad.log


def test_gpus_in_use_are_left_alone_and_named(fake: FakeApi, kubelet: Kubelet, run: Run):
    """A pod uses one of two: the free one is tested; the other is named, and its pod."""
    fake.put(pod("train", node="a", namespace="ml", gpus=1))
    kubelet.free["a"].remove("GPU-1")
    (result,) = run(A)
    assert [gpu.uuid for gpu in result.results] == ["GPU-2"]
    assert result.uncovered == ("GPU-1",)
    assert result.users == ("ml/train (1 nvidia.com/gpu)",)
    assert result.passed
    assert not result.busy


def test_a_node_without_a_free_gpu_says_who_holds_them(fake: FakeApi, kubelet: Kubelet, run: Run):
    """No pod is made that could only wait; nothing was shown to work, so it is not called passed."""
    fake.put(pod("train", node="a", namespace="ml", gpus=2))
    (result,) = run(A)
    assert result.why == "of 2 nvidia.com/gpu none is free: in use by ml/train (2 nvidia.com/gpu)"
    assert result.busy
    assert not result.passed
    assert not [request for request in fake.requests if request[0] == "POST"]


def test_pods_of_an_earlier_run_that_are_ending_do_not_count_as_users(
    fake: FakeApi, kubelet: Kubelet, run: Run
):
    """They give their GPUs back in a moment; the scheduler waits for that."""
    old = pod("old", node="a", gpus=2, labels={"app.kubernetes.io/name": "gpunode-vectoradd"})
    old["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    fake.put(old)
    (result,) = run(A)
    assert result.passed


def test_a_gpu_that_no_pod_was_given_is_a_failure(fake: FakeApi, kubelet: Kubelet, run: Run):
    """The host has two, the node offers one, and nobody uses the other."""
    add_node(fake, "a", 1)
    (result,) = run(A)
    assert result.uncovered == ("GPU-2",)
    assert result.why == "the node offered 1 of 2 GPUs"
    assert not result.passed


def test_pods_that_cannot_start_end_with_the_reason(
    fake: FakeApi, kubelet: Kubelet, told: list[str], run: Run
):
    """The scheduler's words, while waiting and in the result; the other node is not held up."""
    words = "0/2 nodes are available: 2 Insufficient nvidia.com/gpu."
    kubelet.stuck["a"] = {
        "phase": "Pending",
        "conditions": [{"type": "PodScheduled", "status": "False", "message": words}],
    }
    first, second = run(A, B, seconds=3)
    assert {result.why for result in first.results} == {f"not done after 3 s: not scheduled: {words}"}
    assert second.passed
    assert any(words in sentence for sentence in told)
    assert fake.all("Pod") == []


def test_a_pod_that_admission_ends_has_its_words(fake: FakeApi, kubelet: Kubelet, run: Run):
    """The kubelet refused it to the end: no container ever ran."""
    kubelet.stuck["a"] = {
        "phase": "Failed",
        "reason": "UnexpectedAdmissionError",
        "message": "Allocate failed: gone",
    }
    (result,) = run(A, seconds=3)
    words = "UnexpectedAdmissionError: Allocate failed: gone"
    assert {item.why for item in result.results} == {f"not done after 3 s: {words}"}


def test_interrupting_it_leaves_no_pod(fake: FakeApi, kubelet: Kubelet, run: Run):
    """Ctrl-C in the middle: the pods are deleted on the way out."""
    kubelet.stuck["a"] = {"phase": "Pending"}

    def interrupt(sentence: str) -> None:
        assert fake.all("Pod")
        raise KeyboardInterrupt(sentence)

    with pytest.raises(KeyboardInterrupt):
        run(A, notify=interrupt)
    assert fake.all("Pod") == []


def test_pods_of_a_killed_run_are_swept_and_those_of_a_live_one_stay(
    api: Api, fake: FakeApi, kubelet: Kubelet, told: list[str], run: Run
):
    """A run that holds the cluster's lease marks its pods; one that only looks, as `verify`, may work at the same time."""
    left = []

    def killed(sentence: str) -> None:
        left.extend(deepcopy(fake.all("Pod")))
        raise KeyboardInterrupt(sentence)

    kubelet.stuck["a"] = {"phase": "Pending"}
    for holder in ("run 1 of root@host", ""):
        with pytest.raises(KeyboardInterrupt):
            run(A, seconds=60, notify=killed, holder=holder)
    for item in left:  # a process that is killed cleans nothing
        fake.put(item)
    assert len(left) == 4

    fake.put(lease._lease("run 2 of root@host", {}))
    vectoradd.sweep(api, NS, told.append, holder="run 2 of root@host")

    assert [each["metadata"]["name"] for each in fake.all("Pod")] == [
        each["metadata"]["name"] for each in left[2:]
    ]
    names = ", ".join(each["metadata"]["name"] for each in left[:2])
    assert told == [f"deleting pods of a run that was killed: {names}"]


def test_a_run_that_lost_the_lease_sweeps_no_pod_of_the_one_that_holds_it(
    api: Api, fake: FakeApi, kubelet: Kubelet, told: list[str], run: Run
):
    """Run 1 was paused after it had taken the lease; run 2 took the lease and proves its nodes."""

    def of_run_2(sentence: str) -> None:
        before = {item["metadata"]["name"] for item in fake.all("Pod")}
        assert len(before) == 2
        vectoradd.sweep(api, NS, told.append, holder="run 1")
        assert {item["metadata"]["name"] for item in fake.all("Pod")} == before
        raise KeyboardInterrupt(sentence)

    kubelet.stuck["a"] = {"phase": "Pending"}
    fake.put(lease._lease("run 2", {}))
    with pytest.raises(KeyboardInterrupt):
        run(A, seconds=60, notify=of_run_2, holder="run 2")
    assert told == []


def test_a_quota_that_forbids_pods_is_reported_and_the_rest_runs(fake: FakeApi, kubelet: Kubelet, run: Run):
    """Admission refuses the first pod of one node, whichever comes first; the other node is tested."""
    fake.fail("POST", "/pods", Fault(403, "Forbidden", "exceeded quota: q"))
    first, second = sorted(run(A, B), key=lambda result: result.passed)
    assert first.why.startswith(
        "a pod could not be created: the cluster's admission refused it: exceeded quota: q. The ResourceQuota `q` "
    )
    assert second.passed
    assert fake.all("Pod") == []


def test_without_logs_the_exit_status_counts(fake: FakeApi, kubelet: Kubelet, run: Run):
    """Logs may be forbidden: then it is known that each GPU passed, not which pod had which."""
    kubelet.without_log = True
    (result,) = run(A)
    assert result.passed
    assert {(gpu.uuid, gpu.why.split(":")[0]) for gpu in result.results} == {("", "its log cannot be read")}


def test_another_image_may_be_used(fake: FakeApi, kubelet: Kubelet, run: Run):
    """NVIDIA's sample prints no JSON; its exit status counts, and the number of GPUs."""
    fake.react(
        "Pod", lambda item: fake.logs.update({(item["metadata"]["name"], "vectoradd"): "Test PASSED\nDone\n"})
    )
    (result,) = run(A, args=())
    assert result.passed
    assert result.results[0].log == ("Test PASSED", "Done")


def test_nodes_that_are_not_there_or_not_ready_are_results(fake: FakeApi, kubelet: Kubelet, run: Run):
    """One bad node is a line in the answer, never an exception for all."""
    add_node(fake, "dead", 2, ready=False)
    none, dead, good = run(Target("none"), Target("dead"), A)
    assert none.why == "the cluster has no such node"
    assert dead.why == "the node is not Ready: Kubelet stopped posting node status."
    assert good.passed


def test_a_pod_that_somebody_deletes_is_a_result(api: Api, fake: FakeApi, kubelet: Kubelet, run: Run):
    """A drain or a colleague took it away: said at once, not at the deadline."""
    kubelet.stuck["a"] = {"phase": "Pending"}

    def delete(_: str) -> None:
        for item in fake.all("Pod"):
            fake.drop(f"/api/v1/namespaces/{NS}/pods/{item['metadata']['name']}")

    (result,) = run(A, notify=delete)
    assert {item.why for item in result.results} == {"the pod was deleted by another client"}


MEMORY = "aliyun.com/gpu-mem"
BY_MEMORY = PluginConfig("sharing: {memory: {}}\n")


def test_gpus_shared_by_memory_are_covered_by_pods_that_fill_them(fake: FakeApi, run: Run):
    """Alike and idle: as many units as one GPU has fit nowhere twice. One leaves a unit, for which a pod more comes: those
    two share a GPU. The pods' limit is in the results."""
    add_node(fake, "m", shared=(2, 32))
    kubelet = Kubelet(fake, {"m": ["GPU-1", "GPU-2", "GPU-2"]})
    kubelet.limited = 1024
    (result,) = run(Target("m", ("GPU-1", "GPU-2")), config=BY_MEMORY)
    assert result.passed, result
    assert (result.divided, result.shared, result.together) == (True, True, "GPU-2")
    assert kubelet.asked == [{MEMORY: 16}, {MEMORY: 15}, {MEMORY: 1}]
    assert [(gpu.uuid, gpu.share, gpu.limit) for gpu in result.results] == [
        ("GPU-1", 16384, 16384),
        ("GPU-2", 15360, 15360),
        ("GPU-2", 1024, 1024),
    ]


def test_a_limit_that_is_not_what_a_pod_asked_for_fails_it(fake: FakeApi, run: Run):
    """It would have too little, or others would."""
    add_node(fake, "m", shared=(1, 1))
    Kubelet(fake, {"m": ["GPU-1"]}).limited = 512
    (result,) = run(Target("m", ("GPU-1",)), config=BY_MEMORY)
    assert not result.passed
    assert result.results[0].why == "it requested 1024 MiB of memory, but its limit is 512 MiB"


@tables.rows("filled-gpus")
def test_gpus_that_share_memory_are_filled(
    fake: FakeApi,
    whole: int,
    shared: list[int],
    order: list[int],
    sizes: list[int],
    asked: list[dict[str, int]],
    together: str,
    run: Run,
):
    """A pod for each, asking for what it is; the last shares a GPU where that is possible."""
    add_node(fake, "m", whole, shared=shared)
    kubelet = Kubelet(fake, {"m": [f"GPU-{number}" for number in order]})
    (result,) = run(Target("m", tuple(sorted({f"GPU-{n}" for n in order})), sizes))
    assert result.passed, result
    assert kubelet.asked == asked
    assert (result.uncovered, result.together) == ((), together)


@pytest.mark.parametrize(("units", "held"), [(32, 3), (95, 0)])
def test_shared_gpus_in_use_or_of_different_sizes_get_one_pod(fake: FakeApi, units: int, held: int, run: Run):
    """Which GPU has room is not known: the smallest pod there is shows that pods get there. Who holds memory is named."""
    add_node(fake, "m", shared=(2, units))
    if held:
        fake.put(pod("train", node="m", namespace="ml", asks={MEMORY: held}))
    kubelet = Kubelet(fake, {"m": ["GPU-2"]})
    (result,) = run(Target("m", ("GPU-1", "GPU-2")))
    assert result.passed, result
    assert kubelet.asked == [{MEMORY: 1}]
    assert result.users == ((f"ml/train (3 {MEMORY})",) if held else ())


def test_memory_that_is_all_held_is_reported(fake: FakeApi, run: Run):
    """By whom."""
    add_node(fake, "m", shared=(1, 16))
    fake.put(pod("train", node="m", namespace="ml", asks={MEMORY: 16}))
    (result,) = run(Target("m", ("GPU-1",)))
    assert result.why == f"of 16 {MEMORY} none is free: in use by ml/train (16 {MEMORY})"


NAMED = "example.com/mem"
BY_NAME = PluginConfig(f"version: v1\nsharing: {{memory: {{name: {NAMED}}}}}\n")


def add_named(fake: FakeApi, units: int) -> None:
    add_node(fake, "m")
    fake.update("Node", "m", status={"allocatable": {NAMED: str(units)}, "capacity": {NAMED: str(units)}})


@pytest.mark.parametrize(("pieces", "held"), [((), 0), ((16, 16), 3)])
def test_memory_under_a_name_of_its_own_is_asked_for_by_that(
    fake: FakeApi, pieces: tuple[int, ...], held: int, run: Run
):
    """By it GPUs are not counted, so where nothing is known of them, or somebody has memory of them, one pod shows that pods
    get there; who holds some of it is named."""
    add_named(fake, 32)
    if held:
        fake.put(pod("train", node="m", namespace="ml", asks={NAMED: held}))
    kubelet = Kubelet(fake, {"m": ["GPU-2"]})
    (result,) = run(Target("m", ("GPU-1", "GPU-2"), pieces), config=BY_NAME)
    assert result.passed, result
    assert result.shared
    assert kubelet.asked == [{NAMED: 1}]
    assert result.together == ""
    assert result.users == ((f"ml/train (3 {NAMED})",) if held else ())


def test_memory_under_a_name_of_its_own_is_filled_where_the_host_tells_its_gpus(fake: FakeApi, run: Run):
    """As memory under gpushare's name is."""
    add_named(fake, 24)
    kubelet = Kubelet(fake, {"m": ["GPU-1", "GPU-2", "GPU-2"]})
    (result,) = run(Target("m", ("GPU-1", "GPU-2"), (16, 8)), config=BY_NAME)
    assert result.passed, result
    assert kubelet.asked == [{NAMED: 16}, {NAMED: 7}, {NAMED: 1}]
    assert result.together == "GPU-2"


def test_mig_devices_are_covered_with_the_whole_gpus(fake: FakeApi, run: Run):
    """Each by the name of its profile, so that every one has been seen; one that no pod saw is named."""
    small = "nvidia.com/mig-1g.10gb"
    add_node(fake, "m", 1)
    offers = {"nvidia.com/gpu": "1", small: "2"}
    fake.update("Node", "m", status={"allocatable": offers, "capacity": offers})
    uuids = ("GPU-1", "MIG-0", "MIG-1")
    kubelet = Kubelet(fake, {"m": [*uuids, "GPU-1", "MIG-0", "MIG-0"]})
    (result,) = run(Target("m", uuids))
    assert result.passed, result
    assert kubelet.asked == [{"nvidia.com/gpu": 1}, {small: 1}, {small: 1}]
    (again,) = run(Target("m", uuids))
    assert again.uncovered == ("MIG-1",)
    assert not again.passed


def test_a_program_that_measures_its_gpus_at_once_gets_all_whole_ones_in_one_pod(fake: FakeApi, run: Run):
    """And no two of its pods share a GPU."""
    add_node(fake, "m", 3)
    add_node(fake, "s", shared=(2, 32))
    add_node(fake, "t", gpu_shared=40)
    given = {"m": ["GPU-1", "GPU-2", "GPU-3"], "s": ["GPU-4", "GPU-5"], "t": list(SPREAD)}
    kubelet = Kubelet(fake, given)
    (result,) = run(Target("m"), alone=True)
    assert [gpu.uuid for gpu in result.results] == ["GPU-1", "GPU-2", "GPU-3"]
    assert {item.pod.partition("-")[0] for item in result.results} == {"accept"}
    (result,) = run(Target("s", ("GPU-4", "GPU-5")), config=BY_MEMORY, alone=True)
    assert result.divided
    run(Target("t", FOUR), config=sliced(), alone=True)
    assert kubelet.asked == [{"nvidia.com/gpu": 3}, *[{MEMORY: 16}] * 2, *[{SHARED: 1}] * 4]


SHARED = "nvidia.com/gpu.shared"


def sliced(replicas: int = 10, more: str = "", flags: str = "") -> PluginConfig:
    """GPUs are shared by time-slicing, under a name of their own."""
    text = f"name: nvidia.com/gpu, replicas: {replicas}, rename: {SHARED}{more}"
    return PluginConfig(f"{flags}\nsharing: {{timeSlicing: {{resources: [{{{text}}}]}}}}\n")


ONE_SHARE = PluginConfig(
    "sharing: {mps: {resources: [{name: nvidia.com/gpu, replicas: 10, rename: nvidia.com/gpu.shared}]}}\n"
)
FILL = "flags: {plugin: {sharedDevicesAllocationPolicy: packed}}\n"
SPREAD = ["GPU-1", "GPU-2", "GPU-3", "GPU-4"] * 10
PACKED = ["GPU-1"] * 10 + ["GPU-2"] * 10 + ["GPU-3"] * 10 + ["GPU-4"] * 10
FOUR = ("GPU-1", "GPU-2", "GPU-3", "GPU-4")


@pytest.mark.parametrize(
    ("config", "given", "asked"),
    [
        (sliced(), SPREAD, [1] * 5),
        (ONE_SHARE, SPREAD, [1] * 5),
        (sliced(), PACKED, [1] * 5 + [26]),  # the rest in one pod
        (replace(ONE_SHARE, text=ONE_SHARE.text + FILL), PACKED, [1] * 31),  # 5, then all at once
        (ONE_SHARE, ["GPU-1"] * 5 + SPREAD, [1] * 10),
    ],
    ids=["spread", "spread MPS", "packed", "packed MPS", "uneven MPS"],
)
@pytest.mark.parametrize("uuids", [FOUR, ()], ids=["GPUs known", "their number known"])
def test_shares_get_no_more_pods_than_show_every_gpu_and_that_two_share_one(
    fake: FakeApi, config: PluginConfig, given: list[str], asked: list[int], uuids: tuple[str, ...], run: Run
):
    """One pod more than there are GPUs. Where those have not seen all, one pod takes all that is left; or as many as there
    are already, where a pod may have one share only."""
    add_node(fake, "m", gpu_shared=40)
    kubelet = Kubelet(fake, {"m": list(given)})
    (result,) = run(Target("m", uuids), config=config)
    assert result.passed, result
    assert [limits[SHARED] for limits in kubelet.asked] == asked
    assert {gpu.uuid for gpu in result.results} == set(FOUR)
    assert result.divided
    assert result.together
    assert fake.all("Pod") == []


def test_a_gpu_that_fails_among_several_of_a_pod_is_named_alone(fake: FakeApi, run: Run):
    """The pod's exit status is that of its worst GPU; the others passed."""
    add_node(fake, "m", gpu_shared=40)
    kubelet = Kubelet(fake, {"m": list(PACKED)})
    kubelet.broken.add("GPU-3")
    (result,) = run(Target("m", FOUR), config=sliced())
    assert {gpu.uuid: gpu.passed for gpu in result.results} == dict.fromkeys(FOUR, True) | {"GPU-3": False}
    assert {item.why for item in result.results if not item.passed} == {"element 7 is 0.0, should be 3.5"}
    assert not result.passed


@pytest.mark.parametrize(
    ("config", "good"), [(sliced(), False), (ONE_SHARE, True), (None, True)], ids=["sliced", "MPS", "whole"]
)
def test_a_gpu_that_one_process_at_a_time_may_use_cannot_be_shared(
    fake: FakeApi, config: PluginConfig | None, good: bool, run: Run
):
    """Pods that come one after the other would not notice. With MPS its server is that process; a whole GPU may be so."""
    add_node(fake, "m", gpu_shared=40) if config else add_node(fake, "m", 4)
    Kubelet(fake, {"m": list(SPREAD)}).exclusive.add("GPU-3")
    (result,) = run(Target("m", FOUR), config=config)
    assert result.passed == good
    assert {gpu.uuid: gpu.why for gpu in result.results if not gpu.passed} == (
        {}
        if good
        else {
            "GPU-3": "the GPU's compute mode allows one process at a time, so pods cannot share it: run "
            "`nvidia-smi -i GPU-3 -c DEFAULT` on the host"
        }
    )


def test_a_gpu_of_which_no_share_is_free_is_looked_for_to_the_end(fake: FakeApi, run: Run):
    """And then said to be in use, by whom."""
    add_node(fake, "m", gpu_shared=40)
    fake.put(pod("train", node="m", namespace="ml", asks={SHARED: 10}))
    kubelet = Kubelet(fake, {"m": PACKED[:30]})
    (result,) = run(Target("m", FOUR), config=sliced())
    assert [limits[SHARED] for limits in kubelet.asked] == [1, 1, 1, 1, 1, 25]
    assert result.uncovered == ("GPU-4",)
    assert result.users == (f"ml/train (10 {SHARED})",)
    assert result.passed


def test_a_gpu_whose_shares_pods_never_get_is_a_failure(fake: FakeApi, run: Run):
    """Nobody has any, and all were asked for."""
    add_node(fake, "m", gpu_shared=40)
    Kubelet(fake, {"m": ["GPU-1", "GPU-2", "GPU-3"] * 14})
    (result,) = run(Target("m", FOUR), config=sliced())
    assert result.uncovered == ("GPU-4",)
    assert not result.passed


def test_the_last_free_share_shows_its_gpu_but_no_sharing(fake: FakeApi, run: Run):
    """Two pods would be needed for that."""
    add_node(fake, "m", gpu_shared=2)
    fake.put(pod("train", node="m", namespace="ml", asks={SHARED: 1}))
    Kubelet(fake, {"m": ["GPU-1"]})
    (result,) = run(Target("m", ("GPU-1",)), config=sliced(2))
    assert result.passed, result
    assert (result.divided, result.together) == (True, "")


def test_pods_that_do_not_tell_their_gpu_get_so_many_shares_that_they_must_have_had_all(
    fake: FakeApi, run: Run
):
    """Each one, as an image may try only the first GPU that it sees."""
    add_node(fake, "m", gpu_shared=40)
    kubelet = Kubelet(fake, {"m": list(PACKED)})
    kubelet.without_log = True
    (result,) = run(Target("m", FOUR), config=sliced())
    assert [limits[SHARED] for limits in kubelet.asked] == [1] * 31
    assert result.passed
    assert not result.divided  # what was shared is not known


def test_after_a_pod_that_could_not_run_no_more_are_made(fake: FakeApi, run: Run):
    """They would fare no better."""
    add_node(fake, "m", gpu_shared=40)
    kubelet = Kubelet(fake, {"m": list(PACKED)})
    kubelet.stuck["m"] = {"phase": "Failed", "reason": "Evicted", "message": "the node was low on memory"}
    (result,) = run(Target("m", FOUR), config=sliced())
    assert {item.why for item in result.results} == {"Evicted: the node was low on memory"}
    assert len(result.results) == 5


@pytest.mark.parametrize(
    ("config", "asked"),
    [
        (sliced(3, ', devices: ["0"]'), [GPU := "nvidia.com/gpu", SHARED, SHARED]),
        (PluginConfig(files={"other": "version: v1\n"}), [GPU, SHARED, SHARED, SHARED]),
    ],
    ids=["known", "unknown"],
)
def test_shares_of_gpus_are_covered_with_the_whole_ones(
    fake: FakeApi, told: list[str], config: PluginConfig, asked: list[str], run: Run
):
    """A pod for each whole one, and what the shared ones take; where it cannot be told how many a GPU makes, one more than
    there are GPUs."""
    add_node(fake, "m", 1, gpu_shared=3, labels={"nvidia.com/device-plugin.config": "none"})
    kubelet = Kubelet(fake, {"m": ["GPU-1", "GPU-2", "GPU-2", "GPU-2"]})
    (result,) = run(Target("m", ("GPU-1", "GPU-2")), config=config)
    assert result.passed, result
    assert [next(iter(limits)) for limits in kubelet.asked] == asked
    assert result.together == "GPU-2"


def test_an_event_is_handled_by_its_own_node_alone(fake: FakeApi, monkeypatch, run: Run):
    """However many nodes and pods there are: a run of 1,000 nodes has as many events as pods."""
    nodes = {f"n{number}": [f"GPU-{number}"] for number in range(12)}
    for name in nodes:
        add_node(fake, name, 1)
    Kubelet(fake, nodes)
    log: list[str] = []
    gather, follow = vectoradd._Run.gather, vectoradd.changes

    def spied(*arguments: object, **more: object) -> Iterator[tuple[Mapping[str, object], str | None]]:
        for objects, changed in follow(*arguments, **more):
            log.append("event" if changed else "all")
            yield objects, changed

    def gathered(this: vectoradd._Run, job: Job, objects: Mapping[str, object]) -> None:
        log.append("look")
        gather(this, job, objects)

    monkeypatch.setattr(vectoradd, "changes", spied)
    monkeypatch.setattr(vectoradd._Run, "gather", gathered)
    results = run(*(Target(name, tuple(uuids)) for name, uuids in nodes.items()))
    assert all(result.passed for result in results)
    looks = "".join({"event": "e", "all": "a", "look": "."}[item] for item in log)
    assert re.fullmatch(r"(a\.{12}|e\.{0,1})+", looks)


def test_pods_of_many_nodes_are_made_side_by_side(fake: FakeApi, monkeypatch, run: Run):
    """Each waits for the other here: one after the other, they would never be made."""
    for name in ("a", "b"):
        add_node(fake, name, 1)
    Kubelet(fake, {"a": ["GPU-1"], "b": ["GPU-2"]})
    both, create = Barrier(2), vectoradd._Run.create

    def together(this: vectoradd._Run, *arguments: object) -> str:
        both.wait(20)
        return create(this, *arguments)

    monkeypatch.setattr(vectoradd._Run, "create", together)
    assert all(result.passed for result in run(Target("a", ("GPU-1",)), Target("b", ("GPU-2",))))
