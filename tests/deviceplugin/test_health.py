"""From what is seen of a GPU to Healthy or Unhealthy, and back."""

from __future__ import annotations

import asyncio
import threading
import time

import pynvml
import pytest

from gpunode.deviceplugin import discovery
from gpunode.deviceplugin.health import Health, XidPolicy, watch
from gpunode.deviceplugin.health.xids import NAMES, NUMBERS, Verdict, name, verdict
from gpunode.deviceplugin.settings.config import BadConfig

from .kubelet import FakeKubelet
from .nvml import FakeNvml, Gpu

ONE_SICK = {"GPU-a": "Unhealthy", "GPU-b": "Healthy"}
BOTH_WELL = {"GPU-a": "Healthy", "GPU-b": "Healthy"}


def pair() -> tuple[Gpu, Gpu, FakeNvml]:
    a, b = Gpu("GPU-a"), Gpu("GPU-b", minor=1)
    return a, b, FakeNvml(a, b)


def test_a_fatal_xid_takes_its_gpu_out_and_quiet_brings_it_back(play, plugin, caplog):
    """Only the GPU concerned goes Unhealthy; without a restart it is Healthy again after the quiet time."""

    async def scene(kubelet: FakeKubelet) -> None:
        a, _, nvml = pair()
        async with plugin(nvml):
            await kubelet.until(lambda: kubelet.devices() == BOTH_WELL and a.sets)
            a.raise_xid(79)
            await kubelet.until(lambda: kubelet.devices() == ONE_SICK)
            await kubelet.until(lambda: kubelet.devices() == BOTH_WELL)
        assert len(kubelet.requests) == 1

    play(scene)
    assert "unhealthy: Xid 79: GPU has fallen off the bus; reboot the host" in caplog.text


def test_an_application_xid_is_not_held_against_the_gpu(play, plugin, caplog):
    """Xid 13 is a program's fault; a fatal one right behind it shows that events do arrive."""

    async def scene(kubelet: FakeKubelet) -> None:
        a, b, nvml = pair()
        async with plugin(nvml):
            await kubelet.until(lambda: kubelet.devices() == BOTH_WELL and a.sets and b.sets)
            a.raise_xid(13)
            while "Xid 13" not in caplog.text:
                await asyncio.sleep(0.01)
            b.raise_xid(48)
            await kubelet.until(lambda: kubelet.devices() == {"GPU-a": "Healthy", "GPU-b": "Unhealthy"})

    caplog.set_level("INFO")
    play(scene)


def test_a_lost_gpu_is_unhealthy_until_it_answers_again(play, plugin, caplog):
    """Lost and brought back; the other GPU can be allocated all the while, the lost one cannot."""

    async def scene(kubelet: FakeKubelet) -> None:
        a, _, nvml = pair()
        async with plugin(nvml):
            await kubelet.until(lambda: kubelet.devices() == BOTH_WELL)
            a.error = pynvml.NVML_ERROR_GPU_IS_LOST
            await kubelet.until(lambda: kubelet.devices() == ONE_SICK)
            assert (await kubelet.allocate("GPU-b")).envs == {"NVIDIA_VISIBLE_DEVICES": "GPU-b"}
            with pytest.raises(Exception, match="device GPU-a is unhealthy: NVML: GPU is lost"):
                await kubelet.allocate("GPU-a")
            assert await kubelet.prefer(["GPU-a", "GPU-b"], [], 1) == ["GPU-b"]
            a.error = None
            await kubelet.until(lambda: kubelet.devices() == BOTH_WELL)

    play(scene)


def test_nvml_is_started_again_while_a_gpu_is_lost(play, plugin):
    """NVML keeps to its view of a lost GPU until it is started again, and counts its starts: those of earlier
    configurations of this process must not keep it from ending."""

    async def scene(kubelet: FakeKubelet) -> None:
        a, _, nvml = pair()
        nvml_init = nvml.nvmlInit

        def init() -> None:
            if not nvml.inits:
                a.error = None
            nvml_init()

        nvml.nvmlInit = init
        for _ in range(3):
            async with plugin(nvml):
                await kubelet.until(lambda: kubelet.devices() == BOTH_WELL)
            del kubelet.plugins["nvidia.com/gpu"]
        async with plugin(nvml):
            await kubelet.until(lambda: kubelet.devices() == BOTH_WELL)
            a.error = pynvml.NVML_ERROR_GPU_IS_LOST
            await kubelet.until(lambda: ONE_SICK in kubelet.plugins["nvidia.com/gpu"].lists)
            await kubelet.until(lambda: kubelet.devices() == BOTH_WELL)
        assert nvml.inits == 1

    play(scene)


def test_nvml_that_fails_to_shut_down_does_not_end_the_plugin(play, plugin, caplog):
    """With a lost GPU, NVML is started anew now and then; an error on the way is said and survived."""

    async def scene(kubelet: FakeKubelet) -> None:
        a, _, nvml = pair()

        def shutdown() -> None:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_UNKNOWN)

        nvml.nvmlShutdown = shutdown
        async with plugin(nvml):
            await kubelet.until(lambda: kubelet.devices() == BOTH_WELL)
            a.error = pynvml.NVML_ERROR_GPU_IS_LOST
            while "NVML did not shut down properly" not in caplog.text:
                await asyncio.sleep(0.01)
            a.error = None
            await kubelet.until(lambda: kubelet.devices() == BOTH_WELL)

    play(scene)


def test_a_gpu_that_hangs_nvml_does_not_stop_the_others(play, plugin, monkeypatch):
    """NVML does not come back for one GPU: that one is Unhealthy, and Healthy when it answers again."""
    monkeypatch.setattr(watch, "DEADLINE", 0.2)
    monkeypatch.setattr(discovery, "DEADLINE", 0.2)

    async def scene(kubelet: FakeKubelet) -> None:
        a, _, nvml = pair()
        async with plugin(nvml):
            await kubelet.until(lambda: kubelet.devices() == BOTH_WELL)
            a.hang = threading.Event()
            await kubelet.until(lambda: kubelet.devices() == ONE_SICK)
            assert (await kubelet.allocate("GPU-b")).envs
            hung, a.hang = a.hang, None
            hung.set()
            await kubelet.until(lambda: kubelet.devices() == BOTH_WELL)

    play(scene)


def test_a_gpu_that_hangs_for_long_costs_no_more_threads(play, plugin, monkeypatch):
    """It is looked for again and again: two threads wait for it, its watch's and the first look's, and no others."""
    monkeypatch.setattr(watch, "DEADLINE", 0.1)
    monkeypatch.setattr(discovery, "DEADLINE", 0.1)
    asked = threading.Semaphore(0)

    class Hung(threading.Event):
        waiting = 0

        def wait(self, timeout: float | None = None) -> bool:
            self.waiting += 1
            return super().wait(timeout)

    async def scene(kubelet: FakeKubelet) -> None:
        a, _, nvml = pair()
        by_index = nvml.nvmlDeviceGetHandleByIndex

        def handle(index: int) -> Gpu:
            if index == 1:
                asked.release()
            return by_index(index)

        nvml.nvmlDeviceGetHandleByIndex = handle
        async with plugin(nvml):
            await kubelet.until(lambda: kubelet.devices() == BOTH_WELL)
            hung = a.hang = Hung()
            await kubelet.until(lambda: kubelet.devices() == ONE_SICK)
            while asked.acquire(blocking=False):
                pass
            for _ in range(5):  # looks
                assert await asyncio.to_thread(asked.acquire, timeout=60)
            assert hung.waiting == 2
            a.hang = None
            hung.set()
            await kubelet.until(lambda: kubelet.devices() == BOTH_WELL)

    play(scene)


@pytest.mark.parametrize(
    ("change", "why"), [({"action": 1}, "reset the GPU"), ({"remap_failed": True}, "row remapping")]
)
def test_what_the_driver_says_of_a_gpu_counts(play, plugin, caplog, change, why):
    """A recovery action that the driver asks for, or a failed row remap, makes the GPU Unhealthy."""

    async def scene(kubelet: FakeKubelet) -> None:
        a, _, nvml = pair()
        async with plugin(nvml):
            await kubelet.until(lambda: kubelet.devices() == BOTH_WELL)
            for name, value in change.items():
                setattr(a, name, value)
            await kubelet.until(lambda: kubelet.devices() == ONE_SICK)

    play(scene)
    assert why in caplog.text


def test_a_gpu_without_xid_events_is_healthy_and_probed(play, plugin, caplog):
    """Old GPUs do not support event registration: said in the log, not held against them."""

    async def scene(kubelet: FakeKubelet) -> None:
        a, _, nvml = pair()
        a.events = False
        async with plugin(nvml):
            await kubelet.until(lambda: kubelet.devices() == BOTH_WELL)
            while "reports no Xid events" not in caplog.text:
                await asyncio.sleep(0.01)
            a.error = pynvml.NVML_ERROR_UNKNOWN
            await kubelet.until(lambda: kubelet.devices() == ONE_SICK)

    play(scene)


def test_an_event_wait_that_fails_is_started_again(play, plugin):
    """An error of nvmlEventSetWait makes no GPU Unhealthy by itself, and Xids still arrive afterwards."""

    async def scene(kubelet: FakeKubelet) -> None:
        a, _, nvml = pair()
        async with plugin(nvml):
            await kubelet.until(lambda: kubelet.devices() == BOTH_WELL and a.sets)
            first = a.sets[0]
            first.put(pynvml.NVMLError(pynvml.NVML_ERROR_UNKNOWN))
            while not a.sets or a.sets[0] is first:
                await asyncio.sleep(0.01)
            assert kubelet.devices() == BOTH_WELL
            a.raise_xid(119)
            await kubelet.until(lambda: kubelet.devices() == ONE_SICK)

    play(scene)


def test_an_event_wait_that_always_fails_at_once_keeps_no_core_busy(play, plugin):
    """It is begun anew after a second."""
    began: list[float] = []

    async def scene(kubelet: FakeKubelet) -> None:
        nvml = FakeNvml(Gpu("GPU-a"))

        def wait(_events, _milliseconds):
            began.append(time.monotonic())
            raise pynvml.NVMLError(pynvml.NVML_ERROR_UNKNOWN)

        nvml.nvmlEventSetWait_v2 = wait
        async with plugin(nvml):
            while len(began) < 2:
                await asyncio.sleep(0.01)

    play(scene)
    assert began[1] - began[0] >= 1


def test_events_that_cannot_even_be_freed_are_subscribed_again(play, plugin):
    """A GPU that is lost may fail that too; its next Xid is heard all the same, and no watch dies of it."""

    async def scene(kubelet: FakeKubelet) -> None:
        a, _, nvml = pair()
        others = threading.enumerate()  # an earlier test's may still be ending

        def free(_events) -> None:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)

        async with plugin(nvml):
            await kubelet.until(lambda: kubelet.devices() == BOTH_WELL and a.sets)
            (watching,) = (
                one for one in threading.enumerate() if one.name == "watch GPU-a" and one not in others
            )
            nvml.nvmlEventSetFree = free
            a.sets[0].put(pynvml.NVMLError(pynvml.NVML_ERROR_UNKNOWN))
            while len(a.sets) < 2:
                await asyncio.sleep(0.01)
            assert watching.is_alive()
            a.raise_xid(79)
            await kubelet.until(lambda: kubelet.devices() == ONE_SICK)

    play(scene)


def test_unhealthy_lasts_as_long_as_trouble_comes():
    """The quiet time counts from the last trouble, not from the first."""
    health = Health(quiet=60)
    health.xid(95, now=0)
    assert health.why is not None
    assert "uncontained memory error" in health.why.words
    health.probed(None, now=50)
    health.xid(95, now=55)
    health.probed(None, now=100)
    assert health.why
    health.probed(None, now=115)
    assert health.why is None


def test_relapses_double_the_quiet_time_up_to_an_hour():
    """A GPU that comes and goes is trusted less each time."""
    health, now, waits = Health(quiet=600), 0.0, []
    for _ in range(5):
        health.xid(95, now)
        began = now
        while health.why:
            now += 60
            health.probed(None, now)
        waits.append(now - began)
    assert waits == [600, 1200, 2400, 3600, 3600]
    now += 7200
    health.xid(95, now)
    health.probed(None, now + 600)
    assert health.why is None


def test_the_xids_that_nvidias_plugin_ignores_are_applications_faults():
    """13, 31, 43, 45, 68, 109: a switch-over makes no GPU more sensitive."""
    assert {verdict(number) for number in (13, 31, 43, 45, 68, 109)} == {Verdict.APPLICATION}


def test_every_xid_has_one_verdict_and_an_unknown_one_counts():
    """The sets do not overlap, and what is named is classified."""
    assert sum(map(len, NUMBERS.values())) == len(frozenset().union(*NUMBERS.values()))
    assert NAMES.keys() <= frozenset().union(*NUMBERS.values())
    assert (verdict(79), verdict(54), verdict(9999)) == (Verdict.REBOOT, Verdict.HARDWARE, Verdict.RESET)
    assert name(9999) == "not in the Xid catalogue that this plugin knows"


@pytest.mark.parametrize(
    ("environ", "enabled", "ignored"),
    [
        ({}, {79, 48, 999}, {13, 31, 43, 45, 68, 109}),
        ({"DP_DISABLE_HEALTHCHECKS": "79, 48"}, {95}, {79, 48, 13}),
        ({"DP_DISABLE_HEALTHCHECKS": "xids"}, set(), {79, 13}),
        ({"DP_DISABLE_HEALTHCHECKS": "all"}, set(), {79, 13}),
        ({"DP_ENABLE_HEALTHCHECKS": "13"}, {13, 79}, {31}),
        ({"DP_ENABLE_HEALTHCHECKS": "all", "DP_DISABLE_HEALTHCHECKS": "79"}, {13, 79}, set()),
        ({"DP_DISABLE_HEALTHCHECKS": "xids", "DP_ENABLE_HEALTHCHECKS": "79"}, {79}, {13, 48}),
    ],
)
def test_nvidias_variables_choose_the_xids(environ, enabled, ignored):
    """DP_DISABLE_HEALTHCHECKS and DP_ENABLE_HEALTHCHECKS as in NVIDIA's plugin."""
    xid_policy = XidPolicy.read(environ)
    assert all(xid_policy.counts(xid) for xid in enabled)
    assert not any(xid_policy.counts(xid) for xid in ignored)


def test_a_word_that_is_no_xid_is_an_error_with_the_variables_name():
    """A typo does not silently leave checks on or off."""
    for word in ("xid", "7²"):
        with pytest.raises(
            BadConfig,
            match=f"DP_DISABLE_HEALTHCHECKS: '{word}' is neither an Xid number nor one of all, xids",
        ):
            XidPolicy.read({"DP_DISABLE_HEALTHCHECKS": word})
