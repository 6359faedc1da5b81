"""What a container sees as nvidia-smi: the list of its GPUs, read through the stand-in of NVML."""

from __future__ import annotations

import pynvml


def main() -> None:
    pynvml.nvmlInit()
    print(f"NVIDIA-SMI (simulated)   Driver Version: {pynvml.nvmlSystemGetDriverVersion()}")
    for index in range(pynvml.nvmlDeviceGetCount()):
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        print(f"{index}  {pynvml.nvmlDeviceGetName(handle)}  {pynvml.nvmlDeviceGetUUID(handle)}")


if __name__ == "__main__":
    main()
