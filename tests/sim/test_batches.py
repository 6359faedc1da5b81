"""Fleets that carry work, provisioned as a user does it: in batches that finish, without ending users' pods."""

import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from gpunode.engine import history
from gpunode.sim import faults
from gpunode.sim.host import kinds
from gpunode.sim.process import Demo
from tests import jsonlines

from . import operators
from .clusters import Client, until
from .jobs import client, cordoned
from .operators import of_kind, under_way, worked

pytestmark = pytest.mark.usefixtures("records")


def hosts() -> Demo:
    """Two hosts that were never provisioned."""
    return Demo([kinds.old_host(f"gpu-{number}") for number in (1, 2)])


@pytest.fixture
def demo() -> Iterator[Demo]:
    with hosts() as made:
        yield made


@pytest.fixture(scope="module")
def unchanged() -> Iterator[Demo]:
    """Hosts for tests in which nothing is changed."""
    with hosts() as made:
        yield made


@pytest.fixture(scope="module")
def provisioned() -> Iterator[tuple[Demo, subprocess.CompletedProcess[str]]]:
    """The hosts as GPU nodes, and the run that made them so."""
    with hosts() as made:
        yield made, gpunode(made, "provision", "inventory.yaml", "--yes", "--json")


def gpunode(demo: Demo, *words: str) -> subprocess.CompletedProcess[str]:
    return operators.gpunode(demo.folder, *words)


def pod(api: Client, name: str, node: str, gpus: int) -> None:
    """A job's pod, bound to the node."""
    limits = {"nvidia.com/gpu": str(gpus)} if gpus else {}
    container = {"name": "c", "image": "gpunode-deviceplugin:demo", "command": ["sleep", "600"]}
    container |= {"resources": {"limits": limits}}
    body = {
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"nodeName": node, "containers": [container]},
    }
    code, answer = api.ask("POST", "/api/v1/namespaces/default/pods", body)
    assert code == 201, answer


def delete(api: Client, name: str) -> None:
    api.ask("DELETE", f"/api/v1/namespaces/default/pods/{name}", {"gracePeriodSeconds": 0})


def refuse(demo: Demo) -> None:
    """gpu-1 has a daemon.json that only its administrator can mend."""
    (demo.states["gpu-1"].root / "etc/docker").mkdir(parents=True, exist_ok=True)
    (demo.states["gpu-1"].root / "etc/docker/daemon.json").write_text("{")


def away(demo: Demo) -> None:
    """gpu-1 cannot be reached."""
    with demo.states["gpu-1"].change() as now:
        now.faults["unreachable"] = "1"


@pytest.mark.parametrize(("fault", "state"), [(refuse, "refused"), (away, "unreachable")])
def test_a_run_that_too_many_bad_hosts_stop_at_once_says_so_and_asks_nothing(
    unchanged: Demo, tmp_path, fault: Callable[[Demo], None], state: str
):
    """Before any batch, and as the plan shows it; nothing is changed, and no run is recorded."""
    with unchanged.states["gpu-1"].change() as now:
        now.faults.clear()
    fault(unchanged)
    done = gpunode(unchanged, "provision", "inventory.yaml", "--max-fail", "0")
    told = " ".join(done.stderr.split())
    assert done.returncode == 1, done.stdout + done.stderr
    assert f"Nothing was started: 1 host failed already (gpu-1: {state}), and --max-fail allows 0." in told
    assert "Apply inventory.yaml" not in done.stdout + told
    assert "batches" not in done.stdout
    assert not list(tmp_path.glob("state/gpunode/runs/*"))


def test_as_many_unreachable_hosts_as_max_fail_allows_stop_no_other(demo: Demo):
    away(demo)
    done = gpunode(demo, "provision", "inventory.yaml", "--yes", "--json", "--max-fail", "1", "--batch", "1")
    assert {row["host"]: row["result"] for row in of_kind(done, "verified")} == {
        "gpu-1": "not verified",
        "gpu-2": "verified",
    }
    assert done.returncode == 3, done.stdout + done.stderr


def test_bare_hosts_disturb_nobody_and_go_together(
    provisioned: tuple[Demo, subprocess.CompletedProcess[str]],
):
    demo, done = provisioned
    assert done.returncode == 0, done.stdout + done.stderr
    rows = of_kind(done, "verified")
    assert [(row["host"], row["result"]) for row in rows] == [(f"gpu-{n}", "verified") for n in (1, 2)]
    assert cordoned(client(demo)) == []
    assert [line["disturbs"]["anybody"] for line in of_kind(done, "plan")] == [False, False]


def test_a_batch_is_proven_before_the_next_begins(demo: Demo):
    done = worked(gpunode(demo, "provision", "inventory.yaml", "--yes", "--json", "--batch", "1"))
    story = jsonlines.parse(done.stdout)
    steps = [
        (line["type"], line.get("host") or line["node"])
        for line in story
        if line["type"] == "vectoradd" or (line["type"] == "outcome" and line["status"] == "changed")
    ]
    seen = list(dict.fromkeys(steps))
    assert seen == [(kind, f"gpu-{number}") for number in (1, 2) for kind in ("outcome", "vectoradd")]


def test_a_gate_stops_the_run_before_the_next_batch(provisioned: tuple[Demo, object], tmp_path):
    """The host before it is finished, the rest is resumed. `plan` shows gates and runs none."""
    demo, _ = provisioned
    written = demo.inventory.read_text()
    command = f'test "$GPUNODE_BATCH" = 1 || test -e {tmp_path}/open'
    demo.inventory.write_text(yaml.safe_dump({**yaml.safe_load(written), "gate": [command]}))
    try:
        plan = gpunode(demo, "plan", "inventory.yaml", "--json")
        assert [line["gate"] for line in of_kind(plan, "gate")] == [command]
        options = ("inventory.yaml", "--yes", "--json")
        done = gpunode(demo, "provision", *options, "--batch", "1")
        assert done.returncode == 4, done.stdout + done.stderr
        rows = {row["host"]: (row["result"], row["proof"]) for row in of_kind(done, "verified")}
        assert rows["gpu-1"][0] == "verified"
        assert rows["gpu-2"] == ("not verified", f"skipped: gate `{command}` exited with 1")
        (tmp_path / "open").touch()
        done = worked(gpunode(demo, "resume", *options))
        assert [row["host"] for row in of_kind(done, "verified")] == ["gpu-2"]
    finally:
        demo.inventory.write_text(written)


# --- hosts that carry work ---


@pytest.fixture
def busy(provisioned: tuple[Demo, object]) -> Iterator[Demo]:
    """GPU nodes; on gpu-2 a pod has a GPU, and docker's configuration lost its runtime."""
    demo, _ = provisioned
    written, api = demo.inventory.read_text(), client(demo)
    pod(api, "job", "gpu-2", 1)
    state = demo.states["gpu-2"]
    with state.change() as now:
        faults.ACTS["runtime"].cause(state, state.machine(), now)
    yield demo
    delete(api, "job")
    demo.inventory.write_text(written)
    if "nvidia" not in (state.root / "etc/docker/daemon.json").read_text():
        assert gpunode(demo, "provision", "inventory.yaml", "--yes", "--no-run", "-q").returncode == 0


def test_a_busy_host_with_nothing_to_do_stops_no_other(busy: Demo):
    """No GPU of it is free for a proof. It is named, and nothing of it is left to resume."""
    api = client(busy)
    delete(api, "job")
    pod(api, "all", "gpu-1", offered(api, "gpu-1"))
    try:
        options = ("inventory.yaml", "--yes", "--json")
        done = gpunode(busy, "provision", *options, "--batch", "1", "--max-fail", "0")
        rows = {row["host"]: (row["result"], row["proof"]) for row in of_kind(done, "verified")}
        assert rows["gpu-2"][0] == "verified", done.stdout + done.stderr
        assert rows["gpu-1"][0] == "in use"
        assert rows["gpu-1"][1].startswith("nothing to change; not verified now: of ")
        assert done.returncode == 0
        assert not of_kind(done, "error")
        again = gpunode(busy, "resume", "inventory.yaml", "--yes")
        assert (again.returncode, "nothing to resume" in again.stderr) == (0, True)
        state = busy.states["gpu-1"]
        with state.change() as now:
            faults.ACTS["toolkit"].cause(state, state.machine(), now)
        done = gpunode(busy, "provision", *options, "--limit", "gpu-1")
        (row,) = of_kind(done, "verified")
        assert (row["result"], done.returncode) == ("in use", 0), done.stdout + done.stderr
        assert row["proof"].startswith("changed; not verified now: of ")
    finally:
        delete(api, "all")


def offered(api: Client, node: str) -> int:
    return int(api.ask("GET", f"/api/v1/nodes/{node}")[1]["status"]["allocatable"]["nvidia.com/gpu"])


def patience(demo: Demo, **values: str) -> None:
    """Values for all hosts of the inventory."""
    written = yaml.safe_load(demo.inventory.read_text())
    written.setdefault("defaults", {}).update(values)
    demo.inventory.write_text(yaml.safe_dump(written))


def begin(demo: Demo, *words: str) -> AbstractContextManager[subprocess.Popen[str]]:
    """A run under way; its output is in the demo's folder."""
    return under_way(demo, operators.command(*words, "--json"))


def waits(demo: Demo, name: str) -> bool:
    return f"waiting for default/{name}" in (demo.folder / "out").read_text()


def docker_since(demo: Demo, host: str) -> float:
    return demo.states[host].now().units["docker.service"].since


def test_a_gpu_pod_is_waited_for_and_the_node_given_back(busy: Demo):
    """Nothing is changed on the host before the pod has ended, and nobody else changes the cluster's nodes meanwhile."""
    before, api = docker_since(busy, "gpu-2"), client(busy)
    with begin(busy, "provision", "inventory.yaml", "--yes") as run:
        until(lambda: waits(busy, "job"))
        assert (cordoned(api), docker_since(busy, "gpu-2")) == (["gpu-2"], before)
        other = gpunode(busy, "provision", "inventory.yaml", "--yes", "-q")
        assert other.returncode == 4
        assert "is changing this cluster's nodes" in other.stderr
        delete(api, "job")
        assert run.wait() == 0, (busy.folder / "out").read_text()
    assert cordoned(api) == []
    assert docker_since(busy, "gpu-2") > before


def test_a_host_that_is_free_waits_for_no_other_of_its_batch(busy: Demo):
    """It is changed, verified and schedulable again, while the job of the other goes on."""
    api, state, before = client(busy), busy.states["gpu-1"], docker_since(busy, "gpu-2")
    with state.change() as now:
        faults.ACTS["runtime"].cause(state, state.machine(), now)
    with begin(busy, "provision", "inventory.yaml", "--yes", "--batch", "2") as run:
        until(lambda: ended_as(busy, "gpu-1") == "proven")
        assert waits(busy, "job")
        assert "still in use: gpu-2; the batch's other hosts" in (busy.folder / "out").read_text()
        assert (cordoned(api), docker_since(busy, "gpu-2")) == (["gpu-2"], before)
        delete(api, "job")
        assert run.wait() == 0, (busy.folder / "out").read_text()
    assert (cordoned(api), ended_as(busy, "gpu-2")) == ([], "proven")
    assert docker_since(busy, "gpu-2") > before


def ended_as(demo: Demo, host: str) -> str:
    """The host's state in the record of the last run."""
    last = history.last_run(demo.inventory)
    return last.hosts[host].state if last else ""


def test_a_plan_names_the_pods_that_it_disturbs(busy: Demo):
    """Before anything is asked, with what becomes of them."""
    done = gpunode(busy, "plan", "inventory.yaml", "--json")
    disturbs = {line["host"]: line["disturbs"] for line in of_kind(done, "plan")}
    assert disturbs["gpu-1"] is None
    assert disturbs["gpu-2"] == {
        "reboot": False,
        "reload": False,
        "restarts": ["docker.service"],
        "modules": False,
        "plugin": False,
        "mig": False,
        "devices": False,
        "packages": [],
        "anybody": True,
        "work": "wait",
        "timeout": 1800.0,
        "pods": [
            {"name": "default/job", "gpus": 1, "asks": {"nvidia.com/gpu": 1}, "standstill": "", "on": []}
        ],
        "processes": [],
    }
    shown = gpunode(busy, "plan", "inventory.yaml").stdout
    assert "restart of docker; gpunode cordons the node and waits up to 30 min for work on its GPUs" in shown
    assert "gpu-2: default/job (1 GPU)" in shown


def test_a_host_whose_work_does_not_end_in_time_is_skipped(busy: Demo):
    patience(busy, work_timeout="1s")
    before, api = docker_since(busy, "gpu-2"), client(busy)
    done = gpunode(busy, "provision", "inventory.yaml", "--yes", "--json")
    assert done.returncode == 1
    assert (cordoned(api), docker_since(busy, "gpu-2")) == ([], before)
    proofs = {row["host"]: (row["result"], row["proof"]) for row in of_kind(done, "verified")}
    assert proofs["gpu-1"][0] == "verified"
    assert proofs["gpu-2"] == (
        "not verified",
        "not changed: after 1 s default/job still used its GPUs",
    )


def test_a_drain_evicts_the_pod(busy: Demo):
    patience(busy, work="drain")
    worked(gpunode(busy, "provision", "inventory.yaml", "--yes", "--json"))
    assert client(busy).ask("GET", "/api/v1/namespaces/default/pods/job")[0] == 404
    assert cordoned(client(busy)) == []


def test_ctrl_c_while_work_is_waited_for_gives_the_node_back(busy: Demo):
    api = client(busy)
    with begin(busy, "provision", "inventory.yaml", "--yes") as run:
        until(lambda: waits(busy, "job"))
        run.send_signal(signal.SIGINT)
        assert run.wait() == 8
    assert cordoned(api) == []


def test_ctrl_c_twice_leaves_hosts_that_are_named_and_resume_finishes_them():
    """The apply of one goes on without its operator."""
    with Demo([replace(kinds.old_host("gpu-1"), pace=0.5)]) as demo:
        seen = demo.folder / "out"
        with begin(demo, "provision", "inventory.yaml", "--yes") as run:
            until(lambda: '"type": "change"' in seen.read_text())
            run.send_signal(signal.SIGINT)
            until(lambda: "Interrupted: hosts already started are finished" in seen.read_text())
            run.send_signal(signal.SIGINT)
            assert run.wait() == 130
        left = "Unfinished: gpu-1; cordoned nodes stay cordoned. `gpunode resume` continues with them."
        assert left in seen.read_text()
        done = worked(gpunode(demo, "resume", "inventory.yaml", "--yes", "--json"))
        assert [(row["host"], row["result"]) for row in of_kind(done, "verified")] == [("gpu-1", "verified")]


@contextmanager
def full_disk(state: Path) -> Iterator[None]:
    """The newest record is on a device that takes nothing more."""
    path = max(state.glob("gpunode/runs/*.jsonl"))
    kept = path.rename(path.with_suffix(".kept"))
    path.symlink_to("/dev/full")
    yield
    kept.replace(path)


def test_a_record_that_cannot_be_written_gives_back_what_waits_and_begins_no_more(busy: Demo, tmp_path):
    """As Ctrl-C does it, with the cause and what to do; once there is room the run goes on."""
    patience(busy, work="wait")
    before, api = docker_since(busy, "gpu-2"), client(busy)
    with begin(busy, "provision", "inventory.yaml", "--yes") as run:
        until(lambda: waits(busy, "job"))
        with full_disk(tmp_path / "state"):
            delete(api, "job")
            assert run.wait() == 1
    seen = (busy.folder / "out").read_text()
    assert (cordoned(api), docker_since(busy, "gpu-2")) == ([], before)
    assert "not changed: its record" in seen
    assert "cannot be written: No space left on device" in seen
    assert "Traceback" not in seen
    done = worked(gpunode(busy, "resume", "inventory.yaml", "--yes", "--json"))
    assert [(row["host"], row["result"]) for row in of_kind(done, "verified")] == [("gpu-2", "verified")]
    assert cordoned(api) == []


def test_a_record_that_breaks_between_batches_finishes_one_and_begins_no_other(busy: Demo, tmp_path):
    """Here by a gate, which takes the folder away."""
    api, state = client(busy), busy.states["gpu-1"]
    delete(api, "job")
    with state.change() as now:
        faults.ACTS["runtime"].cause(state, state.machine(), now)
    runs = tmp_path / "state/gpunode/runs"
    command = f"test $GPUNODE_BATCH = 1 || {{ mv {runs} {runs}.kept; touch {runs}; }}"
    written = busy.inventory.read_text()
    busy.inventory.write_text(yaml.safe_dump({**yaml.safe_load(written), "gate": [command]}))
    before = docker_since(busy, "gpu-2")
    done = gpunode(busy, "provision", "inventory.yaml", "--yes", "--batch", "1")
    busy.inventory.write_text(written)
    runs.unlink()
    told = " ".join(done.stderr.split())
    assert done.returncode == 1, done.stdout + done.stderr
    assert "Skipped: gpu-2: its record" in told
    assert "No further host was started: its record" in told
    assert "or make it writable. `gpunode resume` continues" in told
    assert (cordoned(api), docker_since(busy, "gpu-2")) == ([], before)
    assert "nvidia" in (state.root / "etc/docker/daemon.json").read_text()


# --- the control plane ---


@pytest.fixture
def master(busy: Demo) -> Iterator[Demo]:
    """The host that is to change is of the control plane, and has an etcd."""
    api = client(busy)
    delete(api, "job")
    label(api, "gpu-2", {"node-role.kubernetes.io/control-plane": ""})
    yield busy
    label(api, "gpu-2", {"node-role.kubernetes.io/control-plane": None})
    api.ask("DELETE", "/api/v1/namespaces/kube-system/pods/etcd-other", {"gracePeriodSeconds": 0})


def label(api: Client, node: str, labels: dict[str, str | None]) -> None:
    body = {"metadata": {"labels": labels}}
    code, answer = api.ask("PATCH", f"/api/v1/nodes/{node}", body, "application/merge-patch+json")
    assert code == 200, answer


def name_the_master(demo: Demo) -> None:
    """As `control_plane: true` of that host."""
    written = yaml.safe_load(demo.inventory.read_text())
    for group in written["groups"].values():
        group["hosts"] = [
            {**host, "control_plane": True} if host["name"] == "gpu-2" else host for host in group["hosts"]
        ]
    demo.inventory.write_text(yaml.safe_dump(written))


def test_a_host_of_the_control_plane_is_left_alone_unless_named(master: Demo):
    """Then it is changed while API server and etcd are healthy."""
    before = docker_since(master, "gpu-2")
    done = gpunode(master, "provision", "inventory.yaml", "--yes", "--json")
    assert done.returncode == 4, done.stdout + done.stderr
    outcome = next(line for line in of_kind(done, "plan") if line["host"] == "gpu-2")
    assert outcome["error"] == "it belongs to the control plane, and the plan disturbs it: restart of docker"
    assert "`control_plane: true`" in outcome["hint"]
    assert docker_since(master, "gpu-2") == before

    name_the_master(master)
    api = client(master)
    body = {
        "kind": "Pod",
        "metadata": {"name": "etcd-other", "namespace": "kube-system", "labels": {"tier": "control-plane"}},
        "spec": {"nodeName": "gpu-1", "containers": [{"name": "etcd", "image": "i"}]},
    }
    code, answer = api.ask("POST", "/api/v1/namespaces/kube-system/pods", body)
    assert code == 201, answer
    done = gpunode(master, "provision", "inventory.yaml", "--yes", "--json")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "the control plane is not healthy: not Ready: etcd-other" in done.stdout
    assert (docker_since(master, "gpu-2"), cordoned(api)) == (before, [])

    api.ask("DELETE", "/api/v1/namespaces/kube-system/pods/etcd-other", {"gracePeriodSeconds": 0})
    worked(gpunode(master, "provision", "inventory.yaml", "--yes", "--json"))
    assert docker_since(master, "gpu-2") > before
