"""A fake API, a client for it, and the little actors that nodes and controllers are."""

import functools
import json
import pickle
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from gpunode.agent import redaction
from gpunode.cluster.api import Api, connect, connection, watch
from gpunode.cluster.api.connection import Connection
from gpunode.cluster.api.kinds import path
from gpunode.cluster.objects import manifests
from gpunode.contract.status import ANNOTATION, MARK, Configuration, Status, dumps
from gpunode.errors import ClusterError
from gpunode.model import Cluster

from .fake import FakeApi, Object

NS = "gpunode"
DAEMONSET = "gpunode-device-plugin"


@pytest.fixture(autouse=True, scope="package")
def _same_texts_read_once() -> Iterator[None]:
    """Manifests are parsed and searched for secrets once. A deploy renders the same ones ten times, and each test plans them
    again, which would be half of what it costs."""
    parsed = functools.cache(lambda text, loader: pickle.dumps([*yaml.load_all(text, loader)]))
    fast = {**vars(yaml), "load_all": lambda text, loader: pickle.loads(parsed(text, loader))}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(manifests, "yaml", SimpleNamespace(**fast))
        patch.setattr(redaction, "redact", functools.cache(redaction.redact))
        yield


@pytest.fixture(autouse=True, scope="package")
def _without_http() -> Iterator[None]:
    """A fake API is asked in the thread that asks: HTTP would be most of what a test costs. Watches, connections that are cut, and tests
    of the time for an answer, which they set, have it."""
    request, usual, within = Connection._request, connection.WHOLE, connection.run_within

    def ask(self: Connection, method: str, url: str, data: bytes | None, headers: Any, read: float) -> Any:
        fake = FakeApi.served.get(url[: url.index("/", 8)])
        answer = fake and fake.ask(method, url, data, headers)
        return answer or request(self, method, url, data, headers, read)

    def run(seconds: float, work: Callable[[], Any]) -> Any:
        return work() if seconds == usual else within(seconds, work)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Connection, "_request", ask)
        patch.setattr(connection, "run_within", run)
        yield


@pytest.fixture
def fake() -> Iterator[FakeApi]:
    server = FakeApi()
    yield server
    server.close()


@pytest.fixture
def api(fake: FakeApi, tmp_path, monkeypatch) -> Iterator[Api]:
    monkeypatch.setattr(watch, "BEAT", 1)
    monkeypatch.setattr(watch, "PAUSE", 0.05)
    client = connect(Cluster(kubeconfig=fake.kubeconfig(tmp_path)))
    yield client
    client.close()


@pytest.fixture
def other_words(monkeypatch) -> None:
    """Every error of the cluster with other sentences for people."""
    made = ClusterError.__init__

    def init(self: ClusterError, what: str, *, hint: str = "", **more: Any) -> None:
        made(self, "zzz", hint="yyy" if hint else "", **more)

    monkeypatch.setattr(ClusterError, "__init__", init)


@pytest.fixture
def told() -> list[str]:
    """The sentences that were told: pass `told.append`."""
    return []


GPU_NODE = {"gpunode.dev/gpu": "true"}


def add_node(
    fake: FakeApi,
    name: str,
    gpus: int = 0,
    *,
    ready: bool = True,
    labels: dict[str, str] | None = None,
    shared: tuple[int, int] | None = None,
    **shares: int,
) -> Object:
    """`shared`: how many GPUs are shared by memory, and the units that they make; `shares`: of nvidia.com/<name>."""
    offers = {"nvidia.com/gpu": str(gpus)}
    offers |= {f"nvidia.com/{name.replace('_', '.')}": str(count) for name, count in shares.items()}
    if shared is not None:
        offers |= {"aliyun.com/gpu-count": str(shared[0]), "aliyun.com/gpu-mem": str(shared[1])}
    return fake.put(
        {
            "kind": "Node",
            "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, **(labels or {})}},
            "spec": {},
            "status": {
                "capacity": dict(offers),
                "allocatable": dict(offers),
                "conditions": [
                    {
                        "type": "Ready",
                        "status": "True" if ready else "Unknown",
                        "message": "" if ready else "Kubelet stopped posting node status.",
                    }
                ],
            },
        }
    )


def pod(
    name: str,
    *,
    node: str = "",
    namespace: str = NS,
    gpus: int = 0,
    asks: dict[str, int] | None = None,
    **more: Any,
) -> Object:
    """It runs, and asks for GPUs, or for these resources."""
    limits = {resource: str(count) for resource, count in (asks or {"nvidia.com/gpu": gpus}).items() if count}
    return {
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, "labels": more.pop("labels", {})},
        "spec": {"nodeName": node, "containers": [{"name": "c", "resources": {"limits": limits}}]},
        "status": {"phase": "Running", **more},
    }


def status(**fields: Any) -> Status:
    """What a plugin publishes, where nothing is wrong but these."""
    return Status("2026-01-01T00:00:00Z", Configuration("none", "none", ("envvar",)), **fields)


def publish(fake: FakeApi, node: str, published: Status, *, annotation: bool = False) -> None:
    """The plugin on this node publishes it: in its log, or in the node's annotation alone."""
    line = f"2026-01-01T00:00:01Z INFO {MARK} {dumps(published)}\n2026-01-01T00:00:02Z INFO allocated\n"
    fake.logs[f"{DAEMONSET}-{node}", "device-plugin"] = "" if annotation else line
    if annotation:
        keeps = {"name": "NODE_ANNOTATION", "value": "true"}
        fake.update("Pod", f"{DAEMONSET}-{node}", NS, spec={"containers": [{"name": "c", "env": [keeps]}]})
        fake.update("Node", node, metadata={"annotations": {ANNOTATION: dumps(published)}})


class PluginController:
    """Makes a pod of the default DaemonSet on each GPU node; `states` says how it fares there."""

    def __init__(self, fake: FakeApi, states: dict[str, Object] | None = None) -> None:
        self.fake, self.states = fake, states or {}
        fake.react("DaemonSet", self.rollout)

    def rollout(self, daemonset: Object) -> None:
        if daemonset["metadata"]["name"] != DAEMONSET:
            return
        for node in self.fake.all("Node"):
            if node["metadata"]["labels"].get("gpunode.dev/gpu") == "true":
                self.start(daemonset, node["metadata"]["name"])

    def start(self, daemonset: Object, node: str, name: str = "") -> None:
        up = {
            "phase": "Running",
            "conditions": [{"type": "Ready", "status": "True"}],
            "containerStatuses": [],
        }
        item = pod(name or f"{DAEMONSET}-{node}", node=node, **self.states.get(node, up))
        meta, notes = item["metadata"], daemonset["metadata"]["annotations"]
        meta["labels"] = {
            **daemonset["spec"]["template"]["metadata"]["labels"],
            "pod-template-generation": notes["deprecated.daemonset.template.generation"],
        }
        meta["ownerReferences"] = [{"name": DAEMONSET, "uid": daemonset["metadata"]["uid"]}]
        self.fake.put(item)


class Kubelet:
    """Runs vectoradd pods: each gets the next free GPUs of its node, adds, and holds them until it is deleted. It gets as
    many as it asks for, of memory one."""

    def __init__(self, fake: FakeApi, gpus: dict[str, list[str]]) -> None:
        self.fake, self.free = fake, {node: list(uuids) for node, uuids in gpus.items()}
        self.broken: set[str] = set()  # UUIDs that fail
        self.exclusive: set[str] = set()  # UUIDs that one process at a time may use
        self.stuck: dict[str, Object] = {}  # node -> the status its pods stay in
        self.without_log = False
        self.limited: int | None = None  # MiB that the driver holds each pod to for each unit
        self.asked: list[dict[str, int]] = []  # limits of each pod
        fake.react("Pod", self.run)

    def run(self, item: Object) -> None:
        if "nodeSelector" not in item["spec"]:
            return  # not one of vectoradd's
        name, node = item["metadata"]["name"], item["spec"]["nodeSelector"]["kubernetes.io/hostname"]
        if node in self.stuck:
            self.fake.update("Pod", name, item["metadata"]["namespace"], status=self.stuck[node])
            return
        resources = item["spec"]["containers"][0]["resources"]
        limits = resources.get("limits") or {"claims": len(resources["claims"])}
        self.asked.append(limits)
        ((resource, amount),) = limits.items()
        given = [self.free[node].pop(0) for _ in range(1 if "mem" in resource else amount)]
        gpus: list[Object] = []
        for uuid in dict.fromkeys(given):
            fine = uuid not in self.broken
            error = None if fine else "element 7 is 0.0, should be 3.5"
            gpu = {"index": 0, "uuid": uuid, "name": "Tesla P100-PCIE-16GB", "passed": fine, "error": error}
            gpu |= {"limit_mib": self.limited and self.limited * amount, "exclusive": uuid in self.exclusive}
            gpus.append(gpu)
        good = all(gpu["passed"] for gpu in gpus)
        if not self.without_log:
            self.fake.logs[name, "vectoradd"] = json.dumps({"passed": good, "gpus": gpus}) + "\n"
        ended = {
            "exitCode": 0 if good else 1,
            "startedAt": "2026-01-01T00:00:00Z",
            "finishedAt": "2026-01-01T00:00:02Z",
        }
        states = [
            {"name": "vectoradd", "state": {"terminated": ended}},
            {"name": "hold", "state": {"running": {}}},
        ]
        self.fake.update(
            "Pod",
            name,
            item["metadata"]["namespace"],
            status={"phase": "Running", "containerStatuses": states},
        )


def has(fake: FakeApi, kind: str, name: str, namespace: str | None = None) -> bool:
    return path(kind, namespace, name) in fake.objects
