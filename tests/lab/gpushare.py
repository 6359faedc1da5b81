"""A stand-in for gpushare's device plugin, whose text runs in a container of the plugin's image: `python -c TEXT UUID,… UNITS`."""

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path

from gpunode.contract.offer import Device, Unit
from gpunode.deviceplugin.kubelet import messages
from gpunode.deviceplugin.kubelet.allocate import Grant
from gpunode.deviceplugin.rpc import Server, call

FOLDER, NAME = Path("/var/lib/kubelet/device-plugins"), "aliyungpushare.sock"
CHOSEN = Path("/host/gpushare-index")  # the GPU of the next container
METHODS = "/v1beta1.DevicePlugin/"


async def get_options(_request: bytes) -> bytes:
    return b""


async def list_and_watch(_request: bytes) -> AsyncIterator[bytes]:
    gpus = [Device(uuid, "", "", uuid, "", None) for uuid in sys.argv[1].split(",")]
    units = [Unit(f"{gpu.uuid}-_-{number}", gpu) for gpu in gpus for number in range(int(sys.argv[2]))]
    yield b"".join(messages.device(unit, "Healthy") for unit in units)
    await asyncio.Event().wait()


async def allocate(request: bytes) -> bytes:
    index, grants = CHOSEN.read_text().strip(), []
    for ids in messages.ids_by_container(request):
        chosen = {"NVIDIA_VISIBLE_DEVICES": index, "ALIYUN_COM_GPU_MEM_IDX": index}
        count = str(len(ids))
        sizes = {"POD": count, "CONTAINER": count, "DEV": sys.argv[2]}
        grants.append(
            Grant({**chosen, **{f"ALIYUN_COM_GPU_MEM_{name}": size for name, size in sizes.items()}})
        )
    return messages.allocate_response(grants)


async def main() -> None:
    unary = {f"{METHODS}GetDevicePluginOptions": get_options, f"{METHODS}Allocate": allocate}
    await Server(unary, {f"{METHODS}ListAndWatch": list_and_watch}).start(FOLDER / NAME)
    request = messages.registration("v1beta1", NAME, "aliyun.com/gpu-mem", b"")
    await call(FOLDER / "kubelet.sock", "/v1beta1.Registration/Register", request, seconds=20)
    print("registered", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
