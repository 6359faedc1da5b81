"""Figures of GPUs on /metrics, under the names of NVIDIA's DCGM exporter."""

import asyncio
import subprocess
import sys
import threading
from typing import Any

from pynvml import NVML_ERROR_GPU_IS_LOST

from gpunode.contract.offer import Device
from gpunode.deviceplugin import dcgm
from gpunode.deviceplugin.dcgm import page, read_figures
from gpunode.deviceplugin.threads import Calls

from .nvml import FakeNvml, Gpu, handles
from .test_metrics import free_port, get
from .test_podresources import Lister, pod

FULL = Gpu("GPU-a", energy=123_456, ecc=(2, 1), nvlinks=("00000000:5E:00.0",), remap_failed=True)
ALL = {
    "DCGM_FI_DEV_SM_CLOCK": 1480,
    "DCGM_FI_DEV_MEM_CLOCK": 715,
    "DCGM_FI_DEV_POWER_USAGE": 35.5,
    "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": 123_456,
    "DCGM_FI_DEV_GPU_UTIL": 97,
    "DCGM_FI_DEV_MEM_COPY_UTIL": 40,
    "DCGM_FI_DEV_FB_FREE": 11 * 1024,
    "DCGM_FI_DEV_FB_USED": 4 * 1024,
    "DCGM_FI_DEV_FB_RESERVED": 1024,
    "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL": 2,
    "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL": 1,
    "DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS": 0,
    "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS": 0,
    "DCGM_FI_DEV_ROW_REMAP_FAILURE": 1,
    "gpunode_device_plugin_nvlink_sent_bytes_total": 3 * 1024,
    "gpunode_device_plugin_nvlink_received_bytes_total": 5 * 1024,
}


def make_device(uuid: str, index: int = 0, **more: Any) -> Device:
    nodes = (f"/dev/nvidia{index}",)
    return Device(uuid, str(index), "Tesla P100", uuid, f"0000:3{index}:00.0", 1, nodes=nodes, **more)


def render(taken: Any, *devices: Device, users: Any = (), xids: Any = None) -> str:
    return asyncio.run(page(taken, devices, users, xids or {}, "gpu-01", Calls()))


def test_values_have_the_units_of_dcgm():
    """MiB, W, MHz, mJ; the stand-in has no temperature."""
    assert read_figures(handles(FULL), "GPU-a") == ALL


def test_what_a_gpu_does_not_report_is_left_out():
    """No ECC, energy, NVLinks or memory of its own; of one that is lost there is nothing."""
    bare = Gpu("GPU-b", memory=None)
    missing = ("ECC", "ENERGY", "nvlink", "FB_")
    assert read_figures(handles(bare), "GPU-b") == {
        name: 0 if name.endswith("FAILURE") else value
        for name, value in ALL.items()
        if not any(part in name for part in missing)
    }
    assert read_figures(handles(Gpu("GPU-c", error=NVML_ERROR_GPU_IS_LOST)), "GPU-c") == {}
    assert read_figures(handles(bare), "GPU-gone") == {}


def test_every_name_has_its_type_and_help():
    """And none is there that nobody reads; those of DCGM have its units in their help."""
    assert set(dcgm.HELP) == {*ALL, "DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_DEV_XID_ERRORS"}


def test_labels_are_those_of_the_dcgm_exporter():
    text = render(handles(FULL), make_device("GPU-a"), xids={"GPU-a": 79})
    labels = 'gpu="0",UUID="GPU-a",pci_bus_id="00000000:30:00.0",device="nvidia0",modelName="Tesla P100",Hostname="gpu-01"'
    assert "# HELP DCGM_FI_DEV_POWER_USAGE Power draw (in W).\n# TYPE DCGM_FI_DEV_POWER_USAGE gauge\n" in text
    assert f"DCGM_FI_DEV_POWER_USAGE{{{labels}}} 35.5\n" in text
    assert f"DCGM_FI_DEV_XID_ERRORS{{{labels}}} 79\n" in text
    assert "# TYPE DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION counter\n" in text


def user(name: str, gpu: str, resource: str = "nvidia.com/gpu") -> Any:
    labels = {"namespace": "ml", "pod": name, "container": "main", "resource": resource, "gpu": gpu}
    return ("pod_devices", labels, 1.0)


def test_a_gpu_has_a_line_for_each_container_that_has_it():
    """Once where it has several units of it, or two resources; a MIG device's pod does not have the whole GPU."""
    taken = handles(Gpu("GPU-a"), Gpu("GPU-b", minor=1))
    users = [
        user("a", "GPU-a"), user("a", "GPU-a", "x/y"), user("b", "GPU-a"), user("c", "MIG-1"),
        ("pod_resources_up", {}, 1.0),
    ]  # fmt: skip
    mig = make_device("MIG-1", 1, profile="1g.5gb")
    text = render(taken, make_device("GPU-a"), make_device("GPU-b", 1), mig, users=users)
    lines = [line for line in text.splitlines() if line.startswith("DCGM_FI_DEV_GPU_UTIL{")]
    assert [line.partition('Hostname="gpu-01"')[2] for line in lines] == [
        ',container="main",namespace="ml",pod="a"} 97',
        ',container="main",namespace="ml",pod="b"} 97',
        "} 97",
    ]


def test_a_gpu_that_hangs_costs_its_own_figures_alone(monkeypatch):
    monkeypatch.setattr(dcgm, "DEADLINE", 0.05)
    free = threading.Event()
    taken = handles(Gpu("GPU-a"), Gpu("GPU-b", minor=1))
    assert taken.of("GPU-b")
    assert taken.of("GPU-a")
    taken.nvml.gpus[0].hang = free
    try:
        text = render(taken, make_device("GPU-a"), make_device("GPU-b", 1))
    finally:
        free.set()
    assert 'UUID="GPU-b"' in text
    assert 'UUID="GPU-a"' not in text


async def test_a_scrape_has_them_with_pods_and_the_last_xid(kubelet, plugin, sockets):
    port, socket = free_port(), sockets / "pods.sock"

    settings = {
        "metrics_address": f"127.0.0.1:{port}", "pod_resources_socket": str(socket), "node_name": "gpu-01",
    }  # fmt: skip
    gpu = Gpu("GPU-a")
    async with Lister(pod("train", gpu=["GPU-a"])).serving(socket), plugin(FakeNvml(gpu), **settings):
        await kubelet.until(lambda: kubelet.devices() and gpu.sets)
        gpu.raise_xid(13)
        gpu.raise_xid(31)
        body = ""
        while "} 31\n" not in body:
            body = (await get(port, "/metrics"))[1]
    assert 'Hostname="gpu-01",container="main",namespace="ml",pod="train"} 31\n' in body
    assert "gpunode_device_plugin_devices{" in body
    assert body.count("# TYPE DCGM_FI_DEV_GPU_UTIL gauge\n") == 1


def test_nothing_of_it_is_imported_before_a_scrape():
    """The plugin stays light where nobody asks for metrics."""
    script = "import sys, gpunode.deviceplugin.plugin; print('gpunode.deviceplugin.dcgm' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ran.stdout == "False\n"
