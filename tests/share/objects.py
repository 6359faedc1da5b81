"""Nodes and pods as the API server has them, and a stand-in for it that binds pods as it does."""

import json
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from gpunode.contract.promises import MEMORY_ANNOTATION
from gpunode.deviceplugin.cluster.apiserver import ApiError, Object
from gpunode.share.ledger import Ledger

MEM, COUNT = "aliyun.com/gpu-mem", "aliyun.com/gpu-count"
# Random schedules of a test; `make storm` tries many more.
SCHEDULES = int(os.environ.get("SCHEDULES", "200"))


def node(name: str, *units: int, published: bool = False, **annotations: str) -> Object:
    """A node whose GPUs have so many units; `published`: in its annotation, each with a UUID."""
    gpus = [{"index": str(n), "uuid": f"GPU-{name}-{n}", "units": size} for n, size in enumerate(units)]
    if published:
        annotations[MEMORY_ANNOTATION] = json.dumps({"version": 1, "gpus": gpus})
    capacity = {MEM: str(sum(units)), COUNT: str(len(units))}
    return {"metadata": {"name": name, "annotations": annotations}, "status": {"capacity": capacity}}


def pod(
    name: str,
    *asks: Any,
    on: str = "",
    gpus: int = 0,
    init: Iterable[Any] = (),
    sidecars: Iterable[Any] = (),
    phase: str = "Pending",
    **annotations: str,
) -> Object:
    """A pod whose containers c0, c1 … ask for so many units (0: for none)."""

    def container(kind: str, number: int, units: Any) -> Object:
        return {"name": f"{kind}{number}", "resources": {"limits": {MEM: str(units)} if units != 0 else {}}}

    inits = [container("i", number, units) for number, units in enumerate(init)]
    inits += [
        container("s", number, units) | {"restartPolicy": "Always"} for number, units in enumerate(sidecars)
    ]
    meta: Object = {"name": name, "namespace": "default", "uid": f"uid-{name}", "annotations": annotations}
    if gpus:
        meta["labels"] = {COUNT: str(gpus)}
    spec: Object = {"containers": [container("c", number, units) for number, units in enumerate(asks)]}
    if inits:
        spec["initContainers"] = inits
    if on:
        spec["nodeName"] = on
    return {"metadata": meta, "spec": spec, "status": {"phase": phase}}


class Pods:
    """An API server's pods. `fail` is called with each request before it is answered; `late`, after a binding is done."""

    def __init__(self, *pods: Object) -> None:
        self.pods = {item["metadata"]["name"]: item for item in pods}
        self.fail: Callable[[str, str], None] = lambda *_: None
        self.late: Callable[[], None] = lambda: None
        self.bindings = 0
        self._lock = threading.Lock()

    def get(self, path: str) -> Object:
        self.fail("GET", path)
        with self._lock:
            pod = self.pods.get(path.rpartition("/")[2])
            if pod is None:
                raise ApiError(404, f"pods {path.rpartition('/')[2]!r} not found")
            copy: Object = json.loads(json.dumps(pod))
            return copy

    def send(self, method: str, path: str, body: Object | None = None) -> None:
        self.fail(method, path)
        assert body is not None
        if method == "PATCH":
            self._note(path, body)
            return
        assert method == "POST"
        assert path.partition("?")[0].endswith("/binding")
        with self._lock:
            pod = self.pods.get(body["metadata"]["name"])
            if pod is None:
                raise ApiError(404, "not found")
            if pod["metadata"]["uid"] != body["metadata"]["uid"] or pod["spec"].get("nodeName"):
                raise ApiError(409, "pod is already assigned to a node")
            pod["spec"]["nodeName"] = body["target"]["name"]
            pod["metadata"]["annotations"] |= body["metadata"]["annotations"]
            self.bindings += 1
        self.late()

    def _note(self, path: str, body: Object) -> None:
        """A merge patch of a pod's status, which may change annotations."""
        *_, name, what = path.split("/")
        assert what == "status"
        with self._lock:
            pod = self.pods.get(name)
            if pod is None:
                raise ApiError(404, "not found")
            if pod["metadata"]["uid"] != body["metadata"]["uid"]:
                raise ApiError(409, "it is another pod")
            pod["metadata"]["annotations"] |= body["metadata"]["annotations"]

    def watch(self, path: str, seconds: int) -> Iterator[tuple[str, Object]]:
        raise NotImplementedError

    def listed(self, first: int = 0, step: int = 1) -> list[Object]:
        """All pods as a list of them would have them now, or each so many'th."""
        with self._lock:
            copy: list[Object] = json.loads(json.dumps(list(self.pods.values())[first::step]))
            return copy


def free(ledger: Ledger, name: str = "n") -> tuple[int, ...]:
    book = ledger.book(name)
    assert book is not None
    return book.free
