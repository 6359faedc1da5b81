"""Whether a pod that holds GPUs runs anything on them: by its containers' states, and never where these leave a doubt."""

from typing import Any

import pytest

from gpunode.links.node import drain
from tests import tables

RUNS: dict[str, Any] = {"running": {}}
DONE: dict[str, Any] = {"terminated": {"exitCode": 0}}
FAILED: dict[str, Any] = {"terminated": {"exitCode": 1}}


def waits(reason: str) -> dict[str, Any]:
    return {"waiting": {"reason": reason}}


CRASHES, CREATING = waits("CrashLoopBackOff"), waits("ContainerCreating")


def pod(
    late: dict[str, Any],
    early: dict[str, Any] | None = None,
    *,
    gpus: tuple[str, ...] = ("main",),
    policy: str = "Always",
    sidecars: tuple[str, ...] = (),
    **meta: str,
) -> dict[str, Any]:
    """A pod of containers by name with their states; None: the kubelet has not reported it."""

    def container(name: str) -> dict[str, Any]:
        limits = {"nvidia.com/gpu": "1"} if name in gpus else {}
        own = {"restartPolicy": "Always"} if name in sidecars else {}
        return {"name": name, "resources": {"limits": limits}, **own}

    def statuses(states: dict[str, Any]) -> list[dict[str, Any]]:
        return [{"name": name, "state": state} for name, state in states.items() if state is not None]

    early = early or {}
    return {
        "metadata": {"name": "p", "uid": "u", **meta},
        "spec": {
            "restartPolicy": policy,
            "initContainers": [container(name) for name in early],
            "containers": [container(name) for name in late],
        },
        "status": {
            "phase": "Running",
            "initContainerStatuses": statuses(early),
            "containerStatuses": statuses(late),
        },
    }


@pytest.mark.parametrize(
    ("item", "why"),
    [
        (pod({"main": RUNS}), ""),
        (pod({"main": CRASHES}), "CrashLoopBackOff"),
        (pod({"main": waits("CreateContainerError")}), "CreateContainerError"),
        (pod({"main": waits("RunContainerError")}), "RunContainerError"),
        (pod({"main": waits("ImagePullBackOff")}), "ImagePullBackOff"),
        (pod({"main": CRASHES, "more": RUNS}), "CrashLoopBackOff"),
        (pod({"main": CRASHES, "more": RUNS}, gpus=("main", "more")), ""),
        (pod({"main": CRASHES, "more": waits("ErrImagePull")}, gpus=("main", "more")), "CrashLoopBackOff"),
    ],
)
def test_a_pod_stands_still_while_no_container_with_a_gpu_runs(item: dict[str, Any], why: str):
    (work,) = drain.find_work([item])
    assert work.standstill == why


@pytest.mark.parametrize(
    "item",
    [
        pod({"main": None}),
        pod({"main": {}}),
        pod({"main": CREATING}),
        pod({"main": waits("SomethingNew")}),
        pod({"main": CRASHES, "more": CREATING}, gpus=("main", "more")),
        pod({"main": FAILED}),
        pod({"main": FAILED}, policy="OnFailure"),
        pod({"main": DONE}),
    ],
)
def test_a_pod_whose_container_is_about_to_run_or_not_known_works(item: dict[str, Any]):
    """One that has just ended is started again at once: an attempt to go on, not a standstill."""
    (work,) = drain.find_work([item])
    assert work.standstill == ""


@tables.rows("init-containers")
def test_init_containers_and_sidecars_count(
    late: dict[str, Any], early: dict[str, Any], more: dict[str, Any], why: str
):
    (work,) = drain.find_work([pod(late, early, **more)])
    assert work.standstill == why


@pytest.mark.parametrize(
    ("policy", "main", "more", "why"),
    [
        ("Never", DONE, RUNS, ""),
        ("Never", FAILED, RUNS, ""),
        ("OnFailure", DONE, RUNS, ""),
        ("OnFailure", DONE, CRASHES, "CrashLoopBackOff"),
        ("OnFailure", DONE, CREATING, ""),
        ("Always", DONE, CRASHES, ""),
    ],
)
def test_a_job_whose_gpus_are_done_with_works_while_its_other_containers_run(
    policy: str, main: dict[str, Any], more: dict[str, Any], why: str
):
    """They may be uploading what was computed."""
    (work,) = drain.find_work([pod({"main": main, "more": more}, policy=policy)])
    assert work.standstill == why


def test_nothing_of_a_pod_that_is_deleted_is_started_again():
    gone = {"deletionTimestamp": "2026-01-01T00:00:00Z"}
    (work,) = drain.find_work([pod({"main": FAILED, "more": CRASHES}, **gone)])
    assert work.standstill == "CrashLoopBackOff"


def test_a_pod_without_gpus_stands_still_as_a_whole():
    items = [pod({"main": CRASHES, "more": CRASHES}, gpus=()), pod({"main": CRASHES, "more": RUNS}, gpus=())]
    assert [work.standstill for work in drain.find_work(items)] == ["CrashLoopBackOff", ""]


def test_who_drains_a_node_leaves_no_pod_on_it_of_which_anything_runs():
    """Drained are pods without GPUs, too: a budget may be there for the container that runs."""
    (partly,) = drain.find_work([pod({"main": CRASHES, "more": RUNS})], whole=True)
    (wholly,) = drain.find_work([pod({"main": CRASHES, "more": CRASHES})], whole=True)
    assert (partly.standstill, wholly.standstill) == ("", "CrashLoopBackOff")


def test_a_container_that_asks_for_no_gpu_in_figures_uses_none():
    item = pod({"main": CRASHES, "more": RUNS})
    item["spec"]["containers"][1]["resources"]["limits"] = {"nvidia.com/gpu": "0"}
    (work,) = drain.find_work([item])
    assert work.standstill == "CrashLoopBackOff"
