"""The plugin as a process: signals, exit status, log lines, a changed configuration file."""

import asyncio
import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def process(
    sockets: Path, *flags: str, gpus: str = "GPU-a", environment: Mapping[str, str] | None = None
) -> contextlib.AbstractAsyncContextManager[asyncio.subprocess.Process]:
    """A running plugin process on fake GPUs."""
    environment = {"PYTHONPATH": str(ROOT), **(environment or {})}
    return started(sockets, "tests.deviceplugin.process", gpus, *flags, environment=environment)


@contextlib.asynccontextmanager
async def started(
    sockets: Path, *command: str, environment: Mapping[str, str]
) -> AsyncIterator[asyncio.subprocess.Process]:
    """A process of this module, with these words; killed at the end if it still runs."""
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", *command, f"--kubelet-socket={sockets}/kubelet.sock"),
        cwd=ROOT,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, **environment},
    )
    try:
        yield child
    finally:
        if child.returncode is None:
            child.kill()
        await child.communicate()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_ends_cleanly_when_told_to(kubelet, sockets, number):
    """Exit status 0, the socket is gone, and the log says which signal it was."""
    async with process(sockets) as child:
        await kubelet.until(kubelet.devices)
        child.send_signal(number)
        _, log = await child.communicate()
    assert child.returncode == 0
    assert log.decode().endswith(f"INFO stopping signal={number.name}\n")
    assert not (sockets / "nvidia-gpu.sock").exists()


async def test_many_requests_to_start_again_do_not_end_it(kubelet, sockets):
    """SIGHUP also comes between two configurations, when nobody works; a sidecar sees the plugin as no first process."""
    async with process(sockets) as child:
        await kubelet.until(kubelet.devices)
        child.send_signal(signal.SIGHUP)
        for _ in range(5):
            while "starting again because=SIGHUP" not in (line := (await child.stderr.readline()).decode()):
                assert line
            child.send_signal(signal.SIGHUP)
        child.send_signal(signal.SIGTERM)
        await child.communicate()
    assert child.returncode == 0


async def test_a_configuration_whose_directory_is_gone_stays_in_force(kubelet, sockets, tmp_path):
    """It was mounted away, or is being made anew: SIGHUP then finds nothing, and disturbs nothing."""
    file = tmp_path / "made/config.yaml"
    file.parent.mkdir()
    file.write_text("sharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 2}]}}\n")

    async with process(sockets, f"--config-file={file}") as child:
        await kubelet.until(lambda: len(kubelet.devices()) == 2)
        shutil.rmtree(file.parent)
        child.send_signal(signal.SIGHUP)
        await kubelet.until(lambda: len(kubelet.requests) == 2 and len(kubelet.devices()) == 2)
        child.send_signal(signal.SIGTERM)
        _, log = await child.communicate()
    assert child.returncode == 0
    assert "configuration changes take effect only on SIGHUP: " in log.decode()


async def test_a_killed_plugin_is_replaced_by_the_next(kubelet, sockets):
    """After SIGKILL the old socket is still there; a new process serves and registers all the same."""
    async with process(sockets) as child:
        await kubelet.until(kubelet.devices)
        child.kill()
        await kubelet.until(lambda: kubelet.plugins["nvidia.com/gpu"].ended)
    assert (sockets / "nvidia-gpu.sock").exists()
    async with process(sockets, gpus="GPU-b"):
        await kubelet.until(lambda: kubelet.devices() == {"GPU-b": "Healthy"})


async def test_a_changed_configuration_file_is_taken_up(kubelet, sockets, tmp_path):
    """As a ConfigMap changes: the file is replaced. A broken one is named in the log and changes nothing."""
    file = tmp_path / "config.yaml"
    sharing = "sharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 2}]}}\n"

    def write(text: str) -> None:
        new = tmp_path / "new"
        new.write_text(text)
        new.rename(file)

    write("version: v1\n")
    async with process(sockets, f"--config-file={file}") as child:
        await kubelet.until(lambda: kubelet.devices() == {"GPU-a": "Healthy"})
        write("version: v1\n" + sharing)
        await kubelet.until(lambda: kubelet.devices() == {"GPU-a::0": "Healthy", "GPU-a::1": "Healthy"})
        write("version: v1\nflag: {}\n")
        while "the configuration is unchanged" not in (line := (await child.stderr.readline()).decode()):
            assert line
        assert "flag: unknown key" in line
        write("version: v1\n" + sharing.replace("2", "3"))
        await kubelet.until(lambda: len(kubelet.devices()) == 3)
        assert len(kubelet.requests) == 3  # none of them for the broken one: nothing was disturbed


async def test_a_configuration_file_that_is_written_in_place_is_taken_up(kubelet, sockets, tmp_path):
    """By an editor or a redirection on the host: what counts is what is there when the writer is done."""
    file = tmp_path / "config.yaml"
    sharing = "sharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 2}]}}\n"

    file.write_text("version: v1\n")
    async with process(sockets, f"--config-file={file}"):
        await kubelet.until(lambda: kubelet.devices() == {"GPU-a": "Healthy"})
        file.write_text(sharing)
        await kubelet.until(lambda: len(kubelet.devices()) == 2)
        file.unlink()
        with file.open("w") as written:
            written.write("# begun ")
            written.flush()
            await kubelet.until(lambda: len(kubelet.devices()) == 1)
            written.write(f"and done\n{sharing.replace('2', '3')}")
        await kubelet.until(lambda: len(kubelet.devices()) == 3)


async def test_an_address_that_cannot_be_had_ends_it_with_one_line(kubelet, sockets):
    """Which address and why, and no traceback."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        async with process(sockets, f"--metrics-address={address}") as child:
            _, log = await child.communicate()
    assert child.returncode == 1
    (line,) = (line for line in log.decode().splitlines() if " INFO " not in line)
    assert f"CRITICAL cannot serve metrics and probes on {address}: " in line


@pytest.mark.parametrize(
    ("words", "status", "printed"),
    [
        (
            ".deviceplugin --mig-strategy=some",
            2,
            ["--mig-strategy: 'some' is not one of none, single, mixed"],
        ),
        (".deviceplugin --help", 0, ["--device-list-strategy", "example: python -m gpunode.deviceplugin"]),
        (".deviceplugin.mps --help", 0, ["usage: python -m gpunode.deviceplugin.mps ", "--mps-root"]),
    ],
)
def test_help_and_mistakes_need_no_gpu_and_no_kubelet(words, status, printed):
    """Help has every flag and an example; a mistake names the flag and the values it takes."""
    line = [sys.executable, "-m", *f"gpunode{words}".split()]
    run = subprocess.run(line, check=False, capture_output=True, text=True, cwd=ROOT)
    assert run.returncode == status
    assert all(part in (run.stderr if status else run.stdout) for part in printed)


NOBODY = 65534
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


@as_root
async def test_another_user_than_root_will_do_where_the_directory_is_its_own(kubelet, sockets):
    """Without root, it needs the directory and a kubelet.sock that it may write to: nothing else."""
    os.chown(sockets, NOBODY, NOBODY)
    os.chown(sockets / "kubelet.sock", NOBODY, NOBODY)
    async with process(sockets, environment={"TEST_USER": str(NOBODY)}) as child:
        await kubelet.until(lambda: kubelet.devices() == {"GPU-a": "Healthy"})
        assert (sockets / "nvidia-gpu.sock").stat().st_uid == NOBODY
        assert (await kubelet.allocate("GPU-a")).envs["NVIDIA_VISIBLE_DEVICES"] == "GPU-a"
        child.send_signal(signal.SIGTERM)
        _, log = await child.communicate()
    assert child.returncode == 0, log


@as_root
@pytest.mark.parametrize(
    ("mode", "advice"),
    [
        (0o700, "user 65534 may not use {sockets}, which belongs to user 0 (mode 0700)"),
        (0o755, "user 65534 may not use {sockets}, which belongs to user 0 (mode 0755)"),
        (0o777, "user 65534 may not use {sockets}/kubelet.sock, which belongs to user 0 (mode 0755)"),
    ],
)
async def test_a_user_that_may_not_use_the_kubelets_directory_is_told_what_to_do(
    kubelet, sockets, mode, advice
):
    """Not that there is no kubelet; and it is tried again, as the directory may become its own."""
    (sockets / "kubelet.sock").chmod(0o755)  # as a kubelet makes it
    sockets.chmod(mode)
    async with process(sockets, environment={"TEST_USER": str(NOBODY)}) as child:
        while "not registered: user" not in (line := (await child.stderr.readline()).decode()):
            assert line
        assert f"not registered: {advice.format(sockets=sockets)}: run the plugin as user 0" in line
        os.chown(sockets, NOBODY, NOBODY)
        os.chown(sockets / "kubelet.sock", NOBODY, NOBODY)
        await kubelet.until(kubelet.devices)
