"""NVIDIA's tools: what they print, as their documents and sources have it, and programs that print it."""

import json
from pathlib import Path

import pytest

from gpunode.accept import tools
from tests import tables

# DCGM 4: the tree and the fields of a captured `dcgmi diag -r 1 -j` (DCGM 4.2.3), as parsers of it describe them; the finding is
# DCGM_FR_PERSISTENCE_MODE. DCGM 3: from DCGM's user guide, "Automating Responses to DCGM Diagnostic Failures".
DCGM_4 = {
    "DCGM Diagnostic": {
        "test_categories": [
            {
                "category": "Deployment",
                "tests": [
                    {
                        "name": "software",
                        "results": [
                            {"entity_group": "GPU", "entity_group_id": 1, "entity_id": 0, "status": "Pass"},
                            {
                                "entity_group": "GPU",
                                "entity_group_id": 1,
                                "entity_id": 1,
                                "status": "Fail",
                                "warnings": [
                                    {
                                        "error_category": 8,
                                        "error_id": 29,
                                        "error_severity": 5,
                                        "warning": "Persistence mode for GPU 1 is disabled.",
                                    }
                                ],
                            },
                        ],
                        "test_summary": {"status": "Fail"},
                    }
                ],
            }
        ]
    },
    "metadata": {"version": "4.2.3", "Driver Version Detected": "580.82.09"},
}
DCGM_3 = {
    "DCGM GPU Diagnostic": {
        "test_categories": [
            {
                "category": "Deployment",
                "tests": [{"name": "Blacklist", "results": [{"gpu_ids": "0,1,2,3", "status": "Pass"}]}],
            },
            {
                "category": "Hardware",
                "tests": [
                    {
                        "name": "GPU Memory",
                        "results": [
                            {"gpu_ids": "0", "info": "Allocated 31230841651 bytes (98.6%)", "status": "Pass"},
                            {"gpu_ids": "1", "status": "Skip"},
                        ],
                    }
                ],
            },
        ]
    }
}
# As NVIDIA/nvbandwidth's json_output.cpp writes it: cells are texts.
NVBANDWIDTH = {
    "nvbandwidth": {
        "CUDA Runtime Version": 12090,
        "Driver Version": "580.82.09",
        "testcases": [
            {
                "bandwidth_description": "memcpy CE CPU(row) -> GPU(column) bandwidth (GB/s)",
                "bandwidth_matrix": [["55.64", "55.59"]],
                "name": "host_to_device_memcpy_ce",
                "status": "Passed",
                "sum": 111.23,
            },
            {"name": "device_local_copy", "status": "Waived"},
        ],
        "version": "v0.8",
    }
}
# From the README of NVIDIA/nccl-tests and its common.cu.
ALL_REDUCE = """
# nThread 1 nGpus 8 minBytes 67108864 maxBytes 536870912 step: 2(factor) warmup iters: 5 iters: 20
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
   536870912     134217728     float     sum      -1   2012.3  266.80  466.90      0   2011.1  266.95  467.17      0
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 448.212
#
"""


@pytest.mark.parametrize(("severity", "passed"), [(2, False), (5, True), (6, False)])
def test_dcgm_4(severity, passed):
    """A finding is a problem, with its GPU; a setting of the host fails no GPU."""
    text = json.dumps(DCGM_4).replace('"error_severity": 5', f'"error_severity": {severity}')
    result, figures, problems = tools.read_dcgmi("a line before\n" + text)
    assert result is passed
    assert (figures["pass"], figures["fail"], figures["warn"]) == (1, int(not passed), int(passed))
    assert problems == ["software, GPU 1: Persistence mode for GPU 1 is disabled."]


def test_dcgm_that_measured_nothing():
    """Settings of the host are no test that passed: with them wrong, dcgmi skips the others."""
    finding = {"warning": "Persistence mode", "error_severity": 5}
    tests = [{"name": "software", "results": [{"status": "Fail", "entity_id": 0, "warnings": [finding]}]}]
    tests += [{"name": "memory", "results": [{"status": "Skip", "entity_id": 0}]}]
    text = json.dumps({"DCGM Diagnostic": {"test_categories": [{"category": "x", "tests": tests}]}})
    with pytest.raises(tools.Unreadable, match="no test was run: software, GPU 0: Persistence mode"):
        tools.read_dcgmi(text)


def test_dcgm_3():
    """A test that was skipped is no failure."""
    assert tools.read_dcgmi(json.dumps(DCGM_3)) == (True, {"pass": 2, "fail": 0, "skip": 1, "warn": 0}, [])


def test_nvbandwidth():
    """The worst GPU counts; what cannot run here is no failure, what failed is."""
    assert tools.read_nvbandwidth(json.dumps(NVBANDWIDTH)) == (
        True,
        {"host_to_device_memcpy_ce GB/s": 55.59},
        [],
    )
    corrupt = " Invalid value when checking the pattern at 0x70a640000000\n Current offset : 11136 \nASSERT in expression"  # its issue 34
    assert tools.read_nvbandwidth(corrupt) == (
        False,
        {},
        ["Invalid value when checking the pattern at 0x70a640000000"],
    )
    failed = {"nvbandwidth": {"testcases": [{"name": "x", "status": "Error", "error": "no"}]}}
    assert tools.read_nvbandwidth(json.dumps(failed)) == (False, {}, ["x: no"])


@tables.rows("all-reduce")
def test_all_reduce(text, bandwidth):
    assert tools.read_all_reduce(text) == (True, {"bus GB/s": bandwidth}, [])


def test_wrong_sums_fail():
    wrong = ALL_REDUCE.replace("values : 0 OK", "values : 3 FAILED")
    assert tools.read_all_reduce(wrong)[0] is False


@pytest.mark.parametrize("read", [tools.read_dcgmi, tools.read_nvbandwidth, tools.read_all_reduce])
@pytest.mark.parametrize("text", ["", "Error: Unable to connect to host engine", "{}", '{"nvbandwidth": {}}'])
def test_anything_else_is_no_result(read, text):
    """A host engine that does not run, a tool of another version."""
    with pytest.raises(tools.Unreadable):
        read(text)


def install(folder: Path, name: str, script: str) -> None:
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)


def test_tools_run_where_they_are_installed(tmp_path, monkeypatch):
    """With the GPUs by UUID, whatever their exit status; one that hangs ends, one that is absent is said."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    (tmp_path / "answer").write_text(json.dumps(DCGM_4))
    install(
        tmp_path, "dcgmi", f'cat {tmp_path}/answer; echo "$CUDA_VISIBLE_DEVICES" >{tmp_path}/seen; exit 226'
    )
    install(tmp_path, "all_reduce_perf", "exec sleep 60")
    monkeypatch.setitem(
        tools.PROGRAMS,
        "nccl-tests",
        tools.Program(("all_reduce_perf", "-g", "{gpus}"), tools.read_all_reduce, 0.2, least=2),
    )
    done, reasons = tools.run(["GPU-1", "GPU-2"], lambda line: None)
    assert set(done) == {"dcgmi"}
    assert done["dcgmi"].problems
    assert (tmp_path / "seen").read_text() == "GPU-1,GPU-2\n"
    assert reasons == {"nvbandwidth": "not installed", "nccl-tests": "it did not end within 0.2 s"}
    assert tools.run(["GPU-1"], lambda line: None)[1]["nccl-tests"] == "it takes 2 GPUs"
