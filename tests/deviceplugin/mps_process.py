"""The process of the MPS control daemons, on fake GPUs: `python -m tests.deviceplugin.mps_process GPU-a,GPU-b [flags]`.

Without its mounts: what it would have as /dev/shm is this machine's.
"""

import sys

from gpunode.deviceplugin.mps import __main__ as program
from gpunode.deviceplugin.mps import shm

from .nvml import FakeNvml, Gpu

if __name__ == "__main__":
    gpus = [Gpu(uuid, minor=number) for number, uuid in enumerate(sys.argv.pop(1).split(","))]
    program.Nvml = lambda: FakeNvml(*gpus)  # type: ignore[return-value]
    shm.share = lambda root: None
    sys.exit(program.main())
