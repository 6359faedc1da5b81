"""The binding of NVML: as NVIDIA's nvidia-ml-py has it, and on a library."""

import ctypes
import subprocess
from pathlib import Path

import pynvml
import pytest

from gpunode.deviceplugin import nvml
from gpunode.deviceplugin.nvml import Nvml, NVMLError

STRUCTURES = {
    nvml.PciInfo: pynvml.nvmlPciInfo_t,
    nvml.Memory: pynvml.c_nvmlMemory_t,
    nvml.MemoryV: pynvml.c_nvmlMemory_v2_t,
    nvml.Utilization: pynvml.c_nvmlUtilization_t,
    nvml.ProcessInfo: pynvml.c_nvmlProcessInfo_v3_t,
    nvml.FieldValue: pynvml.c_nvmlFieldValue_t,
    nvml.EventData: pynvml.c_nvmlEventData_t,
    nvml.Attributes: pynvml.c_nvmlDeviceAttributes,
    nvml.FabricInfo: pynvml.c_nvmlGpuFabricInfo_t,
    nvml.FabricInfoV: pynvml.c_nvmlGpuFabricInfo_v2_t,
    nvml.MemoryLimits: pynvml.c_nvmlGetMemoryLimits_v1_t,
}
# Every call writes 0x01020304 (a number), "text", or bytes 1, 2, 3 … through its last pointer.
LIBRARY = r"""
#include <string.h>
typedef unsigned u;
static const u number = 0x01020304;
int nvmlInit_v2(void) { return 0; }
int nvmlShutdown(void) { return 0; }
const char *nvmlErrorString(int code) { return code == 15 ? "GPU is lost" : "?"; }
int nvmlSystemGetDriverVersion(char *text, u size) { strncpy(text, "580.178.04", size); return 0; }
int nvmlDeviceGetCount_v2(u *n) { *n = 2; return 0; }
int nvmlDeviceGetHandleByIndex_v2(u index, void **h) { *h = (void *)(0xabcdef0000000000 + index); return 0; }
int nvmlDeviceGetMinorNumber(void *h, u *n) { *n = (unsigned long long)h >> 40 == 0xabcdef ? (u)(unsigned long long)h : 99; return 0; }
int nvmlDeviceGetMemoryInfo(void *h, unsigned long long *m) { m[0] = 9; m[1] = 5; m[2] = 4; return (u)(unsigned long long)h ? 15 : 0; }
int nvmlDeviceGetMemoryInfo_v2(void *h, unsigned long long *m)
{
    if ((u)m[0] != (40 | 2 << 24))
        return 25;
    m[1] = 9, m[2] = 1, m[3] = 5, m[4] = 3;
    u index = (u)(unsigned long long)h;
    return index == 2 ? 3 : index ? 0 : 13;
}
int nvmlDeviceGetName(void *h, char *text, u size) { return 15; }
int nvmlDeviceGetRemappedRows(void *h, u *a, u *b, u *c, u *d) { *a = 1; *b = 2; *c = 3; *d = 4; return 0; }
int nvmlDeviceGetTotalEnergyConsumption(void *h, unsigned long long *e) { *e = 1ull << 40; return 0; }
int nvmlDeviceGetComputeRunningProcesses_v3(void *h, u *n, void *p)
{
    u room = *n;
    *n = 3;
    if (room < 3)
        return 7;
    for (int i = 0; i < 3; i++)
        *(u *)((char *)p + 24 * i) = 100 + i;
    return 0;
}
int nvmlDeviceGetFieldValues(void *h, int count, u *values) { values[7] = values[0] == 230 && count == 1 ? 3 : 0; return 0; }
int nvmlEventSetCreate(void **set) { *set = (void *)0x1122334455667788; return 0; }
int nvmlEventSetWait_v2(void *set, unsigned long long *data, u ms)
{
    data[0] = (unsigned long long)set, data[1] = 8, data[2] = ms;
    memset(data + 3, 0xff, 8);
    return 0;
}
"""


@pytest.mark.parametrize("ours", STRUCTURES, ids=lambda structure: structure.__name__)
def test_structures_are_laid_out_as_nvidias(ours):
    """The library writes into them."""
    theirs = STRUCTURES[ours]
    assert ctypes.sizeof(ours) == ctypes.sizeof(theirs)
    for name, *_ in ours._fields_:
        mine, other = getattr(ours, name), getattr(theirs, name)
        assert (name, mine.offset, mine.size) == (name, other.offset, other.size)


def test_constants_and_functions_are_nvidias():
    """A value that differs would be another error, another event, another field."""
    names = [name for name in vars(Nvml) if name.startswith(("NVML_", "nvmlEventType"))]
    assert {name: getattr(Nvml, name) for name in names} == {name: getattr(pynvml, name) for name in names}
    calls = [*nvml.CALLS, *(name for name in vars(Nvml) if name.startswith("nvml") and name not in names)]
    assert [name for name in calls if not hasattr(pynvml, name)] == []
    assert {code: str(pynvml.NVMLError(code)) for code in nvml.WORDS} == nvml.WORDS


@pytest.fixture(scope="module")
def library(tmp_path_factory) -> str:
    folder: Path = tmp_path_factory.mktemp("nvml")
    (folder / "nvml.c").write_text(LIBRARY)
    try:
        subprocess.run(["cc", "-shared", "-fPIC", "-o", "nvml.so", "nvml.c"], cwd=folder, check=True)
    except FileNotFoundError:
        pytest.skip("no C compiler")
    return str(folder / "nvml.so")


def test_calls_go_through_a_library(monkeypatch, library):
    """Handles of 64 bits, text, numbers, lists and errors."""
    monkeypatch.setattr(nvml, "LIBRARY", library)
    ours = Nvml()
    ours.nvmlInit()
    assert ours.nvmlSystemGetDriverVersion() == "580.178.04"
    assert ours.nvmlDeviceGetCount() == 2
    handle = ours.nvmlDeviceGetHandleByIndex(1)
    assert ours.nvmlDeviceGetMinorNumber(handle) == 1
    assert ours.nvmlDeviceGetRemappedRows(handle) == (1, 2, 3, 4)
    assert ours.nvmlDeviceGetTotalEnergyConsumption(handle) == 1 << 40
    assert [process.pid for process in ours.nvmlDeviceGetComputeRunningProcesses(handle)] == [100, 101, 102]
    (value,) = ours.nvmlDeviceGetFieldValues(handle, [ours.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION])
    assert value.nvmlReturn == ours.NVML_ERROR_NOT_SUPPORTED
    event = ours.nvmlEventSetWait_v2(ours.nvmlEventSetCreate(), 70)
    assert (event.device, event.eventType, event.eventData) == (0x1122334455667788, 8, 70)
    assert event.gpuInstanceId == 0xFFFFFFFF
    with pytest.raises(NVMLError, match="GPU is lost") as lost:
        ours.nvmlDeviceGetName(handle)
    assert lost.value.value == pynvml.NVML_ERROR_GPU_IS_LOST


def test_used_memory_is_without_what_the_driver_reserves(monkeypatch, library):
    """As nvidia-smi shows it. Device 0's driver is older, and counts it as used."""
    monkeypatch.setattr(nvml, "LIBRARY", library)
    ours = Nvml()
    ours.nvmlInit()
    new, old = (ours.nvmlDeviceGetMemoryInfo(ours.nvmlDeviceGetHandleByIndex(index)) for index in (1, 0))
    assert (new.total, new.reserved, new.used, new.free) == (9, 1, 3, 5)
    assert (old.total, old.used, old.free) == (9, 4, 5)
    with pytest.raises(NVMLError) as refused:  # a call that fails is no older driver
        ours.nvmlDeviceGetMemoryInfo(ours.nvmlDeviceGetHandleByIndex(2))
    assert refused.value.value == ours.NVML_ERROR_NOT_SUPPORTED


def test_what_is_not_there_is_an_error_of_nvmls(monkeypatch, library):
    """No library, no start, and a driver that is older than a function."""
    monkeypatch.setattr(nvml, "LIBRARY", "libnvidia-none.so.1")
    ours = Nvml()
    for call, code in (
        (ours.nvmlDeviceGetCount, ours.NVML_ERROR_UNINITIALIZED),
        (ours.nvmlInit, ours.NVML_ERROR_LIBRARY_NOT_FOUND),
    ):
        with pytest.raises(NVMLError) as caught:
            call()
        assert caught.value.value == code
    monkeypatch.setattr(nvml, "LIBRARY", library)
    ours.nvmlInit()
    with pytest.raises(NVMLError) as caught:
        ours.nvmlDeviceGetMigMode(ours.nvmlDeviceGetHandleByIndex(0))
    assert caught.value.value == ours.NVML_ERROR_FUNCTION_NOT_FOUND
