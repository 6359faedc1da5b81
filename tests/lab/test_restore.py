"""The timer behind a restart: an apply that is killed before it saw the unit stay up leaves a host that mends itself."""

import functools
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gpunode import inventory
from gpunode.errors import Unreachable
from gpunode.host import reach, wire
from gpunode.host.ssh import Dialer
from gpunode.model import Packages, PackageSpec, Service, WriteFile

from . import faults
from .api import Lab, Node
from .docker import docker

pytestmark = pytest.mark.lab
SETTLE = 60  # seconds that a unit would have to stay up: none here does, and no apply gives up before
RESTORE = 20


@dataclass(frozen=True)
class Case:
    """A unit, its file, and what somebody could write into it that its program does not start with."""

    host: str
    unit: str
    path: str

    def broken(self, before: str) -> str:
        if self.unit == "docker.service":  # which is started with -H: both together are refused
            return json.dumps({**json.loads(before), "hosts": ["unix:///run/other.sock"]})
        return before.replace('EXTRA_ARGS="', 'EXTRA_ARGS="--no-such-flag ').replace(
            "EXTRA_ARGS=-", "EXTRA_ARGS=--no-such-flag -"
        )


CASES = (
    Case("legacy", "docker.service", "/etc/docker/daemon.json"),
    Case("legacy", "kubelet.service", "/etc/default/kubelet"),
    Case("modern", "kubelet.service", "/etc/default/kubelet"),
)


@contextmanager
def applied(
    lab: Lab, node: Node, job: dict[str, Any], *, cut: bool = False
) -> Iterator[list[dict[str, Any]]]:
    """The agent at work on a job while the block runs; its messages are there when it has ended, or with `cut` lost."""
    host = next(host for host in inventory.load(lab.inventory).hosts if host.name == node.name)
    dialer = Dialer(Path("/dev/null"))
    connection = dialer.connect(host)
    heard: list[dict[str, Any]] = []

    def listen() -> None:
        with suppress(Unreachable):
            heard.extend(reach.talk(host, connection, job))

    listener = threading.Thread(target=listen)
    listener.start()
    try:
        yield heard
    finally:
        if cut:
            connection.close()
        listener.join(120)
        connection.close()
        dialer.close()


def active(node: Node, unit: str) -> bool:
    return node.exec(["systemctl", "is-active", unit], check=False).stdout.strip() == "active"


@pytest.fixture(scope="module")
def bare(lab: Lab) -> Callable[[str], Node]:
    """A host by name; bare when it is first asked for."""

    @functools.cache
    def node(name: str) -> Node:
        host = lab.node(name)
        host.reset()
        return host

    return node


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.host}-{case.unit}")
def test_a_killed_apply_is_undone_by_its_timer(lab: Lab, bare: Callable[[str], Node], case: Case):
    """The unit crashes on the new file, the agent dies: systemd's timer puts file and unit back as they were."""
    node = bare(case.host)
    if case.host == "modern":  # whose kubelet does not start as its owner left it
        node.write(case.path, node.read(case.path).replace("--feature-gates=DevicePlugins=true", "--v=2"))
        node.exec(["systemctl", "restart", case.unit])
    node.wait_until(f"{case.unit} to run", ["systemctl", "is-active", case.unit])
    before = node.read(case.path)
    broken = case.broken(before)
    assert broken != before
    run = f"killed-{case.unit.partition('.')[0]}"
    changes = (
        WriteFile(case.path, broken, "a mistake", before=before),
        Service(case.unit, "it reads that at its start", restart=True, guards=(case.path,)),
    )
    job = {**wire.apply_job(run, "test@lab", changes, None), "settle": SETTLE, "restore": RESTORE}
    endless = f"/run/systemd/system/{case.unit}.d/endless.conf"  # else systemd itself ends docker's tries
    node.exec(
        [
            "sh",
            "-c",
            f"mkdir -p $(dirname {endless}); printf '[Unit]\\nStartLimitIntervalSec=0\\n' > {endless}",
        ]
    )

    with applied(lab, node, job) as heard:
        node.wait_until(f"{case.unit} to crash", ["sh", "-c", f"! systemctl is-active {case.unit}"])
        node.wait_until("its timer", ["systemctl", "is-active", f"gpunode-restore-{run}.timer"])
        # With its old file the unit stays up: the timer's program need not watch it for as long.
        guard = f"/var/lib/gpunode/runs/{run}/guard.json"
        node.exec(["sed", "-i", 's/"settle": [0-9.]*/"settle": 5/', guard])
        node.exec(["systemctl", "kill", "--signal=KILL", f"gpunode-{run}.service"])
        assert node.read(case.path) == broken

    assert heard[-2]["code"] == "interrupted"
    node.wait_until(
        "its file to be put back", ["sh", "-c", f"! grep -q -e no-such-flag -e other.sock {case.path}"]
    )
    assert node.read(case.path) == before
    node.wait_until(f"{case.unit} to run again", ["systemctl", "is-active", case.unit])
    node.wait_ready()
    node.wait_until(
        "nothing to be left of the apply", ["sh", "-c", f"! test -e /run/gpunode/{run}"], SETTLE + 60
    )
    node.exec(["sh", "-c", f"! test -e {BOOT_UNIT}"])


BOOT_UNIT = "/etc/systemd/system/gpunode-restore.service"
DAEMON = "/etc/docker/daemon.json"


def pid(node: Node, unit: str) -> str:
    return node.exec(["systemctl", "show", "-p", "MainPID", "--value", unit]).stdout.strip()


@contextmanager
def cut_before_the_restart(
    lab: Lab, node: Node, run: str, *, restore: int = RESTORE, cut: bool = False
) -> Iterator[str]:
    """An apply that has written daemon.json, and waits for apt before it restarts docker; what was there before."""
    node.wait_until("docker to run", ["systemctl", "is-active", "docker.service"])
    before = node.read(DAEMON)
    after = json.dumps({**json.loads(before), "hosts": ["unix:///run/other.sock"]})  # docker fails with it
    changes = (
        WriteFile(DAEMON, after, "a mistake", before=before),
        Packages("somebody else is at it", install=(PackageSpec("hello"),)),
        Service("docker.service", "it reads that at its start", restart=True, guards=(DAEMON,)),
    )
    job = {**wire.apply_job(run, "test@lab", changes, None), "restore": restore}
    with faults.apt_locked(node), applied(lab, node, job, cut=cut):
        node.wait_until("the file to be written", ["grep", "-q", "other.sock", DAEMON])
        yield before


def test_an_apply_killed_between_write_and_restart_is_undone_without_a_restart(
    lab: Lab, bare: Callable[[str], Node]
):
    """docker never read the file, and its containers go on."""
    node = bare("legacy")
    process = pid(node, "docker.service")
    with cut_before_the_restart(lab, node, "cut-kill") as before:
        node.exec(["systemctl", "kill", "--signal=KILL", "gpunode-cut-kill.service"])
        node.wait_until("its file to be put back", ["sh", "-c", f"! grep -q other.sock {DAEMON}"])
    assert node.read(DAEMON) == before
    assert pid(node, "docker.service") == process
    node.wait_until("the guard to be gone", ["sh", "-c", f"! test -e {BOOT_UNIT}"])


def test_a_machine_that_loses_power_between_write_and_restart_boots_with_the_old_file(
    lab: Lab, bare: Callable[[str], Node]
):
    """It is put back before docker starts, which therefore never sees the new one."""
    node = bare("legacy")
    with cut_before_the_restart(lab, node, "cut-power", restore=3600, cut=True) as before:
        since = node.exec(["date", "+@%s"]).stdout.strip()
        docker(node.slot, "kill", node.name)
    docker(node.slot, "start", node.name)
    node.wait_for_ssh()
    node.wait_until("docker to run", ["systemctl", "is-active", "docker.service"])
    assert node.read(DAEMON) == before
    units = ["-u", "gpunode-restore", "-u", "docker"]
    journal = node.exec(["journalctl", "--since", since, "-o", "cat", *units]).stdout
    assert f"gpunode: restored {DAEMON}" in journal
    assert "unable to configure the Docker daemon" not in journal
    assert (
        node.exec(["sh", "-c", f"ls {BOOT_UNIT}; systemctl --failed --plain --no-legend"], check=False).stdout
        == ""
    )
    node.wait_ready()


def test_a_containerd_that_stays_up_without_cri_gets_its_file_back(lab: Lab, bare: Callable[[str], Node]):
    """`config dump` takes mirrors beside config_path, and the unit stays active: only the plugin is in error."""
    node = bare("modern")
    path = "/etc/containerd/config.toml"
    before = node.read(path)
    mirrors = "[plugins.'io.containerd.cri.v1.images'.registry.mirrors.'x.example']\nendpoint = ['http://x.example']\n"
    changes = (
        WriteFile(path, f"{before}\n{mirrors}", "a mistake", before=before),
        Service("containerd.service", "it reads that at its start", restart=True, guards=(path,)),
    )
    with applied(lab, node, wire.apply_job("no-cri", "test@lab", changes, None)) as heard:
        pass
    failed = next(message for message in heard if message["type"] == "failed")
    assert failed["restored"] == [path]
    assert "containerd's plugin io.containerd.grpc.v1.cri" in failed["error"]
    assert "config_path" in str(failed["detail"])
    assert failed["detail"][-1] == "with its files restored, containerd.service runs again"
    assert node.read(path) == before
    plugins = node.exec(["ctr", "plugins", "ls"]).stdout
    assert [line.split()[-1] for line in plugins.splitlines() if " cri " in line] == ["ok"]
