"""Article 004's steps with real schedulers, by the files that gpunode writes: a Policy, and configurations of all ages.

Each with an API server of its release, an etcd and the extender; nodes and pods are objects, without kubelets.
"""

import json
import shutil
from contextlib import ExitStack, closing
from typing import Any

import pytest

from gpunode.contract.promises import INDEX, MEMORY_ANNOTATION
from gpunode.links.scheduler import plan

from . import schedulers
from .api_servers import programs, running
from .progress import wait
from .schedulers import Client

pytestmark = [pytest.mark.lab, pytest.mark.matrix]

MEM = "aliyun.com/gpu-mem"
PODS = "/api/v1/namespaces/default/pods"
SIZE = 8
# minor of the programs, the version that the manifest's image names, a path that gpunode then writes, whether its
# scheduler preempts where the sum is enough
CASES = [
    ("1.16", "1.16.15", plan.POLICY, True),
    ("1.20", "1.18.20", plan.POLICY, True),  # 1.20 still takes what is written for 1.18
    ("1.20", "1.20.15", plan.SCHEDULER, True),
    ("1.36", "1.36.3", plan.SCHEDULER, False),
]
FLAGS = (
    "--profiling=false",
    "--kube-api-qps=80",
    "--kube-api-burst",
    '"160"',
    "--leader-elect-lease-duration=20s",
)
OLDER = ("--hard-pod-affinity-symmetric-weight=7", "--address=127.0.0.1")  # flags until 1.21


class Pods:
    """Pods of the API server, and the classes of their priorities."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def node(self) -> None:
        """One with two GPUs, as its plugin publishes it."""
        sizes = {"version": 1, "gpus": [{"index": str(n), "uuid": f"GPU-{n}", "units": SIZE} for n in (0, 1)]}
        meta = {"name": "n", "annotations": {MEMORY_ANNOTATION: json.dumps(sizes)}}
        amounts = {"cpu": "64", "memory": "256Gi", "pods": "110", MEM: str(2 * SIZE)}
        status = {
            "capacity": amounts,
            "allocatable": amounts,
            "conditions": [{"type": "Ready", "status": "True"}],
        }
        self._client.ask("POST", "/api/v1/nodes", {"metadata": meta, "status": status})
        self._client.ask("PATCH", "/api/v1/nodes/n", {"spec": {"taints": None}})
        self._client.ask("PATCH", "/api/v1/nodes/n/status", {"status": status})
        body = {"metadata": {"name": "high"}, "value": 100}
        self._client.ask("POST", "/apis/scheduling.k8s.io/v1/priorityclasses", body)

    def make(self, name: str, units: int, **more: Any) -> None:
        box = {"name": "c", "image": "none", "resources": {"limits": {MEM: str(units)}}}
        spec = {"containers": [box], "terminationGracePeriodSeconds": 0, **more}
        self._client.ask("POST", PODS, {"metadata": {"name": name}, "spec": spec})

    def get(self, name: str) -> dict[str, Any] | None:
        pod: dict[str, Any] | None = self._client.ask("GET", f"{PODS}/{name}")
        return pod

    def bound(self, name: str) -> str:
        """The GPU that is noted, "" where none is, once it is bound."""
        wait(f"{name} to be bound", lambda: bool((self.get(name) or {}).get("spec", {}).get("nodeName")), 120)
        pod = self.get(name)
        assert pod is not None
        return str(pod["metadata"].get("annotations", {}).get(INDEX, ""))

    def waits(self, name: str, words: str) -> None:
        """Its condition has these words."""

        def said() -> bool:
            conditions = (self.get(name) or {}).get("status", {}).get("conditions", [])
            return any(words in condition.get("message", "") for condition in conditions)

        wait(f"{name} to wait: {words}", said, 120)

    def end(self, name: str) -> None:
        self._client.ask("DELETE", f"{PODS}/{name}")


@pytest.mark.parametrize(("minor", "version", "path", "pieces"), CASES)
def test_the_articles_steps_and_back(tmp_path, minor: str, version: str, path: str, pieces: bool):
    """Pods go onto single GPUs, wait with the reason, preempt; and by the manifest as it was the scheduler counts sums."""
    if shutil.which("etcd") is None:
        pytest.skip("no etcd here")
    with ExitStack() as stack:
        kubeconfig = stack.enter_context(running(minor, tmp_path))
        client = stack.enter_context(closing(Client(kubeconfig)))
        pods = Pods(client)
        pods.node()
        wanted, _ = stack.enter_context(schedulers.extender(tmp_path, kubeconfig, "n"))
        older = (*OLDER, f"--port={schedulers.port()}") if minor < "1.22" else ()
        master = schedulers.Master(tmp_path, kubeconfig, version, *FLAGS, *older)
        program, before = programs(minor) / "kube-scheduler", master.facts

        changes, _ = plan.enable(before, 0, wanted)
        assert path in {getattr(change, "path", "") for change in changes}
        master.make(changes)
        with master.scheduler(program):
            for name in ("a", "b"):
                pods.make(name, 6)
            assert {pods.bound("a"), pods.bound("b")} == {"0", "1"}
            pods.make("c", 4)  # as much is free in sum
            pods.waits("c", "no single GPU has 4 units of memory free")
            freed = pods.bound("a")
            pods.end("a")
            assert pods.bound("c") == freed
            # 4 are free beside c, 2 beside b
            units = 5 if pieces else 8
            pods.make("high", units, priorityClassName="high")
            gpu = pods.bound("high")
            left = [name for name in ("b", "c") if pods.get(name)]
            assert left == (["b"] if gpu == freed else ["c"])
            for name in ("high", *left):
                pods.end(name)

        master.make(plan.disable(master.facts))
        assert master.facts == before
        with master.scheduler(program):
            for name in ("d", "e"):
                pods.make(name, 5)
            pods.make("sum", 6)
            assert [pods.bound(name) for name in ("d", "e", "sum")] == ["", "", ""]
