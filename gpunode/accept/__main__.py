"""`python -m gpunode.accept`: measures every GPU here and prints the figures, as `gpunode.contract.measurements` has them, in one line.

Needs the driver and Python's standard library. Changes no setting of a GPU.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

from gpunode.contract import measurements
from gpunode.contract.measurements import FIGURES, LEVELS, Gpu, Measurements, Tool, gpu_from_json

from . import tools
from .children import Child, Children

LISTED = 60  # seconds that the driver may take to list the GPUs
TRANSFERS = {"quick": 6.0, "standard": 30.0}  # seconds for all GPUs, one after the other
LONGEST = 1.5  # of one GPU
MPS = "CUDA_MPS_PIPE_DIRECTORY"  # in the environment of clients of an MPS daemon
SHARED = 0.9  # of a GPU's memory: a process that may use less has a share


def run(module: str, *arguments: str) -> list[str]:
    """The command of another module of this program."""
    return [
        sys.executable,
        *(["-S"] if sys.flags.no_site else []),
        "-m",
        f"{__package__}.{module}",
        *arguments,
    ]


def main(arguments: list[str] | None = None) -> int:
    """Exit status: 0 the document is written, whatever is in it; 2 there is no driver or none of the GPUs."""
    parser = argparse.ArgumentParser(
        prog="python -m gpunode.accept",
        description="Measure the GPUs that are visible here; prints one line of JSON, and progress on stderr.",
        epilog="example: python -m gpunode.accept --level quick --gpus GPU-5b1e3b2c-0b6f-5c1e-9c6f-0d3c8a5f7e11",
    )
    parser.add_argument(
        "--level", choices=LEVELS, default="quick", help="how long to measure (default: quick)"
    )
    parser.add_argument("--gpus", metavar="UUID,...", help="measure only these GPUs and MIG devices")
    parser.add_argument("--json", action="store_true", help="no effect: the output is always JSON")
    options = parser.parse_args(arguments)
    began = time.monotonic()
    try:
        listed = _list()
    except RuntimeError as error:
        print(error, file=sys.stderr)
        return 2
    gpus = _choose(listed["gpus"], options.gpus.split(",") if options.gpus else None)
    able = [gpu for gpu in gpus if "error" not in gpu]
    transfers = min(LONGEST, TRANSFERS[options.level] / max(1, len(able)))
    measured = measure(
        gpus, lambda uuid: run("child", uuid, options.level, f"{transfers:.2f}"), Children(say)
    )
    done, reasons = _tools(measured, options.level, chosen=bool(options.gpus))
    document = Measurements(
        level=options.level,
        driver=listed["driver"],
        cuda=listed["cuda"],
        kernel=os.uname().release,
        seconds=round(time.monotonic() - began, 1),
        gpus=measured,
        tools=done,
        not_measured_tools=reasons,
    )
    print(measurements.dumps(document))
    return 0


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _list() -> dict[str, Any]:
    """Raises RuntimeError if there is no driver, or it does not answer."""
    say("list of GPUs")
    try:
        done = subprocess.run(run("listing"), capture_output=True, text=True, check=False, timeout=LISTED)
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"the driver has not listed the GPUs within {LISTED} s") from None
    if done.returncode:
        raise RuntimeError(done.stderr.strip())
    listed: dict[str, Any] = json.loads(done.stdout)
    return listed


def _choose(gpus: list[dict[str, Any]], uuids: list[str] | None) -> list[dict[str, Any]]:
    """Those that were asked for; one that is not there has an error."""
    if uuids is None:
        return gpus
    listed = {gpu["uuid"]: gpu for gpu in gpus}
    absent = {"name": "", "pci": "", "capability": "", "memory_mib": 0, "shape": "whole"}
    error = {"code": "lost", "text": "the driver lists no such GPU"}
    return [listed.get(uuid) or {"uuid": uuid, **absent, "error": error} for uuid in uuids]


def measure(
    gpus: list[dict[str, Any]], command: Callable[[str], list[str]], children: Children
) -> tuple[Gpu, ...]:
    """Measure the listed GPUs that have no error yet, each by the command for its UUID."""
    able = [gpu["uuid"] for gpu in gpus if "error" not in gpu]
    ended = children.run({uuid: command(uuid) for uuid in able})
    return tuple(_gpu(gpu, ended.get(gpu["uuid"])) for gpu in gpus)


def _tools(gpus: tuple[Gpu, ...], level: str, *, chosen: bool) -> tuple[dict[str, Tool], dict[str, str]]:
    """NVIDIA's tools take all GPUs that they find, so that none may be in use."""
    errors = [f"{gpu.uuid}: {gpu.error.code}" for gpu in gpus if gpu.error]
    why = (
        "the level is quick"
        if level == "quick"
        else "only some GPUs were to be measured"
        if chosen
        else errors[0]
        if errors
        else ""
    )
    if why:
        return {}, dict.fromkeys(measurements.TOOLS, why)
    return tools.run([gpu.uuid for gpu in gpus], say)


def _gpu(listed: Mapping[str, Any], child: Child | None) -> Gpu:
    report = child.report if child else {}
    error = listed.get("error") or report.get("error")
    values, reasons = report.get("measured", {}), report.get("not_measured", {})
    memory = report.get("memory_mib", listed["memory_mib"])
    limited = memory < SHARED * listed["memory_mib"] or MPS in os.environ
    share = listed["shape"] == "whole" and limited
    otherwise = f"{error['code']}: {error['text']}" if error else "the driver has no such figure"
    reasons = {name: reasons.get(name, otherwise) for name in FIGURES if name not in values}
    return gpu_from_json(
        {
            **listed,
            "memory_mib": memory,
            "shape": "shared" if share else listed["shape"],
            "seconds": round(child.seconds, 1) if child else 0.0,
            "error": error,
            "measured": values,
            "not_measured": reasons,
        }
    )


if __name__ == "__main__":
    sys.exit(main())
