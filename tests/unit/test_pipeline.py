"""The order of a run, what a probe looks at, and that plans read only what is watched."""

from fnmatch import fnmatchcase
from typing import Any, get_args

import pytest

from gpunode.engine import chain as pipeline
from gpunode.engine import impact
from gpunode.engine.chain import decide
from gpunode.engine.shown import headline
from gpunode.links.kubelet import places
from gpunode.links.runtime import RUNTIMES, microk8s
from gpunode.links.toolkit import cdi
from gpunode.model import PluginImage, Reboot, RemoveFile, Runtime, Service, WriteFile
from gpunode.planning.templates import template
from tests import cases, tables


def test_steps_come_in_the_order_in_which_they_depend_on_each_other():
    """Sources before packages, packages before the runtime that needs them, the runtime before the kubelet."""
    assert [step.name for step in pipeline.STEPS] == [
        "repository",
        "nouveau",
        "driver",
        "fabric",
        "persistence",
        "mig",
        "daemons",
        "toolkit",
        "toolkit-config",
        "cdi",
        "dev-char",
        "selinux",
        "k3s",
        "rke2",
        "k0s",
        "microk8s",
        "docker",
        "crio",
        "containerd",
        "kubelet",
        "image",
    ]


def test_a_unit_of_two_steps_is_restarted_once_with_the_files_of_both():
    """k3s: with a gate that its kubelet refuses, a restart for the runtime alone would fail."""
    settings, gate = "/etc/rancher/k3s/config.yaml.d", "kubelet-arg+:\n  - feature-gates=DevicePlugins=true\n"
    host = cases.host("k3s")
    seen = cases.facts(
        "k3s", {"files": {f"{settings}/50.yaml": gate}, "units": {"k3s-agent.service": "loaded"}}
    )

    steps = {step.step: step.changes for step in pipeline.plan(host, seen, decide(host, seen, None)).steps}

    (first,), (second, restart) = steps["k3s"], steps["kubelet"]
    assert isinstance(first, WriteFile)
    assert isinstance(second, WriteFile)
    assert isinstance(restart, Service)
    assert restart.guards == (first.path, second.path)
    assert restart.why == "it is not running; it reads its gates at its start"
    assert restart.fault == ""


def test_every_file_that_a_plan_touches_was_looked_at():
    """A file that no probe reads could be overwritten unseen."""
    image = PluginImage("r:1", "/a.tar", "sha256:1")
    for base in ("legacy", "modern"):
        host, seen = cases.host(base), cases.facts(base)
        watch = pipeline.watch(image)
        for change in pipeline.plan(host, seen, decide(host, seen, image)).changes:
            if isinstance(change, WriteFile | RemoveFile):
                assert any(fnmatchcase(change.path, pattern) for pattern in watch.files), change.path
        assert set(seen.units) <= set(watch.units)
        assert watch.images == ("r:1",)


def test_every_package_that_a_plan_names_was_looked_at():
    """What is installed must be seen the next time, or it is installed for ever."""
    for base in ("legacy", "modern"):
        host, seen = cases.host(base), cases.facts(base)
        wish = decide(host, seen, None)
        assert wish.driver is not None
        for spec in (*wish.driver.pin, *wish.driver.headers, *wish.driver.packages, *wish.toolkit):
            assert any(fnmatchcase(spec.name, p) for p in pipeline.watch(None).packages), spec


def test_two_reasons_to_reboot_are_one_reboot_at_the_end():
    """nouveau holds a GPU, and a stale module another."""
    over = {
        "pci": [
            {"address": "0000:19:00.0", "device": "2330", "driver": "nouveau"},
            {"address": "0000:3b:00.0", "device": "2330", "driver": "nvidia"},
        ]
    }
    host, seen = cases.host("modern"), cases.facts("modern", over)
    plan = pipeline.plan(host, seen, decide(host, seen, None))
    reboots = [change for change in plan.changes if isinstance(change, Reboot)]
    assert len(reboots) == 1
    assert plan.changes[-1] is reboots[0]
    assert plan.steps[-1].step == "reboot"


def test_every_runtime_of_the_vocabulary_has_its_module():
    """And is a step, whose module goes by that name."""
    assert set(RUNTIMES) == set(get_args(Runtime))
    assert {step.name for step in pipeline.STEPS if step.layer == "runtime"} >= set(RUNTIMES)


def test_a_docker_that_stands_still_is_the_runtime_of_a_kubelet_that_drives_it():
    """Even where nothing could be decided, and docker's own containerd answers."""
    stopped = {"docker": None, "containerd": {"version": "1.6.20"}}
    assert headline(cases.facts("legacy", stopped)).endswith(
        "docker, which does not answer · kubelet 1.23.17"
    )


@tables.rows("docker-restarts")
def test_a_restart_of_docker_knows_whom_it_may_end(
    wish: dict[str, str], over: dict[str, Any], ends: list[str] | None
):
    """Those containers on GPUs that the plan was made with; processes outside of containers go on."""
    users = [
        {"pid": 7, "command": "python3", "container": "c", "pod": "uid-1", "name": "ml/train"},
        {"pid": 8, "command": "Xorg", "container": None, "pod": None, "name": None},
    ]
    host, seen = cases.host("legacy", wish), cases.facts("legacy", {"gpu_users": users, **over})
    changes = pipeline.plan(host, seen, decide(host, seen, None)).changes
    (restart,) = [change for change in changes if isinstance(change, Service)]
    assert restart.ends == (ends and tuple(ends))


SYSTEMD = "[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]\nSystemdCgroup = true\n"


@pytest.mark.parametrize(
    ("wish", "versions"),
    [({}, {"systemd": "252", "runc": "1.1.5"}), ({"toolkit": "1.17.8", "cdi": False}, {"systemd": "252"})],
    ids=["links", "hook"],
)
def test_where_a_daemon_reload_takes_gpus_every_service_change_is_one_that_ends_their_work(
    wish: dict[str, Any], versions: dict[str, str]
):
    """The links come after that reload, and count for new containers alone. Without containers on GPUs it takes nothing."""
    over = {"versions": versions, "containerd": {"version": "2.2.0", "dump": f"version = 3\n{SYSTEMD}"}}
    inside = {"pid": 7, "command": "python3", "container": "c", "pod": "uid-1", "name": "ml/train"}
    outside = {"pid": 8, "command": "Xorg", "container": None, "pod": None, "name": None}
    for users, work, ends in (
        ([inside, outside], "wait", ("uid-1",)),
        ([inside], "kill", None),
        ([outside], "wait", None),
    ):
        host = cases.host("modern", {**wish, "work": work})
        seen = cases.facts("modern", {"gpu_users": users, **over})
        changes = pipeline.plan(host, seen, decide(host, seen, None)).changes
        changed = [change for change in changes if isinstance(change, Service)]
        assert changed
        loses = inside in users
        assert {change.loses for change in changed} == {loses}
        assert all(change.ends == ends and (change.note == pipeline.LOSES) == loses for change in changed)
        disturbance = impact.disturbance_of(changed)
        assert (disturbance.devices, disturbance.ends_gpu_work) == (loses, loses)


@pytest.mark.parametrize("name", [cdi.DEV_CHAR_FILE, cdi.FILE])
def test_what_hands_out_devices_starts_after_gpunodes_own_units_and_never_waits_for_good(name: str):
    """Every kubelet and runtime that gpunode drives; a oneshot has no time limit of its own."""
    text = template(name.lstrip("/"))
    before = {unit for line in text.splitlines() if line.startswith("Before=") for unit in line[7:].split()}
    runtimes = {"docker.service", "containerd.service", "crio.service", "cri-docker.service", *microk8s.UNITS}
    assert before >= {place.unit for place in places.PLACES} | runtimes
    assert "\nTimeoutStartSec=60\n" in text


def test_a_specification_that_cannot_be_read_is_not_called_missing():
    """Of several that of gpunode's and the toolkit's unit counts, whichever comes first by name."""
    large = {"exists": True, "error": "larger than 256 KiB"}
    there = {"/run/cdi/a.yaml": "kind: nvidia.com/gpu\n# /usr/lib/libcuda.so.1.2.3\n"}
    right = {cdi.WRITTEN: "kind: nvidia.com/gpu\n# /usr/lib/libcuda.so.580.1.2\n"}
    for files, wrong in (
        ({cdi.WRITTEN: large}, f"{cdi.WRITTEN} cannot be read: larger than 256 KiB"),
        (there, "/run/cdi/a.yaml is older than the driver"),
        ({**there, **right}, ""),
    ):
        seen = cases.facts("modern", {"library_version": "580.1.2", "files": files, "gpus": []})
        problem = cdi.problem(seen)
        assert problem.startswith(wrong)
        assert bool(problem) == bool(wrong)
