"""`python -m gpunode.sim.node.inside MODULE ARGUMENTS`: runs a module as in a container of a simulated host.

The module and its imports are the real ones. Only the driver's two libraries are stand-ins, which answer from the state
of the host that GPUNODE_SIM_HOST names; they exist only where the nvidia runtime would mount them. Servers listen at the
pod's address, not at all of this computer's. The process ends when its standard input does: with its kubelet.
"""

import asyncio
import ctypes
import errno
import os
import runpy
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

from gpunode.deviceplugin.nvml import Nvml as Binding
from gpunode.sim.node.container import Endpoints
from gpunode.sim.node.cuda import Cuda
from gpunode.sim.node.nvml import Driver, Nvml

# Library -> its stand-in, and the driver capability that a container must request to get it.
LIBRARIES: dict[str, tuple[Any, str]] = {
    "libnvidia-ml.so.1": (Nvml, "utility"),
    "libcuda.so.1": (Cuda, "compute"),
}
_real = ctypes.CDLL


class Libraries(ctypes.CDLL):
    """Replaces ctypes.CDLL."""

    def __new__(cls, name: Any = None, *arguments: Any, **more: Any) -> Any:
        """The stand-in of a driver's library, or the real library of that name."""
        if name in LIBRARIES:
            made, capability = LIBRARIES[name]
            capabilities = os.environ.get("NVIDIA_DRIVER_CAPABILITIES", "").split(",")
            if "GPUNODE_SIM_HOST" not in os.environ or not {capability, "all"} & set(capabilities):
                raise OSError(f"{name}: cannot open shared object file: No such file or directory")
            return made(Driver(Path(os.environ["GPUNODE_SIM_HOST"]), os.environ))
        library = _real(name, *arguments, **more)
        if name is None and not hasattr(library, "inotify_init1"):
            return WithoutInotify()
        return library


class WithoutInotify:
    """The C library of a Mac, where the plugin would be on Linux: with no inotify instance left."""

    def inotify_init1(self, _flags: int) -> int:
        ctypes.set_errno(errno.EMFILE)
        return -1


def _end_with_parent() -> None:
    while os.read(0, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(3)
    os._exit(143)


def _listen_at(address: str) -> None:
    """Have servers without an address listen at the pod's own, HOST:PORT as in Endpoints."""
    host, _, port = address.rpartition(":")
    place = Endpoints(Path(), Path(), host, int(port))
    start = asyncio.start_server

    async def started(answer: Any, named: Any, port: int, **more: Any) -> asyncio.Server:
        return await start(answer, named or host, place.at(port), **more)

    asyncio.start_server = started  # type: ignore[assignment]


def print_gpus() -> None:
    """nvidia-smi: the container's GPUs, read through the stand-in of NVML."""
    nvml = Binding()
    nvml.nvmlInit()
    print(f"NVIDIA-SMI (simulated)   Driver Version: {nvml.nvmlSystemGetDriverVersion()}")
    for index in range(nvml.nvmlDeviceGetCount()):
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        print(f"{index}  {nvml.nvmlDeviceGetName(handle)}  {nvml.nvmlDeviceGetUUID(handle)}")


def main() -> None:
    _listen_at(os.environ["GPUNODE_SIM_ADDRESS"])
    threading.Thread(target=_end_with_parent, daemon=True).start()
    ctypes.CDLL = Libraries  # type: ignore[misc]
    sys.argv = sys.argv[1:]
    if sys.argv == ["nvidia-smi"]:
        print_gpus()
    else:
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
