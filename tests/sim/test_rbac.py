"""The device plugin's service account in the simulated cluster: what the manifests give it, and nothing else."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gpunode.cluster.api import connect
from gpunode.cluster.objects.apply import apply, prune
from gpunode.deviceplugin.cluster.apiserver import ApiError
from gpunode.deviceplugin.cluster.incluster import InCluster
from gpunode.links.plugin.deployment import Spec, all_objects
from gpunode.model import Cluster as Access
from gpunode.model import PluginImage, PluginPublish
from gpunode.sim.cluster import Cluster

from .clusters import until

EVENTS, NODE = "/api/v1/namespaces/default/events", "/api/v1/nodes/gpu-01"
EVENT = {"kind": "Event", "apiVersion": "v1", "metadata": {"name": "a"}}


@pytest.fixture
def cluster(tmp_path) -> Iterator[Cluster]:
    """A cluster without hosts."""
    made = Cluster(tmp_path, [])
    yield made
    made.close()


def code(api: InCluster, method: str, path: str, body: object) -> int:
    """The HTTP status of a refusal; 200 where there is none."""
    try:
        api.send(method, path, body)
    except ApiError as error:
        return error.code
    return 200


def test_the_plugin_may_do_what_it_was_given(cluster: Cluster):
    """Events in `default` with a Role, nodes with a ClusterRole; taken away, nothing any more."""
    admin = connect(Access(kubeconfig=str(cluster.kubeconfig)))
    until(lambda: admin.get("ServiceAccount", "default", "default"))
    admin.create({"kind": "Node", "apiVersion": "v1", "metadata": {"name": "gpu-01"}})
    environ = cluster._account("gpunode", "gpunode-device-plugin")
    api = InCluster(environ, Path(environ["SERVICE_ACCOUNT_DIRECTORY"]))
    note = {"metadata": {"annotations": {"a": "b"}}}
    for publish, event, annotation, elsewhere in (
        (PluginPublish(), 200, 403, 403),
        (PluginPublish(events=False, annotation=True), 403, 200, 403),
        (PluginPublish(events=False), 403, 403, 403),
    ):
        made = Spec("gpunode", PluginImage("x"), None, publish).manifests
        apply(admin, made)
        prune(admin, made, all_objects("gpunode"))
        assert code(api, "POST", EVENTS, EVENT) == event
        assert code(api, "PATCH", NODE, note) == annotation
        assert code(api, "POST", EVENTS.replace("default", "gpunode"), EVENT) == elsewhere
    admin.close()


def test_kubelets_that_ask_for_an_account_at_once_get_the_same(cluster: Cluster):
    """The pods of a DaemonSet start on all hosts at the same time; none of them has to start twice for it."""
    together = threading.Barrier(8, timeout=60)

    def ask(number: int) -> list[str]:
        names = []
        for turn in range(50):
            together.wait()
            folder = Path(cluster._account("gpunode", f"plugin-{turn}")["SERVICE_ACCOUNT_DIRECTORY"])
            names.append((folder / "token").read_text())
        return names

    with ThreadPoolExecutor(8) as threads:
        first, *others = threads.map(ask, range(8))
    assert all(each == first for each in others)
