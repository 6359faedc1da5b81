"""From what is seen of a GPU to Healthy or Unhealthy, and back."""

import asyncio
import json
import threading
import time
from unittest import mock

import pynvml
import pytest

from gpunode.contract.config import BadConfig
from gpunode.contract.xids import NAMES, NUMBERS, Verdict, verdict, xid_name
from gpunode.deviceplugin import discovery, watch
from gpunode.deviceplugin.health import FILE, Health, Lasting, XidPolicy, XidRecord

from .nvml import FakeNvml, Gpu

ONE_SICK = {"GPU-a": "Unhealthy", "GPU-b": "Healthy"}
BOTH_WELL = {"GPU-a": "Healthy", "GPU-b": "Healthy"}
NONE_WELL = {"GPU-a": "Unhealthy", "GPU-b": "Unhealthy"}


def pair() -> tuple[Gpu, Gpu, FakeNvml]:
    a, b = Gpu("GPU-a"), Gpu("GPU-b", minor=1)
    return a, b, FakeNvml(a, b)


async def test_a_fatal_xid_takes_its_gpu_out_and_quiet_brings_it_back(kubelet, plugin, caplog):
    """Only the GPU concerned goes Unhealthy; without a restart it is Healthy again after the quiet time."""
    a, _, nvml = pair()
    async with plugin(nvml):
        await kubelet.until(lambda: kubelet.devices() == BOTH_WELL and a.sets)
        a.raise_xid(79)
        await kubelet.until(lambda: kubelet.devices() == ONE_SICK)
        await kubelet.until(lambda: kubelet.devices() == BOTH_WELL)
    assert len(kubelet.requests) == 1
    assert "unhealthy: Xid 79: GPU has fallen off the bus; reboot the host" in caplog.text


async def test_an_application_xid_is_not_held_against_the_gpu(kubelet, plugin, caplog):
    """Xid 13 is a program's fault; a fatal one right behind it shows that events do arrive."""
    a, b, nvml = pair()

    caplog.set_level("INFO")
    async with plugin(nvml):
        await kubelet.until(lambda: kubelet.devices() == BOTH_WELL and a.sets and b.sets)
        a.raise_xid(13)
        while "Xid 13" not in caplog.text:
            await asyncio.sleep(0.01)
        b.raise_xid(48)
        await kubelet.until(lambda: kubelet.devices() == {"GPU-a": "Healthy", "GPU-b": "Unhealthy"})


async def test_a_lost_gpu_is_unhealthy_until_it_answers_again(kubelet, plugin, caplog):
    """Lost and brought back; the other GPU can be allocated all the while, the lost one cannot."""
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


async def test_a_lost_gpu_makes_no_other_one_unhealthy(kubelet, plugin, caplog):
    """NVML finds no GPU by its UUID while one is lost, so none is asked for in that way."""
    a, b, nvml = pair()
    b.bus, c = (
        "00000000:D8:00.0",
        Gpu("GPU-c", minor=2, bus="00000000:E1:00.0", nvlinks=("00000000:D8:00.0",)),
    )
    b.nvlinks = (c.bus,)
    async with plugin(nvml):
        await kubelet.until(lambda: kubelet.devices() == BOTH_WELL and a.sets and b.sets)
        a.error = pynvml.NVML_ERROR_GPU_IS_LOST
        await kubelet.until(lambda: kubelet.devices() == ONE_SICK)
        nvml.gpus.append(c)  # after the loss: it is watched, and its links are read
        await kubelet.until(lambda: kubelet.devices() == {**ONE_SICK, "GPU-c": "Healthy"} and c.sets)
        for _ in range(3):
            c.raise_xid(48)
            await kubelet.until(lambda: kubelet.devices()["GPU-c"] == "Unhealthy")
            await kubelet.until(lambda: kubelet.devices() == {**ONE_SICK, "GPU-c": "Healthy"})
    assert {("GPU-b", "Unhealthy")}.isdisjoint(
        item for listed in kubelet.plugins["nvidia.com/gpu"].lists for item in listed.items()
    )
    assert "cannot read how the GPUs are connected" not in caplog.text


async def test_nvml_is_started_again_while_no_gpu_answers(kubelet, plugin):
    """NVML keeps to its view of a lost GPU until it is started again, and counts its starts: those of earlier
    configurations of this process must not keep it from ending."""
    a, b, nvml = pair()
    nvml_init = nvml.nvmlInit

    def init() -> None:
        if not nvml.inits:
            a.error = b.error = None
        nvml_init()

    nvml.nvmlInit = init
    for _ in range(3):
        async with plugin(nvml):
            await kubelet.until(lambda: kubelet.devices() == BOTH_WELL)
        del kubelet.plugins["nvidia.com/gpu"]
    async with plugin(nvml):
        await kubelet.until(lambda: kubelet.devices() == BOTH_WELL)
        a.error = b.error = pynvml.NVML_ERROR_GPU_IS_LOST
        await kubelet.until(lambda: NONE_WELL in kubelet.plugins["nvidia.com/gpu"].lists)
        await kubelet.until(lambda: kubelet.devices() == BOTH_WELL)
    assert nvml.inits == 1


async def test_a_gpu_whose_index_shifts_as_nvml_starts_again_is_no_other_one(kubelet, plugin, caplog):
    """The first GPU is gone, and the last does not answer yet: by its index it would be the one before it, listed twice."""
    a, b, nvml = pair()
    c = Gpu("GPU-c", minor=2, bus="00000000:E1:00.0")
    nvml.gpus.append(c)
    nvml_init = nvml.nvmlInit

    def init() -> None:
        if nvml.life:
            b.error, nvml.gpus = None, [b, c]
        nvml_init()

    nvml.nvmlInit = init
    async with plugin(nvml):
        await kubelet.until(lambda: kubelet.devices() == {**BOTH_WELL, "GPU-c": "Healthy"})
        a.error = b.error = c.error = pynvml.NVML_ERROR_GPU_IS_LOST
        await kubelet.until(lambda: kubelet.devices() == {"GPU-b": "Healthy"})
        while "GPU 1 is not offered: NVML: GPU is lost" not in caplog.text:
            await asyncio.sleep(0.01)
        c.error = None
        await kubelet.until(lambda: kubelet.devices() == {"GPU-b": "Healthy", "GPU-c": "Healthy"})


async def test_nvml_is_not_restarted_while_another_gpu_answers(kubelet, plugin):
    """A restart would miss that one's Xids; the lost one is asked for by its index, and is back when it answers."""
    a, _, nvml = pair()
    async with plugin(nvml):
        await kubelet.until(lambda: kubelet.devices() == BOTH_WELL)
        a.error = pynvml.NVML_ERROR_GPU_IS_LOST
        await kubelet.until(lambda: kubelet.devices() == ONE_SICK)
        asked, by_index = threading.Semaphore(0), nvml.nvmlDeviceGetHandleByIndex

        def handle(index: int) -> Gpu:
            if index == 1:
                asked.release()
            return by_index(index)

        nvml.nvmlDeviceGetHandleByIndex = handle
        for _ in range(4):  # rescans
            assert await asyncio.to_thread(asked.acquire, timeout=60)
        a.error = None
        await kubelet.until(lambda: kubelet.devices() == BOTH_WELL)
    assert nvml.life == 1


async def test_nvml_is_not_shut_down_while_a_call_is_inside_it(kubelet, plugin, monkeypatch):
    """The description of a GPU that hangs from the start is such a call: the library would end under it."""
    monkeypatch.setattr(discovery, "DEADLINE", 0.1)

    hung = threading.Event()
    gpu = Gpu("GPU-a", hang=hung)
    nvml, counted = FakeNvml(gpu), threading.Semaphore(0)
    count, shutdown = nvml.nvmlDeviceGetCount, nvml.nvmlShutdown
    ends: list[bool] = []

    def get_count() -> int:
        counted.release()
        return count()

    def end() -> None:
        ends.append(hung.is_set())
        shutdown()

    nvml.nvmlDeviceGetCount, nvml.nvmlShutdown = get_count, end
    async with plugin(nvml):
        for _ in range(6):  # the start, and the rescans after which NVML would be restarted
            assert await asyncio.to_thread(counted.acquire, timeout=60)
        gpu.hang = None
        hung.set()
        await kubelet.until(lambda: kubelet.devices() == {"GPU-a": "Healthy"})
    assert False not in ends


async def test_nvml_that_fails_to_shut_down_does_not_end_the_plugin(kubelet, plugin, caplog):
    """With every GPU lost, NVML is started anew now and then; an error on the way is said and survived."""
    gpu = Gpu("GPU-a")
    nvml = FakeNvml(gpu)

    def shutdown() -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_UNKNOWN)

    nvml.nvmlShutdown = shutdown
    async with plugin(nvml):
        await kubelet.until(lambda: kubelet.devices() == {"GPU-a": "Healthy"})
        gpu.error = pynvml.NVML_ERROR_GPU_IS_LOST
        while "NVML did not shut down properly" not in caplog.text:
            await asyncio.sleep(0.01)
        gpu.error = None
        await kubelet.until(lambda: kubelet.devices() == {"GPU-a": "Healthy"})


async def test_gpus_that_are_slow_are_described_side_by_side(kubelet, plugin):
    """Four calls are inside NVML at the same time: else none of them would return."""

    class Slow(threading.Event):
        together = threading.Barrier(4)

        def wait(self, timeout: float | None = None) -> bool:
            if not self.is_set():
                self.together.wait(9)
                self.set()
            return True

    gpus = [Gpu(f"GPU-{n}", minor=n, hang=Slow()) for n in range(4)]

    async with plugin(FakeNvml(*gpus, Gpu("GPU-4", minor=4))):
        await kubelet.until(lambda: len(kubelet.devices()) == 5)


async def test_a_gpu_that_hangs_nvml_does_not_stop_the_others(kubelet, plugin, monkeypatch):
    """NVML does not come back for one GPU: that one is Unhealthy, and Healthy when it answers again."""
    monkeypatch.setattr(watch, "DEADLINE", 0.2)
    monkeypatch.setattr(discovery, "DEADLINE", 0.2)
    a, _, nvml = pair()

    async with plugin(nvml):
        await kubelet.until(lambda: kubelet.devices() == BOTH_WELL)
        a.hang = threading.Event()
        await kubelet.until(lambda: kubelet.devices() == ONE_SICK)
        assert (await kubelet.allocate("GPU-b")).envs
        hung, a.hang = a.hang, None
        hung.set()
        await kubelet.until(lambda: kubelet.devices() == BOTH_WELL)


async def test_a_gpu_that_hangs_for_long_costs_no_more_threads(kubelet, plugin, monkeypatch):
    """It is looked for again and again: three threads wait for it, its watch's and two of scans, and no others."""
    monkeypatch.setattr(watch, "DEADLINE", 0.1)
    monkeypatch.setattr(discovery, "DEADLINE", 0.1)
    asked = threading.Semaphore(0)

    class Hung(threading.Event):
        waiting = 0

        def wait(self, timeout: float | None = None) -> bool:
            self.waiting += 1
            return super().wait(timeout)

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
        assert hung.waiting == 3
        a.hang = None
        hung.set()
        await kubelet.until(lambda: kubelet.devices() == BOTH_WELL)


@pytest.mark.parametrize(
    ("change", "why"), [({"action": 1}, "reset the GPU"), ({"remap_failed": True}, "row remapping")]
)
async def test_what_the_driver_says_of_a_gpu_counts(kubelet, plugin, caplog, change, why):
    """A recovery action that the driver asks for, or a failed row remap, makes the GPU Unhealthy."""
    a, _, nvml = pair()

    async with plugin(nvml):
        await kubelet.until(lambda: kubelet.devices() == BOTH_WELL)
        for name, value in change.items():
            setattr(a, name, value)
        await kubelet.until(lambda: kubelet.devices() == ONE_SICK)
    assert why in caplog.text


OLD = {"action": None}  # a driver before about R560


@pytest.mark.parametrize(("xid", "ends"), [(48, True), (79, False), (54, False)])
async def test_an_xid_lasts_until_its_reset_or_a_boot(kubelet, plugin, caplog, xid, ends):
    """Where the driver reports no recovery action: no quiet time ends it, and a reset of the GPU only what it can end."""
    a, b, nvml = pair()
    a.action, a.energy = None, 5000

    async with plugin(nvml):
        await kubelet.until(lambda: kubelet.devices() == BOTH_WELL and a.sets and b.sets)
        a.raise_xid(xid)
        await kubelet.until(lambda: kubelet.devices() == ONE_SICK)
        for energy in (6000, 10):  # the counter begins again with a reset
            a.energy = energy
            b.raise_xid(48)  # its driver decides, so it is Healthy again after the quiet time
            await kubelet.until(lambda: kubelet.devices()["GPU-b"] == "Unhealthy")
            await kubelet.until(lambda: kubelet.devices()["GPU-b"] == "Healthy")
            if energy == 6000:
                assert kubelet.devices() == ONE_SICK
        if ends:
            await kubelet.until(lambda: kubelet.devices() == BOTH_WELL)
        else:
            assert kubelet.devices() == ONE_SICK
    assert f"Xid {xid}: {xid_name(xid)}; Unhealthy until this is done: " in caplog.text


async def test_a_gpu_lost_with_its_xid_is_back_after_its_reset(kubelet, plugin):
    """Its energy counter cannot be read then; the last probe has."""
    gpu = Gpu("GPU-a", energy=5000, **OLD)

    async with plugin(FakeNvml(gpu)):
        await kubelet.until(lambda: kubelet.devices() == {"GPU-a": "Healthy"} and gpu.sets)
        gpu.error = pynvml.NVML_ERROR_GPU_IS_LOST
        gpu.raise_xid(48)
        await kubelet.until(lambda: kubelet.devices() == {"GPU-a": "Unhealthy"})
        gpu.energy, gpu.error = 10, None
        await kubelet.until(lambda: kubelet.devices() == {"GPU-a": "Healthy"})


@pytest.mark.parametrize(
    ("lasting", "until"),
    [
        (Lasting(48, 5000), "this is done: reset the GPU (nvidia-smi --gpu-reset) or reboot the host"),
        (Lasting(48), f"the host boots; after a reset delete {FILE} beside the plugin's socket, and its pod"),
        (Lasting(79), "this is done: reboot the host"),
    ],
)
def test_the_reason_names_what_ends_the_xid(lasting, until):
    """Without a reading of the energy counter a reset cannot be seen."""
    assert lasting.reason.words.endswith(f"; Unhealthy until {until}")


async def test_an_xid_that_an_application_causes_does_not_last(kubelet, plugin):
    """Even if it counts, by DP_ENABLE_HEALTHCHECKS."""
    gpu = Gpu("GPU-a", **OLD)

    async with plugin(FakeNvml(gpu), XidPolicy(enabled=frozenset({13}))):
        await kubelet.until(lambda: kubelet.devices() == {"GPU-a": "Healthy"} and gpu.sets)
        gpu.raise_xid(13)
        await kubelet.until(lambda: kubelet.devices() == {"GPU-a": "Unhealthy"})
        await kubelet.until(lambda: kubelet.devices() == {"GPU-a": "Healthy"})


@pytest.mark.parametrize(
    ("ignored", "starts"),
    [("", [(6000, "Unhealthy"), (10, "Unhealthy"), (20, "Healthy")]), ("48", [(6000, "Healthy")])],
)
async def test_an_xid_outlives_the_plugins_process(kubelet, plugin, sockets, ignored, starts):
    """From the first list of the next one on, until the GPU was reset, or that one is told to ignore it; a kubelet that starts removes
    files, no folders."""
    policy = XidPolicy.read({"DP_DISABLE_HEALTHCHECKS": ignored})

    gpu = Gpu("GPU-a", energy=5000, **OLD)
    async with plugin(FakeNvml(gpu)):
        await kubelet.until(lambda: kubelet.devices() == {"GPU-a": "Healthy"} and gpu.sets)
        gpu.raise_xid(48)
        await kubelet.until(lambda: kubelet.devices() == {"GPU-a": "Unhealthy"})
        while '"energy": 5000' not in (sockets / FILE).read_text():
            await asyncio.sleep(0.01)
    for energy, first in starts:
        gpu.energy = energy
        del kubelet.plugins["nvidia.com/gpu"]
        async with plugin(FakeNvml(gpu), policy, recovery_seconds=2.0):  # the first list comes before
            await kubelet.until(kubelet.devices)
            assert kubelet.plugins["nvidia.com/gpu"].lists[0] == {"GPU-a": first}
            if energy < 5000:
                await kubelet.until(lambda: kubelet.devices() == {"GPU-a": "Healthy"})


def test_a_recorded_xid_ends_with_the_hosts_boot(tmp_path):
    """What the file holds else is no reason not to start."""
    boot = tmp_path / "boot_id"
    boot.write_text("one\n")
    XidRecord(tmp_path, boot).set("GPU-a", Lasting(79))
    assert XidRecord(tmp_path, boot).get("GPU-a") == Lasting(79)
    boot.write_text("two\n")
    assert XidRecord(tmp_path, boot).get("GPU-a") is None
    assert XidRecord(tmp_path, tmp_path / "none").get("GPU-a") is None
    foreign = ({"number": 1}, {"xid": [], "energy": None}, {"xid": 48, "energy": "many"}, [])
    for text in (
        "",
        '{"boot": "tw',
        "[]",
        "\udcff",
        *(json.dumps({"boot": "two", "xids": {"GPU-a": record}}) for record in foreign),
    ):
        (tmp_path / FILE).write_text(text, errors="surrogateescape")
        assert XidRecord(tmp_path, boot).get("GPU-a") is None


def test_an_xid_that_cannot_be_recorded_is_logged(tmp_path, caplog):
    """It counts until this process ends; each probe tries again, and says no more of it."""
    (tmp_path / FILE.parts[0]).write_text("a file")
    record = XidRecord(tmp_path)
    record.set("GPU-a", Lasting(48))
    assert record.get("GPU-a") == Lasting(48)
    record.set("GPU-a", Lasting(48))
    assert caplog.text.count("a restarted plugin will not know the GPUs' Xids") == 1
    (tmp_path / FILE.parts[0]).unlink()
    record.set("GPU-a", Lasting(48))
    assert XidRecord(tmp_path).get("GPU-a") == Lasting(48)
    (tmp_path / FILE).unlink()  # as the operator does to end it
    record.set("GPU-a", Lasting(48))
    assert not (tmp_path / FILE).exists()


def test_what_only_a_boot_ends_is_not_ended_by_a_reset():
    """Of several Xids the one that requires more counts."""
    health = Health(quiet=60)
    health.xid(48, 0, Lasting(48, 5000))
    health.xid(79, 0, Lasting(79))
    health.xid(95, 0, Lasting(95, 6000))
    assert health.lasting == Lasting(79)


async def test_a_gpu_without_xid_events_is_healthy_and_probed(kubelet, plugin, caplog):
    """Old GPUs do not support event registration: said in the log, not held against them."""
    a, _, nvml = pair()
    a.events = False

    async with plugin(nvml):
        await kubelet.until(lambda: kubelet.devices() == BOTH_WELL)
        while "reports no Xid events" not in caplog.text:
            await asyncio.sleep(0.01)
        a.error = pynvml.NVML_ERROR_UNKNOWN
        await kubelet.until(lambda: kubelet.devices() == ONE_SICK)


async def test_an_event_wait_that_fails_is_started_again(kubelet, plugin):
    """An error of nvmlEventSetWait makes no GPU Unhealthy by itself, and Xids still arrive afterwards."""
    a, b, nvml = pair()

    async with plugin(nvml):
        await kubelet.until(lambda: kubelet.devices() == BOTH_WELL and a.sets)
        first = a.sets[0]
        first.put(pynvml.NVMLError(pynvml.NVML_ERROR_UNKNOWN))
        while not a.sets or not b.sets or a.sets[0] in (first, *b.sets):
            await asyncio.sleep(0.01)  # which is at fault is not known: each GPU has its own set
        assert kubelet.devices() == BOTH_WELL
        a.raise_xid(119)
        await kubelet.until(lambda: kubelet.devices() == ONE_SICK)


async def test_an_event_wait_that_always_fails_at_once_keeps_no_core_busy(kubelet, plugin):
    """It is begun anew after a second."""
    began: list[float] = []

    nvml = FakeNvml(Gpu("GPU-a"))

    def wait(_events, _milliseconds):
        began.append(time.monotonic())
        raise pynvml.NVMLError(pynvml.NVML_ERROR_UNKNOWN)

    nvml.nvmlEventSetWait_v2 = wait
    async with plugin(nvml):
        while len(began) < 2:
            await asyncio.sleep(0.01)
    assert began[1] - began[0] >= 1


async def test_events_that_cannot_even_be_freed_are_subscribed_again(kubelet, plugin):
    """A GPU that is lost may fail that too; its next Xid is heard all the same, and no watch dies of it."""
    gpu = Gpu("GPU-a")
    nvml, others = FakeNvml(gpu), threading.enumerate()  # an earlier test's may still be ending

    def free(_events) -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)

    async with plugin(nvml):
        await kubelet.until(lambda: kubelet.devices() == {"GPU-a": "Healthy"} and gpu.sets)
        (watching,) = (t for t in threading.enumerate() if t.name == "watch GPU-a" and t not in others)
        nvml.nvmlEventSetFree = free
        gpu.sets[0].put(pynvml.NVMLError(pynvml.NVML_ERROR_UNKNOWN))
        while len(gpu.sets) < 2:
            await asyncio.sleep(0.01)
        assert watching.is_alive()
        gpu.raise_xid(79)
        await kubelet.until(lambda: kubelet.devices() == {"GPU-a": "Unhealthy"})


@pytest.mark.parametrize("trouble", ["lost", "hangs"])
async def test_no_xid_is_missed_while_another_gpu_is_in_trouble(kubelet, plugin, monkeypatch, trouble):
    """They share an event set and a thread. A lost one fails the wait for all; one that hangs keeps the thread.

    Where one is lost soon after another, events are not left waiting for the pause that a wait makes which fails again and again.
    """
    monkeypatch.setattr(watch, "PAUSE", 60.0)
    monkeypatch.setattr(watch, "PATIENCE", 0.2)

    a, b, nvml = pair()
    nvml.gpus.append(c := Gpu("GPU-c", minor=2))
    async with plugin(nvml, health_interval=0.05 if trouble == "hangs" else 60.0, recovery_seconds=60.0):
        await kubelet.until(lambda: len(kubelet.devices()) == 3 and a.sets and b.sets and c.sets)
        assert a.sets == b.sets == c.sets
        if trouble == "hangs":
            a.hang = hung = threading.Event()
            await asyncio.sleep(0.1)  # its watch is inside NVML
            b.raise_xid(48)
        else:
            c.error = pynvml.NVML_ERROR_GPU_IS_LOST
            await kubelet.until(lambda: kubelet.devices()["GPU-c"] == "Unhealthy" and b.sets)
            a.error = pynvml.NVML_ERROR_GPU_IS_LOST
            await kubelet.until(lambda: kubelet.devices()["GPU-a"] == "Unhealthy" and b.sets, seconds=8)
            b.raise_xid(48)
        await kubelet.until(lambda: kubelet.devices()["GPU-b"] == "Unhealthy", seconds=8)  # not DEADLINE
        if trouble == "hangs":
            assert kubelet.devices()["GPU-a"] == "Healthy"  # it has some seconds more
            hung.set()


@pytest.mark.parametrize(("seconds_ago", "pauses"), [(60.0, 0), (0.0, 1)])
def test_a_gpu_that_fails_one_wait_after_another_makes_no_busy_loop(seconds_ago: float, pauses: int):
    """The first failure is no reason to pause: the other GPUs' events go on."""
    gpu = mock.Mock(uuid="GPU-a", failing=True, failed=time.monotonic() - seconds_ago)
    waiting = mock.Mock(gpus=[gpu])
    waiting._probe.return_value = False
    watch.GpuWatch._recover(waiting, pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST))
    assert waiting._halt.wait.call_count == pauses


def test_unhealthy_lasts_as_long_as_trouble_comes():
    """The quiet time counts from the last trouble, not from the first."""
    health = Health(quiet=60)
    health.xid(95, now=0)
    assert "uncontained memory error" in health.why.words
    health.record_probe(None, now=50)
    health.xid(95, now=55)
    health.record_probe(None, now=100)
    assert health.why
    health.record_probe(None, now=115)
    assert health.why is None


def test_relapses_double_the_quiet_time_up_to_an_hour():
    """A GPU that comes and goes is trusted less each time."""
    health, now, waits = Health(quiet=600), 0.0, []
    for _ in range(5):
        health.xid(95, now)
        began = now
        while health.why:
            now += 60
            health.record_probe(None, now)
        waits.append(now - began)
    assert waits == [600, 1200, 2400, 3600, 3600]
    now += 7200
    health.xid(95, now)
    health.record_probe(None, now + 600)
    assert health.why is None


def test_the_xids_that_nvidias_plugin_ignores_are_applications_faults():
    """13, 31, 43, 45, 68, 109: a switch-over makes no GPU more sensitive."""
    assert {verdict(number) for number in (13, 31, 43, 45, 68, 109)} == {Verdict.APPLICATION}


def test_every_xid_has_one_verdict_and_an_unknown_one_counts():
    """The sets do not overlap, and what is named is classified."""
    assert sum(map(len, NUMBERS.values())) == len(frozenset().union(*NUMBERS.values()))
    assert NAMES.keys() <= frozenset().union(*NUMBERS.values())
    assert (verdict(79), verdict(54), verdict(9999)) == (Verdict.REBOOT, Verdict.HARDWARE, Verdict.RESET)
    assert xid_name(9999) == "not in the Xid catalogue that this plugin knows"


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
