"""Why a pod does not run, in the words of those who know."""

from typing import Any

import pytest

from gpunode.cluster import pods
from tests import tables


def waiting(reason: str, message: str = "", **last: Any) -> dict[str, Any]:
    return {
        "phase": "Pending",
        "containerStatuses": [
            {"name": "c", "state": {"waiting": {"reason": reason, "message": message}}, "lastState": last}
        ],
    }


@tables.rows("pod-reasons")
def test_the_reason_comes_from_who_knows_it(status: dict[str, Any], events: list[dict[str, Any]], why: str):
    """Scheduler, kubelet, runtime and admission each leave their words in another place."""
    assert pods.problem({"status": status}, events) == why


@pytest.mark.parametrize("reason", ["ErrImageNeverPull", "ImagePullBackOff", "InvalidImageName"])
def test_an_image_that_may_just_have_come_is_waited_for(reason: str):
    """The kubelet tells of its last look; an image that a run has loaded since is there at the next one."""
    pod = {"metadata": {"uid": "u"}, "status": waiting(reason)}
    assert pods.Pulls().is_hopeless(pod) == (reason == "InvalidImageName")


def test_gpus_are_counted_until_a_pod_is_over():
    """Init containers run before the others, so the larger need counts, but sidecars beside them; a pod that ended holds none."""

    def container(gpus: int) -> dict[str, Any]:
        return {"name": "c", "resources": {"limits": {"nvidia.com/gpu": str(gpus)}}}

    item: dict[str, Any] = {
        "spec": {"initContainers": [container(3)], "containers": [container(1), container(1), {}]}
    }
    assert pods.holds(item) == 3
    item["spec"]["initContainers"] = [container(3) | {"restartPolicy": "Always"}]
    assert pods.holds(item) == 5
    item["status"] = {"phase": "Succeeded"}
    assert pods.holds(item) == 0
    assert pods.holds(item | {"status": {}}, "aliyun.com/gpu-mem") == 0
