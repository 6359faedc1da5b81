"""What goes wrong while hosts that carry work are changed: each is named, and no more is disturbed than before."""

import signal
from collections.abc import Iterator
from contextlib import closing
from datetime import datetime, timezone
from typing import Any

import pytest
import yaml

from gpunode.engine import history
from gpunode.sim import faults
from gpunode.sim.host import kinds, systemd
from gpunode.sim.process import Demo

from . import operators
from .clusters import until
from .jobs import JOBS, applies, change, client, cordoned, describe, job
from .operators import begin, output, run
from .proxy import Proxy
from .test_batches import label

A, B = "gpu-1", "gpu-2"
PROVISION = ("provision", "inventory.yaml", "--yes")
LEASE = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/gpunode"


@pytest.fixture(scope="module")
def nodes() -> Iterator[Demo]:
    """Two GPU nodes."""
    with Demo([kinds.old_host(name, count=1) for name in (A, B)]) as made:
        assert run(made, *PROVISION)[0] == 0, output(made)
        yield made


@pytest.fixture
def demo(nodes: Demo, records: None) -> Iterator[Demo]:
    """The nodes; records of runs are the test's own, and so is what it writes into the inventory."""
    written = nodes.inventory.read_text()
    yield nodes
    nodes.inventory.write_text(written)
    for item in client(nodes).ask("GET", JOBS)[1]["items"]:
        client(nodes).ask("DELETE", f"{JOBS}/{item['metadata']['name']}", {"gracePeriodSeconds": 0})
    daemons = [(state.root / "etc/docker/daemon.json").read_text() for state in nodes.states.values()]
    if cordoned(client(nodes)) or not all("nvidia" in text for text in daemons):
        assert run(nodes, *PROVISION, "--no-run")[0] == 0, output(nodes)


def states(demo: Demo) -> dict[str, str]:
    """How far each host has come in the last run."""
    record = history.last_run(demo.inventory)
    assert record is not None
    return {name: progress.state for name, progress in record.hosts.items()}


def proofs(seen: list[dict[str, Any]]) -> dict[str, str]:
    return {line["host"]: line["proof"] for line in seen if line["type"] == "verified"}


def expired(lease: dict[str, Any]) -> bool:
    """Whether its holder has not renewed it for as long as it lasts."""
    since = datetime.fromisoformat(lease["renewTime"].replace("Z", "+00:00"))
    return (datetime.now(timezone.utc) - since).total_seconds() > lease["leaseDurationSeconds"]


def register(demo: Demo, host: str) -> None:
    """As a kubelet does it at its start."""
    state = demo.states[host]
    with state.change() as now:
        systemd.start(state, now, "kubelet.service")
    until(lambda: client(demo).ask("GET", f"/api/v1/nodes/{host}")[0] == 200)


@pytest.mark.parametrize("moment", ["before its cordon", "while work is waited for"])
def test_a_host_whose_node_is_deleted_meanwhile_is_not_changed(demo: Demo, moment: str):
    api, before = client(demo), applies(demo, A)
    change(demo, A)
    try:
        if moment == "before its cordon":
            code, seen = run(demo, *PROVISION, then=[[A, "waiting", "unregistered"]])
        else:
            job(api, "job", A, 600)
            with begin(demo, *PROVISION) as going:
                until(lambda: "waiting for default/job" in output(demo))
                api.ask("DELETE", f"/api/v1/nodes/{A}")
                api.ask(
                    "DELETE", f"{JOBS}/job", {"gracePeriodSeconds": 0}
                )  # as the garbage collector does it
                code, seen = going.wait(), operators.lines(demo)
    finally:
        register(demo, A)
    assert (code, states(demo)[A]) == (1, "skipped"), output(demo)
    assert proofs(seen)[A] == f"not changed: the cluster has no node `{A}` any more"
    assert applies(demo, A) == before


def test_a_run_that_waited_for_the_lease_of_another_plans_again(demo: Demo):
    """What it had planned before may have been done by then."""
    api = client(demo)
    change(demo, A)
    lease = api.ask("GET", LEASE)[1]
    spec = {**lease["spec"], "holderIdentity": "run gone of ops@laptop"}
    assert api.ask("PUT", LEASE, {**lease, "spec": spec})[0] == 200
    code, seen = run(demo, *PROVISION)
    assert (code, states(demo)[A]) == (0, "proven"), output(demo)
    steps = [
        (event.get("host"), event.get("message", ""))
        for event in seen
        if event["type"] in ("stage", "change")
    ]
    waited = next(n for n, (_, message) in enumerate(steps) if "holds the cluster's lease" in message)
    changed = next(n for n, (_, message) in enumerate(steps) if n > waited and "daemon.json" in message)
    assert {(A, "probe"), (B, "probe")} <= set(steps[waited:changed])


def test_ctrl_c_finishes_the_host_that_has_begun_and_begins_no_other(demo: Demo):
    api = client(demo)
    for path in ("here", "go"):
        (demo.folder / path).unlink(missing_ok=True)
    for host in (A, B):
        change(demo, host)
    with begin(demo, *PROVISION, "--batch", "1", then=[[A, "changing", "held"]]) as going:
        until((demo.folder / "here").exists)
        going.send_signal(signal.SIGINT)
        until(lambda: "Press Ctrl-C again" in output(demo))
        (demo.folder / "go").touch()
        assert going.wait() == 8, output(demo)
    assert (states(demo), cordoned(api)) == ({A: "proven", B: "skipped"}, [])
    assert proofs(operators.lines(demo))[B] == "skipped: the run was interrupted"


@pytest.mark.parametrize(
    "moment",
    [
        "cordoned",
        "proven",
        *(pytest.param(moment, marks=pytest.mark.storm) for moment in ("drained", "changed")),
    ],
)
def test_a_run_outlives_an_api_server_that_goes(demo: Demo, moment: str):
    """Longer than its Lease lasts. It holds that again before the next host, and nothing is done twice."""
    api, proxy, before = client(demo), Proxy(demo.folder / "kubeconfig"), applies(demo, A)
    for path in ("here", "go"):
        (demo.folder / path).unlink(missing_ok=True)
    change(demo, A)
    change(demo, B)
    describe(demo, kubeconfig=proxy.kubeconfig)
    with closing(proxy), begin(demo, *PROVISION, "--batch", "1", then=[[A, moment, "held"]]) as going:
        until((demo.folder / "here").exists)
        proxy.shut()
        (demo.folder / "go").touch()
        until(lambda: "the Kubernetes API at" in output(demo) or "waiting for the API server" in output(demo))
        until(lambda: expired(api.ask("GET", LEASE)[1]["spec"]))
        proxy.open()
        assert going.wait() == 0, output(demo)
    assert states(demo) == {A: "proven", B: "proven"}
    assert cordoned(api) == []
    assert len(applies(demo, A) - before) == 1


def test_a_node_that_cannot_be_given_back_counts_as_disturbed(demo: Demo):
    """The API server does not come back: the host is not changed, but it is cordoned still. No further batch begins."""
    api, proxy, before = client(demo), Proxy(demo.folder / "kubeconfig"), applies(demo, A)
    for path in ("here", "go"):
        (demo.folder / path).unlink(missing_ok=True)
    change(demo, A)
    change(demo, B)
    describe(demo, kubeconfig=proxy.kubeconfig, work_timeout="1s")
    values, held = {"gpunode.engine.work.API_SECONDS": 1.0}, [[A, "cordoned", "held"]]
    with closing(proxy):
        with begin(demo, *PROVISION, "--batch", "1", then=held, values=values) as going:
            until((demo.folder / "here").exists)
            proxy.shut()
            (demo.folder / "go").touch()
            assert going.wait() == 1, output(demo)
        assert (states(demo), cordoned(api)) == ({A: "failed", B: "skipped"}, [A])
        said = proofs(operators.lines(demo))
        assert said[A].startswith("not changed: ")
        assert f"; {A} is still cordoned: " in said[A]
        assert said[B] == f"skipped: 1 host failed ({A})"
        assert applies(demo, A) == before
        proxy.open()
        code, _ = run(demo, "resume", "inventory.yaml", "--yes")
    assert (code, cordoned(api)) == (0, []), output(demo)


def test_no_batch_begins_after_a_host_that_does_not_come_back_from_its_reboot(demo: Demo):
    """It is named, and stays cordoned; what was changed there is recorded. Once it is back, the run is resumed to its end."""
    api, state = client(demo), demo.states[A]
    with state.change() as now:
        faults.ACTS["nouveau"].cause(state, state.machine(), now)
    change(demo, B)
    words = (*PROVISION, "--batch", "1")
    try:
        values = {"gpunode.engine.converge.REBOOT_SECONDS": 5.0}
        code, seen = run(demo, *words, then=[[A, "changing", "stuck"]], values=values)
        assert (code, states(demo)) == (1, {A: "unreachable", B: "skipped"}), output(demo)
        assert cordoned(api) == [A]
        recorded = history.last_run(demo.inventory)
        assert recorded
        assert recorded.hosts[A].made == recorded.planned[A]  # a file, and the reboot
    finally:
        with state.change() as now:
            now.faults.clear()
        operators.back(state)
    assert proofs(seen) == {
        A: "unreachable: it did not come back within 0 minutes of its reboot",
        B: f"skipped: 1 host failed ({A})",
    }
    code, _ = run(demo, "resume", "inventory.yaml", "--yes")
    assert (code, states(demo)) == (0, {A: "proven", B: "proven"}), output(demo)
    assert cordoned(api) == []


def test_a_control_plane_that_is_unhealthy_after_a_host_stops_the_run(demo: Demo):
    """Whatever --max-fail allows: its next host is not begun. Once it is healthy, `resume` ends what is left."""
    api, role = client(demo), "node-role.kubernetes.io/control-plane"
    written = yaml.safe_load(demo.inventory.read_text())
    for group in written["groups"].values():
        group["hosts"] = [{**each, "control_plane": True} for each in group["hosts"]]
    demo.inventory.write_text(yaml.safe_dump(written))
    for host in (A, B):
        change(demo, host)
        label(api, host, {role: ""})
    etcd, before = f"etcd-{A}", applies(demo, B)
    try:
        code, seen = run(
            demo,
            *PROVISION,
            "--max-fail",
            "5",
            then=[[A, "changing", "headless"]],
            values={"gpunode.engine.control_plane.AFTER": 2.0},
        )
        assert (code, states(demo)) == (1, {A: "failed", B: "skipped"}), output(demo)
        why = f"the control plane is not healthy: not Ready: {etcd}"
        assert proofs(seen) == {A: why, B: f"skipped: {why}"}
        assert applies(demo, B) == before
        api.ask("DELETE", f"/api/v1/namespaces/kube-system/pods/{etcd}", {"gracePeriodSeconds": 0})
        code, _ = run(demo, "resume", "inventory.yaml", "--yes")
        assert (code, states(demo)) == (0, {A: "proven", B: "proven"}), output(demo)
        assert cordoned(api) == []
    finally:
        api.ask("DELETE", f"/api/v1/namespaces/kube-system/pods/{etcd}", {"gracePeriodSeconds": 0})
        for host in (A, B):
            label(api, host, {role: None})
