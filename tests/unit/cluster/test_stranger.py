"""A pod that asks for no GPU though its environment asks for all: what it sees, and that it is deleted."""

import pytest

from gpunode.cluster.api import Api
from gpunode.links import node as nodes
from gpunode.links.pod.link import judge_isolation
from gpunode.links.pod.run_pod import PodRun, run_strangers
from gpunode.model import PluginImage, Verdict

from .conftest import NS, add_node
from .fake import FakeApi, Object


def ended(code: int, message: str) -> Object:
    """A pod's status after its container."""
    state = {"terminated": {"exitCode": code, "message": message}}
    return {
        "phase": "Failed" if code else "Succeeded",
        "containerStatuses": [{"name": "stranger", "state": state}],
    }


@pytest.mark.parametrize(
    ("code", "message", "words"),
    [
        (0, "", ""),
        (3, "/dev/nvidia0, /dev/nvidia1\n", "a pod that asks for no GPU sees /dev/nvidia0, /dev/nvidia1"),
        (1, "no python3", "a pod that asks for no GPU failed: no python3"),
    ],
)
def test_it_says_what_such_a_pod_sees(api: Api, fake: FakeApi, code: int, message: str, words: str):
    """And no pod is left."""
    add_node(fake, "a", 2)
    made: list[Object] = []

    def kubelet(item: Object) -> None:
        if not item.get("status", {}).get("phase"):
            made.append(item)
            fake.update("Pod", item["metadata"]["name"], NS, status=ended(code, message))

    fake.react("Pod", kubelet)
    views = run_strangers(api, nodes.fetch(api), PodRun(NS, PluginImage("plugin:1"), 20))
    assert views == {"a": words}
    (container,) = made[0]["spec"]["containers"]
    assert {"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"} in container["env"]
    assert "resources" not in container
    assert fake.all("Pod") == []


def test_the_last_link_breaks_where_a_stranger_sees_gpus():
    """And says that none does where none does."""
    good = Verdict.ok("pod", "vectoradd passed on GPU-1")
    assert judge_isolation(good, "").text == "vectoradd passed on GPU-1; a pod that asks for none sees none"
    broken = judge_isolation(good, "a pod that asks for no GPU sees /dev/nvidia0")
    assert (broken.status, broken.cause) == ("broken", "a pod that asks for no GPU sees /dev/nvidia0")
