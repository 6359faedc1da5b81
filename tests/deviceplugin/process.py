"""The plugin as a process of its own, on fake GPUs: `python -m tests.deviceplugin.process GPU-a,GPU-b [flags]`.

TEST_USER: the id of the user that it becomes, once all code has been read: checkout and Python may lie in root's home.
"""

import argparse  # noqa: F401 (what would be read later, from where the user may not)
import concurrent.futures.thread  # noqa: F401 (the same)
import os
import sys

from gpunode.deviceplugin import __main__ as program

from .nvml import FakeNvml, Gpu

if __name__ == "__main__":
    gpus = [Gpu(uuid, minor=number) for number, uuid in enumerate(sys.argv.pop(1).split(","))]
    program.Nvml = lambda: FakeNvml(*gpus)  # type: ignore[return-value]
    if user := int(os.environ.get("TEST_USER", "0")):
        os.setgroups([])
        os.setgid(user)
        os.setuid(user)
    sys.exit(program.main())
