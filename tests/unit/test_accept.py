"""What measured GPUs are judged by: 1,000 healthy hosts raise no alarm, injected faults are named."""

import json
import time
import uuid
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from gpunode.acceptance.judge import compare_fleet, find_model, judge, models, summarize
from gpunode.acceptance.record import Acceptance
from gpunode.acceptance.stamp import Stamp, read_stamp
from gpunode.commands import verify
from gpunode.contract.condition import ACCEPTED
from gpunode.contract.measurements import (
    Failure,
    Gpu,
    Measured,
    Measurements,
    RemappedRows,
    Tool,
    dumps,
    loads,
)
from gpunode.engine import acceptance, accepted
from gpunode.engine.fleet import failure
from gpunode.engine.member import Member
from gpunode.engine.session import Session
from gpunode.errors import HostError, Problem, Unreachable
from gpunode.links.node import parse
from gpunode.model import Cluster, ExpectedGpus, Host, Inventory, MigDevice, Outcome, Ssh, Verdict
from gpunode.model import Gpu as GpuFacts
from gpunode.sim.host.kinds import MODELS
from gpunode.sim.host.machine import SimGpu
from gpunode.sim.node.accept import measure
from tests import tables

DAY = 86400.0

INVENTORY = Inventory("inventory.yaml", (), Cluster())


def host(number: int, model: str = "h100", count: int = 4, level: str = "standard") -> Measurements:
    """A healthy simulated host's."""
    kind = MODELS[model]
    names = [f"GPU-{uuid.uuid5(uuid.NAMESPACE_OID, f'{model} {number} {gpu}')}" for gpu in range(count)]
    gpus = {name: SimGpu(name, kind.name, kind.device, "0000:3b:00.0", kind.memory_mib) for name in names}
    return measure(gpus, level, "580.159.04", "6.1.0-40-amd64")


def changed(document: Measurements, change: Callable[[Gpu], Gpu], number: int = 0) -> Measurements:
    gpus = list(document.gpus)
    gpus[number] = change(gpus[number])
    return replace(document, gpus=tuple(gpus))


def figures(**values: object) -> Callable[[Gpu], Gpu]:
    return lambda gpu: replace(gpu, measured=replace(gpu.measured, **values))


def scaled(figure: str, factor: float) -> Callable[[Gpu], Gpu]:
    return lambda gpu: figures(**{figure: getattr(gpu.measured, figure) * factor})(gpu)


def failed(code: str) -> Callable[[Gpu], Gpu]:
    return lambda gpu: replace(gpu, error=Failure(code, "…"))


def test_a_thousand_healthy_hosts_raise_no_alarm():
    """Fleets of 50 hosts of a model, and hosts alone."""
    hosts = 0
    for run in range(20):
        model = list(MODELS)[run % len(MODELS)]
        documents = [host(50 * run + number, model, 8 if run % 2 else 2) for number in range(50)]
        fleet = compare_fleet(documents)
        for document in documents:
            for against in (fleet, compare_fleet([document])):
                assert [each.problems for each in judge(document, against) if each.problems] == []
            hosts += 1
    assert hosts == 1000


ROWS = RemappedRows(0, 1, False, False)
FAULTS = {
    "one wrong word of memory": ("h100", figures(memory_errors=1), "memory-errors"),
    "many wrong words of memory": ("t4", figures(memory_errors=7_000), "memory-errors"),
    "a wrong result": ("h100", figures(compute_errors=1), "compute-errors"),
    "many wrong results": ("p100", figures(compute_errors=4096), "compute-errors"),
    "uncorrected ECC": ("a100", figures(ecc_uncorrected=1), "ecc-uncorrected"),
    "many uncorrected ECC": ("h200", figures(ecc_uncorrected=90), "ecc-uncorrected"),
    "row remap pending": ("a100", figures(remapped_rows=replace(ROWS, pending=True)), "remap-pending"),
    "row remap failed": ("h100", figures(remapped_rows=replace(ROWS, failed=True)), "remap-failed"),
    "x8 of x16": ("h100", figures(pcie_width=8), "pcie-width"),
    "x4 of x16": ("t4", figures(pcie_width=4), "pcie-width"),
    "x1 of x16": ("p100", figures(pcie_width=1), "pcie-width"),
    "gen 1 of 5": ("h100", figures(pcie_generation=1), "pcie-generation"),
    "gen 3 of 4": ("l40s", figures(pcie_generation=3), "pcie-generation"),
    "gen 4 of 5": ("b200", figures(pcie_generation=4), "pcie-generation"),
    "thermal throttle": ("h100", figures(throttle=("hw_slowdown", "hw_thermal_slowdown")), "throttled"),
    "power brake": ("a100", figures(throttle=("hw_power_brake_slowdown",)), "throttled"),
    "hardware slowdown": ("v100", figures(throttle=("hw_slowdown", "sw_power_cap")), "throttled"),
    "locked clocks": ("h100", figures(throttle=(), sm_mhz=345), "clock-low"),
    "locked clocks and slow": ("l4", figures(throttle=("applications_clocks_setting",), sm_mhz=900), "clock-low"),
    "one NVLink down": ("h100", figures(nvlink_active=17, nvlink_inactive=1), "nvlink-inactive"),
    "two NVLinks of an A100 down": ("a100", figures(nvlink_active=10, nvlink_inactive=2), "nvlink-inactive"),
    "a V100 with fewer than its neighbours": ("v100", figures(nvlink_active=4, nvlink_inactive=2), "nvlink-inactive"),
    "no NVLink at all": ("h200", figures(nvlink_active=0, nvlink_inactive=18), "nvlink-inactive"),
    "fabric in progress": ("h100", figures(fabric="in-progress"), "fabric"),
    "fabric failed": ("b200", figures(fabric="failed"), "fabric"),
    "fabric not started": ("h200", figures(fabric="not-started"), "fabric"),
    "half of the memory's speed": ("h100", scaled("memory_gbps", 0.5), "memory-slow"),
    "half of a T4's": ("t4", scaled("memory_gbps", 0.5), "memory-slow"),
    "an eighth less than the fleet's memory": ("h200", scaled("memory_gbps", 0.85), "slower-than-fleet"),
    "half of the computation": ("h100", scaled("compute_tflops", 0.5), "compute-slow"),
    "half of a V100's computation": ("v100", scaled("compute_tflops", 0.5), "compute-slow"),
    "a sixth less than the fleet's computation": ("a100", scaled("compute_tflops", 0.83), "slower-than-fleet"),
    "slow copies to the GPU": ("h100", scaled("to_device_gbps", 0.3), "transfer-slow"),
    "slow copies from the GPU": ("p100", scaled("from_device_gbps", 0.3), "transfer-slow"),
    "copies slower than the fleet's": ("h100", scaled("to_device_gbps", 0.7), "slower-than-fleet"),
    "hangs": ("h100", failed("hangs"), "hangs"),
    "CUDA error": ("h100", failed("cuda"), "cuda"),
    "fell off the bus": ("h100", failed("lost"), "lost"),
    "driver error": ("h100", failed("driver"), "driver"),
    "nothing measured": ("h100", lambda gpu: replace(gpu, measured=Measured()), "not-measured"),
}  # fmt: skip


REAL = Path(__file__).parents[1] / "cases/acceptance"  # as real GPUs were measured


@pytest.mark.parametrize("share", [1.0, 0.92])
@pytest.mark.parametrize("path", sorted(REAL.iterdir()), ids=lambda path: path.stem)
def test_real_gpus_are_healthy_with_room_to_spare(path: Path, share: float):
    """In virtual machines without NVLinks; the H200 is held by its power limit, as it is to be."""
    document = loads(path.read_text())
    for figure in ("memory_gbps", "compute_tflops", "to_device_gbps", "from_device_gbps"):
        document = changed(document, scaled(figure, share))
    (judged,) = judge(document, compare_fleet([document]))
    assert (judged.problems, judged.remarks) == ((), ())


@pytest.mark.parametrize("name", FAULTS)
def test_an_injected_fault_is_named_on_its_gpu_and_on_no_other(name: str):
    model, change, code = FAULTS[name]
    document = changed(host(1, model, 8), change, 3)
    judged = judge(document, compare_fleet([document]))
    assert [each.result for each in judged] == ["accepted"] * 3 + ["failed"] + ["accepted"] * 4
    assert code in [problem.code for problem in judged[3].problems]
    assert all(problem.fix and problem.layer for problem in judged[3].problems)
    assert summarize(judged) == "failed"


def test_there_are_forty_faults():
    assert len(FAULTS) == 40


def test_a_gpu_in_use_is_skipped_and_fails_nothing():
    document = changed(host(1), failed("in-use"))
    judged = judge(document, {})
    assert [each.result for each in judged] == ["skipped"] + ["accepted"] * 3
    assert summarize(judged) == "partly"
    assert summarize(judged[:1]) == "skipped"


def test_a_model_without_a_row_is_judged_by_its_fleet_alone_and_that_is_said():
    document = host(1, count=6)
    unknown = replace(document, gpus=tuple(replace(gpu, name="NVIDIA X1") for gpu in document.gpus))
    alone = judge(changed(unknown, scaled("memory_gbps", 0.1)), {})
    assert alone[0].result == "accepted"
    assert any("compared with nothing" in remark for remark in alone[0].remarks)
    slow = changed(unknown, scaled("memory_gbps", 0.85))
    judged = judge(slow, compare_fleet([slow]))
    assert [problem.code for problem in judged[0].problems] == ["slower-than-fleet"]
    assert judged[1].basis == "the fleet's median alone"


def test_a_share_of_a_gpu_is_judged_by_rules_only():
    def share(gpu: Gpu) -> Gpu:
        for figure in ("memory_gbps", "to_device_gbps", "from_device_gbps"):
            gpu = scaled(figure, 0.2)(gpu)
        return replace(gpu, shape="shared")

    document = changed(host(1), share)
    judged = judge(document, compare_fleet([document]))[0]
    assert judged.result == "accepted"
    assert any("compared with nothing" in remark for remark in judged.remarks)


@pytest.mark.parametrize("active", [0, 4])
def test_nvlinks_that_are_inactive_by_design_are_a_remark(active: int):
    """A V100 of a mesh, and cards without a bridge."""
    document = host(1, "v100")
    every = figures(nvlink_active=active, nvlink_inactive=6 - active)
    document = replace(document, gpus=tuple(map(every, document.gpus)))
    for judged in judge(document, compare_fleet([document])):
        assert judged.problems == ()
        assert f"{6 - active} of its NVLinks are inactive" in judged.remarks


@tables.rows("models-by-name")
def test_the_first_row_that_fits_a_name_counts(name: str, memory: float | None):
    row = find_model(name)
    assert (row and row.memory_gbps) == memory


def test_every_row_has_a_source_and_shares_below_one():
    for row in models():
        assert row.source
        assert 0.3 <= row.compute_share < 1 and 0.5 <= row.memory_share < 1  # noqa: PT018


def stamp(**changes: object) -> Stamp:
    document = host(1, count=2)
    made = Acceptance("gpu-01", document, judge(document, {}), 1_800_000_000.0, "image@sha256:1").stamp(
        30 * DAY
    )
    return replace(made, **changes)


def test_a_stamp_is_read_as_it_was_written():
    assert read_stamp(stamp().text()) == stamp()
    later = json.dumps({**json.loads(stamp().text()), "version": 2})
    numbers = stamp().text().replace('"at": "', '"at": 1, "was": "')
    assert [read_stamp(text) for text in ("", "[]", "{}", later, numbers, "null")] == [None] * 6


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({}, ""),
        ({"until": 1_800_000_000.0}, "it ran out"),
        ({"at": 1_800_000_000.0 + 3 * DAY}, "it is dated 2027-01-18 08:00 UTC, which is in the future"),
        ({"driver": "570.1"}, "it was for driver 570.1"),
        ({"kernel": "5.15"}, "it was for kernel 5.15"),
        ({"uuids": ("GPU-other",)}, "it leaves out GPU-"),
        ({"failed": ("GPU-bad",), "verdict": "failed"}, "GPU-bad failed it"),
    ],
)
def test_a_stamp_holds_for_its_driver_kernel_gpus_and_time(changes: dict[str, object], why: str):
    uuids = stamp().uuids
    void = stamp(**changes).why_void(
        now=1_800_000_000.0 + DAY, driver="580.159.04", kernel="6.1.0-40-amd64", uuids=uuids
    )
    assert void.startswith(why)
    assert bool(void) == bool(why)


def test_a_run_that_skipped_gpus_keeps_what_an_earlier_one_accepted():
    whole = stamp()
    part = replace(whole, verdict="partly", uuids=whole.uuids[:1], at=whole.at + DAY, until=whole.until + DAY)
    assert set(part.with_earlier(whole).uuids) == set(whole.uuids)
    assert part.with_earlier(whole).until == whole.until
    assert part.with_earlier(replace(whole, driver="1")) == part
    assert part.with_earlier(replace(whole, failed=whole.uuids[1:], verdict="failed")) == part


def test_a_quick_run_does_not_count_as_a_standard_one():
    """Nor does a standard run that skipped GPUs take over what a quick one accepted."""
    standard = stamp()
    quick = replace(standard, level="quick", at=standard.at + DAY, until=standard.until + DAY)
    assert not quick.replaces(standard)
    assert standard.replaces(quick)
    assert replace(quick, verdict="failed").replaces(standard)
    assert quick.replaces(replace(standard, driver="1"))
    assert quick.replaces(replace(standard, uuids=standard.uuids[:1]))
    part = replace(standard, verdict="partly", uuids=standard.uuids[:1], at=quick.at + DAY)
    assert part.with_earlier(quick) == part


def test_a_quick_run_is_not_enough_where_an_acceptance_is_required(tmp_path, monkeypatch):
    """And leaves the record of a standard one alone."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    uuids, chain = [gpu.uuid for gpu in host(1).gpus], [Verdict.ok("kubelet", "it runs")]
    member = Member(Host("gpu", Ssh("gpu"), accept_required=True))

    def accept(level: str) -> list[Verdict]:
        session = Visits(gpu={"output": dumps(host(1, level=level)), "error": ""})
        acceptance.accept_on_hosts(cast("Session", session), level)
        return list(accepted.judge_record(accepted.folder(INVENTORY), member, chain, uuids, time.time()))

    *_, last = accept("quick")
    assert last.status == "broken"
    assert "it was quick, and the inventory asks for standard" in last.cause
    assert accepted.is_due(accepted.folder(INVENTORY), member, uuids, time.time())
    assert [link.status for link in accept("standard")] == ["ok"]
    assert [link.status for link in accept("quick")] == ["ok"]


@pytest.mark.parametrize(("number", "counts"), [(1, True), (2, False)])
def test_an_acceptance_on_the_host_counts_for_its_node(number: int, counts: bool, tmp_path, monkeypatch):
    """But not for another cluster's host of the same name, which has other GPUs."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    session = Visits(gpu={"output": dumps(host(1)), "error": ""})
    acceptance.accept_on_hosts(cast("Session", session), "standard")
    node = parse({"metadata": {"name": "gpu", "uid": "12345678-9"}, "spec": {}, "status": {}})
    member, seen = Member(session.hosts[0], node=node), [gpu.uuid for gpu in host(number).gpus]
    (link,) = accepted.judge_record(
        accepted.folder(INVENTORY), member, [Verdict.ok("pod", "passed")], seen, time.time()
    )
    assert ("accepted just now" in link.text, link.cause) == (counts, "")


def test_an_acceptance_of_a_clock_that_was_ahead_hides_no_later_one(tmp_path):
    """It counts by its date alone where there is no other."""
    made, now = stamp(), stamp().at + DAY
    ahead = replace(made, at=now + 9 * DAY, until=now + 39 * DAY)
    failed = replace(made, verdict="failed", failed=made.uuids, uuids=())
    annotations = {ACCEPTED: failed.text()}
    item = {
        "metadata": {"name": "gpu", "uid": "12345678-9", "annotations": annotations},
        "spec": {},
        "status": {},
    }
    accepted.path_of(tmp_path, "gpu-01", None).write_text(ahead.text())
    assert accepted.newest(tmp_path, "gpu-01", parse(item), made.uuids, now) == failed
    assert accepted.newest(tmp_path, "gpu-01", None, made.uuids, now) == ahead


def test_a_failure_of_nvidias_own_programs_fails_the_host():
    document = replace(
        host(1), tools={"dcgmi": Tool(False, 1.0, {}, ("PCIe replays",))}, not_measured_tools={}
    )
    made = Acceptance("gpu-01", document, judge(document, {}))
    assert [problem.code for problem in made.problems] == ["dcgmi"]
    assert made.verdict == "failed"
    assert made.stamp(DAY).uuids == ()


class Visits:
    """A session whose hosts answer the job with these messages, or fail."""

    def __init__(self, **answers: dict[str, str] | HostError) -> None:
        self.hosts = tuple(Host(name, Ssh(name)) for name in answers)
        self.inventory = INVENTORY
        self.reporter = Rows()
        self._answers = answers

    def for_each_host(self, task: Callable[..., Outcome], **_: object) -> tuple[Member, ...]:
        return tuple(Member(host, self._run(task, host)) for host in self.hosts)

    def _run(self, task: Callable[..., Outcome], host: Host) -> Outcome:
        answer = self._answers[host.name]
        visit = SimpleNamespace(host=host, ask=lambda job: iter([{"type": "measurements", **answer}]))
        return failure(answer) if isinstance(answer, HostError) else task(visit, lambda event: None)


class Rows:
    def __init__(self) -> None:
        self.seen: dict[str, list[dict[str, object]]] = {}
        self.notes: list[str] = []

    def rows(self, kind: str, columns: list[str], rows: list[tuple[object, ...]]) -> None:
        self.seen[kind] = [dict(zip(columns, row, strict=True)) for row in rows]

    def note(self, text: str) -> None:
        self.notes.append(text)

    def problem(self, problem: Problem, host: str | None = None) -> None: ...


def test_hosts_without_kubernetes_are_accepted_and_their_record_is_read_again(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    answers = {"output": f"noise\n{dumps(host(1))}", "error": ""}
    dcgmi = Tool(True, 31.0, {"pass": 12.0})
    with_tool = replace(
        host(1), tools={"dcgmi": dcgmi}, not_measured_tools={"nvbandwidth": "no", "nccl-tests": "no"}
    )
    answers["output"] = f"noise\n{dumps(with_tool)}"
    session = Visits(
        good=answers, silent={"output": "", "error": "no driver"}, gone=Unreachable("gone", "no route")
    )
    ended = acceptance.accept_on_hosts(cast("Session", session), "standard")
    assert {name: each.verdict for name, each in ended.items()} == {
        "good": "accepted",
        "silent": "failed",
        "gone": "failed",
    }
    whys = {row["host"]: row["why"] for row in session.reporter.seen["accepted"]}
    assert whys == {"good": "", "silent": "no driver", "gone": "no route"}
    assert "good: dcgmi passed in 31 s: pass 12." in session.reporter.notes
    member, chain = Member(session.hosts[0]), [Verdict.ok("kubelet", "it runs")]
    (link,) = accepted.judge_record(
        accepted.folder(INVENTORY), member, chain, ended["good"].stamp(DAY).uuids, time.time()
    )
    assert link.text.startswith("it runs; accepted just now (standard), valid until")
    (link,) = accepted.judge_record(accepted.folder(INVENTORY), member, chain, ["GPU-new"], time.time())
    assert (link.status, link.cause) == ("ok", "the acceptance does not count: it leaves out GPU-new")
    required = replace(member, host=replace(member.host, accept_required=True))
    assert [
        link.status
        for link in accepted.judge_record(
            accepted.folder(INVENTORY), required, chain, ["GPU-new"], time.time()
        )
    ] == [
        "ok",
        "broken",
    ]


@pytest.mark.parametrize(("measured", "writable"), [(False, True), (True, True), (True, False)])
def test_figures_are_said_to_be_recorded_only_where_they_are(
    measured: bool, writable: bool, tmp_path, monkeypatch
):
    state = tmp_path / "state"
    state.mkdir() if writable else state.write_text("no folder")
    monkeypatch.setenv("XDG_STATE_HOME", str(state))
    session = Visits(a={"output": dumps(host(1)), "error": ""} if measured else Unreachable("a", "no answer"))
    acceptance.accept_on_hosts(cast("Session", session), "standard")
    assert any("are recorded in" in note for note in session.reporter.notes) == (measured and writable)


def test_thresholds_that_no_real_gpu_has_shown_are_called_unproven(tmp_path, monkeypatch):
    """To people once, and to programs with each GPU's source."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    answers = {model: {"output": dumps(host(1, model)), "error": ""} for model in ("h100", "t4")}
    session = Visits(**answers)
    acceptance.accept_on_hosts(cast("Session", session), "standard")
    (note,) = [note for note in session.reporter.notes if "Unproven on hardware" in note]
    assert "Tesla T4" in note and "H100" not in note  # noqa: PT018
    rows = session.reporter.seen["acceptance"]
    sources = {row["gpu"]: "unproven" in cast("str", row["compared_with"]) for row in rows}
    assert sources == {"NVIDIA H100 80GB HBM3": False, "Tesla T4": True}


@pytest.mark.parametrize(
    ("expected", "why"),
    [
        (ExpectedGpus(8), "7 of 8 GPUs are there"),
        (ExpectedGpus(8, "H100"), "7 of 8 H100 GPUs are there"),
        (ExpectedGpus(7, "H200"), "0 of 7 H200 GPUs are there, 7 of another model"),
        (ExpectedGpus(7, "h100"), ""),
    ],
)
def test_other_gpus_than_the_inventory_says_are_no_accepted_host(
    tmp_path, monkeypatch, expected: ExpectedGpus, why: str
):
    """Those that pass are accepted, but the record does not count."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    session = Visits(seven={"output": dumps(host(1, count=7)), "error": ""})
    session.hosts = tuple(replace(each, gpus=expected) for each in session.hosts)
    ended = acceptance.accept_on_hosts(cast("Session", session), "standard")["seven"]
    assert [(problem.code, problem.what) for problem in ended.problems] == [("gpus-missing", why)] * bool(why)
    stamp = ended.stamp(DAY)
    assert (stamp.verdict, len(stamp.uuids), stamp.failed) == ("failed" if why else "accepted", 7, ())
    assert stamp.why_void(now=stamp.at, driver="", kernel="", uuids=stamp.uuids) == (
        "the host failed it" if why else ""
    )


def test_a_host_alone_is_compared_with_the_records_of_others(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    first = Visits(first={"output": dumps(host(1, "h200", 8)), "error": ""})
    acceptance.accept_on_hosts(cast("Session", first), "standard")
    (tmp_path / "gpunode/accepted/damaged.json").write_text("{")
    slow = changed(host(2, "h200", 2), scaled("memory_gbps", 0.85))
    second = Visits(second={"output": dumps(slow), "error": ""})
    ended = acceptance.accept_on_hosts(cast("Session", second), "standard")
    assert [problem.code for problem in ended["second"].problems] == ["slower-than-fleet"]


def test_of_a_gpu_with_mig_its_devices_are_to_be_accepted():
    parts = (MigDevice(0, "MIG-1", "1g.10gb"), MigDevice(1, "MIG-2", "1g.10gb"))
    gpus = [
        GpuFacts(0, "GPU-1", "A100", "0000:3b:00.0", 81920, parts, mig_on=True),
        GpuFacts(1, "GPU-2", "A100", "", 1),
    ]
    assert verify.list_uuids(gpus) == ["MIG-1", "MIG-2", "GPU-2"]
