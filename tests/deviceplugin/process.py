"""The plugin as a process of its own, on fake GPUs: `python -m tests.deviceplugin.process GPU-a,GPU-b [flags]`."""

from __future__ import annotations

import sys

from gpunode.deviceplugin.__main__ import main

from .nvml import FakeNvml, Gpu

if __name__ == "__main__":
    gpus = [Gpu(uuid, minor=number) for number, uuid in enumerate(sys.argv.pop(1).split(","))]
    sys.modules["pynvml"] = FakeNvml(*gpus)  # type: ignore[assignment]
    sys.exit(main())
