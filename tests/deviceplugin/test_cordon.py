"""GPUs that an operator has taken out: Unhealthy while they are in the host's file, whatever starts again."""

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from gpunode.contract.config import Config
from gpunode.contract.cordons import FILE, Cordon, dumps, loads
from gpunode.contract.status import Status
from gpunode.deviceplugin import cordon
from gpunode.deviceplugin.cluster.publish import status_of
from gpunode.deviceplugin.cordon import Cordons
from gpunode.deviceplugin.state import NodeState

from .nvml import FakeNvml, Gpu, Mig
from .test_health import BOTH_WELL, NONE_WELL, ONE_SICK, pair


async def until(condition: Callable[[], object]) -> None:
    """Wait for what the kubelet does not see; the scene has a deadline."""
    while not condition():
        await asyncio.sleep(0.01)


CORDON = Cordon("ada@ws", "its fan is broken", "2026-11-26T00:31:00Z")


def write(sockets: Path, text: str) -> None:
    """As gpunode does on the host: whole, or not at all."""
    path = sockets / FILE
    path.parent.mkdir(exist_ok=True)
    new = path.with_suffix(".new")
    new.write_text(text)
    new.replace(path)


async def test_a_cordoned_gpu_is_unhealthy_until_it_is_uncordoned(kubelet, plugin, sockets, caplog):
    """Without a restart, and again from the first list of a plugin that starts with the file."""
    caplog.set_level("INFO")
    _, _, nvml = pair()
    async with plugin(nvml):
        await kubelet.until(lambda: kubelet.devices() == BOTH_WELL)
        write(sockets, dumps({"GPU-a": CORDON}))
        await kubelet.until(lambda: kubelet.devices() == ONE_SICK)
        with pytest.raises(Exception, match=r"cordoned by ada@ws since .*: its fan is broken"):
            await kubelet.allocate("GPU-a")
    del kubelet.plugins["nvidia.com/gpu"]
    async with plugin(nvml):
        await kubelet.until(lambda: kubelet.devices() == ONE_SICK)
        assert kubelet.plugins["nvidia.com/gpu"].lists[0] == ONE_SICK
        (sockets / FILE).unlink()
        await kubelet.until(lambda: kubelet.devices() == BOTH_WELL)
    assert "uncordoned" in caplog.text


async def test_a_node_whose_gpus_are_all_cordoned_is_ready(kubelet, plugin, sockets):
    """The plugin does what it was asked to: it does not hold up a rollout."""
    _, _, nvml = pair()
    write(sockets, dumps({"GPU-a": CORDON, "GPU-b": CORDON}))
    published: list[Status] = []

    class Publisher:
        def publish(self, state: NodeState, config: Config, registered, not_ready, **_: object) -> None:
            published.append(status_of(state, config, registered, not_ready))

    async with plugin(nvml, publisher=Publisher()):
        await kubelet.until(lambda: kubelet.devices() == NONE_WELL)
        await until(lambda: published[-1].not_ready is None)
    assert {lost.code for lost in published[-1].lost} == {"cordoned"}
    assert published[-1].lost[0].sentence.startswith("GPU 0 (GPU-a) is cordoned by ada@ws")


async def test_a_file_that_cannot_be_read_changes_nothing(kubelet, plugin, sockets, caplog):
    """A GPU does not come back because somebody mistyped."""
    _, _, nvml = pair()
    write(sockets, dumps({"GPU-a": CORDON}))
    async with plugin(nvml):
        await kubelet.until(lambda: kubelet.devices() == ONE_SICK)
        write(sockets, "{")
        await until(lambda: "cordoned GPUs are unchanged" in caplog.text)
        assert kubelet.devices() == ONE_SICK
        write(sockets, dumps({}))
        await kubelet.until(lambda: kubelet.devices() == BOTH_WELL)


def test_a_file_that_cannot_be_read_is_logged_once(sockets, caplog):
    write(sockets, "{")
    cordons = Cordons(sockets, NodeState())
    cordons._check()
    assert caplog.text.count("cordoned GPUs are unchanged") == 1


@pytest.mark.parametrize("restored", [False, True])
async def test_a_folder_that_was_removed_is_followed_again(kubelet, plugin, sockets, monkeypatch, restored):
    """Also where a backup is restored at once: the kernel still watches the folder that is gone."""
    monkeypatch.setattr(cordon, "PAUSE", 0.05)

    _, _, nvml = pair()
    write(sockets, dumps({"GPU-a": CORDON}))
    async with plugin(nvml):
        await kubelet.until(lambda: kubelet.devices() == ONE_SICK)
        shutil.rmtree((sockets / FILE).parent)
        if restored:
            write(sockets, dumps({}))
        await kubelet.until(lambda: kubelet.devices() == BOTH_WELL)
        await until((sockets / FILE).parent.exists)
        write(sockets, dumps({"GPU-a": CORDON}))
        await kubelet.until(lambda: kubelet.devices() == ONE_SICK)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"version": 2, "gpus": {}}',
        '{"version": 1, "gpus": [1]}',
        '{"version": 1, "gpus": {"a": {}}}',
    ],
)
def test_another_file_is_refused(text: str):
    with pytest.raises(ValueError, match=r"is expected, in gpus|version|Expecting"):
        loads(text)


def test_what_is_written_is_read():
    assert loads(dumps({"GPU-b": CORDON, "GPU-a": CORDON})) == {"GPU-a": CORDON, "GPU-b": CORDON}


async def test_the_mig_devices_of_a_cordoned_gpu_go_with_it(kubelet, plugin, sockets):
    write(sockets, dumps({"GPU-a": CORDON}))
    cut = Gpu("GPU-a", mig=[Mig("MIG-1")])
    whole = Gpu("GPU-b", minor=1, mig=[Mig("MIG-2")])
    async with plugin(FakeNvml(cut, whole), mig_strategy="single"):
        await kubelet.until(lambda: kubelet.devices() == {"MIG-1": "Unhealthy", "MIG-2": "Healthy"})
