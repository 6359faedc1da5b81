"""vectoradd on every GPU of the given nodes: as few pods as show it, always cleaned up.

The scheduler and the device plugin choose which GPU a pod gets, so aiming is not possible. Instead every pod keeps what
it was given (by a second container that only sleeps) until all are done. Of whole GPUs and MIG devices there are as many
pods as are free: together they cover each once.

Of GPUs that are shared by time-slicing or MPS there is one pod more than there are GPUs, so that two share one, and more
as long as a GPU has not been seen and shares are free. Of those shared by memory a pod fills each but one, which two
pods fill; where somebody has some of the memory, one pod with one unit shows that pods get there, and on which GPU.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import count

from gpunode.cluster import asks, nodes, pods
from gpunode.cluster.api import Api
from gpunode.cluster.job import Job
from gpunode.cluster.kinds import Object
from gpunode.cluster.manifests import rendered
from gpunode.cluster.nodes import HOSTNAME, RUNTIME_LABEL, Node
from gpunode.cluster.results import NodeResult, Result, Target, reported
from gpunode.cluster.watch import Tell, changes, follow
from gpunode.errors import ClusterError
from gpunode.model import PluginConfig, PluginImage

ARGS = ("-m", "gpunode.deviceplugin.vectoradd", "--json")  # of the plugin's image
CONTAINER = "vectoradd"
TAIL = 20  # lines of a pod's log that a result keeps
LOOK = 2.0  # seconds between two searches for reasons
PULL = 30.0  # seconds in which a kubelet tries to pull an image some times
AT_ONCE = 16  # nodes whose pods are made side by side
GONE = 30.0  # seconds to wait until deleted pods have given their GPUs back


def run(
    api: Api,
    targets: Sequence[Target],
    *,
    namespace: str,
    image: PluginImage,
    seconds: float,
    tell: Tell,
    args: Sequence[str] = ARGS,
    config: PluginConfig | None = None,
) -> tuple[NodeResult, ...]:
    """Run pods on the free GPUs of each node and say what came of it, in the order of `targets`. `config` is the plugin's.

    `args` is for the plugin's image; () lets another image start as it does by itself: then exit status 0 counts.
    The pods are deleted whatever happens, Ctrl-C included.
    """
    this = _Run(api, namespace, image, tuple(args), seconds, tell, config)
    known = {node.name: node for node in nodes.every(api)}
    jobs = [Job(target, wanted=target.uuids) for target in targets]
    try:
        with ThreadPoolExecutor(AT_ONCE) as pool:
            list(pool.map(lambda job: this.start(job, known.get(job.target.node)), jobs))
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
        image: PluginImage,
        args: tuple[str, ...],
        seconds: float,
        tell: Tell,
        config: PluginConfig | None,
    ) -> None:
        self.api, self.namespace, self.image, self.args = api, namespace, image, args
        self.seconds, self.tell, self.config = seconds, tell, config
        self.id = secrets.token_hex(4)
        self.selector = f"gpunode.dev/run={self.id}"
        self.pulling: dict[
            str, float
        ] = {}  # uid of a pod -> since when its image was seen not to be pulled; monotonic
        self.numbers = count()

    def start(self, job: Job, node: Node | None) -> None:
        """Create the node's pods, or note why there are none."""
        if node is None or not node.ready:
            job.why = (
                f"the node is not Ready: {node.why_not_ready}" if node else "the cluster has no such node"
            )
            return
        free = asks.free(
            node, self.api.find("Pod", fields=f"spec.nodeName={node.name}")[0], self.config, job.target
        )
        job.node, job.free, job.waves, job.left = node, free, list(free.waves), dict(free.rest)
        if not free.known:
            job.wanted = ()
        if not free.waves:
            users = (
                f"of {node.offered or 'what the node offers'} none is free: in use by {', '.join(free.users)}"
            )
            job.why = users if free.users else "the node offers no GPU; `gpunode verify` says why"
        self.make(job)

    def make(self, job: Job) -> None:
        """Create the pods that come next on a node; none where its pods have shown enough."""
        for ask in job.next():
            if job.node is None:
                return
            try:
                name = self.create(job.node, ask)
            except ClusterError as error:
                job.why = f"a pod could not be made: {error.message}"
                job.waves, job.left = [], {}
                return
            job.names.append(name)
            job.asked[name] = ask
            job.unseen.add(name)

    def create(self, node: Node, ask: asks.Ask) -> str:
        name = f"vectoradd-{self.id}-{next(self.numbers)}"
        self.api.create(self.pod(name, node, ask))
        return name

    def again(self, job: Job, name: str) -> None:
        """Make a pod anew that its kubelet refused. A kubelet whose plugin was just replaced knows of no GPU for a
        moment, while the API still shows those of before."""
        if job.node is None or time.monotonic() - job.tried < LOOK:
            return
        job.tried = time.monotonic()
        self.api.delete("Pod", name, self.namespace)
        new = self.create(job.node, job.asked[name])
        job.asked[new] = job.asked[name]
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
            image=self.image.reference,
            pull=self.image.pull,
            args=self.args,
            resource=ask[0],
            amount=ask[1],
            runtime_class="nvidia" if node.labels.get(RUNTIME_LABEL) == "class" else None,
            seconds=int(self.seconds) + 60,
        )
        return made

    def wait(self, jobs: Sequence[Job]) -> None:
        """Gather results until every pod has one; at the deadline, the reasons of those without."""
        looked = 0.0
        found: Mapping[str, Object] = {}
        for job in jobs:
            job.unseen.clear()
        of = {name: job for job in jobs for name in job.names}
        running = {job.target.node: job for job in jobs}  # that wait for a pod
        # An event costs what its own node's pods cost, however many nodes there are.
        for found, changed in changes(
            self.api, "Pod", self.namespace, seconds=self.seconds, labels=self.selector, tell=self.tell
        ):
            for job in jobs if changed is None else [of[changed]] if changed in of else []:
                self.gather(job, found)
                of.update(dict.fromkeys(job.names, job))
                if job.done:
                    running.pop(job.target.node, None)
            if not running:
                return
            if time.monotonic() - looked >= LOOK:
                looked = time.monotonic()
                self.report(jobs, found)
        for job in jobs:
            for name in job.waiting:
                why = f"not done after {self.seconds:.0f} s: {self.why(found.get(name))}"
                job.results[name] = [Result(job.target.node, name, "", "", False, self.seconds, why, ())]

    def report(self, jobs: Sequence[Job], found: Mapping[str, Object]) -> None:
        """Say how many pods are done, and what the first of the others waits for."""
        waiting = [name for job in jobs for name in job.waiting]
        every = sum(len(job.names) for job in jobs)
        why = self.why(found.get(waiting[0]))
        self.tell(f"{every - len(waiting)} of {every} pods done; {waiting[0]}: {why}")

    def gather(self, job: Job, found: Mapping[str, Object]) -> None:
        """The results of pods that are done; when all of the node's are, more are made, or its GPUs given back."""
        job.unseen -= {name for name in job.unseen if name in found}
        for name in tuple(job.names):
            if name in job.results or name in job.unseen:
                continue
            if name not in found:
                # Only what was there before can be gone: the first pods were made before they were listed.
                why = "the pod was deleted by somebody"
                job.results[name] = [Result(job.target.node, name, "", "", False, 0.0, why, ())]
            elif found[name].get("status", {}).get("reason") == "UnexpectedAdmissionError":
                self.again(job, name)
            elif (
                pods.ended(found[name], CONTAINER)
                or found[name].get("status", {}).get("phase") in pods.OVER
                or self.imageless(found[name])
            ):
                job.results[name] = self.result(job, found[name])
        if job.names and job.done:
            self.make(job)
        if job.names and job.done:
            for name in job.names:
                if name in found and not found[name]["metadata"].get("deletionTimestamp"):
                    self.api.delete("Pod", name, self.namespace)

    def imageless(self, pod: Object) -> bool:
        """Whether the image cannot be had: no longer wait helps."""
        reasons, uid = pods.waiting(pod), pod["metadata"]["uid"]
        if not reasons & pods.PULLING:
            self.pulling.pop(uid, None)
            return bool(reasons & pods.IMAGELESS)
        return time.monotonic() - self.pulling.setdefault(uid, time.monotonic()) >= PULL

    def result(self, job: Job, pod: Object) -> list[Result]:
        """What a pod's exit status and log say, of each GPU that it had."""
        node, name, ended = job.target.node, pod["metadata"]["name"], pods.ended(pod, CONTAINER)
        if ended is None:
            return [Result(node, name, "", "", False, 0.0, self.why(pod), ())]
        code, told, log = ended.get("exitCode"), "", ""
        try:
            log = self.api.log(self.namespace, name, CONTAINER)
        except ClusterError as error:
            told = f"its log cannot be read: {error.message}"
        last = log.strip().splitlines()[-1:] or [pods.trouble(pod)]
        gpus = reported(log) or [{}]
        results = []
        for gpu in gpus:
            # One of several may have failed alone: then that is what exit status 1 says.
            passed = code == 0 or (code == 1 and len(gpus) > 1 and gpu.get("passed") is True)
            why = job.wrong(name, gpu) if passed else str(gpu.get("error") or last[0])
            results.append(
                Result(
                    node,
                    name,
                    str(gpu.get("uuid") or ""),
                    str(gpu.get("name") or ""),
                    passed and not why,
                    pods.lasted(ended),
                    why or told,
                    tuple(log.splitlines()[-TAIL:]),
                    gpu.get("limit_mib"),
                    job.share(name),
                )
            )
        return results

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
