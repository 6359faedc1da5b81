"""Jupyter on one GPU: a Deployment and a Service, created, waited for, and removed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import yaml

from gpunode.cluster import obstacles, pods
from gpunode.cluster.api import Api
from gpunode.cluster.api.kinds import Object, is_ours, title
from gpunode.cluster.api.watch import OnProgress, follow
from gpunode.cluster.objects import apply
from gpunode.errors import ClusterError
from gpunode.links.node import Node
from gpunode.links.pod import run_pod
from gpunode.links.pod.samples import SAMPLES
from gpunode.model import PluginConfig

NAME = "gpunode-notebook"
NEVER = run_pod.NEVER | {"CrashLoopBackOff"}


@dataclass(frozen=True, slots=True)
class Notebook:
    """`why`: why it does not run; "" where it does. `created`: by this call; it was not there before. `port`: of every node's
    address; 0 where its Service has none."""

    node: str = ""
    why: str = ""
    created: bool = False
    port: int = 0
    fix: str = ""


def manifests(
    nodes: Sequence[Node],
    *,
    namespace: str,
    image: str = "",
    node_port: bool = False,
    config: PluginConfig | None = None,
    schedulers: Mapping[str, str] = MappingProxyType({}),
) -> list[Object]:
    """Its objects, for one of these nodes and one unit of what they offer. `config`, `schedulers`: as in `run_pod.place`."""
    values = run_pod.place(nodes, config, schedulers)
    text = SAMPLES["notebook"].text(namespace, image=image, node_port=node_port, **values)
    return list(yaml.safe_load_all(text))


def start(api: Api, objects: Sequence[Object], *, seconds: float, notify: OnProgress) -> Notebook:
    """Create what is not there, and wait until it answers, for `seconds` at most. What this call has created is deleted again
    where it does not run or the wait is interrupted; a notebook that was there stays as it is: it holds its user's work."""
    namespace = objects[0]["metadata"]["namespace"]
    created: list[Object] = []
    done = Notebook(why="it was not waited for")
    try:
        for manifest in objects:
            live = api.get(manifest["kind"], NAME, namespace)
            if live is not None and not is_ours(live):
                raise ClusterError(
                    f"{title(manifest)} exists and is not gpunode's",
                    hint="Remove it, or choose another namespace with --namespace.",
                )
            created += [api.create(manifest)] if live is None else []
        new = any(item["kind"] == "Deployment" for item in created)
        node, why, fix = _wait(api, namespace, seconds, notify)
        ports = (api.get("Service", NAME, namespace) or {}).get("spec", {}).get("ports") or [{}]
        done = Notebook(node, why, new, ports[0].get("nodePort", 0), fix)
    finally:
        if done.why:
            for item in reversed(created):
                api.delete(item["kind"], NAME, namespace, uid=item["metadata"]["uid"])
    return done


def remove(api: Api, namespace: str, *, seconds: float, notify: OnProgress) -> tuple[str, ...]:
    """Delete it and wait until it is gone. Returns the titles of what was deleted; () where there was none."""
    return apply.remove(api, manifests((), namespace=namespace), seconds=seconds, notify=notify)


def _wait(api: Api, namespace: str, seconds: float, notify: OnProgress) -> tuple[str, str, str]:
    """Its node, why it does not run, and what to do about it."""
    wait, node, why = run_pod.Wait(NEVER), "", ""
    labels = f"app.kubernetes.io/name={NAME}"
    for live in follow(api, "Pod", namespace, seconds=seconds, labels=labels, notify=notify):
        current = [pod for pod in live.values() if "deletionTimestamp" not in pod["metadata"]]
        if not current:
            why = _refusal(api, namespace)
            if why:
                known = obstacles.match_admission(why)
                return "", why, known.fix if known else ""
            notify("waiting for its pod")
            continue
        pod = max(current, key=lambda pod: str(pod["metadata"].get("creationTimestamp")))
        node = str(pod["spec"].get("nodeName", ""))
        if pods.is_ready(pod):
            return node, "", ""
        why = pods.problem(pod, pods.events(api, pod))
        if wait.is_hopeless(pod, why):
            known = pods.obstacle(pod)
            return node, why or "it cannot run", known.fix if known else ""
        notify(f"{pod['metadata']['name']}: {why or 'starting; its image may take minutes to pull'}")
    return node, f"not ready after {seconds:.0f} s: {why or 'it is starting'}", ""


def _refusal(api: Api, namespace: str) -> str:
    """Why the Deployment gets no pod, as quotas and admission put it; "" where nothing is known."""
    live = api.get("Deployment", NAME, namespace)
    if live is None:
        return "its Deployment was deleted by another client"
    return pods.refusal(live)[1]
