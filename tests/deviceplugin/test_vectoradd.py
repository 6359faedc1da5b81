# ruff: noqa: N802 (the names are those of the driver API)
"""The built-in vectoradd, on a stand-in for libcuda that computes on the CPU; on a real GPU where there is one."""

import ctypes
import json
import re

import pytest

from gpunode.deviceplugin import cuda, vectoradd

UUID = bytes(range(16))


class FakeCuda:
    """The driver API as far as vectoradd calls it; device pointers are addresses of this process."""

    def __init__(
        self,
        gpus: int = 1,
        init: int = 0,
        launch: int = 0,
        compute: bool = True,
        mib: int = 16280,
        lies: bool = False,
        exclusive: bool = False,
    ) -> None:
        self.gpus, self.init, self.launch, self.compute, self.mib = gpus, init, launch, compute, mib
        self.lies = lies  # gives more than it says it has
        self.exclusive = exclusive
        self.memory: dict[int, object] = {}
        self.contexts = 0

    def cuInit(self, flags):
        return self.init

    def cuGetErrorName(self, result, name):
        name._obj.value = {100: b"CUDA_ERROR_NO_DEVICE", 803: b"CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"}.get(
            result.value
        )
        return 0

    def cuDriverGetVersion(self, version):
        version._obj.value = 13000
        return 0

    def cuDeviceGetCount(self, count):
        count._obj.value = self.gpus
        return 0

    def cuDeviceGet(self, device, ordinal):
        device._obj.value = ordinal.value
        return 0

    def cuDeviceGetName(self, name, length, device):
        name.value = b"Tesla P100-PCIE-16GB"
        return 0

    def cuDeviceGetUuid_v2(self, raw, device):
        ctypes.memmove(raw._obj, UUID, 16)
        return 0

    def cuDeviceGetAttribute(self, value, attribute, device):
        value._obj.value = {20: 3 if self.exclusive else 0}[attribute.value]
        return 0

    def cuCtxCreate_v2(self, context, flags, device):
        self.contexts += 1
        return 0

    def cuCtxDestroy_v2(self, context):
        self.contexts -= 1
        return 0

    def cuModuleLoadDataEx(self, module, image, number, options, values):
        assert b".visible .entry vectoradd(" in image.value
        return 0

    def cuModuleGetFunction(self, function, module, name):
        assert name.value == b"vectoradd"
        return 0

    def cuMemGetInfo_v2(self, free, total):
        assert self.contexts == 1
        free._obj.value = total._obj.value = self.mib * 1024 * 1024 + 4096
        return 0

    def cuMemAlloc_v2(self, pointer, size):
        if size.value > self.mib * 1024 * 1024 and not self.lies:
            return 2
        block = ctypes.create_string_buffer(min(size.value, 1 << 24))
        pointer._obj.value = ctypes.addressof(block)
        self.memory[pointer._obj.value] = block
        return 0

    def cuMemFree_v2(self, pointer):
        del self.memory[pointer.value]
        return 0

    def cuMemcpyHtoD_v2(self, to, source, size):
        ctypes.memmove(to.value, source.value, size.value)
        return 0

    def cuMemcpyDtoH_v2(self, to, source, size):
        ctypes.memmove(to.value, source.value, size.value)
        return 0

    def cuLaunchKernel(self, function, gx, gy, gz, bx, by, bz, shared, stream, parameters, extra):
        if self.launch or not self.compute:
            return self.launch
        kinds = (ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint)
        a, b, c, n = (kind.from_address(parameters[i]).value for i, kind in enumerate(kinds))
        assert n <= gx.value * bx.value
        floats = ctypes.c_float * n
        left, right, out = (floats.from_address(pointer) for pointer in (a, b, c))
        for i in range(n):
            out[i] = left[i] + right[i]
        return 0

    def cuCtxSynchronize(self):
        return 0


def play(capsys, fake: FakeCuda, *arguments: str) -> tuple[int, str]:
    status = vectoradd.main(["--elements=1000", *arguments], fake)
    assert (fake.memory, fake.contexts) == ({}, 0)
    return status, capsys.readouterr().out


def test_every_gpu_adds_and_passes(capsys):
    """A line a GPU, then the line that people look for in NVIDIA's sample."""
    status, out = play(capsys, FakeCuda(gpus=2))
    line = "GPU {} GPU-00010203-0405-0607-0809-0a0b0c0d0e0f Tesla P100-PCIE-16GB: 1000 elements: max error 0: Test PASSED"
    assert (status, out.splitlines()) == (0, [line.format(0), line.format(1), "Test PASSED"])


def test_json_has_the_same_facts(capsys):
    """One object on one line, for programs."""
    status, out = play(capsys, FakeCuda(), "--json")
    answer = json.loads(out)
    assert (status, answer["passed"], answer["cuda"]) == (0, True, "13.0")
    assert answer["gpus"] == [
        {
            "index": 0,
            "uuid": "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f",
            "name": "Tesla P100-PCIE-16GB",
            "elements": 1000,
            "max_error": 0.0,
            "error": None,
            "memory_mib": 16280,
            "limit_mib": None,
            "exclusive": False,
            "passed": True,
        }
    ]


class OldCuda(FakeCuda):
    """Of a driver before branch 470, on a MIG device: it tells the UUID of the whole GPU."""

    @property
    def cuDeviceGetUuid_v2(self):
        raise AttributeError("the library has none")

    def cuDeviceGetName(self, name, length, device):
        name.value = b"A100-SXM4-40GB MIG 1g.5gb"
        return 0

    def cuDeviceGetUuid(self, raw, device):
        ctypes.memmove(raw._obj, UUID, 16)
        return 0


GPU = "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f"


@pytest.mark.parametrize(
    ("visible", "uuid"),
    [
        (f"MIG-{GPU}/7/0", f"MIG-{GPU}/7/0"),
        (f"MIG-{GPU}/7/0,MIG-{GPU}/8/0", ""),  # CUDA takes one of them
        ("0:0", ""),
        ("MIG-GPU-ffffffff-0405-0607-0809-0a0b0c0d0e0f/7/0", ""),
        (None, ""),
    ],
)
def test_a_mig_device_of_an_old_driver_is_the_one_that_the_container_was_given(
    capsys, monkeypatch, visible, uuid
):
    """And none where that is not to be told: the whole GPU's UUID would be wrong."""
    if visible is None:
        monkeypatch.delenv("NVIDIA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("NVIDIA_VISIBLE_DEVICES", visible)
    status, out = play(capsys, OldCuda(), "--json")
    assert (status, json.loads(out)["gpus"][0]["uuid"]) == (0, uuid)


def test_a_kernel_that_does_nothing_is_caught(capsys):
    """The result is filled with NaN beforehand."""
    status, out = play(capsys, FakeCuda(compute=False))
    assert status == 1
    assert "Test FAILED: element 0 is nan, should be 250.0" in out


@pytest.mark.parametrize(
    ("fake", "status", "message"),
    [
        (
            FakeCuda(init=100),
            2,
            "cuInit: CUDA_ERROR_NO_DEVICE (100): the driver sees no GPU in this container",
        ),
        (FakeCuda(init=803), 2, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH (803): driver/library version mismatch"),
        (FakeCuda(gpus=0), 2, "0 devices: the driver sees no GPU in this container"),
        (FakeCuda(launch=719), 1, "cuLaunchKernel: unknown error (719): the kernel crashed on the GPU"),
        (FakeCuda(launch=222), 1, "this driver is too old"),
    ],
)
def test_what_goes_wrong_is_reported_with_cause_and_way_out(capsys, fake, status, message):
    """No driver error is left as a bare number."""
    assert (answer := play(capsys, fake))[0] == status
    assert f"Test FAILED: {message}" in answer[1] or message in answer[1]


@pytest.mark.parametrize(
    ("limit", "status"), [("4096", 1), ("16279", 1), ("16280", 0), ("20000", 0), ("", 0), ("x", 0)]
)
def test_a_memory_limit_that_is_not_enforced_fails(capsys, monkeypatch, limit, status):
    """Somebody was promised the rest. What is no number the toolkit itself would have refused."""
    monkeypatch.setenv("NVIDIA_GPU_MEMORY_LIMIT", limit)
    answer = play(capsys, FakeCuda())
    assert answer[0] == status
    message = f"the driver lets this container have 16280 MiB, but NVIDIA_GPU_MEMORY_LIMIT is {limit}"
    assert (message in answer[1]) == bool(status)


def test_a_gpu_that_one_process_may_use_is_reported(capsys):
    """Whether that is wrong, who runs this program knows."""
    code, output = play(capsys, FakeCuda(exclusive=True), "--json")
    assert code == 0
    assert json.loads(output)["gpus"][0]["exclusive"] is True


def test_a_limit_that_is_only_shown_fails(capsys, monkeypatch):
    """The driver says that there is no more, and gives it. What is tried is given back."""
    monkeypatch.setenv("NVIDIA_GPU_MEMORY_LIMIT", "16280")
    fake = FakeCuda(lies=True)
    code, output = play(capsys, fake)
    assert code == 1
    assert "the driver lets this container have 16281 MiB, but NVIDIA_GPU_MEMORY_LIMIT is 16280" in output
    assert not fake.memory


def test_without_a_driver_it_says_so(capsys, monkeypatch):
    """The most common mistake: the container was not started by the nvidia runtime."""

    def missing(name):
        raise OSError("libcuda.so.1: cannot open shared object file")

    monkeypatch.setattr(ctypes, "CDLL", missing)
    assert vectoradd.main(["--json"]) == 2
    assert "run with the nvidia runtime" in json.loads(capsys.readouterr().out)["error"]


def test_an_image_without_a_library_that_the_driver_needs_is_named(monkeypatch):
    """As seen on an H100: the devices are there, the image's glibc is a part of one."""

    def missing(name):
        raise OSError("libdl.so.2: cannot open shared object file: No such file or directory")

    monkeypatch.setattr(ctypes, "CDLL", missing)
    with pytest.raises(cuda.CudaError, match=r"this image has no libdl\.so\.2, which the driver needs"):
        cuda.load()


def test_the_kernel_is_for_old_gpus_too():
    """Pascal is sm_60: a higher target or a newer PTX would shut it, or its driver, out."""
    assert int(re.search(rb"\.target sm_(\d+)", cuda.KERNEL)[1]) <= 60
    assert float(re.search(rb"\.version ([\d.]+)", cuda.KERNEL)[1]) <= 6.0


@pytest.mark.gpu
def test_on_a_real_gpu(capsys):
    """The same program on real hardware."""
    assert vectoradd.main(["--json"]) == 0
    assert json.loads(capsys.readouterr().out)["passed"]
