"""A restart is good when all that worked before works after it; else the files are put back."""

from pathlib import Path

import pytest

from gpunode.model import Change, Service
from tests.agent.conftest import DAEMON, DOCKER, START, Host
from tests.agent.guarded import GUARDED, RECORD, RESTART, write

CONFIG = "/etc/containerd/config.toml"
CONTAINERD = "containerd.service"
CRI = (
    f'grep -q bad "$GPUNODE_ROOT{CONFIG}" && status=error || status=ok\n'
    'case "$1" in plugins)\n'
    'echo "TYPE                  ID   PLATFORMS    STATUS"\n'
    'echo "io.containerd.grpc.v1 cri  linux/amd64  $status";; esac\n'
)
UP = 'printf "LoadState=loaded\\nActiveState=active\\nMainPID=$$\\n" > "$units/$2"\n'


@pytest.fixture
def containerd(host: Host) -> Host:
    """A host with containerd, whose daemon starts with anything."""
    host.unit(CONTAINERD, UP)
    host.unit("kubelet.service")
    host.write(CONFIG, "version = 2\n")
    host.program(
        "journalctl",
        "echo 'failed to load plugin io.containerd.grpc.v1.cri: mirrors'\n"
        "echo 'skip loading plugin io.containerd.snapshotter.v1.zfs: error: no such file system'",
    )
    host.program("ctr", CRI)
    return host


def containerd_changes(text: str, before: str = "version = 2\n") -> tuple[Change, ...]:
    service = Service(CONTAINERD, "why", restart=True, guards=(CONFIG,))
    return (write(text, before, CONFIG), service)


def test_a_containerd_that_stays_up_without_cri_gets_its_file_back(containerd: Host):
    """With `mirrors` beside `config_path`, containerd 1.6 runs on and the kubelet is lost."""
    failed = containerd.fail(*containerd_changes("bad"))
    assert failed["restored"] == [CONFIG]
    assert "containerd's plugin io.containerd.grpc.v1.cri" in failed["error"]
    assert failed["error"].endswith("(failed to load plugin io.containerd.grpc.v1.cri: mirrors)")
    assert failed["detail"][-1] == f"with its files restored, {CONTAINERD} runs again"
    assert containerd.read(CONFIG) == "version = 2\n"


def test_cri_that_did_not_work_before_is_no_reason_to_put_back(containerd: Host):
    """Where docker has the pods, its containerd serves no CRI."""
    containerd.write(CONFIG, "bad")
    assert containerd.apply(*containerd_changes("bad, and more", "bad"))[-1]["ok"]
    assert containerd.read(CONFIG) == "bad, and more"


def test_a_runtime_of_containerd_that_is_lost_gets_its_file_back(containerd: Host):
    """Whatever `containerd config dump` then shows: it was there before."""
    before = "[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.kata]\n"
    containerd.write(CONFIG, before)
    containerd.program("containerd", f'cat "$GPUNODE_ROOT{CONFIG}"')
    failed = containerd.fail(*containerd_changes("other = 1\n", before))
    assert "containerd's runtime kata" in failed["error"]
    assert containerd.read(CONFIG) == before


def test_a_runtime_of_docker_that_is_lost_gets_its_file_back(docker: Host):
    """dockerd starts, and does not know what it knew."""
    docker.write("/run/docker.sock", "")
    docker.program(
        "docker", f'grep -q kata "$GPUNODE_ROOT{DAEMON}" && more=\',"kata":{{}}\'\n'
        'echo "{\\"ServerVersion\\":\\"20.10\\",\\"Runtimes\\":{\\"runc\\":{}$more}}"',
    )  # fmt: skip
    docker.write(DAEMON, '{"kata"}')
    failed = docker.fail(write('{"a": 1}', '{"kata"}'), GUARDED)
    assert "docker's runtime kata" in failed["error"]
    assert docker.read(DAEMON) == '{"kata"}'


def test_a_kubelet_that_ends_with_the_runtimes_restart_gets_the_file_back(docker: Host):
    """docker is well; what needs it is not."""
    docker.unit("kubelet.service")
    kubelet = f'grep -q kill "$GPUNODE_ROOT{DAEMON}" && state=failed || state=active\n'
    shown = 'printf "LoadState=loaded\\nActiveState=$state\\nMainPID=12\\n" > "$units/kubelet.service"\n'
    docker.write(f"/state/units/{DOCKER}.start", kubelet + shown + START)
    failed = docker.fail(write('{"kill": 1}'), GUARDED)
    assert "kubelet.service" in failed["error"]
    assert failed["restored"] == [DAEMON]
    assert docker.read(DAEMON) == "{}"


def test_a_kubelet_that_crashed_before_does_not_fail_the_runtimes_restart(docker: Host):
    """It is another process at every look, as it was."""
    now = int(float(Path("/proc/uptime").read_text().split()[0]) * 1e6)
    docker.unit("kubelet.service", NRestarts=7, ActiveEnterTimestampMonotonic=now)
    real = (docker.bin / "systemctl").read_text().removeprefix("#!/bin/sh\n")
    crash = 'echo "MainPID=$$" >> "$GPUNODE_ROOT/state/units/kubelet.service"\n'
    docker.program("systemctl", f'[ "$1" != show ] || {crash}{real}')
    assert docker.apply(write('{"a": 1}'), GUARDED)[-1]["ok"]


@pytest.mark.parametrize("properties", [{"ActiveState": "failed"}, {"NRestarts": 7}], ids=str)
def test_a_unit_that_did_not_run_before_keeps_its_new_file(docker: Host, properties: dict[str, object]):
    """It failed, or crashed every few seconds: the old file would not help."""
    now = int(float(Path("/proc/uptime").read_text().split()[0]) * 1e6)
    docker.unit(DOCKER, START, ActiveEnterTimestampMonotonic=now, **properties)
    failed = docker.fail(write('"bad"'), GUARDED)
    assert failed["restored"] == []
    assert "it did not run before either" in failed["detail"][-1]
    assert docker.read(DAEMON) == '"bad"'
    assert docker.calls().count(RESTART) == 1
    assert not docker.path(f"{RECORD}/guard.json").exists()


def test_a_damaged_counter_of_systemd_is_named_before_anything_changes(docker: Host):
    """Whether the unit worked is not known then, so its files stay as they are."""
    docker.unit(DOCKER, START, NRestarts="x")
    failed = docker.fail(write('"new"'), GUARDED)
    assert failed["error"] == "NRestarts, by systemctl show: expected a number, got 'x'"
    assert docker.read(DAEMON) == "{}"


# --- The lock
