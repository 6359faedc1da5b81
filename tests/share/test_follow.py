"""The ledger follows the API server: the simulated one over TLS, and one that breaks as it is asked to."""

import base64
import json
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from gpunode.contract.promises import INDEX
from gpunode.deviceplugin.cluster import apiserver
from gpunode.deviceplugin.cluster.apiserver import ApiError, ApiServer, Follower, Object
from gpunode.deviceplugin.cluster.incluster import InCluster
from gpunode.share.ledger import Ledger, kinds
from gpunode.sim.cluster import Cluster
from tests.share.objects import MEM, node, pod


def until(condition: Callable[[], Any]) -> None:
    """Wait until it is true."""
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.fixture
def following() -> Iterator[Callable[[ApiServer, Ledger], list[Follower]]]:
    """Start to follow an API with a ledger; ends with the test."""
    stop = threading.Event()

    def start(api: ApiServer, ledger: Ledger) -> list[Follower]:
        followers = [Follower(api, kind, stop) for kind in kinds(ledger)]
        for follower in followers:
            follower.start()
        return followers

    yield start
    stop.set()


def test_a_ledger_follows_the_api_server(tmp_path, following: Callable[[ApiServer, Ledger], list[Follower]]):
    """Nodes and pods that are there, come, end and go; and one that starts later has the same books."""
    (tmp_path / "sim").mkdir()
    cluster = Cluster(tmp_path / "sim", [])
    try:
        config = json.loads(cluster.kubeconfig.read_text())
        trust = config["clusters"][0]["cluster"]["certificate-authority-data"]
        (tmp_path / "ca.crt").write_bytes(base64.b64decode(trust))
        (tmp_path / "token").write_text(config["users"][0]["user"]["token"])
        url = urlsplit(config["clusters"][0]["cluster"]["server"])
        place = {"KUBERNETES_SERVICE_HOST": str(url.hostname), "KUBERNETES_SERVICE_PORT": str(url.port)}
        api = InCluster(place, tmp_path)

        def create(what: str, kind: str, made: Object) -> None:
            made["metadata"].pop("uid", None)
            for container in made["spec"]["containers"] if kind == "Pod" else []:
                container["image"] = "plugin:1"
            api.send("POST", what, {"apiVersion": "v1", "kind": kind} | made)

        pods = "/api/v1/namespaces/default/pods"
        create("/api/v1/nodes", "Node", node("n", 10, 10))
        create(pods, "Pod", pod("a", 4, on="n", **{INDEX: "0"}))
        ledger = Ledger(MEM)
        for follower in following(api, ledger):
            assert follower.listed.wait(20)

        def free() -> Any:
            book = ledger.book("n")
            return book and book.free

        assert free() == (6, 10)
        create(pods, "Pod", pod("b", 6, on="n", **{INDEX: "1"}))
        until(lambda: free() == (6, 4))
        api.send("PATCH", f"{pods}/b", {"status": {"phase": "Succeeded"}})
        until(lambda: free() == (6, 10))

        later = Ledger(MEM)
        for follower in following(api, later):
            assert follower.listed.wait(20)
        assert later.books() == ledger.books()

        api.send("DELETE", f"{pods}/a", {"gracePeriodSeconds": 0})
        until(lambda: free() == (10, 10))
        api.send("DELETE", "/api/v1/nodes/n")
        until(lambda: ledger.book("n") is None)
    finally:
        cluster.close()


class Breaking:
    """Pods in pages of two. Each watch breaks with the next of `ends`, or tells the events of it."""

    def __init__(self, *pods: Object) -> None:
        self.pods = list(pods)
        self.ends: list[ApiError | list[tuple[str, Object]]] = []
        self.lists = 0
        self.versions: list[str] = []
        self.refuse: list[ApiError] = []

    def get(self, path: str) -> Object:
        if "/nodes" in path:
            return {"items": [node("n", 100)], "metadata": {"resourceVersion": "1"}}
        if self.refuse:
            raise self.refuse.pop()
        first = int(parse_qs(urlsplit(path).query).get("continue", ["0"])[0])
        self.lists += not first
        more = {"continue": str(first + 2)} if first + 2 < len(self.pods) else {}
        return {"items": self.pods[first : first + 2], "metadata": {"resourceVersion": "7", **more}}

    def send(self, method: str, path: str, body: Object | None = None) -> None:
        raise NotImplementedError

    def watch(self, path: str, seconds: int) -> Iterator[tuple[str, Object]]:
        if "/pods" in path:
            self.versions += parse_qs(urlsplit(path).query)["resourceVersion"]
            end = self.ends.pop(0) if self.ends else []
            if isinstance(end, ApiError):
                raise end
            yield from end
        time.sleep(0.01)


@pytest.fixture(autouse=True)
def _at_once(monkeypatch) -> None:
    monkeypatch.setattr(apiserver, "RETRY", 0.01)


def test_a_list_after_a_broken_watch_finds_what_is_gone(
    following: Callable[[ApiServer, Ledger], list[Follower]],
):
    """Page by page, with answers that cannot be read and a server that is away in between."""
    api = Breaking(*(pod(f"p{number}", 10, on="n", **{INDEX: "0"}) for number in range(5)))
    api.refuse = [ApiError(0, "away")]
    changed = pod("p0", 10, on="n", phase="Failed") | {}
    changed["metadata"]["resourceVersion"] = "9"
    api.ends = [
        [("MODIFIED", changed)],
        [("BOOKMARK", {"metadata": {"resourceVersion": "12"}})],
        ApiError(410, "old"),
    ]
    ledger = Ledger(MEM)
    for follower in following(api, ledger):
        assert follower.listed.wait(20)
    until(lambda: len(api.versions) >= 3)
    assert api.versions[:3] == ["7", "9", "12"]

    until(lambda: api.lists >= 2)
    until(lambda: len(ledger.pods()) == 5)  # as the list has it
    api.pods = [item for item in api.pods if item["metadata"]["name"] in ("p1", "p3")]
    api.ends = [[("ADDED", {"metadata": {}})]]
    until(lambda: ledger.pods() == {"uid-p1", "uid-p3"})
    book = ledger.book("n")
    assert book.free == (80,)


def test_a_watch_that_breaks_after_its_end_is_no_trouble(caplog):
    """A replica that leads no more leaves its watches to time out."""
    stop = threading.Event()

    class Leaving:
        def get(self, path: str) -> Object:
            return {"items": [], "metadata": {"resourceVersion": "1"}}

        def watch(self, path: str, seconds: int) -> Iterator[tuple[str, Object]]:
            stop.set()
            raise ApiError(0, "timed out")

    Follower(Leaving(), kinds(Ledger(MEM))[0], stop).run()
    assert not caplog.records
