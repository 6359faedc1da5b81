"""The second scheduler of `share enable`: planned, accepted and deployed; and who else asks the extender."""

from __future__ import annotations

import time

from gpunode.cluster import pods
from gpunode.cluster.api import Api
from gpunode.cluster.objects import apply
from gpunode.cluster.objects.apply import Component
from gpunode.engine.listener import Listener, accepted, progress
from gpunode.errors import ClusterError, GpunodeError
from gpunode.links.scheduler import deployment
from gpunode.links.scheduler import plan as schedulers
from gpunode.model import SecondScheduler
from gpunode.wording import few

NAMED = 5


def check_server(api: Api, desired: SecondScheduler | None) -> int:
    """The API server's minor version. Raises ClusterError where it does not work with the desired scheduler."""
    minor = int(api.version().removeprefix("v").split(".")[1])
    if desired is not None:
        deployment.minor(desired, minor)
    return minor


def enable(
    api: Api, listener: Listener, scheduler: Component, desired: SecondScheduler, *, yes: bool
) -> None:
    """Deploy it beside the extender, which leads. Raises ClusterError."""
    changes = [one for one in scheduler.plan(api) if one.action not in ("same", "foreign")]
    listener.cluster(api.access.context, changes)
    if changes:
        accepted(listener, f"Apply the second scheduler to the cluster ({api.access.context})?", yes=yes)
    scheduler.deploy(api, progress(listener))
    name = desired.name
    listener.total(
        f"the extender leads, and the scheduler {name} asks it for pods with `schedulerName: {name}`",
        {"schedulers": 1, "asking": 1},
    )


def alone(api: Api) -> None:
    """Raises ClusterError where schedulers on the control plane's hosts ask the extender, too."""
    if nodes := asking(api):
        raise ClusterError(
            f"the schedulers of {few(sorted(nodes), NAMED)} ask the extender, too: nothing was changed",
            hint="Leave `scheduler` out of `cluster.share`, and add these nodes of the control plane to the inventory: "
            "`gpunode share disable` then takes both out.",
        )


def asks_alone(api: Api, namespace: str) -> bool:
    """Whether a second scheduler is in the cluster and no scheduler on a host asks: whatever the inventory names, `share disable`
    then needs no host."""
    return bool(apply.present(api, deployment.second_objects(namespace))) and not asking(api)


def asking(api: Api) -> set[str]:
    """The nodes whose schedulers ask the extender, by their pods."""
    pods, _ = api.find("Pod", "kube-system", labels="component=kube-scheduler")
    return {
        str(pod["spec"].get("nodeName") or "")
        for pod in pods
        for volume in pod["spec"].get("volumes") or []
        if volume["name"].startswith(schedulers.VOLUME)
    }


BACK = 180.0  # seconds for it to be Ready
LOOK = 1.0


def wait_for_scheduler(api: Api, node: str, volume: str, listener: Listener) -> str:
    """Why the node's scheduler is not Ready with this volume (without gpunode's, for ""); "" once it is."""
    end, tell = time.monotonic() + BACK, progress(listener)
    while True:
        why = _not_back(api, node, volume)
        if not why or time.monotonic() > end:
            return why
        tell(f"waiting for the scheduler of {node}: {why}")
        time.sleep(LOOK)


def _not_back(api: Api, node: str, volume: str) -> str:
    try:
        pod = api.get("Pod", f"kube-scheduler-{node}", "kube-system")
    except GpunodeError as error:
        return error.message
    if pod is None:
        return "it has no pod"
    names = [volume["name"] for volume in pod["spec"].get("volumes") or []]
    own = [name for name in names if name.startswith(schedulers.VOLUME)]
    if own != ([volume] if volume else []):
        return "the kubelet has not started it again yet"
    return "" if pods.ready(pod) else pods.problem(pod, []) or "it is not Ready yet"
