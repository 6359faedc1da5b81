"""Why a pod does not run, in the words of those who know."""

from __future__ import annotations

from typing import Any

import pytest

from gpunode.cluster import pods

PULL = 'Failed to pull image "gpunode/device-plugin:0.1.0": dial tcp: lookup registry: no such host'
SANDBOX = 'Failed to create pod sandbox: no runtime for "nvidia" is configured'


def waiting(reason: str, message: str = "", **last: Any) -> dict[str, Any]:
    return {
        "phase": "Pending",
        "containerStatuses": [
            {"name": "c", "state": {"waiting": {"reason": reason, "message": message}}, "lastState": last}
        ],
    }


def warning(message: str) -> dict[str, Any]:
    return {"type": "Warning", "message": message}


@pytest.mark.parametrize(
    ("status", "events", "why"),
    [
        ({"phase": "Running", "containerStatuses": [{"name": "c", "state": {"running": {}}}]}, [], ""),
        (waiting("ContainerCreating"), [], ""),
        (
            waiting("ErrImagePull", "rpc error"),
            [warning(PULL), warning("Error: ErrImagePull")],
            f"ImagePullBackOff: {PULL}",
        ),
        (
            waiting("ImagePullBackOff", "Back-off"),
            [warning(PULL), warning("Error: ImagePullBackOff")],
            f"ImagePullBackOff: {PULL}",
        ),
        (waiting("ErrImageNeverPull", "image is not present"), [], "ErrImageNeverPull: image is not present"),
        (
            waiting(
                "CrashLoopBackOff",
                terminated={"exitCode": 2, "reason": "Error", "message": "a\nbad flag --x\n"},
            ),
            [],
            "c is in CrashLoopBackOff: exit code 2, bad flag --x",
        ),
        (
            waiting("CrashLoopBackOff", terminated={"exitCode": 137, "reason": "OOMKilled"}),
            [],
            "c is in CrashLoopBackOff: OOMKilled, exit code 137",
        ),
        (waiting("ContainerCreating"), [warning(SANDBOX)], SANDBOX),
        (
            {
                "phase": "Pending",
                "conditions": [
                    {
                        "type": "PodScheduled",
                        "status": "False",
                        "message": "0/2 nodes are available: 2 Insufficient nvidia.com/gpu.",
                    }
                ],
            },
            [],
            "not scheduled: 0/2 nodes are available: 2 Insufficient nvidia.com/gpu.",
        ),
        (
            {"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": "Allocate failed"},
            [],
            "UnexpectedAdmissionError: Allocate failed",
        ),
        (
            {
                "phase": "Failed",
                "containerStatuses": [
                    {"name": "c", "state": {"terminated": {"exitCode": 1, "reason": "Error"}}}
                ],
            },
            [],
            "c ended: exit code 1",
        ),
    ],
)
def test_the_reason_comes_from_who_knows_it(
    status: dict[str, Any], events: list[dict[str, Any]], why: str
) -> None:
    """Scheduler, kubelet, runtime and admission each leave their words in another place."""
    assert pods.problem({"status": status}, events) == why


def test_gpus_are_counted_until_a_pod_is_over() -> None:
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
