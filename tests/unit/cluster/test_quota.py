"""Whether ResourceQuotas have room for pods, as the API server's admission counts: a table."""

from __future__ import annotations

from typing import Any

import pytest

from gpunode.cluster import quota
from gpunode.cluster.quota import Wanted

GPU = {"nvidia.com/gpu": "1"}


def limited(hard: dict[str, str], used: dict[str, str] | None = None, **spec: Any) -> dict[str, Any]:
    """A quota as its controller keeps it."""
    meta = {"name": "q", "namespace": "gpunode"}
    return {"metadata": meta, "spec": {"hard": hard, **spec}, "status": {"hard": hard, "used": used or {}}}


def pod(*, namespace: str = "gpunode", qos: str = "Burstable", **spec: Any) -> dict[str, Any]:
    """As a dry run answers it."""
    requests = {"cpu": "10m", "memory": "64Mi", **GPU}
    container = {"resources": {"requests": requests, "limits": {"memory": "256Mi", **GPU}}}
    status = {"qosClass": qos}
    return {
        "metadata": {"namespace": namespace},
        "spec": {"containers": [container], **spec},
        "status": status,
    }


def by_class(operator: str, *values: str) -> dict[str, Any]:
    one = {"scopeName": "PriorityClass", "operator": operator, "values": list(values)}
    return {"scopeSelector": {"matchExpressions": [one]}}


BIG = [{"resources": {"requests": {"cpu": "1"}}}]
SIDECAR = [{**BIG[0], "restartPolicy": "Always"}]
CLASS = "system-node-critical"


@pytest.mark.parametrize(
    ("one", "made", "room"),
    [
        (limited({}), pod(), 5),
        (limited({"pods": "3"}), pod(), 3),
        (limited({"pods": "3"}, {"pods": "4"}), pod(), 0),  # it was lowered
        (limited({"count/pods": "10"}, {"count/pods": "8"}), pod(), 2),
        (limited({"requests.nvidia.com/gpu": "4"}, {"requests.nvidia.com/gpu": "2"}), pod(), 2),
        (
            limited({"nvidia.com/gpu": "0", "limits.nvidia.com/gpu": "0"}),
            pod(),
            5,
        ),  # it counts by no such name
        (limited({"requests.aliyun.com/gpu-mem": "0"}), pod(), 5),
        (limited({"cpu": "35m"}), pod(), 3),
        (limited({"requests.cpu": "0.02"}), pod(), 2),
        (limited({"requests.memory": "130Mi", "limits.memory": "2Gi"}), pod(), 2),
        (limited({"limits.memory": "0.5Gi"}), pod(), 2),
        (limited({"limits.cpu": "0"}), pod(), 5),  # it has none
        (limited({"services": "0", "requests.storage": "0"}), pod(), 5),
        (limited({"requests.cpu": "2"}), pod(initContainers=BIG), 2),
        (limited({"requests.cpu": "2"}), pod(initContainers=SIDECAR), 1),  # it stays
        (limited({"requests.cpu": "3"}), pod(initContainers=[*SIDECAR, *BIG]), 1),
        (limited({"requests.cpu": "3"}), pod(initContainers=[*BIG, *SIDECAR]), 2),
        (limited({"requests.cpu": "40m"}), pod(overhead={"cpu": "10m"}), 2),
        (limited({"pods": "1"}), pod(namespace="other"), 5),
        (limited({"requests.cpu": "2"}), pod(resources={"requests": {"cpu": "1"}}), 2),
        (limited({"limits.memory": "1Gi", "limits.cpu": "3"}), pod(resources={"limits": {"cpu": "1"}}), 3),
        (
            limited({"requests.cpu": "3", "requests.nvidia.com/gpu": "2"}),
            pod(initContainers=BIG, overhead={"cpu": "500m"}, resources={"requests": {"cpu": "500m", **GPU}}),
            2,
        ),
        (limited({"pods": "1"}, scopes=["Terminating"]), pod(), 5),
        (limited({"pods": "1"}, scopes=["Terminating"]), pod(activeDeadlineSeconds=9), 1),
        (limited({"pods": "1"}, scopes=["NotTerminating"]), pod(), 1),
        (limited({"pods": "1"}, scopes=["BestEffort"]), pod(), 5),
        (limited({"pods": "1"}, scopes=["BestEffort"]), pod(qos="BestEffort"), 1),
        (limited({"pods": "1"}, scopes=["NotBestEffort", "NotTerminating"]), pod(), 1),
        (limited({"pods": "1"}, scopes=["CrossNamespacePodAffinity"]), pod(), 5),
        (limited({"pods": "1"}, **by_class("In", CLASS)), pod(priorityClassName=CLASS), 1),
        (limited({"pods": "1"}, **by_class("In", "other")), pod(priorityClassName=CLASS), 5),
        (limited({"pods": "1"}, **by_class("NotIn", CLASS)), pod(), 1),
        (limited({"pods": "1"}, **by_class("Exists")), pod(), 5),
        (limited({"pods": "1"}, **by_class("DoesNotExist")), pod(), 1),
        ({**limited({"pods": "1"}), "status": {}}, pod(), 5),  # its controller has not seen it
    ],
)
def test_a_quota_has_room_for_so_many(one: dict[str, Any], made: dict[str, Any], room: int) -> None:
    found = list(quota.short([one], [Wanted("pods", made, 5)]))
    assert [what for what, _ in found] == ([f"{5 - room} of 5 pods"] if room < 5 else [])
    assert all(f"the ResourceQuota `q` has room for {room}: " in reason.what for _, reason in found)


def test_pods_that_come_first_take_their_room() -> None:
    """What is left is said with what is there and used."""
    one = limited({"pods": "8"}, {"pods": "2"})
    (found,) = quota.short([one], [Wanted("of the plugin", pod(), 4), Wanted("of vectoradd", pod(), 4)])
    assert found[0] == "2 of 4 of vectoradd"
    assert found[1].what == (
        "the ResourceQuota `q` has room for 2: its pods is 8, of which 2 are used, and other pods of this plan come first"
    )
    assert "`kubectl describe resourcequota q`" in found[1].fix


def test_the_tightest_of_several_is_named() -> None:
    other = limited({"pods": "3"})
    other["metadata"]["name"] = "tight"
    ((_, reason),) = quota.short([limited({"pods": "4"}), other], [Wanted("pods", pod(), 5)])
    assert "`tight` has room for 3" in reason.what
