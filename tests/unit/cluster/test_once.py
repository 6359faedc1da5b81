"""The pod that runs nvidia-smi once."""

import pytest

from gpunode.cluster.api import Api
from gpunode.cluster.api.kinds import Object
from gpunode.links import node as nodes
from gpunode.links.pod import notebook, run_pod
from gpunode.model import PluginConfig, PluginImage

from .conftest import add_node
from .fake import FakeApi

NAMED = "example.com/mem"
CONFIG = PluginConfig(f"version: v1\nsharing: {{memory: {{name: {NAMED}}}}}\n")


@pytest.mark.parametrize(
    ("offers", "resource", "places"),
    [
        ([{"gpus": 1}, {"gpus": 0}], "nvidia.com/gpu", ["gpu-0", "gpu-1"]),
        ([{"gpus": 0}, {"gpus": 1, "shared": (1, 16)}], "nvidia.com/gpu", ["gpu-0", "gpu-1"]),
        ([{"gpus": 0}, {"gpus": 0}], "nvidia.com/gpu", ["gpu-0", "gpu-1"]),
        ([{"shared": (1, 16)}, {"gpus": 0}], "aliyun.com/gpu-mem", ["gpu-0"]),
        ([{"shared": (1, 16)}, {"gpu_shared": 4}], "aliyun.com/gpu-mem", ["gpu-0"]),
        ([{"gpu_shared": 4}, {"gpu_shared": 2}], "nvidia.com/gpu.shared", ["gpu-0", "gpu-1"]),
        ([{"gpus": 0}, {"named": 16}], NAMED, ["gpu-1"]),
        ([{"gpus": 1}, {"named": 16}], "nvidia.com/gpu", ["gpu-0", "gpu-1"]),
        ([{"gpu_shared": 4}, {"named": 16}], NAMED, ["gpu-1"]),
    ],
)
def test_the_pod_asks_for_what_the_nodes_offer(
    api: Api, fake: FakeApi, monkeypatch, offers: list[Object], resource: str, places: list[str]
):
    """Whole GPUs first; where there are none, one unit of memory, also under a name of the user's, or one share."""
    made: list[Object] = []

    def followed(_api: Api, these: list[Object], *_: object) -> list[run_pod.Ran]:
        made.extend(pod["spec"] for pod in these)
        return [run_pod.Ran("x", code=0)]

    monkeypatch.setattr(run_pod, "_follow", followed)
    for number, offer in enumerate(offers):
        named = {NAMED: str(offer.pop("named"))} if "named" in (offer := dict(offer)) else {}
        add_node(fake, f"gpu-{number}", **offer)
        fake.update("Node", f"gpu-{number}", status={"capacity": named, "allocatable": named})
    there, second = nodes.fetch(api), {"schedulers": {NAMED: "second"}, "config": CONFIG}
    run_pod.run_nvidia_smi(api, there, run_pod.PodRun("gpunode", PluginImage("i"), 1, **second))
    (spec,) = made
    notebook_pod = notebook.manifests(there, namespace="gpunode", **second)[0]["spec"]["template"]["spec"]
    for part in ("affinity", "schedulerName"):
        assert notebook_pod.get(part) == spec.get(part)
    assert notebook_pod["containers"][0]["resources"]["limits"] == {resource: 1}
    assert spec.get("schedulerName") == ("second" if resource == NAMED else None)
    assert spec["containers"][0]["resources"]["limits"] == {resource: 1}
    (term,) = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][
        "nodeSelectorTerms"
    ]
    assert term["matchExpressions"][0]["values"] == places
    assert not fake.all("Pod")
