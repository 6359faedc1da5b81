"""`python -m gpunode.deviceplugin.vectoradd`: adds two vectors on every GPU that this container sees.

Needs the driver (libcuda.so.1) and the standard library, nothing else: no CUDA toolkit, no image of gigabytes.
"""

import argparse
import json
import math
import operator
import os
import sys
from array import array
from dataclasses import asdict, dataclass, replace
from typing import Any

from .cuda import Cuda, CudaError, load

ELEMENTS = 1 << 18
TOLERANCE = 1e-5
LIMIT = "NVIDIA_GPU_MEMORY_LIMIT"  # MiB; what the NVIDIA Container Toolkit sets a container's limit by


@dataclass(frozen=True, slots=True)
class Result:
    index: int
    uuid: str
    name: str
    elements: int
    max_error: float | None
    error: str | None
    memory_mib: int | None = None  # that the driver shows this container
    limit_mib: int | None = None  # the limit that the driver should enforce
    exclusive: bool = False  # only one process at a time may use it

    @property
    def passed(self) -> bool:
        return self.error is None


def check(cuda: Cuda, index: int, device: int, elements: int = ELEMENTS, limit: int | None = None) -> Result:
    """Add two vectors on one GPU and compare with the CPU's result. Never raises CudaError.

    `limit`: this container's memory limit in MiB. The driver shows an enforced limit as the size of the GPU, and
    allocates no more; so a GPU that looks larger has no enforced limit.
    """
    seen = Result(index, "unknown", "unknown", elements, None, None, limit_mib=limit)
    try:
        name, identity, exclusive = cuda.name(device), cuda.uuid(device), cuda.exclusive(device)
        seen = replace(seen, name=name, uuid=identity, exclusive=exclusive)
        # Halves and quarters: float32 holds these values and their sums exactly.
        left = array("f", map((0.5).__mul__, range(elements)))
        right = array("f", map((0.25).__mul__, range(elements, 0, -1)))
        with cuda.on(device):
            most = cuda.memory()
            seen = replace(seen, memory_mib=most)
            sums = cuda.add(left, right)
            if limit is not None and most <= limit and cuda.gives(limit + 1):
                most = limit + 1
    except CudaError as error:
        return replace(seen, error=str(error))
    worst, at = 0.0, 0
    expected = array("f", map(operator.add, left, right))
    for i, (a, b) in enumerate(zip(expected, sums, strict=True) if sums != expected else ()):
        off = abs(a - b)
        if not off <= worst:  # NaN is worse than anything
            worst, at = off, i
            if math.isnan(off):
                break
    seen = replace(seen, max_error=None if math.isnan(worst) else worst)
    if not worst <= TOLERANCE:
        return replace(seen, error=f"element {at} is {sums[at]}, should be {expected[at]}")
    if limit is not None and most > limit:
        why = (
            f"the driver lets this container have {most} MiB, but {LIMIT} is {limit}: the limit is not enforced; it "
            "takes driver 615, NVIDIA Container Toolkit 1.20.1 and cgroup v2"
        )
        return replace(seen, error=why)
    return seen


def main(arguments: list[str] | None = None, library: Any = None) -> int:
    """Exit status: 0 every GPU passed; 1 one failed; 2 no GPU could be used."""
    parser = argparse.ArgumentParser(
        prog="python -m gpunode.deviceplugin.vectoradd",
        description="Add two vectors on every GPU that is visible here and check the sums.",
        epilog="example: python -m gpunode.deviceplugin.vectoradd --json",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of lines")
    parser.add_argument("--elements", type=int, default=ELEMENTS, help="length of the vectors")
    options = parser.parse_args(arguments)
    text = os.environ.get(LIMIT, "")
    limit = int(text) if text.isdecimal() else None
    try:
        cuda = Cuda(library or load())
        version = cuda.version()
        results = [check(cuda, i, device, options.elements, limit) for i, device in enumerate(cuda.devices())]
    except CudaError as error:
        print(
            json.dumps({"passed": False, "error": str(error), "gpus": []})
            if options.json
            else f"Test FAILED: {error}"
        )
        return 2
    passed = all(result.passed for result in results)
    if options.json:
        gpus = [{**asdict(result), "passed": result.passed} for result in results]
        print(json.dumps({"passed": passed, "cuda": version, "gpus": gpus}))
    else:
        for r in results:
            outcome = f"max error {r.max_error:g}: Test PASSED" if r.passed else f"Test FAILED: {r.error}"
            print(f"GPU {r.index} {r.uuid} {r.name}: {r.elements} elements: {outcome}")
        print("Test PASSED" if passed else "Test FAILED")
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
