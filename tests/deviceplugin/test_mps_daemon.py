"""The control daemons: kept running with their limits, by the real program where this machine has it, else a stand-in."""

import asyncio
import contextlib
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from gpunode.contract.checkpoint import FILE_NAME
from gpunode.contract.config import Config, Share
from gpunode.contract.offer import ClientLimits
from gpunode.deviceplugin.gpus import Handles
from gpunode.deviceplugin.mps import daemons, shm
from gpunode.deviceplugin.mps.daemons import PROGRAM, Daemon, Supervisor
from gpunode.deviceplugin.mps.modes import ComputeModes, InUse, ModeError, process_using
from gpunode.deviceplugin.mps.report import ReportServer, mode_path, pipe_path, status_path

from .conftest import running
from .kubelet import Entry, FakeKubelet
from .nvml import FakeNvml, Gpu, handles
from .test_process import process

ROOT = Path(__file__).parents[2]
STAND_IN = ROOT / "tests/lab/packages/files" / PROGRAM
REAL = shutil.which(PROGRAM)
GPU = "GPU-a"
if (
    REAL and shutil.which("nvidia-smi") and Path("/dev/nvidia0").exists()
):  # driver 580's daemon ends where it finds no GPU
    query = ["nvidia-smi", "--query-gpu=uuid", "--format=csv,noheader"]
    GPU = subprocess.run(query, capture_output=True, text=True, check=True).stdout.split()[0]
EXCLUSIVE, DEFAULT = 3, 0


@pytest.fixture
def stand_in(tmp_path, monkeypatch) -> None:
    """The stand-in is the program of that name."""
    (tmp_path / "bin").mkdir()
    # Without site: it is started some hundred times.
    (tmp_path / "bin" / PROGRAM).write_text(f"#!{sys.executable} -IS\n{STAND_IN.read_text()}")
    (tmp_path / "bin" / PROGRAM).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin", prepend=os.pathsep)


@pytest.fixture(params=["stand-in", "real"])
def program(request) -> str:
    """Both: what holds for the stand-in is to hold for what it stands in for."""
    if request.param == "stand-in":
        request.getfixturevalue("stand_in")
    elif REAL is None:
        pytest.skip(f"this machine has no {PROGRAM} (a package of NVIDIA's driver)")
    return str(request.param)


class Modes:
    """Notes what is asked of it."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def exclusive(self, gpu: str) -> None:
        self.asked.append(f"exclusive {gpu}")

    async def restore(self, gpu: str) -> None:
        self.asked.append(f"restore {gpu}")


class Scene:
    """A daemon at work, what it said, and a way to wait for that."""

    def __init__(self, root: Path, modes: Any) -> None:
        self.modes, self.said = modes, []
        self._news = asyncio.Event()
        self.daemon = Daemon(GPU, ClientLimits(5461, 33), str(root), self.modes, self._say, interval=0.2)

    def _say(self, why: str | None) -> None:
        self.said.append(why)
        self._news.set()

    async def until(self, condition: Callable[[], object]) -> None:
        while not condition():
            self._news.clear()
            await asyncio.wait_for(self._news.wait(), 100)

    def pid(self) -> int:
        process = self.daemon._process
        assert process
        return process.pid


@contextlib.asynccontextmanager
async def playing(root: Path, modes: Any = None) -> AsyncIterator[Scene]:
    """A scene with a daemon, which is cancelled at its end."""
    stage = Scene(root, modes or Modes())
    async with running(stage.daemon.run()):
        yield stage


async def ask(root: Path, *commands: str, gpu: str = GPU) -> str:
    """Answer of the program's own user interface. The daemon answers one after another: a question of the scene's
    tasks may still be open, and only a loop that goes on ends it."""
    run = await asyncio.to_thread(
        subprocess.run,
        [PROGRAM],
        input="".join(f"{command}\n" for command in commands),
        env={**os.environ, "CUDA_MPS_PIPE_DIRECTORY": str(pipe_path(str(root), gpu))},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return run.stdout.strip() if run.returncode == 0 else f"status {run.returncode}: {run.stderr.strip()}"


async def test_a_daemon_is_ready_once_it_has_its_limits(program, sockets):
    """Asked of the daemon itself; the GPU is exclusive before, and back as it was after the daemon's end."""
    async with playing(sockets) as stage:
        await stage.until(lambda: stage.said == [None])
        assert stage.modes.asked == [f"exclusive {GPU}"]
        answers = await ask(
            sockets, "get_default_active_thread_percentage", "get_default_device_pinned_mem_limit 0"
        )
        assert answers.split() == ["33.0", "5G"]
    assert stage.modes.asked == [f"exclusive {GPU}", f"restore {GPU}"]
    assert await ask(sockets, "get_server_list") == "status 1: Cannot find MPS control daemon process"


async def test_a_killed_daemon_is_reported_and_replaced_by_one_with_the_same_limits(program, sockets):
    """Pipes that the dead one left are no hindrance."""
    async with playing(sockets) as stage:
        await stage.until(lambda: stage.said)
        os.kill(stage.pid(), signal.SIGKILL)
        await stage.until(lambda: len(stage.said) > 1 and stage.said[-1] is None)
        silence = "'get_default_active_thread_percentage': Cannot find MPS control daemon process"
        assert stage.said[1] in ("it has ended by signal 9", silence), "whichever is noticed first"
        assert await ask(sockets, "get_default_active_thread_percentage") == "33.0"


async def test_a_daemon_that_has_lost_its_limits_is_replaced(program, sockets):
    """A user set another one by hand: clients would get more than their share."""
    async with playing(sockets) as stage:
        await stage.until(lambda: stage.said)
        await ask(sockets, "set_default_active_thread_percentage 77")
        await stage.until(lambda: len(stage.said) == 3)
        assert stage.said == [None, "its thread percentage is '77.0' instead of 33", None]
        assert await ask(sockets, "get_default_active_thread_percentage") == "33.0"


async def test_a_daemon_that_does_not_answer_is_replaced(program, sockets, monkeypatch):
    """It is there, but hangs."""
    patience = daemons.ANSWER

    async with playing(sockets) as stage:
        await stage.until(lambda: stage.said == [None])
        monkeypatch.setattr(daemons, "ANSWER", 3.0)
        os.kill(stage.pid(), signal.SIGSTOP)
        await stage.until(lambda: len(stage.said) == 2)
        monkeypatch.setattr(daemons, "ANSWER", patience)
        await stage.until(lambda: stage.said[-1] is None)
        assert stage.said[1] == "it does not answer 'get_default_active_thread_percentage' within 3 s"


async def test_a_daemon_that_is_ended_just_as_it_answers_ends(sockets, monkeypatch):
    """The question's process has gone and cannot be killed, its answer is not read yet: the cancellation stays one."""
    asking, gone = asyncio.Event(), asyncio.Event()

    class Question:
        returncode = 0

        async def communicate(self, words: bytes) -> tuple[bytes, None]:
            asking.set()
            await gone.wait()
            return b"33.0\n", None

        def kill(self) -> None:
            gone.set()
            raise ProcessLookupError

    async def start(*words: str, **settings: Any) -> Question:
        return Question()

    monkeypatch.setattr(asyncio, "create_subprocess_exec", start)
    question = asyncio.create_task(Scene(sockets, Modes()).daemon.ask("get_server_list"))
    await asking.wait()
    question.cancel()
    await asyncio.wait((question,))
    assert question.cancelled()


async def test_a_second_daemon_for_a_gpu_says_why_it_does_not_start(program, sockets):
    """Another process has one there."""
    pipe = pipe_path(str(sockets), GPU)
    pipe.mkdir(parents=True)
    other = subprocess.Popen(
        [PROGRAM, "-f"],
        env={**os.environ, "CUDA_MPS_PIPE_DIRECTORY": str(pipe)},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert "Starting control daemon" in other.stdout.readline()
        async with playing(sockets) as stage:
            await stage.until(lambda: stage.said)
        why = "it has ended with status 1: An instance of this daemon is already running"
        assert stage.said[0] == why
        assert other.poll() is None
    finally:
        other.kill()
        other.communicate()


async def test_a_container_without_the_program_says_what_is_missing(sockets, monkeypatch, tmp_path):
    """The driver's package with it is not on the host."""
    monkeypatch.setenv("PATH", str(tmp_path))

    async with playing(sockets) as stage:
        await stage.until(lambda: stage.said)
        assert stage.said[0].startswith(f"no {PROGRAM} in the container of the control daemons: install the")


# Compute modes.


def supervise(nvml: FakeNvml, root: Path, reports: Any) -> Supervisor:
    gpus = Handles(nvml)
    return Supervisor(gpus, str(root), ComputeModes(gpus, str(root), root / FILE_NAME), reports)


def modes(root: Path, gpu: Gpu) -> ComputeModes:
    mode_path(str(root), gpu.uuid).parent.mkdir(exist_ok=True)
    return ComputeModes(handles(gpu), str(root), root / FILE_NAME)


async def test_the_compute_mode_is_put_back_by_a_later_life_too(tmp_path):
    """The process that set it was killed; the next finds it set, and still knows what was before."""
    gpu = Gpu(GPU, mode=2)

    await modes(tmp_path, gpu).exclusive(GPU)
    assert gpu.mode == EXCLUSIVE
    await modes(tmp_path, gpu).exclusive(GPU)
    await modes(tmp_path, gpu).restore(GPU)
    assert gpu.mode == 2
    await modes(tmp_path, gpu).restore(GPU)
    assert gpu.mode == 2


async def test_a_mode_that_was_exclusive_before_stays_so(tmp_path):
    """Its owner wants it."""
    gpu = Gpu(GPU, mode=EXCLUSIVE)

    await modes(tmp_path, gpu).exclusive(GPU)
    await modes(tmp_path, gpu).restore(GPU)
    assert gpu.mode == EXCLUSIVE


async def test_a_mode_that_is_exclusive_after_a_reboot_is_its_owners(tmp_path, monkeypatch):
    """The driver has lost what MPS had set; a folder on a disk has not."""
    gpu = Gpu(GPU, mode=DEFAULT)

    await modes(tmp_path, gpu).exclusive(GPU)
    (tmp_path / "boot").write_text("another\n")
    monkeypatch.setattr("gpunode.deviceplugin.mps.modes.BOOT_ID", tmp_path / "boot")
    await modes(tmp_path, gpu).restore(GPU)
    assert (gpu.mode, [*(tmp_path / GPU).iterdir()]) == (EXCLUSIVE, [])


@pytest.mark.parametrize(("note", "mode"), [("0\n", DEFAULT), ("", EXCLUSIVE)], ids=["older", "cut off"])
async def test_a_note_without_a_boot_is_used_once(tmp_path, note, mode):
    """Versions exchange notes at an upgrade and a rollback: both read and write a number."""
    gpu = Gpu(GPU, mode=DEFAULT)
    await modes(tmp_path, gpu).exclusive(GPU)
    file = mode_path(str(tmp_path), GPU)
    assert file.read_text() == "0\n"
    file.with_name("boot").unlink()
    file.write_text(note)
    await modes(tmp_path, gpu).restore(GPU)
    assert (gpu.mode, modes(tmp_path, gpu).unrestored()) == (mode, set())


async def test_gpus_without_compute_modes_are_shared_all_the_same(tmp_path, caplog):
    """Virtual ones; the log says what that means."""
    await modes(tmp_path, Gpu(GPU, mode=None)).exclusive(GPU)
    await modes(tmp_path, Gpu(GPU, mode=None)).restore(GPU)
    assert "processes can bypass MPS" in caplog.text


async def test_a_gpu_that_is_lost_is_reported(tmp_path):
    """NVML's words, as everywhere."""
    with pytest.raises(ModeError, match="the compute mode cannot be set: NVML: GPU is lost"):
        await modes(tmp_path, Gpu(GPU, error=15)).exclusive(GPU)


@pytest.mark.parametrize("version", [3, 2])
async def test_a_gpu_that_is_used_without_mps_is_left_as_it_is(tmp_path, version):
    """Exclusive, it would let its user start no process more; one that is exclusive already lets MPS alone have it."""
    gpu = Gpu(GPU, mode=DEFAULT, pids=(os.getpid(), 2**22 + 1), lists=version)
    message = rf"process {os.getpid()} \(.+\) and 1 more use this GPU without MPS"

    with pytest.raises(InUse, match=message):
        await modes(tmp_path, gpu).exclusive(GPU)
    assert gpu.mode == DEFAULT
    gpu.mode = EXCLUSIVE
    await modes(tmp_path, gpu).exclusive(GPU)


async def test_a_driver_that_does_not_list_processes_is_believed_to_have_none(tmp_path):
    """Too old."""
    gpu = Gpu(GPU, pids=(1,), lists=1)
    await modes(tmp_path, gpu).exclusive(GPU)
    assert gpu.mode == EXCLUSIVE


def test_a_server_of_mps_is_no_hindrance(tmp_path):
    """One that another control daemon left. The kernel cuts a name after 15 bytes, in the middle of a letter, too."""
    for pid, name in ((7, b"nvidia-cuda-mps"), (8, "gpu-模型训练".encode()[:15])):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "comm").write_bytes(name + b"\n")
    gpu = Gpu(GPU, pids=(7, 8, 9))
    shown = process_using(handles(gpu), GPU, tmp_path)
    assert shown == "process 8 (gpu-模型训\ufffd) and 1 more use this GPU without MPS"
    gpu.pids = (7,)
    assert process_using(handles(gpu), GPU, tmp_path) is None


@pytest.mark.parametrize(
    ("unit", "waits"),
    [
        ("GPU-a", True),
        ("GPU-a::1", True),
        ("GPU-a:1024:7", True),
        ("GPU-b-_-1", True),  # of gpushare: any GPU may be the one
        ("GPU-a::mps-1", False),  # a client, of a daemon of before
        ("GPU-b", False),
        ("words", False),
    ],
)
async def test_a_gpu_that_a_pod_has_without_mps_is_left_as_it_is(sockets, unit, waits):
    """It may run nothing on it just now; the kubelet has written down that it has it."""
    gpu = Gpu(GPU)
    kubelet = FakeKubelet(sockets)
    kubelet.given = [Entry("1-2-3", "main", "nvidia.com/gpu", [unit])]
    kubelet.write_down()
    message = "container main of pod with UID 1-2-3 still uses this GPU without MPS"

    with pytest.raises(InUse, match=message) if waits else contextlib.nullcontext():
        await modes(sockets, gpu).exclusive(GPU)
    assert gpu.mode == (DEFAULT if waits else EXCLUSIVE)


async def test_a_record_that_cannot_be_read_is_reported_and_no_hindrance(tmp_path, caplog):
    """Another version of it."""
    gpu = Gpu(GPU)
    (tmp_path / FILE_NAME).write_text("{}")
    await modes(tmp_path, gpu).exclusive(GPU)
    assert gpu.mode == EXCLUSIVE
    assert "cannot read which containers have the GPU" in caplog.text


async def test_a_daemon_starts_as_soon_as_nobody_uses_its_gpu_without_mps(
    stand_in, sockets, monkeypatch, caplog
):
    """Until then that is the reason why it cannot be used, said once."""
    monkeypatch.setattr(daemons, "LOOK", 0.05)
    gpu = Gpu(GPU, pids=(os.getpid(),))

    with caplog.at_level(logging.INFO, logger=daemons.__name__):
        async with playing(sockets, ComputeModes(handles(gpu), str(sockets), sockets / FILE_NAME)) as stage:
            await stage.until(lambda: stage.said)
            assert stage.said[0].startswith(f"process {os.getpid()} (")
            assert gpu.mode == DEFAULT
            gpu.pids = ()
            await stage.until(lambda: stage.said[-1] is None)
            assert gpu.mode == EXCLUSIVE
    assert len(stage.said) == 2
    assert len([record for record in caplog.records if record.getMessage().startswith("waiting: ")]) == 1


# All daemons of a node.


def sharing(*shares: tuple[str, int]) -> Config:
    made = tuple(
        Share("nvidia.com/gpu", replicas, "nvidia.com/gpu", (gpu,), mps=True) for gpu, replicas in shares
    )
    return Config(shares=made, health_interval=0.2)


async def test_a_change_of_the_configuration_disturbs_only_the_gpus_it_is_about(stand_in, sockets):
    """GPU-a gets other limits, GPU-b goes on, GPU-c is shared no more."""
    nvml = FakeNvml(Gpu("GPU-a"), Gpu("GPU-b", minor=1), Gpu("GPU-c", minor=2))
    nvml.nvmlInit()

    report_server = ReportServer()
    supervisor = supervise(nvml, sockets, report_server)
    async with report_server.open(status_path(str(sockets))):
        reader, writer = await asyncio.open_unix_connection(status_path(str(sockets)))

        async def until_reported(**threads: int) -> None:
            wanted = {name: (percent, None) for name, percent in threads.items()}
            while True:
                line = json.loads(await asyncio.wait_for(reader.readline(), 60))
                if {gpu[4:]: (state["threads"], state["why"]) for gpu, state in line.items()} == wanted:
                    return

        async def kept(config: Config, **threads: int) -> None:
            async with running(supervisor.run(config)):
                await until_reported(**threads)

        try:
            await kept(sharing(("GPU-a", 2), ("GPU-b", 4), ("GPU-c", 2)), a=50, b=25, c=50)
            await ask(sockets, "set_default_device_pinned_mem_limit 7 7G", gpu="GPU-b")
            await kept(sharing(("GPU-a", 5), ("GPU-b", 4)), a=20, b=25)
            assert [gpu.mode for gpu in nvml.gpus] == [EXCLUSIVE, EXCLUSIVE, DEFAULT]
            assert await ask(sockets, "get_default_device_pinned_mem_limit 7", gpu="GPU-b") == "7G"
            assert await ask(sockets, "get_default_active_thread_percentage", gpu="GPU-a") == "20.0"
        finally:
            await supervisor.stop()
            writer.close()
    assert [gpu.mode for gpu in nvml.gpus] == [DEFAULT] * 3


async def test_a_change_that_comes_while_a_daemon_ends_does_not_leave_it_behind(
    stand_in, sockets, monkeypatch
):
    """Nor its GPU exclusive: the end goes on, and who comes next waits for it."""
    nvml = FakeNvml(Gpu(GPU))
    nvml.nvmlInit()
    ready, quitting = asyncio.Event(), asyncio.Event()
    asked = Daemon.ask

    async def noticed(self: Daemon, command: str) -> str:
        if command.startswith("quit"):
            quitting.set()
        return await asked(self, command)

    class Heard(ReportServer):
        def publish(self, report):
            if report and all(state.why is None for state in report.values()):
                ready.set()

    monkeypatch.setattr(Daemon, "ask", noticed)
    supervisor = supervise(nvml, sockets, Heard())

    async def follow(config: Config, until: asyncio.Event) -> None:
        async with running(supervisor.run(config)):
            await asyncio.wait_for(until.wait(), 100)

    await follow(sharing((GPU, 2)), ready)
    await follow(Config(), quitting)
    await supervisor.stop()
    assert (await ask(sockets, "get_server_list")).startswith("status 1")
    assert nvml.gpus[0].mode == DEFAULT


async def test_a_lost_gpu_keeps_no_other_one_from_its_daemon(stand_in, sockets):
    """Nor ends a daemon that runs: it is only not described."""
    lost = Gpu("GPU-a", error=15)
    nvml = FakeNvml(lost, Gpu("GPU-b", minor=1))
    nvml.nvmlInit()

    report_server = ReportServer()
    supervisor = supervise(nvml, sockets, report_server)
    async with report_server.open(status_path(str(sockets))):
        reader, writer = await asyncio.open_unix_connection(status_path(str(sockets)))
        task = asyncio.create_task(supervisor.run(sharing(("GPU-a", 2), ("GPU-b", 4))))
        try:
            report: dict[str, dict[str, object]] = {}
            while report.get("GPU-b", {"why": ""})["why"] is not None:
                report = json.loads(await asyncio.wait_for(reader.readline(), 60))
            assert report.keys() == {"GPU-b"}
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await supervisor.stop()
            writer.close()


async def test_a_folder_that_cannot_be_made_is_reported_and_tried_again(stand_in, sockets):
    """Whatever the system says: a daemon is never given up for good."""
    (sockets / GPU).touch()
    async with playing(sockets) as stage:
        await stage.until(lambda: len(stage.said) == 2)
        assert str(sockets / GPU) in stage.said[0]
        (sockets / GPU).unlink()
        await stage.until(lambda: stage.said[-1] is None)


# The process, and the plugin beside it.


@contextlib.asynccontextmanager
async def mps_process(root: Path, *flags: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """The process of the daemons; killed at the end if it still runs, and its daemon ended."""
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.deviceplugin.mps_process",
        GPU,
        f"--mps-root={root}",
        *flags,
        cwd=ROOT,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    try:
        yield child
    finally:
        if child.returncode is None:
            child.kill()
            await ask(root, "quit")  # its daemon is no container's, and would go on
        await child.communicate()


async def test_plugin_and_daemons_over_the_daemons_whole_life(program, kubelet, sockets, tmp_path):
    """Two processes, one file: shares are Healthy while the daemon runs, not when it or its process is gone."""
    file = tmp_path / "config.yaml"
    file.write_text("version: v1\nsharing: {mps: {resources: [{name: nvidia.com/gpu, replicas: 2}]}}\n")
    root = sockets / "mps"
    root.mkdir()
    flags = (f"--config-file={file}", f"--mps-root={root}")

    def are(kubelet: FakeKubelet, health: str) -> Callable[[], bool]:
        return lambda: kubelet.devices() == {f"{GPU}::mps-0": health, f"{GPU}::mps-1": health}

    async with process(sockets, *flags, gpus=GPU):
        await kubelet.until(are(kubelet, "Unhealthy"))
        async with mps_process(root, *flags) as child:
            await kubelet.until(are(kubelet, "Healthy"))
            answer = await kubelet.allocate(f"{GPU}::mps-0")
            assert answer.envs["CUDA_MPS_PIPE_DIRECTORY"] == f"{root}/{GPU}/pipe"
            child.send_signal(signal.SIGTERM)
            _, log = await child.communicate()
            assert child.returncode == 0
            assert f"MPS control daemon ended gpu={GPU}" in log.decode()
            await kubelet.until(are(kubelet, "Unhealthy"))
        async with mps_process(root, *flags):
            await kubelet.until(are(kubelet, "Healthy"))


# Shared memory.

SHARE = """
import sys
from pathlib import Path
from gpunode.deviceplugin.mps import shm
root, ours = sys.argv[1:]
shm.share(root, Path(ours))
Path(ours, "written").write_text("by the daemon")
assert Path(root, "shm/written").exists()
shm.share(root, Path(ours))
assert Path(ours, "written").exists()  # it is still the same
options = [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if f" {root}/shm " in line]
assert len(options) == 1 and "size=1048576k" in options[0] and "noexec" in options[0], options
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts need root")
def test_the_shared_memory_is_a_small_file_system_of_its_own_that_stays(tmp_path):
    """Mounted for real, in a mount namespace of the test's own."""
    root, ours = tmp_path / "root", tmp_path / "ours"
    root.mkdir()
    ours.mkdir()
    shared = f"mount --bind {root} {root} && mount --make-shared {root} && exec {sys.executable} -c '{SHARE}' {root} {ours}"
    run = subprocess.run(
        ["unshare", "--mount", "sh", "-c", shared], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    assert not (root / "shm").is_mount()


def test_a_mount_that_would_not_reach_the_host_is_known_before():
    """By the propagation of the mount that the root lies in."""
    line = "30 28 0:25 / {} rw,nosuid {}- tmpfs tmpfs rw"
    shared = [line.format("/", ""), line.format("/run/nvidia/mps", "shared:7 ")]
    assert shm.propagates("/run/nvidia/mps", "\n".join(shared))
    assert shm.propagates("/run/nvidia/mps/below", "\n".join(shared))
    assert not shm.propagates("/run/nvidia", "\n".join(shared))
    assert not shm.propagates("/run/nvidia/mps", line.format("/run/nvidia/mps", "master:7 "))
