"""NVIDIA's own tools, where they are installed: run with a deadline, and their verdicts and figures read."""

import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from gpunode.contract.measurements import Tool

Parsed = tuple[bool, dict[str, float], list[str]]  # passed, figures, problems


CONFIG = 5  # DCGM_ERROR_CONFIG of dcgm_errors.h: a setting of the host, as its persistence mode, and no fault of a GPU


class Unreadable(ValueError):
    """A tool's output is not what this module knows."""


def read_dcgmi(text: str) -> Parsed:
    """`dcgmi diag -j`: figures count the tests by outcome. DCGM 3 has `gpu_ids`, DCGM 4 entities and a summary."""
    document = _json(text)
    root = document.get("DCGM Diagnostic") or document.get("DCGM GPU Diagnostic")
    if not isinstance(root, dict) or "test_categories" not in root:
        raise Unreadable(_first_line(text))
    counts: dict[str, float] = {"pass": 0, "fail": 0, "skip": 0, "warn": 0}
    problems = []
    for test in (test for category in root["test_categories"] for test in category["tests"]):
        for result in test["results"]:
            status = str(result["status"]).lower()
            warnings = result.get("warnings") or result.get("info") or []
            lines = [warnings] if isinstance(warnings, str) else warnings
            if {line.get("error_severity") if isinstance(line, dict) else None for line in lines} == {CONFIG}:
                status = "warn"
            counts[status] = counts.get(status, 0) + 1
            if status in {"fail", "warn"}:
                gpu = result.get("entity_id", result.get("gpu_ids", result.get("gpu_id", "")))
                words = [str(line["warning"]) if isinstance(line, dict) else str(line) for line in lines]
                problems.append(f"{test['name']}, GPU {gpu}: {'; '.join(words) or status}")
    if not counts["pass"] + counts["fail"]:
        raise Unreadable(": ".join(["no test was run", *problems[:1]]))
    return not counts["fail"], counts, problems


def read_nvbandwidth(text: str) -> Parsed:
    """`nvbandwidth -j`: of each test case the lowest GB/s that its matrix has. A copy that is not right ends the program without JSON."""
    if wrong := re.search(r"Invalid value when checking the pattern.*", text):
        return False, {}, [wrong[0].strip()]
    root = _json(text).get("nvbandwidth")
    if not isinstance(root, dict):
        raise Unreadable(_first_line(text))
    figures, problems = {}, [str(root["error"])] if root.get("error") else []
    for case in root.get("testcases") or ():
        cells = [float(cell) for row in case.get("bandwidth_matrix", ()) for cell in row if cell != "N/A"]
        if case["status"] == "Passed" and cells:
            figures[f"{case['name']} GB/s"] = min(cells)
        elif case["status"] not in {"Passed", "Waived"}:
            problems.append(f"{case['name']}: {case.get('error') or case['status']}")
    if not figures and not problems:
        raise Unreadable("no test case was run")
    return not problems, figures, problems


def read_all_reduce(text: str) -> Parsed:
    """`all_reduce_perf`: the average bus bandwidth in GB/s, and the values that were out of bounds."""
    bandwidth = re.search(r"# Avg bus bandwidth\s*:\s*([\d.]+)", text)
    wrong = re.search(r"# Out of bounds values\s*:\s*(\d+)", text)
    if not bandwidth:
        raise Unreadable(_first_line(text))
    count = int(wrong[1]) if wrong else 0
    return (
        not count,
        {"bus GB/s": float(bandwidth[1])},
        [f"{count} values are out of bounds"] if count else [],
    )


@dataclass(frozen=True, slots=True)
class Program:
    """One of NVIDIA's tools. `longest`: seconds; `least`: GPUs that it needs."""

    command: tuple[str, ...]
    read: Callable[[str], Parsed]
    longest: float
    least: int = 1


PROGRAMS = {
    "dcgmi": Program(("dcgmi", "diag", "-r", "1", "-j"), read_dcgmi, 60),
    "nvbandwidth": Program(
        (
            "nvbandwidth",
            "-j",
            "-t",
            "host_to_device_memcpy_ce",
            "device_to_host_memcpy_ce",
            "device_local_copy",
        ),
        read_nvbandwidth,
        40,
    ),
    "nccl-tests": Program(
        ("all_reduce_perf", "-b", "64M", "-e", "512M", "-f", "2", "-g", "{gpus}"),
        read_all_reduce,
        40,
        least=2,
    ),
}


def run(uuids: Sequence[str], say: Callable[[str], None]) -> tuple[dict[str, Tool], dict[str, str]]:
    """The tools that could be run on these GPUs, and why the others were not. They must be all that the tools would find."""
    done: dict[str, Tool] = {}
    reasons: dict[str, str] = {}
    for name, program in PROGRAMS.items():
        if not shutil.which(program.command[0]):
            reasons[name] = "not installed"
        elif len(uuids) < program.least:
            reasons[name] = f"it takes {program.least} GPUs"
        else:
            say(name)
            began = time.monotonic()
            try:
                passed, figures, problems = program.read(_output(program, uuids))
            except subprocess.TimeoutExpired:
                reasons[name] = f"it did not end within {program.longest:g} s"
            except (OSError, ValueError, KeyError, TypeError) as error:
                reasons[name] = f"its output cannot be read: {error}"
            else:
                seconds = round(time.monotonic() - began, 1)
                done[name] = Tool(passed, seconds, figures, tuple(problems))
    return done, reasons


def _output(program: Program, uuids: Sequence[str]) -> str:
    """What it prints, whatever its exit status: dcgmi has one for each kind of finding."""
    done = subprocess.run(
        [part.format(gpus=len(uuids)) for part in program.command],
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ",".join(uuids)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
        timeout=program.longest,
    )
    return done.stdout or done.stderr


def _json(text: str) -> dict[str, Any]:
    """The object in the text; some versions print lines before it."""
    try:
        document = json.loads(text[text.index("{") : text.rindex("}") + 1])
    except ValueError:
        raise Unreadable(_first_line(text)) from None
    return document if isinstance(document, dict) else {}


def _first_line(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "it is empty")
