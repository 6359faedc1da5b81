"""`gpunode accept` on simulated hosts: what is measured is judged, recorded, and read by verify."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import yaml

from gpunode.contract.times import utc
from gpunode.model import Verdict
from gpunode.report import chains
from gpunode.sim.host import kinds
from gpunode.sim.node.accept import SLOW
from gpunode.sim.process import Demo

from .clusters import Client, until
from .jobs import JOBS, client, job
from .operators import output, run

OLD, NEW = "p100-1", "h100-1"
NODES = "/api/v1/nodes"
SIXTEEN = 16  # as an HGX of two boards has them
STAMP = "gpunode.dev/accepted"


@pytest.fixture(scope="module")
def nodes() -> Iterator[Demo]:
    with Demo([kinds.old_host(OLD, count=1), kinds.new_host(NEW, count=SIXTEEN)]) as made:
        assert run(made, "provision", "inventory.yaml", "--yes", "--no-run")[0] == 0, output(made)
        yield made


@pytest.fixture
def demo(nodes: Demo, records: None) -> Iterator[Demo]:
    """The nodes without an acceptance."""
    written = nodes.inventory.read_text()
    for name in (OLD, NEW):
        annotate(client(nodes), name, None)
    yield nodes
    nodes.inventory.write_text(written)
    for state in nodes.states.values():
        with state.change() as now:
            now.faults.clear()


def annotate(api: Client, node: str, text: str | None) -> None:
    body = {"metadata": {"annotations": {STAMP: text}}}
    assert api.ask("PATCH", f"{NODES}/{node}", body, "application/merge-patch+json")[0] == 200


def stamp(demo: Demo, node: str) -> dict[str, Any]:
    text = client(demo).ask("GET", f"{NODES}/{node}")[1]["metadata"]["annotations"][STAMP]
    return dict(json.loads(text))


def work(api: Client, gpus: int) -> None:
    """A pod that runs on so many GPUs."""
    job(api, "work", NEW, 600, gpus=gpus)
    until(lambda: api.ask("GET", f"{JOBS}/work")[1]["status"].get("phase") == "Running")


def unverified(api: Client) -> bool:
    """Whether the node has gpunode's taint."""
    taints = api.ask("GET", f"{NODES}/{NEW}")[1]["spec"].get("taints") or []
    return "gpunode.dev/unverified" in [taint["key"] for taint in taints]


def rows(seen: list[dict[str, Any]], kind: str, key: str) -> dict[str, dict[str, Any]]:
    return {line[key]: line for line in seen if line["type"] == kind}


def test_every_gpu_is_measured_and_the_record_kept_here_and_on_the_node(demo: Demo, tmp_path):
    code, seen = run(demo, "accept", "inventory.yaml", "--level", "QUICK")
    assert code == 0, output(demo)
    assert any("figures are invented" in str(line) for line in seen)
    gpus = rows(seen, "acceptance", "uuid")
    assert len(gpus) == 1 + SIXTEEN
    assert {row["result"] for row in gpus.values()} == {"accepted"}
    hosts = rows(seen, "accepted", "host")
    assert {row["result"] for row in hosts.values()} == {"accepted"}
    record = json.loads(Path(hosts[NEW]["record"]).read_text())
    on_node = stamp(demo, NEW)
    assert record | on_node == record
    assert sorted(on_node["uuids"]) == sorted(uuid for uuid, row in gpus.items() if row["node"] == NEW)
    assert record["measurements"]["level"] == "quick"


def test_a_slow_gpu_fails_by_name_and_verify_says_that_its_host_is_not_accepted(demo: Demo):
    state = demo.states[NEW]
    slow = state.machine().gpus[2].uuid
    with state.change() as now:
        now.faults[SLOW] = slow
    code, seen = run(demo, "accept", "inventory.yaml", "--limit", NEW, "--junit", "gpus.xml")
    assert code == 1
    cases = ElementTree.parse(demo.folder / "gpus.xml").findall("testsuite/testcase")
    assert [(case.attrib["classname"], len(case.findall("failure"))) for case in cases] == [
        (NEW, int(gpu.uuid == slow)) for gpu in state.machine().gpus
    ]
    (failure,) = ElementTree.parse(demo.folder / "gpus.xml").iterfind(".//failure")
    assert failure.attrib["type"] == "memory-slow"
    assert "reaches" in str(failure.text)
    gpus = rows(seen, "acceptance", "uuid")
    assert {uuid for uuid, row in gpus.items() if row["result"] == "failed"} == {slow}
    assert gpus[slow]["problems"] == ["memory-slow"]
    (error,) = [line for line in seen if line["type"] == "error"]
    assert (error["host"], error["code"]) == (NEW, "memory-slow")
    assert slow in error["error"]
    assert stamp(demo, NEW)["failed"] == [slow]
    code, seen = run(demo, "verify", "inventory.yaml", "--limit", NEW, "--no-run")
    assert code == 0, "a warning, unless the inventory requires it"
    assert slow in rows(seen, "link", "layer")["capacity"]["cause"]


def test_a_host_without_a_driver_is_named_when_it_is_measured_over_ssh(demo: Demo):
    """A simulated host has no library of the driver: the program that travels there says so, and nothing is recorded."""
    code, seen = run(demo, "accept", "inventory.yaml", "--on-host", "--level", "quick")
    assert code == 1
    hosts = rows(seen, "accepted", "host")
    assert {row["result"] for row in hosts.values()} == {"failed"}
    assert all("libcuda.so.1" in row["why"] and row["record"] == "" for row in hosts.values())


def test_a_fleet_shows_the_remark_below_the_one_line_of_its_host():
    """As of each of more than 8 hosts there is one line."""
    link = Verdict.ok("capacity", "4 of 4", "it ran out yesterday", "`gpunode accept` measures it again.")
    shown = "".join(
        part if isinstance(part, str) else part[0] for part in chains.whole_chain("gpu-1", [link])
    )
    assert "capacity: it ran out yesterday. `gpunode accept` measures it again." in shown


def test_gpus_in_use_are_skipped_and_named(demo: Demo):
    api = client(demo)
    work(api, gpus=SIXTEEN - 1)
    code, seen = run(demo, "accept", "inventory.yaml", "--limit", NEW, "--level", "quick")
    api.ask("DELETE", f"{JOBS}/work", {"gracePeriodSeconds": 0})
    assert code == 0, output(demo)
    assert len(rows(seen, "acceptance", "uuid")) == 1
    host = rows(seen, "accepted", "host")[NEW]
    assert host["result"] == "partly"
    assert f"default/work ({SIXTEEN - 1} nvidia.com/gpu)" in host["why"]


def test_verify_shows_an_acceptance_until_it_runs_out_or_fits_no_more(demo: Demo):
    assert run(demo, "accept", "inventory.yaml", "--limit", NEW, "--level", "quick")[0] == 0
    good = stamp(demo, NEW)
    verify = ("verify", "inventory.yaml", "--limit", NEW, "--no-run")

    def last_link(**changed: str) -> dict[str, Any]:
        annotate(client(demo), NEW, json.dumps(good | changed))
        return rows(run(demo, *verify)[1], "link", "layer")["capacity"]

    assert "accepted just now (quick), valid until" in last_link()["text"]
    assert last_link()["cause"] == ""
    later = {"at": utc(time.time() + 3600)}  # newer than the record of this machine
    assert "it ran out" in last_link(**later, until="2026-01-02T00:00:00Z")["cause"]
    other = last_link(**later, kernel="3.10")
    assert "it was for kernel 3.10" in other["cause"]
    assert "gpunode accept" in other["fix"]


def test_a_host_that_has_to_be_accepted_is_broken_until_it_is(demo: Demo):
    text = demo.inventory.read_text()
    demo.inventory.write_text(
        text.replace("defaults:", "defaults:\n  accept: {required: true, valid: 12h}", 1)
    )
    verify = ("verify", "inventory.yaml", "--limit", NEW)
    code, seen = run(demo, *verify)
    assert code == 1
    link = rows(seen, "link", "layer")["pod"]
    assert (link["status"], link["cause"]) == ("broken", "it was never accepted")
    code, seen = run(demo, "provision", "inventory.yaml", "--yes", "--limit", NEW, "--no-run")
    assert code == 1, "what a run proves is what verify would say"
    assert rows(seen, "verified", "host")[NEW]["code"] == "not-accepted"
    code, seen = run(demo, "provision", "inventory.yaml", "--yes", "--limit", NEW)
    assert code == 0, output(demo)
    assert rows(seen, "accepted", "host")[NEW]["level"] == "standard"
    assert run(demo, *verify)[0] == 0
    code, seen = run(demo, "provision", "inventory.yaml", "--yes", "--limit", NEW)
    assert (code, rows(seen, "accepted", "host")) == (0, {}), "it is not due"


def test_provision_accepts_after_the_proof_and_fails_a_host_that_is_not(demo: Demo):
    state = demo.states[NEW]
    with state.change() as now:
        now.faults[SLOW] = state.machine().gpus[0].uuid
    code, seen = run(demo, "provision", "inventory.yaml", "--yes", "--accept", "quick")
    assert code == 1
    ends = rows(seen, "verified", "host")
    assert {host: (line["result"], line["code"]) for host, line in ends.items()} == {
        OLD: ("verified", ""),
        NEW: ("not verified", "not-accepted"),
    }
    with state.change() as now:
        now.faults.clear()
    code, seen = run(demo, "resume", "inventory.yaml", "--yes")
    assert code == 0, "the run goes on as it was begun"
    assert rows(seen, "accepted", "host").keys() == {NEW}


@pytest.mark.parametrize("told", [False, True])
def test_a_gpu_that_an_operator_has_cordoned_is_not_missed(demo: Demo, told: bool):
    """Whether or not the inventory says how many GPUs the host has."""
    text = demo.inventory.read_text()
    if told:
        demo.inventory.write_text(text.replace("defaults:", f"defaults:\n  gpus: {SIXTEEN}", 1))
    uuid, node = demo.states[NEW].machine().gpus[1].uuid, f"{NODES}/{NEW}"
    limit = ("inventory.yaml", "--limit", NEW)

    def allocatable() -> str:
        return str(client(demo).ask("GET", node)[1]["status"]["allocatable"]["nvidia.com/gpu"])

    assert run(demo, "cordon-gpu", uuid, *limit, "--reason", "fan", "--yes")[0] == 0, output(demo)
    try:
        until(lambda: allocatable() == str(SIXTEEN - 1))
        code, seen = run(demo, "accept", *limit, "--level", "quick")
    finally:
        assert run(demo, "uncordon-gpu", uuid, *limit, "--yes")[0] == 0, output(demo)
        until(lambda: allocatable() == str(SIXTEEN))
    host = rows(seen, "accepted", "host")[NEW]
    assert (code, host["result"], host["why"]) == (0, "accepted", "")
    assert uuid not in rows(seen, "acceptance", "uuid")


def test_a_node_whose_required_acceptance_ran_out_is_closed_until_its_gpus_are_measured(demo: Demo):
    """And with all of its GPUs in use until they have ended."""
    inventory = yaml.safe_load(demo.inventory.read_text())
    inventory.setdefault("defaults", {}).update(taint_until_verified=True, accept={"required": True})
    demo.inventory.write_text(yaml.safe_dump(inventory))
    api, provision = client(demo), ("provision", "inventory.yaml", "--limit", NEW, "--yes")
    assert run(demo, *provision)[0] == 0, output(demo)
    good = stamp(demo, NEW)
    until(lambda: utc() > good["at"])  # newer than the record of this machine
    annotate(api, NEW, json.dumps({**good, "at": utc(), "until": utc()}))
    work(api, gpus=SIXTEEN)
    code, _ = run(demo, *provision)
    assert code != 0
    assert unverified(api), output(demo)
    api.ask("DELETE", f"{JOBS}/work", {"gracePeriodSeconds": 0})
    code, _ = run(demo, "resume", "--yes")
    assert code == 0, output(demo)
    assert not unverified(api)
    assert stamp(demo, NEW)["until"] > good["at"]


def test_a_gpu_that_pods_cannot_get_is_missed(demo: Demo):
    """Of sixteen GPUs fifteen are no accepted host, though all fifteen are good. The last test: the plugin keeps it unhealthy."""
    state = demo.states[NEW]
    gpu = state.machine().gpus[3].uuid
    with state.change() as now:
        now.xids.append((gpu, 79))
        now.lost.append(gpu)
    node = f"{NODES}/{NEW}"
    until(
        lambda: (
            client(demo).ask("GET", node)[1]["status"]["allocatable"]["nvidia.com/gpu"] == str(SIXTEEN - 1)
        )
    )
    code, seen = run(demo, "accept", "inventory.yaml", "--limit", NEW, "--level", "quick")
    assert code == 1
    assert {row["result"] for row in rows(seen, "acceptance", "uuid").values()} == {"accepted"}
    host = rows(seen, "accepted", "host")[NEW]
    assert (host["result"], host["why"]) == ("failed", f"1 of {SIXTEEN} GPUs cannot be allocated")
