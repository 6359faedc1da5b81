"""How the scheduler extender does under a real kube-scheduler: `python bench/scheduler.py`. Prints a JSON object.

An API server 1.36 with an etcd, its kube-scheduler with the configuration that `gpunode share enable` writes, and the
extender as a process: 1,000 nodes of eight GPUs, 10,000 bound pods, 1,000 more to be scheduled. Nodes and pods are
objects; there are no kubelets. Needs Go, etcd and some 4 GiB; minutes on two cores.
"""

import json
import os
import random
import statistics
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from gpunode.contract.promises import INDEX, MEMORY_ANNOTATION  # noqa: E402
from gpunode.links.scheduler import plan  # noqa: E402
from tests.lab import schedulers  # noqa: E402
from tests.lab.api_servers import NEW, programs, running  # noqa: E402
from tests.lab.progress import wait  # noqa: E402
from tests.lab.schedulers import EXTENDER, Client  # noqa: E402

MEM = "aliyun.com/gpu-mem"
NODES, PODS, GPUS, UNITS, MORE = 1000, 10_000, 8, 80, 1000
AT_ONCE = 6
# Around each request, from its head to its answer: verb, milliseconds, when it ended, and how many nodes it named.
TIMED = """
import json, os, sys, threading, time
from gpunode.share import server
local = threading.local()
took = open(os.environ["TOOK"], "a", buffering=1)
plain, parse = server.Handler.do_POST, server._json
def read(text):
    found = parse(text)
    local.nodes = len(found.get("NodeNames") or ())
    return found
def timed(self):
    began = time.perf_counter()
    plain(self)
    now = time.perf_counter()
    took.write(json.dumps([self._verb(), (now - began) * 1000, now, getattr(local, "nodes", 0)]) + "\\n")
server._json, server.Handler.do_POST = read, timed
"""


def memory(pid: int) -> float:
    """MiB."""
    text = Path(f"/proc/{pid}/status").read_text()
    return round(int(text.partition("VmRSS:")[2].split()[0]) / 1024, 1)


def node(number: int) -> dict[str, Any]:
    gpus = [{"index": str(n), "uuid": f"GPU-{number}-{n}", "units": UNITS} for n in range(GPUS)]
    amounts = {"cpu": "128", "memory": "1Ti", "pods": "250", MEM: str(GPUS * UNITS)}
    return {
        "metadata": {
            "name": f"n{number}",
            "labels": {"kubernetes.io/hostname": f"n{number}"},
            "annotations": {MEMORY_ANNOTATION: json.dumps({"version": 1, "gpus": gpus})},
        },
        "status": {
            "capacity": amounts,
            "allocatable": amounts,
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }


def pod(name: str, units: int, on: str = "", gpu: int = 0) -> dict[str, Any]:
    box = {
        "name": "c",
        "image": "none",
        "resources": {"limits": {MEM: str(units)}, "requests": {"cpu": "10m"}},
    }
    spec: dict[str, Any] = {"containers": [box]} | ({"nodeName": on} if on else {})
    return {"metadata": {"name": name, "annotations": {INDEX: str(gpu)} if on else {}}, "spec": spec}


def sent(kubeconfig: str, requests: list[tuple[str, str, Any]]) -> float:
    """Seconds for all of them, by several connections."""
    began = time.monotonic()

    def some(first: int) -> None:
        with closing(Client(kubeconfig)) as client:
            for method, path, body in requests[first::AT_ONCE]:
                client.ask(method, path, body)

    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(some, range(AT_ONCE)))
    return round(time.monotonic() - began, 1)


def spread(took: list[float]) -> dict[str, float]:
    took = sorted(took)
    return {
        "requests": len(took),
        "p50_ms": round(statistics.median(took), 2),
        "p99_ms": round(took[int(len(took) * 0.99)], 2),
    }


def main() -> None:
    chance = random.Random(1)
    results: dict[str, Any] = {"date": time.strftime("%Y-%m-%d"), "load_before": os.getloadavg()[0]}
    where = "/api/v1/namespaces/default/pods"
    with tempfile.TemporaryDirectory() as name, running(NEW, Path(name)) as kubeconfig:
        folder = Path(name)
        every = [node(number) for number in range(NODES)]
        create = [("POST", "/api/v1/nodes", item) for item in every]
        sent(kubeconfig, create)
        sent(kubeconfig, [("PATCH", f"/api/v1/nodes/n{n}", {"spec": {"taints": None}}) for n in range(NODES)])
        os.environ["TOOK"] = str(folder / "took")
        with schedulers.extender(folder, kubeconfig, "n0", TIMED + EXTENDER) as (wanted, pid):
            results["memory_with_nodes_mib"] = memory(pid)
            sizes = [2, 4, 8, 16]
            bound = [
                pod(f"old{n}", chance.choice(sizes), f"n{n % NODES}", chance.randrange(GPUS))
                for n in range(PODS)
            ]
            half = PODS // 2
            results["creating_s"] = sent(kubeconfig, [("POST", where, item) for item in bound[:half]])
            time.sleep(5)
            results["memory_with_half_of_the_pods_mib"] = memory(pid)
            results["creating_s"] += sent(kubeconfig, [("POST", where, item) for item in bound[half:]])
            time.sleep(5)
            results["memory_with_pods_mib"] = memory(pid)
            new = [("POST", where, pod(f"new{n}", chance.choice([2, 4, 8, 16, 40]))) for n in range(MORE)]
            sent(kubeconfig, new)
            master = schedulers.Master(folder, kubeconfig, "1.36.3")
            master.make(plan.enable(master.facts, 0, wanted)[0])
            took = folder / "took"
            with master.scheduler(programs(NEW) / "kube-scheduler") as log:
                lines: list[list[Any]] = []

                def done() -> bool:
                    lines[:] = (
                        [json.loads(line) for line in took.read_text().splitlines()] if took.exists() else []
                    )
                    return sum(line[0] == "bind" for line in lines) >= MORE

                wait("all pods to be bound", done, 600, log)
            results["memory_at_the_end_mib"] = memory(pid)
            for verb in ("filter", "prioritize", "bind"):
                results[verb] = spread([line[1] for line in lines if line[0] == verb])
            results["nodes_a_filter"] = round(
                statistics.mean(line[3] for line in lines if line[0] == "filter")
            )
            ends = [line[2] for line in lines if line[0] == "bind"]
            results["binds_a_second"] = round((len(ends) - 1) / (max(ends) - min(ends)), 1)
            with closing(Client(kubeconfig)) as client:
                pods = client.ask("GET", where)["items"]
                results["bound"] = sum(
                    bool(item["spec"].get("nodeName"))
                    for item in pods
                    if item["metadata"]["name"].startswith("new")
                )
    results["load_after"] = os.getloadavg()[0]
    print(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
