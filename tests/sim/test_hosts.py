"""Hosts of different kinds become GPU nodes, through real SSH and by the real agent; what breaks there is found."""

import json
import subprocess
from collections.abc import Iterator

import pytest
from typer.core import TyperOption
from typer.main import get_command

from gpunode.cli import demo
from gpunode.engine.chain import FAULTS, judge_host, stop_at_broken
from gpunode.links.plugin.link import judge_image
from gpunode.model import Outcome
from gpunode.sim import faults
from gpunode.sim.host import apt, hosts, kinds, systemd
from gpunode.sim.host.machine import ContainerNow, RuntimeNow
from tests import tables
from tests.sim.fleets import Fleet, serving

GOOD = ("p100-1", "h100-1", "a100-1")


@pytest.fixture(scope="module")
def fleet(tmp_path_factory) -> Iterator[Fleet]:
    """One host of every kind."""
    machines = (
        kinds.old_host("p100-1"),
        kinds.new_host("h100-1"),
        kinds.nouveau_host("a100-1"),
        kinds.host_without_gpus("cpu-1"),
    )
    with serving(tmp_path_factory.mktemp("fleet"), machines) as served:
        yield served


@pytest.fixture(scope="module")
def done(fleet: Fleet) -> dict[str, Outcome]:
    """How provisioning all of them ended."""
    return fleet.provision()


@pytest.mark.parametrize("name", GOOD)
def test_a_bare_host_becomes_right(fleet: Fleet, done: dict[str, Outcome], name: str):
    """Changed, with nothing left to do, and its GPUs answer."""
    outcome = done[name]
    assert (outcome.status, outcome.problem) == ("changed", None)
    assert not outcome.plan
    assert [gpu.uuid for gpu in outcome.facts.gpus] == [gpu.uuid for gpu in fleet.states[name].machine().gpus]


@pytest.mark.parametrize("name", GOOD)
def test_what_a_run_installed_can_be_installed_again(fleet: Fleet, done: dict[str, Outcome], name: str):
    """By its version, as an undo of an undo does."""
    state = fleet.states[name]
    kernel, packages = state.machine().kernel, state.now().packages
    versions = {each: package.version for each, package in packages.items() if each != "kubelet"}
    assert {
        each: apt.candidate(each, version, nvidia=True, kernel=kernel, pins=())
        for each, version in versions.items()
    } == versions


def test_each_gpu_gets_the_driver_that_fits_it(done: dict[str, Outcome]):
    """Pascal ends with 580 and its proprietary module; Hopper and Ampere get production and the open one."""
    banners = {name: (done[name].facts.module_banner or "") for name in GOOD}
    assert "x86_64 Kernel Module  580." in banners["p100-1"]
    assert "Open Kernel Module for x86_64  595." in banners["h100-1"]
    assert "Open Kernel Module for x86_64  595." in banners["a100-1"]


def test_nouveau_makes_room_by_a_reboot(fleet: Fleet, done: dict[str, Outcome]):
    """The host was down and came back with another boot id and without nouveau."""
    facts = done["a100-1"].facts
    assert "nouveau" not in facts.modules
    assert facts.uptime < 3600
    assert fleet.states["h100-1"].now().booted < fleet.states["a100-1"].now().booted


def test_a_host_that_cannot_become_one_is_told_why(done: dict[str, Outcome]):
    """Refused with the cause and a way out, and nothing changed."""
    outcome = done["cpu-1"]
    assert outcome.status == "refused"
    assert "no NVIDIA GPU on the PCI bus" in outcome.why
    assert outcome.problem.fix
    assert outcome.applied == ()


def test_what_was_there_stays(fleet: Fleet, done: dict[str, Outcome]):
    """Other keys of daemon.json, comments of config.toml, the kubelet's other arguments."""
    daemon = json.loads((fleet.states["p100-1"].root / "etc/docker/daemon.json").read_text())
    assert daemon["registry-mirrors"] == ["https://mirror.demo.example"]
    assert daemon["default-runtime"] == "nvidia"
    root = fleet.states["h100-1"].root
    assert "# the mirror is on the same switch" in (root / "etc/containerd/config.toml").read_text()
    assert (
        root / "etc/default/kubelet"
    ).read_text() == 'KUBELET_EXTRA_ARGS="--node-labels=demo.example/rack=r12 --v=2"\n'


def test_a_second_look_costs_one_command(fleet: Fleet, done: dict[str, Outcome]):
    """And finds nothing to do."""
    before = fleet.server.execs("h100-1")
    outcome = fleet.look("h100-1")["h100-1"]
    assert outcome.status == "right"
    assert fleet.server.execs("h100-1") == before + 1


JOB = ContainerNow(
    "ab" * 32, "11111111-2222-3333-4444-555555555555", 71000, ["python3", "train.py"], gpu=True
)


@pytest.mark.parametrize(("name", "unit"), [("p100-1", "docker.service"), ("h100-1", None)])
def test_a_plan_says_whose_work_it_ends(fleet: Fleet, done: dict[str, Outcome], name: str, unit: str | None):
    """A pod that has a GPU: docker's restart stops it, and no driver is unloaded below it. Its end, or the host's, ends both."""
    assert done[name].status == "changed"
    state = fleet.states[name]
    before = state.now()
    with state.change() as now:
        now.containers = [JOB]
        now.runtime = RuntimeNow() if unit else now.runtime
        now.library = now.library if unit else "595.1.2"
    try:
        plan = fleet.look(name)[name].plan
        told = [line for change in plan.changes for line in (change.why, getattr(change, "note", ""))]
        users = "python3 train.py (pid 71000, pod 11111111-2222-3333-4444-555555555555)"
        wanted = f"2 containers stop with it; the kubelet starts those of pods again; on GPUs: {users}"
        assert any((wanted if unit else f"in use by {users}") in line for line in told), told
        with state.change() as now:
            if unit:
                systemd.start(state, now, unit)
            else:
                systemd.reboot(state, now)
        assert state.now().containers == []
        assert not (state.root / "proc/71000").exists()
    finally:
        with state.change() as now:
            now.containers, now.runtime, now.library = [], before.runtime, before.library


@tables.rows("programs-of-fixes")
def test_programs_that_a_fix_names_tell_people_how_it_is(
    fleet: Fleet, done: dict[str, Outcome], command: str, status: int, said: str
):
    """In the real ones' shape, by the names that people give units."""
    assert done["h100-1"].status == "changed"
    state = fleet.states["h100-1"]
    asked = subprocess.run(
        ["/bin/sh", "-c", command],
        env=hosts.environment(state, state.machine()),
        capture_output=True,
        text=True,
        check=False,
    )
    assert asked.returncode == status, asked
    assert said in asked.stdout + asked.stderr


def test_every_fault_of_the_chain_can_happen_here():
    """And no other."""
    assert list(faults.ACTS) == list(FAULTS)


def test_the_help_of_break_names_every_fault():
    """The list is typed there, so that `--help` stays fast."""
    (option,) = [param for param in get_command(demo.app).params if param.name == "break_"]
    assert isinstance(option, TyperOption)
    assert (option.help or "").endswith(f": {', '.join(FAULTS)}.")


def test_a_fault_that_would_change_nothing_is_an_error(tmp_path):
    """A bare host's config.toml has no nvidia runtime to take away."""
    hosts.lay_out(tmp_path)
    bare = hosts.create(tmp_path, kinds.new_host("h100-1"))
    with pytest.raises(ValueError, match=r"config\.toml on this host has no .*nvidia"):
        faults.inflict("runtime", [bare])


def test_a_kubelet_reads_its_arguments_as_it_starts_and_crashes_with_a_gate_that_is_gone(tmp_path):
    """As on the real host: systemd starts it again and again."""
    hosts.lay_out(tmp_path)
    state = hosts.create(tmp_path, kinds.new_host("h100-1"))
    assert "--node-labels=demo.example/rack=r12" in state.now().arguments
    faults.inflict("gate", [state])
    assert state.now().units["kubelet.service"].sub == "auto-restart"


@pytest.mark.parametrize("fault", FAULTS)
def test_verify_names_the_first_broken_link_and_provision_fixes_it(
    fleet: Fleet, done: dict[str, Outcome], fault: str
):
    """One fault at a time; the test puts back what only a user can fix."""
    states = [fleet.states["p100-1"], fleet.states["h100-1"]]
    texts = {
        path: path.read_text()
        for state in states
        for name in ("etc/docker/daemon.json", "etc/containerd/config.toml")
        if (path := state.root / name).exists()
    }
    name = faults.inflict(fault, states)
    try:
        seen = fleet.look(name)[name]
        links = [*judge_host(seen), *filter(None, [judge_image(seen)])]
        broken = [link for link in stop_at_broken(links) if link.status == "broken"]
    finally:
        if FAULTS[fault].by_hand:
            for path, text in texts.items():
                if path.read_text() != text:  # a file that is written is newer than the program that read it
                    path.write_text(text)
            with fleet.states[name].change() as now:
                now.lost, now.xids = [], []
        mended = fleet.provision(name)[name]
    assert [link.layer for link in broken] == [FAULTS[fault].layer], broken
    assert broken[0].fix
    assert mended.status in ("changed", "right")
    assert all(link.status == "ok" for link in judge_host(mended))
    assert judge_image(mended) is None
