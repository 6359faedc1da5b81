"""The plugin on a real GPU and its driver: what stand-ins cannot prove. Changes no setting of the GPU."""

import asyncio
import contextlib
import ctypes
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pynvml
import pytest

from gpunode.contract.condition import Condition, condition_of
from gpunode.contract.offer import ClientLimits
from gpunode.contract.status import MARK, find_last, loads
from gpunode.deviceplugin import cuda, nvml
from gpunode.deviceplugin.mps.daemons import PROGRAM, Daemon
from gpunode.deviceplugin.mps.report import pipe_path
from gpunode.deviceplugin.nvml import Nvml, NVMLError

from .conftest import running
from .test_mps_daemon import Modes
from .test_process import started

pytestmark = pytest.mark.gpu

ROOT = Path(__file__).parents[2]
CHANGING = {"nvmlDeviceGetUtilizationRates", "nvmlDeviceGetTotalEnergyConsumption"}  # between two calls
# A store through an address that no memory has. The driver reports it as Xid 31, an application's error, and
# ends the program's context; nothing else is disturbed.
BAD_STORE = b"""
.version 6.0
.target sm_50
.address_size 64
.visible .entry bad()
{
    .reg .b64 %p;
    .reg .b32 %v;
    mov.u64 %p, 0x123456789000;
    mov.u32 %v, 1;
    st.global.u32 [%p], %v;
    ret;
}
"""


@pytest.fixture(scope="module")
def real() -> Iterator[Nvml]:
    library = Nvml()
    library.nvmlInit()
    pynvml.nvmlInit()
    yield library
    pynvml.nvmlShutdown()
    library.nvmlShutdown()


@pytest.fixture
def uuid(real: Nvml) -> str:
    return str(real.nvmlDeviceGetUUID(real.nvmlDeviceGetHandleByIndex(0)))


def answer(call: Any, *arguments: Any) -> Any:
    """A call's answer as plain values; the number of its error where it fails."""
    try:
        value = call(*arguments)
    except (NVMLError, pynvml.NVMLError) as error:
        return f"error {error.value}"
    if isinstance(value, ctypes.Structure):
        return [(name, _text(getattr(value, name))) for name, *_ in value._fields_]
    return list(value) if isinstance(value, (tuple, list)) else _text(value)


def _text(value: Any) -> Any:
    return value.decode() if isinstance(value, bytes) else value


def test_each_call_answers_as_by_nvidias_binding(real):
    """Of a device alone, of the driver, and with one number."""
    mine, theirs = real.nvmlDeviceGetHandleByIndex(0), pynvml.nvmlDeviceGetHandleByIndex(0)
    numbers = {
        "nvmlDeviceGetTemperature": 0,
        "nvmlDeviceGetNvLinkState": 0,
        "nvmlDeviceGetNvLinkRemotePciInfo": 0,
    }
    compared, differ = 0, {}
    for name, (takes, writes) in nvml.CALLS.items():
        if not writes or name in CHANGING or name in ("nvmlEventSetCreate", "nvmlDeviceGetHandleByIndex"):
            continue
        if takes not in ((), (nvml._HANDLE,)) and name not in numbers:
            continue
        more = [numbers[name]] if name in numbers else []
        ours = answer(getattr(real, name), *([mine] if takes else []), *more)
        other = answer(getattr(pynvml, name), *([theirs] if takes else []), *more)
        compared += 1
        if json.dumps(ours, default=repr) != json.dumps(other, default=repr):
            differ[name] = (ours, other)
    print(f"{compared} calls compared")
    assert differ == {}
    assert compared >= 18


def plugin(sockets: Path, *flags: str) -> contextlib.AbstractAsyncContextManager[asyncio.subprocess.Process]:
    """The plugin's process as its image starts it."""
    environment = {"PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path[1:]])}
    return started(sockets, "gpunode.deviceplugin", *flags, environment=environment)


async def read_until(child: asyncio.subprocess.Process, text: str) -> list[str]:
    """The log's lines up to the first with `text`."""
    lines: list[str] = []
    assert child.stderr is not None
    while not lines or text not in lines[-1]:
        line = await child.stderr.readline()
        assert line, "".join(lines)
        lines.append(line.decode())
    return lines


async def until_ready(child: asyncio.subprocess.Process) -> Condition:
    """The node's condition as of the status in the log, once it is True."""
    log = ""
    while True:
        log += (await read_until(child, MARK))[-1]
        if (text := find_last(log)) and (seen := condition_of(loads(text))).status == "True":
            return seen


async def test_the_kubelet_gets_the_gpu_healthy_and_an_allocation_names_it(kubelet, sockets, uuid):
    began = time.monotonic()
    async with plugin(sockets) as child:
        await kubelet.until(kubelet.devices)
        listed = time.monotonic() - began
        assert kubelet.devices() == {uuid: "Healthy"}
        envs = (await kubelet.allocate(uuid)).envs
        assert envs["NVIDIA_VISIBLE_DEVICES"] == uuid
        seen = await asyncio.wait_for(until_ready(child), 30)
        assert seen == Condition("True", "ready", "all GPUs are healthy")
        status = Path(f"/proc/{child.pid}/status").read_text()
        memory = int(status.partition("VmRSS:")[2].split()[0]) / 1024
        print(f"listed after {listed:.2f} s, {memory:.0f} MiB resident")


def provoke_xid() -> None:
    """Make an application's error on the first GPU, in a process of its own."""
    program = f"""
import ctypes
from ctypes import byref, c_char_p, c_uint, c_void_p
from gpunode.deviceplugin.cuda import Cuda, CudaError, load
driver = Cuda(load())
with driver.on(driver.devices()[0]):
    module, kernel = c_void_p(), c_void_p()
    driver.call("cuModuleLoadData", byref(module), c_char_p({BAD_STORE!r}))
    driver.call("cuModuleGetFunction", byref(kernel), module, c_char_p(b"bad"))
    one = c_uint(1)
    driver.call("cuLaunchKernel", kernel, one, one, one, one, one, one, c_uint(0), c_void_p(), None, c_void_p())
    try:
        driver.call("cuCtxSynchronize")
    except CudaError as error:
        print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert "CUDA_ERROR_ILLEGAL_ADDRESS" in done.stdout, done


async def test_an_applications_xid_is_logged_by_its_name_and_the_gpu_stays_healthy(kubelet, sockets, uuid):
    """A real event of the driver, through the binding's event set and structure."""
    async with plugin(sockets) as child:
        await kubelet.until(kubelet.devices)
        began = time.monotonic()
        await asyncio.get_running_loop().run_in_executor(None, provoke_xid)
        lines = await asyncio.wait_for(read_until(child, "Xid"), 30)
        print(f"{time.monotonic() - began:.2f} s after the program began: {lines[-1]}")
        assert "xid=31" in lines[-1]
        assert uuid in lines[-1]
        assert kubelet.devices() == {uuid: "Healthy"}


def test_cuda_names_the_gpu_as_nvml_does(uuid):
    driver = cuda.Cuda(cuda.load())
    assert uuid in [driver.uuid(device) for device in driver.devices()]


def test_nvidia_smi_names_it_too(uuid):
    """The driver's own program, where it is there."""
    program = shutil.which("nvidia-smi")
    if not program:
        pytest.skip("nvidia-smi is not on PATH")
    query = ["--query-gpu=uuid,name,driver_version,pci.bus_id", "--format=csv,noheader"]
    assert uuid in subprocess.run([program, *query], capture_output=True, text=True, check=True).stdout


CLIENT = """
from gpunode.deviceplugin.cuda import Cuda, load
driver = Cuda(load())
with driver.on(driver.devices()[0]):
    print(driver.memory(), driver.gives(3000), driver.gives(6000))
"""


async def test_mps_enforces_a_memory_limit(sockets, uuid):
    """The real control daemon with a limit of 4 GiB, and a client. The compute mode stays as it is."""
    if not shutil.which(PROGRAM):
        pytest.skip(f"this machine has no {PROGRAM}")

    said: asyncio.Queue[str | None] = asyncio.Queue()
    daemon = Daemon(uuid, ClientLimits(4096, 50), str(sockets), Modes(), said.put_nowait, 1.0)
    async with running(daemon.run()):
        assert await asyncio.wait_for(said.get(), 30) is None
        environment = {**os.environ, "CUDA_MPS_PIPE_DIRECTORY": str(pipe_path(str(sockets), uuid))}
        client = await asyncio.create_subprocess_exec(
            sys.executable, "-c", CLIENT, cwd=ROOT, env=environment, stdout=asyncio.subprocess.PIPE
        )
        output = (await asyncio.wait_for(client.communicate(), 30))[0].decode()
        print(f"of a client: memory, 3000 MiB, 6000 MiB: {output}")
        assert output.split()[1:] == ["True", "False"]


def test_figures_under_dcgms_names_are_those_that_nvidia_smi_shows(real, uuid):
    """Within what changes between two readings; what nvidia-smi shows as N/A has no figure."""
    from gpunode.deviceplugin.dcgm import read_figures
    from gpunode.deviceplugin.gpus import Handles

    fields = {
        "clocks.sm": ("SM_CLOCK", 2500), "clocks.mem": ("MEM_CLOCK", 5000), "temperature.gpu": ("GPU_TEMP", 10),
        "power.draw": ("POWER_USAGE", 200), "memory.used": ("FB_USED", 16), "memory.free": ("FB_FREE", 16),
        "memory.reserved": ("FB_RESERVED", 16),
        "ecc.errors.uncorrected.volatile.total": ("ECC_DBE_VOL_TOTAL", 0), "utilization.gpu": ("GPU_UTIL", 100),
    }  # fmt: skip
    command = ["nvidia-smi", "-i", uuid, f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split(", ")
    values = read_figures(Handles(real), uuid)
    for (name, tolerance), cell in zip(fields.values(), shown, strict=True):
        value = values.get(f"DCGM_FI_DEV_{name}")
        if value is None or not cell.strip().replace(".", "").isdigit():
            assert (name, value) == (name, None)
        else:
            assert abs(value - float(cell)) <= tolerance, (name, value, cell)
