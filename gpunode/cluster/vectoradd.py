"""vectoradd on every GPU of the given nodes: a pod per GPU, all at once, always cleaned up.

The scheduler and the device plugin choose which GPU a pod gets, so aiming is not possible. Instead a node gets as
many pods as it has free GPUs, and every pod keeps its GPU (by a second container that only sleeps) until all are
done: together they cover each free GPU once. Which one it was, each pod says in its log.

MIG devices, and shares of GPUs by time-slicing or MPS, are covered as GPUs are: all that are free are held at once.

GPUs shared by memory are covered in the same way by pods that each ask for as much as one GPU has, where nobody has any
of it and the GPUs are alike. Elsewhere, and where memory has a name of its own, by which GPUs are not counted, one pod
with one unit shows that pods get there, and on which GPU it was.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from gpunode.cluster import asks, nodes, pods
from gpunode.cluster.api import Api
from gpunode.cluster.kinds import Object
from gpunode.cluster.manifests import rendered
from gpunode.cluster.nodes import HOSTNAME, RUNTIME_LABEL, Node
from gpunode.cluster.results import NodeResult, Result, Target, reported
from gpunode.cluster.watch import Tell, follow
from gpunode.errors import ClusterError
from gpunode.model import PluginConfig

ARGS = ("-m", "gpunode.deviceplugin.vectoradd", "--json")  # of the plugin's image
CONTAINER = "vectoradd"
TAIL = 20  # lines of a pod's log that a result keeps
LOOK = 2.0  # seconds between two searches for reasons
GONE = 30.0  # seconds to wait until deleted pods have given their GPUs back


@dataclass(slots=True)
class _Job:
    """One node's part of a run, while it goes on."""

    target: Target
    wanted: tuple[str, ...] = ()  # UUIDs that the pods are to see
    names: list[str] = field(default_factory=list)
    asks: dict[str, asks.Ask] = field(default_factory=dict)  # what each pod asks for
    users: tuple[str, ...] = ()
    why: str = ""
    offered: int = 0
    results: dict[str, Result] = field(default_factory=dict)
    node: Node | None = None
    shared: bool = False  # GPUs are shared by memory
    unseen: set[str] = field(default_factory=set)  # made since the pods were first listed
    tried: float = 0.0  # when a pod was last made again

    def verdict(self) -> NodeResult:
        seen = {result.uuid for result in self.results.values()}
        wanted, why = self.wanted, self.why
        # An image that does not tell which GPU it had: only their number is known.
        uncovered = () if "" in seen else tuple(uuid for uuid in wanted if uuid not in seen)
        if len(self.results) < len(wanted) and not self.users:
            why = why or f"the node offered {self.offered} of {len(wanted)} GPUs"
        results = tuple(self.results[name] for name in self.names)
        return NodeResult(self.target.node, results, uncovered, self.users, why, self.shared)


def run(
    api: Api,
    targets: Sequence[Target],
    *,
    namespace: str,
    image: str,
    seconds: float,
    tell: Tell,
    args: Sequence[str] = ARGS,
    config: PluginConfig | None = None,
) -> tuple[NodeResult, ...]:
    """Run one pod per free GPU on each node and say what came of it, in the order of `targets`. `config` is the plugin's.

    `args` is for the plugin's image; () lets another image start as it does by itself: then exit status 0 counts.
    The pods are deleted whatever happens, Ctrl-C included.
    """
    this = _Run(api, namespace, image, tuple(args), seconds, tell, config)
    known = {node.name: node for node in nodes.every(api)}
    jobs = [_Job(target, target.uuids) for target in targets]
    try:
        for job in jobs:
            this.start(job, known.get(job.target.node))
        this.wait(jobs)
    finally:
        this.clean()
    this.gone()
    return tuple(job.verdict() for job in jobs)


class _Run:
    """The pods of one call of `run`; they carry its id as a label."""

    def __init__(
        self,
        api: Api,
        namespace: str,
        image: str,
        args: tuple[str, ...],
        seconds: float,
        tell: Tell,
        config: PluginConfig | None,
    ) -> None:
        self.api, self.namespace, self.image, self.args = api, namespace, image, args
        self.seconds, self.tell, self.config = seconds, tell, config
        self.id = secrets.token_hex(4)
        self.selector = f"gpunode.dev/run={self.id}"
        self.count = 0

    def start(self, job: _Job, node: Node | None) -> None:
        """Create the node's pods, or note why there are none."""
        if node is None or not node.ready:
            job.why = (
                f"the node is not Ready: {node.why_not_ready}" if node else "the cluster has no such node"
            )
            return
        free = asks.free(node, self.api.find("Pod", fields=f"spec.nodeName={node.name}")[0], self.config)
        job.node, job.users, job.shared = node, free.users, free.shared
        job.offered = node.allocatable + sum(node.shares.values())
        if not free.known:
            job.wanted = ()
        if not free.asks:
            users = (
                f"of {node.offered or 'what the node offers'} none is free: in use by {', '.join(job.users)}"
            )
            job.why = users if job.users else "the node offers no GPU; `gpunode verify` says why"
        for ask in free.asks:
            try:
                name = self.create(node, ask)
                job.names.append(name)
                job.asks[name] = ask
            except ClusterError as error:
                job.why = f"a pod could not be made: {error.message}"
                return

    def create(self, node: Node, ask: asks.Ask) -> str:
        name = f"vectoradd-{self.id}-{self.count}"
        self.count += 1
        self.api.create(self.pod(name, node, ask))
        return name

    def again(self, job: _Job, name: str) -> None:
        """Make a pod anew that its kubelet refused. A kubelet whose plugin was just replaced knows of no GPU for a
        moment, while the API still shows those of before."""
        if job.node is None or time.monotonic() - job.tried < LOOK:
            return
        job.tried = time.monotonic()
        self.api.delete("Pod", name, self.namespace)
        new = self.create(job.node, job.asks[name])
        job.asks[new] = job.asks[name]
        job.names[job.names.index(name)] = new
        job.unseen.add(new)

    def pod(self, name: str, node: Node, ask: asks.Ask) -> Object:
        (made,) = rendered(
            "vectoradd.yaml.j2",
            name=name,
            namespace=self.namespace,
            run=self.id,
            hostname=node.labels.get(HOSTNAME, node.name),
            taints=node.taints,
            image=self.image,
            args=self.args,
            resource=ask[0],
            amount=ask[1],
            runtime_class="nvidia" if node.labels.get(RUNTIME_LABEL) == "class" else None,
            seconds=int(self.seconds) + 60,
        )
        return made

    def wait(self, jobs: Sequence[_Job]) -> None:
        """Gather results until every pod has one; at the deadline, the reasons of those without."""
        looked = 0.0
        found: dict[str, Object] = {}
        for found in follow(
            self.api, "Pod", self.namespace, seconds=self.seconds, labels=self.selector, tell=self.tell
        ):
            for job in jobs:
                self.gather(job, found)
            waiting = [name for job in jobs for name in job.names if name not in job.results]
            if not waiting:
                return
            if time.monotonic() - looked >= LOOK:
                looked = time.monotonic()
                why = self.why(found.get(waiting[0]))
                count = sum(len(job.names) for job in jobs)
                self.tell(f"{count - len(waiting)} of {count} pods done; {waiting[0]}: {why}")
        for job in jobs:
            for name in job.names:
                if name not in job.results:
                    why = f"not done after {self.seconds:.0f} s: {self.why(found.get(name))}"
                    job.results[name] = Result(job.target.node, name, "", "", False, self.seconds, why, ())

    def gather(self, job: _Job, found: dict[str, Object]) -> None:
        """The results of pods that are done; when all of the node's are, its GPUs are given back."""
        job.unseen -= found.keys()
        for name in tuple(job.names):
            if name in job.results or name in job.unseen:
                continue
            if name not in found:
                # Only what was there before can be gone: the pods were made before they were first listed.
                job.results[name] = Result(
                    job.target.node, name, "", "", False, 0.0, "the pod was deleted by somebody", ()
                )
            elif found[name].get("status", {}).get("reason") == "UnexpectedAdmissionError":
                self.again(job, name)
            elif (
                pods.ended(found[name], CONTAINER) or found[name].get("status", {}).get("phase") in pods.OVER
            ):
                job.results[name] = self.result(job.target.node, found[name])
        if job.names and len(job.results) == len(job.names):
            for name in job.names:
                if name in found and not found[name]["metadata"].get("deletionTimestamp"):
                    self.api.delete("Pod", name, self.namespace)

    def result(self, node: str, pod: Object) -> Result:
        """What a pod's exit status and log say."""
        name, ended = pod["metadata"]["name"], pods.ended(pod, CONTAINER)
        if ended is None:
            return Result(node, name, "", "", False, 0.0, self.why(pod), ())
        passed, why, log = ended.get("exitCode") == 0, "", ""
        try:
            log = self.api.log(self.namespace, name, CONTAINER)
        except ClusterError as error:
            why = f"its log cannot be read: {error.message}"
        gpu = reported(log)
        if not passed:
            last = log.strip().splitlines()[-1:] or [pods.trouble(pod)]
            why = str(gpu.get("error") or last[0])
        return Result(
            node,
            name,
            str(gpu.get("uuid") or ""),
            str(gpu.get("name") or ""),
            passed,
            pods.lasted(ended),
            why,
            tuple(log.splitlines()[-TAIL:]),
            gpu.get("limit_mib"),
        )

    def why(self, pod: Object | None) -> str:
        if pod is None:
            return "it is not there yet"
        return pods.trouble(pod, pods.events(self.api, pod)) or "it is starting or running"

    def clean(self) -> None:
        """Delete the pods of this run, whatever state they are in."""
        try:
            for pod in self.api.find("Pod", self.namespace, labels=self.selector)[0]:
                self.api.delete("Pod", pod["metadata"]["name"], self.namespace)
        except ClusterError as error:
            self.tell(
                f"pods of this run may be left ({error.message}); they end by themselves, or: "
                f"kubectl -n {self.namespace} delete pod -l {self.selector}"
            )

    def gone(self) -> None:
        """Wait until the pods have given their GPUs back."""
        left: dict[str, Object] = {}
        for left in follow(self.api, "Pod", self.namespace, seconds=GONE, labels=self.selector):
            if not left:
                return
        self.tell(f"still there after {GONE:.0f} s: {', '.join(left)}")
