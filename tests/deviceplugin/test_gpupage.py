"""The page `/gpus`: what each GPU does, who has it, and since when it is unhealthy."""

import pytest
from pynvml import NVML_ERROR_GPU_IS_LOST

from gpunode.contract import usage
from gpunode.contract.offer import Device
from gpunode.contract.status import Reason
from gpunode.deviceplugin.gpupage import by_gpu, read_gpu
from gpunode.deviceplugin.state import NodeState

from .nvml import GIB, FakeNvml, Gpu, handles
from .test_metrics import free_port, get
from .test_podresources import Lister, pod


def test_a_reading_lacks_what_nvml_does_not_say():
    """A temperature that the GPU does not report, and everything of one that is lost."""
    taken = handles(Gpu("GPU-b", error=NVML_ERROR_GPU_IS_LOST), Gpu("GPU-a", pids=(1, 2)))
    assert read_gpu(taken, "GPU-a") == {"used": 4 * GIB, "utilization": 97, "processes": 2}
    assert read_gpu(taken, "GPU-b") == read_gpu(taken, "GPU-gone") == {}


async def test_the_probes_port_serves_the_page(kubelet, plugin, sockets):
    """With each container that has a GPU, and without metrics being asked for."""
    port, socket = free_port(), sockets / "pods.sock"

    settings = {"probe_address": f"127.0.0.1:{port}", "pod_resources_socket": str(socket)}
    gpus = FakeNvml(Gpu("GPU-a"), Gpu("GPU-b", minor=1))
    async with Lister(pod("train", gpu=["GPU-a"])).serving(socket), plugin(gpus, **settings):
        await kubelet.until(kubelet.devices)
        status, text = await get(port, usage.PATH)
        assert status == 200
        first, second = usage.loads(text)
        assert (first.uuid, first.memory, first.utilization, first.unhealthy) == (
            "GPU-a",
            16 * GIB,
            97,
            None,
        )
        assert first.users == (usage.User("ml/train", "main", "nvidia.com/gpu", 1),)
        assert second.users == ()
        assert first.offered == second.offered == (usage.Offered("nvidia.com/gpu", 1, "whole"),)
        assert first.driver == second.driver != ""


def test_users_of_mig_devices_are_those_of_their_gpu():
    gpu = Device("GPU-a", "0", "A100", "GPU-a", "", 0)
    part = Device("MIG-1", "0:0", "A100", "GPU-a", "", 0, profile="1g.10gb")
    labels = {"namespace": "ml", "pod": "p", "container": "c", "resource": "nvidia.com/gpu", "gpu": "MIG-1"}
    users = by_gpu([("pod_devices", labels, 2.0)], [gpu, part])
    assert users == {"GPU-a": (usage.User("ml/p", "c", "nvidia.com/gpu", 2),)}


def test_since_is_when_the_device_became_unhealthy():
    """Another reason, or another device, does not change it; a recovery ends it."""
    state = NodeState()
    state.set_health("GPU-a", Reason("xid-79", "Xid 79"))
    first = state.since
    state.set_health("GPU-a", Reason("gpu-lost", "lost"))
    state.exclude("CDI", {"GPU-b": Reason("cdi", "no")})
    assert state.since["GPU-a"] == first["GPU-a"]
    assert set(state.since) == {"GPU-a", "GPU-b"}
    state.set_health("GPU-a", None)
    assert set(state.since) == {"GPU-b"}


def test_the_document_is_read_as_it_was_written():
    user = usage.User("ml/p", "c", "r", 1)
    gpus = (
        usage.Gpu(
            "GPU-a",
            "0",
            "P100",
            16,
            1,
            2,
            3,
            4,
            Reason("xid-79", "x"),
            "2026-01-01",
            (user,),
            "615.36.01",
            (usage.Offered("r", 4, "memory", 1024),),
        ),
        usage.Gpu("GPU-b", "1", "P100", 0),
    )
    assert usage.loads(usage.dumps(gpus)) == gpus


def test_the_first_plugins_document_is_read():
    """It names no driver."""
    first = '{"version":1,"gpus":[{"uuid":"GPU-a","index":"0","name":"P100","memory":1,"users":null,"unhealthy":null}]}'
    assert usage.loads(first) == (usage.Gpu("GPU-a", "0", "P100", 1),)


def test_what_a_newer_plugin_adds_is_ignored():
    """In the document and in each of its parts; the version is 2, whose new parts the first reader refused."""
    user = usage.User("ns/pod", "main", "nvidia.com/gpu", 1)
    offered = usage.Offered("nvidia.com/gpu", 1, "whole")
    gpus = (
        usage.Gpu("GPU-a", "0", "P100", None, unhealthy=Reason("c", "w"), users=(user,), offered=(offered,)),
    )
    text = usage.dumps(gpus)
    assert '"version":2' in text
    assert usage.loads(text.replace("{", '{"added":{},')) == gpus


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"version":3,"gpus":[]}', '{"version":2,"gpus":[{"x":1}]}', '{"version":2,"gpus":[1]}'],
)
def test_another_document_is_refused(text: str):
    with pytest.raises(ValueError, match=r".*"):
        usage.loads(text)
