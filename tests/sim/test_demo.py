"""The demo from its start to its end: it does what it tells, and leaves nothing."""

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import paramiko
import pytest
import yaml

from gpunode import inventory
from gpunode.errors import UsageError
from gpunode.sim import folder as files
from gpunode.sim import process as demos
from gpunode.sim import registry
from gpunode.sim.command import rehearse
from gpunode.sim.host import hosts, kinds, systemd
from gpunode.sim.host.answers import nvml
from gpunode.sim.narration import ending
from gpunode.sim.process import Demo
from tests import forks
from tests.sim.clusters import Client, until

from .operators import worked

GPUNODE = [sys.executable, "-m", "gpunode"]


@pytest.fixture(autouse=True)
def room(monkeypatch) -> Iterator[Path]:
    """Demos make their folders here (a short path, for the sockets in it); none may be left."""
    with tempfile.TemporaryDirectory(prefix="gpn-") as name:
        monkeypatch.setattr("tempfile.tempdir", name)
        monkeypatch.setenv("TMPDIR", name)
        monkeypatch.setattr("gpunode.sim.process.Popen", subprocess.Popen)  # a process that `processes` sees
        yield Path(name)
        assert not folders(Path(name))


def folders(room: Path) -> list[Path]:
    return list(room.glob(f"{demos.PREFIX}*"))


def gone(folder: Path, seconds: float = 120) -> bool:
    """Whether a demo's folder and processes are gone before the time is over."""
    deadline = time.monotonic() + seconds
    while (folder.exists() or processes(folder)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not folder.exists() and not processes(folder)


def processes(folder: Path) -> list[str]:
    """Processes that have to do with a demo's folder."""
    shown = subprocess.run(["ps", "-ww", "-eo", "pid,args"], capture_output=True, text=True, check=True)
    return [line for line in shown.stdout.splitlines() if str(folder) in line]


def group(leader: int) -> list[str]:
    """The processes of a process group that still run."""
    shown = subprocess.run(["ps", "-eo", "pgid,stat,args"], capture_output=True, text=True, check=True)
    rows = [line.split(None, 2) for line in shown.stdout.splitlines()[1:]]
    return [words for pgid, state, words in rows if pgid == str(leader) and not state.startswith("Z")]


def test_two_demos_stand_side_by_side_and_leave_nothing(room: Path):
    """Each with its own folder, hosts and cluster."""
    with Demo([kinds.new_host("one")]) as first, Demo([kinds.new_host("two")]) as second:
        for demo, name in ((first, "one"), (second, "two")):
            plan = forks.run([*GPUNODE, "plan", str(demo.inventory)], capture_output=True, text=True)
            assert plan.returncode == 0, plan.stderr
            assert name in plan.stdout
        both = (first.folder, second.folder)
        assert all(processes(folder) for folder in both)
    assert not any(processes(folder) for folder in both)


def test_one_whose_server_was_killed_leaves_nothing():
    """What starts it, ends it all the same."""
    with Demo([kinds.new_host("one")]) as demo:
        server = json.loads((demo.folder / "demo.json").read_text())["pid"]
        os.kill(server, signal.SIGKILL)
    assert gone(demo.folder)


def test_its_nodes_pull_the_image_that_its_inventory_names(room: Path):
    """As from a registry; no other."""
    with Demo([kinds.old_host("one")], cluster={"plugin": {"image": "registry.example/plugin:1"}}) as demo:
        api = Client(demo.folder / "kubeconfig")
        for name in ("registry.example/plugin:1", "registry.example/other:1"):
            container = {"name": "c", "image": name, "command": ["sleep", "600"]}
            meta = {"name": name.rpartition("/")[2].partition(":")[0]}
            pod = {"kind": "Pod", "metadata": meta, "spec": {"containers": [container]}}
            status, answer = api.ask("POST", "/api/v1/namespaces/default/pods", pod)
            assert status == 201, answer

        def state(pod: str) -> set[str]:
            _, item = api.ask("GET", f"/api/v1/namespaces/default/pods/{pod}")
            states = [each["state"] for each in item["status"].get("containerStatuses", [])]
            return {word for each in states for word in (*each, each.get("waiting", {}).get("reason", ""))}

        until(lambda: "running" in state("plugin"))
        until(lambda: "ErrImagePull" in state("other"))


def test_one_that_is_kept_goes_on_until_it_is_stopped(room: Path):
    """`gpunode demo stop` ends it, and what one that was killed left, and no other."""
    with Demo([kinds.host_without_gpus("cpu-1")]) as demo:
        demo.keep("demo")
    stale, begun, locking = (room / f"{demos.PREFIX}{name}" for name in ("stale", "begun", "locking"))
    for folder in (stale, begun, locking):
        folder.mkdir()
    for folder in (stale, locking):
        (folder / "lock").touch()
    (stale / "demo.json").touch()
    look = forks.run([*GPUNODE, "plan", str(demo.inventory)], capture_output=True, text=True)
    assert "no NVIDIA GPU on the PCI bus" in look.stdout
    with Demo([kinds.host_without_gpus("cpu-2")]) as running:
        stopped = forks.run([*GPUNODE, "demo", "stop"], capture_output=True, text=True, check=True)
        assert set(stopped.stdout.splitlines()) == {
            f"ended {demo.folder}",
            f"removed {stale}: a killed demo left it",
        }
        assert set(folders(room)) == {running.folder, begun, locking}
        assert not processes(demo.folder)
        assert forks.run([*GPUNODE, "plan", str(running.inventory)]).returncode == 4
    begun.rmdir()
    (locking / "lock").unlink()
    locking.rmdir()


def test_one_starts_bare_at_once_and_keeps_its_own_records(room: Path):
    """Its hosts have the pages' names; a run that its end would cut off keeps it."""
    forks.run([*GPUNODE, "demo", "start", "--hosts", "2"], capture_output=True, text=True, check=True)
    (demo,) = registry.list_kept()
    try:
        assert [state.folder.name for state in demo.states] == ["h100-01", "p100-01"]
        listed = forks.run([*GPUNODE, "history"], cwd=demo.folder, capture_output=True, text=True)
        runs = demo.folder / ".gpunode/gpunode/runs"
        assert listed.stderr == f" No run is recorded on this machine. Records are in {runs}.\n"
        runs.mkdir(parents=True)
        with (runs / "a.jsonl").open("w") as record:
            fcntl.flock(record, fcntl.LOCK_EX)
            stopped = forks.run([*GPUNODE, "demo", "stop"], capture_output=True, text=True)
        assert (stopped.returncode, registry.list_kept()) == (1, (demo,))
        assert "demo was not stopped: run a is under way: without the demo it cannot finish" in stopped.stderr
    finally:
        for kept in registry.list_kept():
            registry.stop(kept.name)


def test_the_busy_one_of_several_stays_and_the_others_end(room: Path):
    """A plan that waits for its answer holds a connection, and no record."""
    kept = []
    for name in ("demo", "demo-2"):
        with Demo([kinds.host_without_gpus("cpu-1")]) as demo:
            demo.keep(name)
            kept.append(demo)
    with paramiko.Transport(("127.0.0.1", kept[0].port("cpu-1"))) as connection:
        connection.start_client(timeout=60)  # the server drops who says nothing for 15 s
        until(lambda: registry.find("demo").busy)
        stopped = forks.run([*GPUNODE, "demo", "stop"], capture_output=True, text=True)
    assert (stopped.returncode, stopped.stdout) == (1, f"ended {kept[1].folder}\n")
    assert "demo was not stopped: a command is connected to its hosts" in stopped.stderr
    assert folders(room) == [kept[0].folder]
    assert forks.run([*GPUNODE, "demo", "stop"], capture_output=True, text=True).returncode == 0


def test_no_demo_is_here_in_the_folder_of_one_that_has_ended(tmp_path, monkeypatch):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert not registry.Kept("demo", tmp_path, tmp_path).is_here


def test_kept_ones_have_names_and_are_stopped_one_by_one(room: Path):
    """What needs one of several asks for its name; without one, none is ended that was begun elsewhere."""

    def said(*words: str, cwd: Path | None = None) -> tuple[int, str]:
        done = forks.run([*GPUNODE, "demo", *words], cwd=cwd, capture_output=True, text=True)
        return done.returncode, done.stdout + done.stderr

    assert said("break", "xid") == (
        2,
        "gpunode: no demo is running\n  Start one: `gpunode demo start`.\n",
    )
    folders = {}
    for expected in ("demo", "demo-2"):
        with Demo([kinds.host_without_gpus("cpu-1")]) as demo:
            folders[expected] = demo.folder
            assert registry.free_name() == expected
            demo.keep(expected)
    assert said("list") == (
        0,
        "".join(f"{name}  1 host  {folder}  begun in {Path.cwd()}\n" for name, folder in folders.items()),
    )
    assert said("add") == (2, "gpunode: 2 demos are running\n  Name one of demo, demo-2.\n")
    assert said("break", "xid", "demo") == (2, "gpunode: xid is not possible on any host of demo\n")
    assert said("break", "xyz", "demo")[0] == 2
    assert said("stop", "demo-2") == (0, f"ended {folders['demo-2']}\n")
    others = f"demo runs on, begun in {Path.cwd()}: `gpunode demo stop demo` ends it\n"
    assert said("stop", cwd=room) == (0, others)
    assert said("stop", cwd=folders["demo"] / "hosts") == (0, f"ended {folders['demo']}\n")
    assert said("stop") == (0, "no demo was kept running\n")


def test_a_kept_one_is_broken_grows_and_gets_another_driver(room: Path):
    with Demo([kinds.new_host("h100-1")]) as demo:
        demo.keep("demo")

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return forks.run([*GPUNODE, *words], cwd=demo.folder, capture_output=True, text=True)

    try:
        early = run("demo", "break", "toolkit")
        assert (early.returncode, "toolkit: h100-1 is not provisioned" in early.stderr) == (1, True)
        assert run("demo", "add").stdout.startswith("added new1-01 as group added1.")
        assert run("demo", "add", "demo", "--hosts", "2").stdout.startswith(
            "added new2-01, new2-02 as group added2."
        )
        done = worked(
            run("provision", "inventory.yaml", "--yes", "--batch", "100%", "--limit", "h100-1,added1")
        )
        assert done.stdout.count("vectoradd passed on each") == 2

        with pytest.raises(
            UsageError, match="demo has no host h100-9\n  Choose one of h100-1, new1-01, new2"
        ):
            registry.break_host(registry.find(None), "toolkit", "h100-9")
        named = run("demo", "break", "toolkit", "--host", "h100-1").stdout
        assert named.startswith("On h100-1 ")
        assert "verify inventory.yaml --limit h100-1`" in named
        verified = run("verify", "inventory.yaml", "--no-run", "--limit", "h100-1")
        assert (verified.returncode, "✗ toolkit" in verified.stdout) == (1, True)

        inventory = demo.inventory.read_text()
        demo.inventory.write_text(inventory.replace("defaults:\n", 'defaults:\n  driver: "580"\n'))
        worked(run("provision", "inventory.yaml", "--yes", "--no-run", "--limit", "h100-1"))
        assert registry.find(None).states[0].now().library.startswith("580.")
    finally:
        registry.stop()


def test_one_grows_for_several_at_once_past_a_host_that_cannot_be_read(room: Path):
    """What its user wrote into the inventory stays; the host is served as soon as it can be read."""
    with Demo([kinds.host_without_gpus("cpu-1")]) as demo:
        demo.keep("demo")
    try:
        each = registry.find("demo")
        demo.inventory.write_text(f"# mine\n{demo.inventory.read_text()}")
        (demo.folder / "hosts/half").mkdir()  # as an add that was killed leaves it
        with ThreadPoolExecutor() as pool:
            added = list(pool.map(registry.add_hosts, [each] * 3, [1] * 3))
        assert sorted(added) == [(f"added{n}", (f"new{n}-01",)) for n in (1, 2, 3)]
        assert demo.inventory.read_text().startswith("# mine\n")
        hosts_now = {host.name: host.ssh.port for host in inventory.load(demo.inventory).hosts}
        ports = json.loads((demo.folder / "demo.json").read_text())["ports"]
        assert hosts_now == ports
        assert "half cannot be served yet: FileNotFoundError" in (demo.folder / "server.log").read_text()

        shutil.rmtree(demo.folder / "hosts/half")
        hosts.create(demo.folder, kinds.host_without_gpus("half"))
        registry.add_hosts(each, 1)
        until(lambda: "half" in json.loads((demo.folder / "demo.json").read_text())["ports"])
    finally:
        registry.stop()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_an_interrupted_show_leaves_nothing(room: Path, number: signal.Signals):
    """However it ends: its server notices, and ends gpunode's command of that moment."""
    words = [*GPUNODE, "demo", "--fast", "--hosts", "2"]
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job is started with it ignored
    with (
        (room / "said").open("w") as said,
        subprocess.Popen(words, stdout=subprocess.PIPE, stderr=said, start_new_session=True) as show,
    ):
        assert show.stdout
        while b"$ gpunode provision" not in show.stdout.readline():
            assert show.poll() is None
        folder = folders(room)[0]
        until(lambda: list(folder.glob("hosts/*/root/run/gpunode/lock")))
        assert not [run for run in group(show.pid) if "gpunode provision" in run]  # it does not hear a Ctrl-C
        (os.killpg if number is signal.SIGINT else os.kill)(show.pid, number)  # as a terminal's Ctrl-C does
        if number is not signal.SIGKILL:
            assert show.wait(timeout=120) == 130
            assert (room / "said").read_text().count("interrupted") == 1
        assert gone(folder)
        until(lambda: not group(show.pid))


def test_a_link_that_is_not_known_is_refused_with_those_that_are():
    """Exit code 2, as for other mistakes of usage."""
    show = forks.run([*GPUNODE, "demo", "--break", "libary"], capture_output=True, text=True)
    assert show.returncode == 2
    assert "Did you mean library? Choose one of module, " in show.stderr


def test_a_link_that_none_of_the_hosts_has_is_refused_before_the_show(room: Path):
    """Not after a minute, at its end."""
    written = room / "inventory.yaml"
    written.write_text("groups: {h100: {hosts: [a]}}\n")
    show = forks.run(
        [*GPUNODE, "demo", "--inventory", str(written), "--break", "daemon.json"],
        capture_output=True,
        text=True,
    )
    assert (show.returncode, show.stdout) == (2, "")
    assert "not possible on these hosts; choose one of module, " in show.stderr


@pytest.mark.parametrize("name", ["h100-1", "p100-1", "k80-1"])
def test_a_rehearsal_has_the_driver_and_toolkit_that_are_left_to_others(room: Path, name: str):
    """`none` says that they are there; they are still there after a reboot."""
    written = room / "inventory.yaml"
    written.write_text(f"groups: {{gpu: {{hosts: [{name}], driver: none, toolkit: none}}}}\n")
    (machine,) = rehearse(written).machines
    state = hosts.create(room, machine)
    with state.change() as now:
        systemd.reboot(state, now)
    now = state.now()
    assert now.modules["nvidia"] == now.library
    assert nvml(machine, now)[0] == 0
    assert "nvidia-container-toolkit" in now.packages
    written.write_text(f"groups: {{gpu: {{hosts: [{name}]}}}}\n")
    assert rehearse(written).machines[0].has == ()


def test_a_rehearsal_invents_hosts_that_fit_the_inventory():
    """Names say what GPUs there are; groups and wishes stay."""
    read = rehearse(Path("inventories/fleet.yaml"))
    machines, groups = read.machines, read.groups
    models = {machine.name: machine.gpus[0].name for machine in machines}
    assert models["p100-07"] == "Tesla P100-PCIE-16GB"
    assert models["h100-17"] == "NVIDIA H100 80GB HBM3"
    assert len(groups["h100"]["hosts"]) == 17
    pinned = next(host for host in groups["h100"]["hosts"] if host["name"] == "h100-17")
    assert (pinned["driver"], pinned["runtime"]) == ("580.95.05", "class")


def test_a_rehearsal_carries_every_key_or_names_it(room: Path):
    """Its inventory makes the hosts of the user's; the machines have the GPUs that it expects."""
    written = room / "inventory.yaml"
    written.write_text(
        "cluster: {max_tainted: 50%}\ngate: ['true']\n"
        "defaults: {work: drain, work_timeout: 10m, taint_until_verified: true, accept: {valid: 12h, required: true}}\n"
        "groups:\n"
        "  a: {gpus: {model: A100, count: 8}, mig: {A100: all-1g.10gb}, python: /usr/bin/python3, isolation: true, hosts: [x]}\n"
        "  b: {mig: off, feature_labels: true, taints: ['a=b:NoSchedule'], labels: {a: b}, hosts: [y, {name: z, node: n}]}\n"
        "  c: {driver: {from: distribution}, gpus: 3, work_timeout: 90h, hosts: [w]}\n"
    )
    read = rehearse(written)
    assert read.left_out == (
        "the demo leaves out python, node, isolation, driver.from, gate: not simulated.",
    )
    assert [(len(machine.gpus), machine.gpus[0].name) for machine in read.machines][0::3] == [
        (8, "NVIDIA A100-SXM4-80GB"),
        (3, "NVIDIA H100 80GB HBM3"),
    ]
    rehearsed = room / "demo.yaml"
    rehearsed.write_text(yaml.safe_dump({"cluster": {"max_tainted": "50%"}, "groups": read.groups}))
    same = {"python": "", "node": None, "isolation": False, "driver_from": ""}
    assert inventory.load(rehearsed).hosts == tuple(
        replace(host, **same) for host in inventory.load(written).hosts
    )
    assert read.cluster["max_tainted"] == "50%"


@pytest.mark.parametrize("path", sorted(Path("inventories").iterdir()), ids=lambda path: path.stem)
def test_a_rehearsal_needs_no_file_that_an_inventory_names(path: Path):
    """No keys, kubeconfig or archive: the examples name some that nobody has."""
    assert rehearse(path).machines


def test_a_rehearsal_pulls_the_image_that_the_inventory_names(room: Path):
    """An archive is replaced by the demo's own."""
    written = room / "inventory.yaml"
    written.write_text(
        "cluster: {plugin: {image: registry.example/plugin:1}}\ngroups: {h100: {hosts: [a]}}\n"
    )
    assert rehearse(written).cluster["plugin"]["image"] == "registry.example/plugin:1"
    written.write_text("cluster: {plugin: {archive: none.tar}}\ngroups: {h100: {hosts: [a]}}\n")
    assert rehearse(written).cluster["plugin"]["archive"] == "plugin.tar"


def test_a_rehearsal_without_a_plugin_deploys_none(room: Path):
    """What the inventory leaves out is left out of the demo's, and its end claims no more than was done."""
    written = room / "inventory.yaml"
    written.write_text("groups: {l4: {hosts: [a]}}\n")
    read = rehearse(written)
    with Demo(read.machines, read.groups, read.cluster, read.files) as demo:
        assert inventory.load(demo.inventory).cluster.plugin is None
        assert not files.deploys_plugin(demo.folder)
        assert demo.metrics == {}
    assert "verified" not in ending(0, None, whole=False)
    words = [*GPUNODE, "demo", "--inventory", str(written), "--break", "image"]  # which is the plugin's
    broken = forks.run(words, capture_output=True, text=True)
    assert (broken.returncode, broken.stdout) == (2, "")


BY_TIME = "version: v1\nsharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 2}]}}\n"
BY_MPS = BY_TIME.replace("timeSlicing", "mps")
BY_CDI = "version: v1\nflags: {plugin: {deviceListStrategy: cdi-cri}}\n"


def with_plugin(folder: Path, settings: str, **files: str) -> Path:
    """An inventory whose plugin has these settings."""
    for name, text in files.items():
        (folder / f"{name}.yaml").write_text(text)
    path = folder / "inventory.yaml"
    path.write_text(
        f"cluster: {{plugin: {{image: 'plugin:1', {settings}}}}}\ngroups: {{h100: {{hosts: [a]}}}}\n"
    )
    return path


def test_a_rehearsal_configures_the_plugin_as_the_inventory_does(room: Path):
    """Its files go with it, and so does what the plugin tells."""
    read = rehearse(with_plugin(room, "config: slices.yaml, metrics: true, events: false", slices=BY_TIME))
    plugin = {
        "image": "plugin:1",
        "config": "plugin.yaml",
        "events": False,
        "annotation": False,
        "condition": False,
        "metrics": True,
    }
    assert (read.cluster["plugin"], read.files, read.left_out) == (plugin, {"plugin.yaml": BY_TIME}, ())
    several = with_plugin(room, "configs: {default: none.yaml, shared: slices.yaml}", none="version: v1\n")
    read = rehearse(several)
    assert read.cluster["plugin"]["configs"] == {
        "default": "plugin-default.yaml",
        "shared": "plugin-shared.yaml",
    }
    assert read.files == {"plugin-default.yaml": "version: v1\n", "plugin-shared.yaml": BY_TIME}


@pytest.mark.parametrize(("text", "what"), [(BY_MPS, "MPS"), (BY_CDI, "CDI")], ids=["MPS", "CDI"])
def test_what_cannot_be_simulated_is_left_out_of_a_rehearsal_with_a_word(room: Path, text: str, what: str):
    """Before anything is started; else pods would fail for reasons that are the simulation's."""
    read = rehearse(with_plugin(room, "config: slices.yaml", slices=text))
    assert "config" not in read.cluster["plugin"]
    assert read.left_out == (f"{what} cannot be simulated: the demo ignores cluster.plugin.config.",)
