"""Runs vectoradd on every free GPU of some nodes, with as few pods as that takes. The pods are always deleted.

The kubelet and the device plugin choose a pod's GPU; no pod can ask for one. So every pod keeps its devices (a second
container sleeps) until all are done. There is one pod for each free whole GPU and MIG device: together they cover all.

Of GPUs shared by time-slicing or MPS there is one pod more than GPUs, so that two share one; more follow while a GPU has
not been seen and shares are free. Of GPUs shared by memory one pod fills each but one, which two pods fill; where some
memory is in use, one pod with one unit shows that pods start there, and on which GPU.
"""

import json
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from gpunode.cluster import lease, pods
from gpunode.cluster.api import Api, side_by_side
from gpunode.cluster.api.kinds import KINDS, OURS, Object
from gpunode.cluster.api.watch import OnProgress, changes, follow
from gpunode.errors import ClusterError
from gpunode.links import node as nodes
from gpunode.links.capacity.slices import CLASSES
from gpunode.links.node import Node
from gpunode.links.pod.requests import Free, Request, Target, next_requests
from gpunode.links.pod.requests import free as free_of
from gpunode.links.pod.run_pod import VECTORADD, PodRun, make_pod
from gpunode.wording import advise, few, lines

CONTAINER = "vectoradd"
TEMPLATE = "ResourceClaimTemplate"
TAIL = 20  # lines of a pod's log that a result keeps
LOOK = 2.0  # seconds between two reports of reasons, and between two recreations of a pod


def run(
    api: Api,
    targets: Sequence[Target],
    settings: PodRun,
    *,
    args: Sequence[str] = VECTORADD,
    alone: bool = False,
) -> "tuple[NodeResult, ...]":
    """Run pods on the free GPUs of each node. Returns results in the order of `targets`.

    `args` is for the plugin's image; () starts another image with its own command: then exit status 0 is a pass.
    The pods are deleted in every case, Ctrl-C included. `alone`: for a program that measures all of its GPUs at once: one pod
    for all whole GPUs, none shared by two.
    """
    claims = any(target.published is not None for target in targets)
    this = _Run(api, settings, args, alone, claims)
    known = {node.name: node for node in nodes.fetch(api)}
    jobs = [Job(target, expected=target.uuids) for target in targets]
    try:
        this.prepare(targets)
        side_by_side(lambda job: this.start(job, known.get(job.target.node)), jobs)
        this.wait(jobs)
    finally:
        this.clean()
    this.gone()
    return tuple(job.verdict() for job in jobs)


@dataclass(slots=True)
class _Run:
    """The pods of one call of `run`; they carry its id as a label."""

    api: Api
    settings: PodRun
    args: Sequence[str]
    alone: bool
    claims: bool
    id: str = field(default_factory=lambda: secrets.token_hex(4))
    pulls: pods.Pulls = field(default_factory=pods.Pulls)
    numbers: Iterator[int] = field(default_factory=count)

    @property
    def selector(self) -> str:
        return f"gpunode.dev/run={self.id}"

    def prepare(self, targets: Sequence[Target]) -> None:
        """Create the templates of the claims by which pods get devices from a DRA driver, and delete those of earlier holders."""
        for item in (
            self.api.find(TEMPLATE, self.settings.namespace, labels=f"{OURS}=gpunode")[0]
            if self.claims
            else ()
        ):
            if (item["metadata"].get("annotations") or {}).get(
                HOLDER, self.settings.holder
            ) != self.settings.holder:
                self.api.delete(TEMPLATE, item["metadata"]["name"], self.settings.namespace)
        kinds = {device.kind for target in targets for device in target.published or ()} & CLASSES.keys()
        for kind in sorted(kinds):
            exactly = {"deviceClassName": CLASSES[kind]}
            request = {"name": "gpu", "exactly": exactly}
            meta: Object = {
                "name": self.template(CLASSES[kind]),
                "namespace": self.settings.namespace,
                "labels": self.labels,
                "annotations": {HOLDER: self.settings.holder} if self.settings.holder else {},
            }
            manifest = {"metadata": meta, "spec": {"spec": {"devices": {"requests": [request]}}}}
            self.api.create({**manifest, "apiVersion": KINDS[TEMPLATE].api, "kind": TEMPLATE})

    def template(self, device_class: str) -> str:
        return f"vectoradd-{self.id}-{device_class}"

    @property
    def labels(self) -> dict[str, str]:
        return {OURS: "gpunode", "gpunode.dev/run": self.id}

    def start(self, job: "Job", node: Node | None) -> None:
        """Create the node's pods, or set `job.why`."""
        if node is None or not node.ready:
            job.why = (
                f"the node is not Ready: {node.why_not_ready}" if node else "the cluster has no such node"
            )
            return
        on_node = self.api.find("Pod", fields=f"spec.nodeName={node.name}")[0]
        free = free_of(node, on_node, self.settings.config, job.target, alone=self.alone)
        job.node, job.free, job.waves, job.left = node, free, list(free.waves), dict(free.rest)
        if not free.known:
            job.expected = ()
        if not free.waves:
            users = (
                f"of {node.offered or 'what the node offers'} none is free: in use by {', '.join(free.users)}"
            )
            job.why = users if free.users else advise("the node offers no GPU; see `gpunode verify`")
        self.make(job)

    def make(self, job: "Job") -> None:
        """Create the node's next pods; none where its results suffice."""
        for request in job.next():
            if job.node is None:
                return
            try:
                name = self.create(job.node, request)
            except ClusterError as error:
                job.why = lines((f"a pod could not be created: {error.message}", error.hint), ". ")
                job.waves, job.left = [], {}
                return
            job.names.append(name)
            job.requested[name] = request
            job.unseen.add(name)

    def create(self, node: Node, request: Request) -> str:
        name = f"{'accept' if self.alone else 'vectoradd'}-{self.id}-{next(self.numbers)}"
        manifest = make_pod(
            "vectoradd.yaml.j2",
            name,
            node,
            self.settings,
            args=self.args,
            run=self.id,
            resource=request[0],
            amount=request[1],
            claims=self.template(request[0]) if request[0] in CLASSES.values() else "",
        )
        self.api.create(manifest)
        return name

    def recreate(self, job: "Job", name: str) -> None:
        """Recreate a pod that its kubelet refused. After the plugin's restart a kubelet has no GPUs for a moment, while
        the API still shows the earlier count."""
        if job.node is None or time.monotonic() - job.tried < LOOK:
            return
        job.tried = time.monotonic()
        self.api.delete("Pod", name, self.settings.namespace)
        new = self.create(job.node, job.requested[name])
        job.requested[new] = job.requested[name]
        job.names[job.names.index(name)] = new
        job.unseen.add(new)

    def wait(self, jobs: "Sequence[Job]") -> None:
        """Collect results until every pod has one; at the deadline, fail the others with their reasons."""
        looked = 0.0
        live: Mapping[str, Object] = {}
        for job in jobs:
            job.unseen.clear()
        of = {name: job for job in jobs for name in job.names}
        running = {job.target.node: job for job in jobs}  # that wait for a pod
        # An event costs what its own node's pods cost, however many nodes there are.
        for live, changed in changes(
            self.api,
            "Pod",
            self.settings.namespace,
            seconds=self.settings.seconds,
            labels=self.selector,
            notify=self.settings.notify,
        ):
            for job in jobs if changed is None else [of[changed]] if changed in of else []:
                self.gather(job, live)
                of.update(dict.fromkeys(job.names, job))
                if job.done:
                    running.pop(job.target.node, None)
            if not running:
                return
            if time.monotonic() - looked >= LOOK:
                looked = time.monotonic()
                self.report(jobs, live)
        for job in jobs:
            for name in job.waiting:
                why = f"not done after {self.settings.seconds:.0f} s: {self.why(live.get(name))}"
                job.results[name] = [failed_result(job.target.node, name, why, self.settings.seconds)]

    def report(self, jobs: "Sequence[Job]", live: Mapping[str, Object]) -> None:
        """Report how many pods are done, and what the first of the others waits for."""
        waiting = [name for job in jobs for name in job.waiting]
        every = sum(len(job.names) for job in jobs)
        why = self.why(live.get(waiting[0]))
        self.settings.notify(f"{every - len(waiting)} of {every} test pods finished; {waiting[0]}: {why}")

    def gather(self, job: "Job", live: Mapping[str, Object]) -> None:
        """Collect the results of pods that are done; once all of the node's are, create the next or delete them."""
        job.unseen -= {name for name in job.unseen if name in live}
        for name in tuple(job.names):
            if name in job.results or name in job.unseen:
                continue
            if name not in live:
                # It was listed before or created before the first list, so it is not new but gone.
                why = "the pod was deleted by another client"
                job.results[name] = [failed_result(job.target.node, name, why)]
            elif live[name].get("status", {}).get("reason") == "UnexpectedAdmissionError":
                self.recreate(job, name)
            elif (
                pods.end_of(live[name], CONTAINER)
                or live[name].get("status", {}).get("phase") in pods.OVER
                or self.pulls.is_hopeless(live[name])
            ):
                job.results[name] = self.result(job, live[name])
        if job.names and job.done:
            self.make(job)
        if job.names and job.done:
            for name in job.names:
                if name in live and not live[name]["metadata"].get("deletionTimestamp"):
                    self.api.delete("Pod", name, self.settings.namespace)

    def result(self, job: "Job", pod: Object) -> "list[Result]":
        """The results of a pod, one for each GPU, from its exit status and log."""
        node, name, ended = job.target.node, pod["metadata"]["name"], pods.end_of(pod, CONTAINER)
        if ended is None:
            return [failed_result(node, name, self.why(pod))]
        code, unread, log = ended.get("exitCode"), "", ""
        try:
            log = self.api.log(self.settings.namespace, name, CONTAINER)
        except ClusterError as error:
            unread = f"its log cannot be read: {error.message}"
        last = log.strip().splitlines()[-1:] or [pods.problem(pod)]
        gpus = parse_report(log) or [{}]
        results = []
        for gpu in gpus:
            # With several GPUs, exit status 1 may stand for the failure of another one.
            passed = code == 0 or (code == 1 and len(gpus) > 1 and gpu.get("passed") is True)
            why = job.wrong(name, gpu) if passed else str(gpu.get("error") or last[0])
            results.append(
                Result(
                    node=node,
                    pod=name,
                    uuid=str(gpu.get("uuid") or ""),
                    gpu=str(gpu.get("name") or ""),
                    passed=passed and not why,
                    seconds=pods.duration(ended),
                    why=why or unread,
                    log=tuple(log.splitlines()[-TAIL:]),
                    limit=gpu.get("limit_mib"),
                    share=job.share(name),
                    image=pods.image_of(pod, CONTAINER),
                )
            )
        return results

    def why(self, pod: Object | None) -> str:
        if pod is None:
            return "it does not exist yet"
        return pods.problem(pod, pods.events(self.api, pod)) or "starting or running"

    def clean(self) -> None:
        """Delete the pods of this run, in whatever state."""
        try:
            kinds = ("Pod", TEMPLATE) if self.claims else ("Pod",)
            for kind in kinds:
                for item in self.api.find(kind, self.settings.namespace, labels=self.selector)[0]:
                    self.api.delete(kind, item["metadata"]["name"], self.settings.namespace)
        except ClusterError as error:
            self.settings.notify(
                f"pods of this run may remain ({error.message}); they end on their own, or run: "
                f"kubectl -n {self.settings.namespace} delete pod -l {self.selector}"
            )

    def gone(self) -> None:
        """Wait until the deleted pods are gone and their GPUs free."""
        left: dict[str, Object] = {}
        for left in follow(self.api, "Pod", self.settings.namespace, seconds=GONE, labels=self.selector):
            if not left:
                return
        self.settings.notify(f"not deleted after {GONE:.0f} s: {', '.join(left)}")


@dataclass(frozen=True, slots=True)
class Result:
    """One pod's result on one GPU. `uuid` and `gpu` (the model) are "" where its image does not report them.

    `share`: MiB of a GPU's memory that it requested, 0 where unknown, None where it requested none. `limit`: MiB that the
    driver limited it to; None without a limit. `image`: as the runtime names the one that ran, with its digest.
    """

    node: str
    pod: str
    uuid: str
    gpu: str
    passed: bool
    seconds: float
    why: str
    log: tuple[str, ...]
    limit: int | None = None
    share: int | None = None
    image: str = ""


@dataclass(frozen=True, slots=True)
class NodeResult:
    """All results of one node. `expected`: UUIDs that its pods should have seen, () where unknown. `uncovered`: GPUs that no pod saw; `users`: other pods with GPUs; `busy`: these have all.

    `divided`: several pods can have parts of one GPU; `shared`: by memory.
    """

    node: str
    results: tuple[Result, ...]
    uncovered: tuple[str, ...] = ()
    users: tuple[str, ...] = ()
    why: str = ""
    divided: bool = False
    shared: bool = False
    busy: bool = False
    expected: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        """At least one pod ran, all that ran passed, and only GPUs in use were excluded."""
        untested = self.uncovered and not self.users
        return bool(self.results) and not (self.why or untested) and all(r.passed for r in self.results)

    @property
    def together(self) -> str:
        """A GPU that two pods had at the same time, as pods keep theirs until all are done; "" for none."""
        pods: dict[str, set[str]] = {}
        for result in self.results:
            pods.setdefault(result.uuid, set()).add(result.pod)
        return next((uuid for uuid, several in pods.items() if uuid and len(several) > 1), "")


def failed_result(node: str, pod: str, why: str, seconds: float = 0.0) -> Result:
    """The result of a pod that shows no GPU."""
    return Result(node, pod, uuid="", gpu="", passed=False, seconds=seconds, why=why, log=())


def parse_report(log: str) -> list[dict[str, Any]]:
    """The GPUs in the JSON of the plugin's image, or its error; [] for other images and for a log without JSON."""
    for line in reversed(log.splitlines()):
        if line.startswith("{"):
            try:
                answer = json.loads(line)
                return [dict(gpu) for gpu in answer["gpus"]] or [{"error": answer.get("error")}]
            except (ValueError, KeyError, TypeError):
                continue
    return []


@dataclass(slots=True)
class Job:
    """One node's part of a run that is under way."""

    target: Target
    node: Node | None = None
    free: Free | None = None
    expected: tuple[str, ...] = ()  # UUIDs that the pods should see
    waves: list[Sequence[Request]] = field(default_factory=list)  # not requested yet
    left: dict[str, int] = field(default_factory=dict)  # free shares beyond the waves
    names: list[str] = field(default_factory=list)
    requested: dict[str, Request] = field(default_factory=dict)  # by each pod
    why: str = ""
    results: dict[str, list[Result]] = field(default_factory=dict)  # of each pod, one for each GPU
    unseen: set[str] = field(default_factory=set)  # created since the pods were first listed
    tried: float = 0.0  # when a pod was last recreated; monotonic

    @property
    def done(self) -> bool:
        return len(self.results) == len(self.names)

    @property
    def waiting(self) -> list[str]:
        """Pods without a result."""
        return [name for name in self.names if name not in self.results]

    @property
    def all_results(self) -> list[Result]:
        return [result for name in self.names for result in self.results[name]]

    def next(self) -> Sequence[Request]:
        """The requests that follow once all pods so far are done; () for none."""
        if self.free is None or any(not result.passed and not result.uuid for result in self.all_results):
            return ()
        if self.waves:
            return self.waves.pop(0)
        seen = {result.uuid for result in self.all_results}
        requests = next_requests(self.free, self.left, seen, self.expected, len(self.names))
        for resource, amount in requests:
            self.left[resource] -= amount
        return requests

    def share(self, name: str) -> int | None:
        """MiB of a GPU's memory that this pod requested; 0 where unknown, None where it requested none."""
        return self.free.share(self.requested[name]) if self.free else None

    def wrong(self, name: str, gpu: Mapping[str, Any]) -> str:
        """What is wrong with a GPU on which this pod's program passed; "" for nothing. `gpu` is the program's report."""
        share, limit = self.share(name), gpu.get("limit_mib")
        if share and limit not in (None, share):
            return f"it requested {share} MiB of memory, but its limit is {limit} MiB"
        if gpu.get("exclusive") and self.free and self.requested[name][0] in self.free.parts:
            return (
                "the GPU's compute mode allows one process at a time, so pods cannot share it: run "
                f"`nvidia-smi -i {gpu.get('uuid')} -c DEFAULT` on the host"
            )
        return ""

    def verdict(self) -> NodeResult:
        seen = {result.uuid for result in self.all_results}
        expected, why, free = self.expected, self.why, self.free
        if free is None:
            return NodeResult(self.target.node, (), tuple(expected), why=why, expected=self.target.uuids)
        # An image that reports no UUID: only the number of GPUs is known.
        uncovered = () if "" in seen else tuple(uuid for uuid in expected if uuid not in seen)
        if len(self.results) < len(expected) and not free.users and free.offered < len(expected):
            why = why or f"the node offered {free.offered} of {len(expected)} GPUs"
        divided = free.divided and "" not in seen
        return NodeResult(
            self.target.node,
            tuple(self.all_results),
            uncovered,
            free.users,
            why,
            divided,
            free.memory is not None,
            busy=bool(free.users) and not free.waves,
            expected=self.target.uuids,
        )


HOLDER = "gpunode.dev/holder"  # annotation; the pods of `verify`, which holds no lease, have none
PODS = "app.kubernetes.io/name=gpunode-vectoradd"
NAMED = 3
GONE = 30.0  # seconds to wait until deleted pods are gone


def sweep(api: Api, namespace: str, notify: OnProgress, *, holder: str) -> None:
    """Delete the pods of earlier holders of the cluster's lease, and wait until they are gone: they would keep their GPUs for
    minutes. To be called by the `holder`, before it makes its own.

    The lease is read after the pods are listed. If it still names `holder`, whoever made the other pods in the list holds it no
    more. If not, as after a pause of this run, nothing is deleted: the pods may be of the run that holds it now.
    """
    listed, _ = api.find("Pod", namespace, labels=PODS)
    uids = {
        pod["metadata"]["name"]: pod["metadata"]["uid"]
        for pod in listed
        if (pod["metadata"].get("annotations") or {}).get(HOLDER, holder) != holder
    }
    if not uids or lease.holder(api) != holder:
        return
    notify(f"deleting pods of a run that was killed: {few(sorted(uids), NAMED)}")
    for name, uid in uids.items():
        api.delete("Pod", name, namespace, uid=uid)
    for now in follow(api, "Pod", namespace, seconds=GONE, labels=PODS):
        if not uids.keys() & now.keys():
            return
