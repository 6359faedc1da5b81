"""Pods that run to their end: made, followed and deleted in every case. nvidia-smi on a GPU, and pods that ask for none."""

import secrets
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from gpunode.cluster import pods
from gpunode.cluster.api import Api
from gpunode.cluster.api.kinds import Object
from gpunode.cluster.api.watch import OnProgress, follow
from gpunode.cluster.objects.manifests import render
from gpunode.errors import ClusterError
from gpunode.links.node import HOSTNAME, RUNTIME_LABEL, Node
from gpunode.links.plugin.expected import unit
from gpunode.model import PluginConfig, PluginImage

NVIDIA_SMI, STRANGER = "nvidia-smi", "stranger"  # containers
NEVER = {"CreateContainerError", "RunContainerError", "CreateContainerConfigError"}
PENDING = 20.0  # seconds in which a GPU may become free
VECTORADD = ("-m", "gpunode.deviceplugin.vectoradd", "--json")  # arguments of the plugin's image
SEES = 3  # exit status of a stranger that sees a GPU
PROGRAM = (
    "import glob, sys; found = sorted(glob.glob('/dev/nvidia[0-9]*')); print(', '.join(found)); "
    f"sys.exit({SEES} if found else 0)"
)


@dataclass(frozen=True, slots=True)
class PodRun:
    """What the pods of a run share. `seconds`: until the last has ended. `config`: the plugin's. `holder`: of the cluster's Lease.
    `schedulers`: by resource, where it is not the cluster's own."""

    namespace: str
    image: PluginImage
    seconds: float
    notify: OnProgress = lambda _: None
    config: PluginConfig | None = None
    holder: str = ""
    schedulers: Mapping[str, str] = field(default_factory=dict)


def place(
    nodes: Sequence[Node], config: PluginConfig | None, schedulers: Mapping[str, str]
) -> dict[str, Any]:
    """Values of a template for a pod with one unit of what these nodes offer, a GPU where they can. Nodes where pods need the
    RuntimeClass are used only where there are no others: dockershim knows none. `config`: the plugin's. `schedulers`: by resource,
    where it is not the cluster's own."""
    resource, nodes = unit(nodes, config)
    plain = [node for node in nodes if node.labels.get(RUNTIME_LABEL) != "class"]
    return {
        "nodes": [node.labels.get(HOSTNAME, node.name) for node in plain or nodes],
        "resource": resource,
        "runtime_class": "" if plain else "nvidia",
        "scheduler": schedulers.get(resource, ""),
    }


class Wait:
    """A wait for a pod to run, which ends where it cannot. `never`: reasons for which its container never starts."""

    def __init__(self, never: Collection[str] = NEVER) -> None:
        self._never, self._pulls, self._begun = never, pods.Pulls(), time.monotonic()

    def is_hopeless(self, pod: Object, why: str) -> bool:
        """Whether waiting does not help; `why`: what is wrong with the pod, "" for nothing."""
        late = not pod["spec"].get("nodeName") and time.monotonic() - self._begun >= PENDING
        never = not pods.waiting_reasons(pod).isdisjoint(self._never)
        return never or self._pulls.is_hopeless(pod) or bool(why and late)


@dataclass(frozen=True, slots=True)
class Ran:
    """How a pod ended. `code`: its container's exit status; None where it did not run to its end: `why`, and the `fix` if known.
    `message`: its last words. `log`: what it wrote."""

    pod: str
    node: str = ""
    code: int | None = None
    why: str = ""
    fix: str = ""
    message: str = ""
    log: str = ""


def run_pods(
    api: Api, manifests: Sequence[Object], container: str, *, seconds: float, notify: OnProgress
) -> list[Ran]:
    """Make the pods of one run, by their label, follow each to the end of this container, and delete them; how they ended, in order."""
    created: list[Object] = []
    try:
        for manifest in manifests:
            created.append(api.create(manifest))
        return _follow(api, created, container, seconds, notify)
    finally:
        for pod in created:
            meta = pod["metadata"]
            api.delete("Pod", meta["name"], meta["namespace"], uid=meta["uid"])


def _follow(
    api: Api, created: Sequence[Object], container: str, seconds: float, notify: OnProgress
) -> list[Ran]:
    meta = created[0]["metadata"]
    names = [pod["metadata"]["name"] for pod in created]
    wait, ends = Wait(), dict[str, Ran]()
    late = {name: Ran(name, why="it is starting") for name in names}
    selector = f"gpunode.dev/run={meta['labels']['gpunode.dev/run']}"
    for live in follow(api, "Pod", meta["namespace"], seconds=seconds, labels=selector, notify=notify):
        for name in [name for name in names if name not in ends]:
            ran = _read(api, name, live.get(name), container)
            if ran.code is not None or name not in live or wait.is_hopeless(live[name], ran.why):
                ends[name] = replace(ran, why=ran.why if ran.code is not None else ran.why or "it cannot run")
                continue
            late[name] = replace(ran, why=ran.why or "it is starting")
            notify(f"{name}: {ran.why or 'starting'}")
        if len(ends) == len(names):
            break
    return [
        ends.get(name) or replace(late[name], why=f"not done after {seconds:.0f} s: {late[name].why}")
        for name in names
    ]


def _read(api: Api, name: str, pod: Object | None, container: str) -> Ran:
    """How far the pod has come; its `code` once it has ended."""
    if pod is None:
        return Ran(name, why="the pod was deleted by another client")
    node, end = str(pod["spec"].get("nodeName", "")), pods.end_of(pod, container)
    if end is None:
        kept = pods.obstacle(pod)
        return Ran(name, node, why=pods.problem(pod, pods.events(api, pod)), fix=kept.fix if kept else "")
    message = str(end.get("message") or "").strip() or str(end.get("reason") or "")
    log = api.log(pod["metadata"]["namespace"], name, container) if container == NVIDIA_SMI else ""
    return Ran(name, node, int(end.get("exitCode", -1)), message=message, log=log)


def run_nvidia_smi(api: Api, nodes: Sequence[Node], settings: PodRun) -> Ran:
    """Run it in a pod with one GPU, on one of these nodes. Where they offer no whole one, with a unit of what they offer."""
    name = f"gpunode-{NVIDIA_SMI}-{secrets.token_hex(4)}"
    (manifest,) = render(
        "nvidia-smi.yaml.j2",
        name=name,
        namespace=settings.namespace,
        run=name,
        image=settings.image.reference,
        pull=settings.image.pull,
        seconds=int(settings.seconds),
        **place(nodes, settings.config, settings.schedulers),
    )
    (ran,) = run_pods(api, [manifest], NVIDIA_SMI, seconds=settings.seconds, notify=settings.notify)
    return replace(ran, why=f"exit code {ran.code}") if ran.code else ran


def run_strangers(api: Api, nodes: Sequence[Node], settings: PodRun) -> Mapping[str, str]:
    """What a pod that asks for no GPU, though its environment asks for all, as CUDA's images do, shows on each node, in words; ""
    where it sees no GPU."""
    run = secrets.token_hex(4)
    manifests = [
        make_pod(
            "stranger.yaml.j2", f"stranger-{run}-{number}", node, settings, args=("-c", PROGRAM), run=run
        )
        for number, node in enumerate(nodes)
    ]
    try:
        ended = run_pods(api, manifests, STRANGER, seconds=settings.seconds, notify=settings.notify)
        return {node.name: _describe_stranger(ran) for node, ran in zip(nodes, ended, strict=True)}
    except ClusterError as error:
        why = f"a pod that asks for no GPU could not be tried: {error.message}"
        return {node.name: why for node in nodes}


def _describe_stranger(ran: Ran) -> str:
    if ran.code is None:
        return f"a pod that asks for no GPU did not end: {ran.why}"
    if ran.code == SEES:
        return f"a pod that asks for no GPU sees {ran.message or 'GPUs'}"
    return f"a pod that asks for no GPU failed: {ran.message}" if ran.code else ""


def make_pod(
    template: str,
    name: str,
    node: Node,
    settings: PodRun,
    *,
    args: Sequence[str] = VECTORADD,
    run: str = "",
    resource: str = "",
    claims: str = "",
    **more: object,
) -> Object:
    """The template's pod for that node, with its tolerations and runtime class. `more`: further values of the template."""
    (pod,) = render(
        template,
        name=name,
        namespace=settings.namespace,
        run=run,
        holder=settings.holder,
        resource=resource,
        scheduler=settings.schedulers.get(resource, ""),
        claims=claims,
        hostname=node.labels.get(HOSTNAME, node.name),
        taints=node.taints,
        image=settings.image.reference,
        pull=settings.image.pull,
        args=args,
        runtime_class="nvidia" if node.labels.get(RUNTIME_LABEL) == "class" else None,
        seconds=int(settings.seconds) + 60,
        **more,
    )
    return pod
