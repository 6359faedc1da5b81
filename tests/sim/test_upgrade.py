"""The plugin's objects over those of an earlier gpunode, or of another inventory: nothing of before stays."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import yaml

from gpunode.cluster.api import Api, connect
from gpunode.cluster.objects import apply, difference
from gpunode.links import plugin
from gpunode.links.plugin.deployment import Spec, all_objects
from gpunode.model import Cluster as Access
from gpunode.model import PluginConfig, PluginImage, PluginPublish
from gpunode.sim.apiserver.store import Object
from gpunode.sim.cluster import Cluster

from .clusters import until

NS = "gpunode"
IMAGE = PluginImage("plugin:1", image_id="sha256:1")
BEFORE = Path(__file__).with_name("manifests") / "plugin-before-configuration.yaml"
SHARED = "version: v1\nsharing: {mps: {resources: [{name: gpu, replicas: 2}]}}\n"
PLAIN = Spec(NS, IMAGE).manifests
FULL = Spec(
    NS,
    IMAGE,
    PluginConfig(SHARED, cdi_directory="/var/run/cdi", mps_root="/run/nvidia/mps"),
    PluginPublish(events=True, annotation=True, metrics=True),
).manifests


@pytest.fixture
def api(tmp_path) -> Iterator[Api]:
    """A cluster without hosts."""
    cluster = Cluster(tmp_path, [])
    client = connect(Access(kubeconfig=str(cluster.kubeconfig)))
    until(lambda: client.get("ServiceAccount", "default", "default"))
    yield client
    client.close()
    cluster.close()


def deployed(api: Api, wanted: Sequence[Object]) -> dict[str, Object]:
    """The cluster's objects after `gpunode plugin deploy`, as far as somebody wished them."""
    apply.apply(api, wanted)
    apply.prune(api, wanted, all_objects(NS))
    meta = [(item["kind"], item["metadata"]["name"], item["metadata"].get("namespace")) for item in wanted]
    return {
        f"{kind} {name}": difference.as_manifest(api.get(kind, name, place) or {})
        for kind, name, place in meta
    }


@pytest.mark.parametrize("wanted", [PLAIN, FULL], ids=["plain", "full"])
@pytest.mark.parametrize(
    "before", [list(yaml.safe_load_all(BEFORE.read_text())), FULL, PLAIN], ids=["older", "full", "plain"]
)
def test_what_was_deployed_before_leaves_no_trace(
    api: Api, before: Sequence[Object], wanted: Sequence[Object]
):
    """Variables, volumes, ports, rights: the objects are as they are where there was nothing before."""
    fresh = deployed(api, wanted)
    plugin.remove(api, NS, seconds=30, notify=lambda _: None)
    deployed(api, before)
    assert deployed(api, wanted) == fresh
    assert {change.action for change in apply.diff(api, wanted, all_objects(NS))} == {"same"}
