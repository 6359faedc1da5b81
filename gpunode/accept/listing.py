"""`python -m gpunode.accept.listing`: the GPUs and MIG devices here, as one JSON object, without a context on any of them.

On a host of Kubernetes, a GPU that a pod has is in use, though the pod may not use it at the moment.

In a process of its own: a driver that hangs hangs this one alone. Exit status 2: there is no driver.
"""

import asyncio
import json
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from ctypes import byref, c_int
from pathlib import Path
from typing import Any

from gpunode.contract.offer import claim_of
from gpunode.deviceplugin.cuda import CAPABILITY, Cuda, CudaError, load
from gpunode.deviceplugin.directory import alive
from gpunode.deviceplugin.gpus import compute_pids, pci_address, process_name
from gpunode.deviceplugin.kubelet.messages import containers_devices
from gpunode.deviceplugin.nvml import Nvml, NVMLError
from gpunode.deviceplugin.rpc import Code, RpcError, call

from .gauges import mig_devices

MIB = 1 << 20
BUSY = 10  # percent
ANSWERED = 5.0  # seconds
AGAIN = 1.2  # seconds: what NVML calls utilization is of the last second at most

# The kubelet's pod-resources API: kubeadm's, k3s's and RKE2's, that of k0s, of MicroK8s. A container does not have them.
POD_RESOURCES = tuple(
    Path(root, "kubelet/pod-resources/kubelet.sock")
    for root in ("/var/lib", "/var/lib/k0s", "/var/snap/microk8s/common/var/lib")
)
KUBELET = Path("/var/lib/kubelet/device-plugins/kubelet.sock")  # of all of them, whatever their --root-dir

Entry = dict[str, Any]


def pods_by_device(sockets: Iterable[Path], kubelet: Path) -> dict[str, str] | None:
    """UUID → the pod (namespace/name) that has this device or a share of it. None: a kubelet is there, but does not say."""
    held: dict[str, str] = {}
    there = [*filter(Path.exists, sockets)]
    if not there and alive(kubelet):
        return None
    for socket in there:
        try:
            answer = asyncio.run(call(socket, "/v1.PodResourcesLister/List", b"", seconds=ANSWERED))
        except RpcError as error:
            if error.code is Code.UNIMPLEMENTED:  # a kubelet before 1.20
                continue
            return None
        for container in containers_devices(answer):
            for claim in filter(None, map(claim_of, container.ids)):
                held[claim.device] = container.pod.name
    return held


def devices(nvml: Any, pods: Mapping[str, str] | None) -> Iterator[Entry]:
    """What can be measured, in NVML's order: of a GPU with MIG on its devices, else itself. `pods` as of `pods_by_device`."""
    for index in range(nvml.nvmlDeviceGetCount()):
        entry: Entry = {
            "uuid": "",
            "name": "",
            "pci": "",
            "capability": "",
            "memory_mib": 0,
            "shape": "whole",
        }
        try:
            gpu = nvml.nvmlDeviceGetHandleByIndex(index)
            entry["pci"] = pci_address(nvml.nvmlDeviceGetPciInfo(gpu).busId.decode())
            for part in mig_devices(nvml, gpu) or (gpu,):
                yield _describe(nvml, part, entry, pods, mig=part != gpu)
        except NVMLError as error:
            lost = error.value == Nvml.NVML_ERROR_GPU_IS_LOST
            yield entry | {
                "error": {"code": "lost" if lost else "driver", "text": f"GPU {index} of NVML: {error}"}
            }


def _describe(nvml: Any, handle: Any, entry: Entry, pods: Mapping[str, str] | None, *, mig: bool) -> Entry:
    described = entry | {
        "uuid": nvml.nvmlDeviceGetUUID(handle),
        "name": nvml.nvmlDeviceGetName(handle),
        "capability": ".".join(map(str, nvml.nvmlDeviceGetCudaComputeCapability(handle))),
        "shape": "mig" if mig else "whole",
    }
    with suppress(NVMLError):  # a GPU that shares the host's memory; CUDA has its size
        described["memory_mib"] = nvml.nvmlDeviceGetMemoryInfo(handle).total // MIB
    user = _user(nvml, handle)
    if not user and pods is None:
        user = "the kubelet does not say which pods have it"
    elif not user and pods and (pod := pods.get(described["uuid"])):
        user = f"in use by the pod {pod}"
    return described | ({"error": {"code": "in-use", "text": user}} if user else {})


def _user(nvml: Any, handle: Any) -> str:
    """What uses the device, "" if nothing does."""
    if pids := compute_pids(nvml, handle):
        return f"in use by {', '.join(map(_process, pids))}"
    busy = _utilization(nvml, handle)
    if busy > BUSY:
        time.sleep(AGAIN)
        busy = _utilization(nvml, handle)
    return f"{busy} % busy with processes that are not to be seen from here" if busy > BUSY else ""


def _utilization(nvml: Any, handle: Any) -> int:
    try:
        return int(nvml.nvmlDeviceGetUtilizationRates(handle).gpu)
    except NVMLError:
        return 0  # not known of MIG devices


def _process(pid: int) -> str:
    return f"process {pid} ({name})" if (name := process_name(pid)) else f"process {pid}"


def _by_cuda(cuda: Cuda) -> Iterator[Entry]:
    """The same where the container has no NVML."""
    for device in cuda.devices():
        capability = ".".join(str(cuda.attribute(device, number)) for number in CAPABILITY)
        name = cuda.name(device)
        yield {
            "uuid": cuda.uuid(device),
            "name": name,
            "pci": cuda.pci(device),
            "capability": capability,
            "memory_mib": 0,
            "shape": "mig" if " MIG " in name else "whole",
        }


def main(library: Any = None, nvml: Any = None) -> int:
    try:
        library = library or load()
        nvml = nvml or Nvml()
        driver = ""
        try:
            nvml.nvmlInit()
            driver, gpus = (
                nvml.nvmlSystemGetDriverVersion(),
                list(devices(nvml, pods_by_device(POD_RESOURCES, KUBELET))),
            )
        except NVMLError:
            gpus = list(_by_cuda(Cuda(library)))
    except CudaError as error:
        print(error, file=sys.stderr)
        return 2
    number = c_int()
    library.cuDriverGetVersion(byref(number))
    cuda = f"{number.value // 1000}.{number.value % 1000 // 10}"
    print(json.dumps({"driver": driver, "cuda": cuda, "gpus": gpus}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
