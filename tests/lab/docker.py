"""The lab's own docker daemon and network: own data, sockets, bridge and NAT rules, nothing shared with another one."""

import contextlib
import json
import os
import shutil
import signal
import time
from collections.abc import Sequence
from pathlib import Path

from . import machine, process
from .process import run, succeeds
from .progress import CannotRun, LabError, wait
from .slot import Slot

NETWORK = "lab"
DOCKER = "/usr/bin/docker"  # Debian's client; another `docker` may come first in PATH


def docker(slot: Slot, *words: str | Path, text: str = "") -> str:
    """Run a docker command against the lab's daemon and return its output."""
    return run([DOCKER, "-H", slot.docker_host, *words], text=text).strip()


def up(slot: Slot) -> None:
    """Start the daemon and make the network, from whatever state a run before left them in."""
    if not (process.running(slot.state, "dockerd") and _answers(slot)):
        clear(slot)
        _start(slot)
    _network(slot)
    for rule in _rules(slot):
        if not succeeds(["iptables", *_with(rule, "-C")]):
            run(["iptables", *rule])


def _start(slot: Slot) -> None:
    slot.run.mkdir(parents=True, exist_ok=True)
    slot.state.mkdir(parents=True, exist_ok=True)
    (slot.run / "daemon.json").write_text("{}\n")  # the machine's own /etc/docker/daemon.json is not for us
    process.start(
        slot.state,
        "dockerd",
        [
            "/usr/sbin/dockerd",
            f"--host={slot.docker_host}",
            f"--config-file={slot.run}/daemon.json",
            f"--data-root={slot.state}/docker",
            f"--exec-root={slot.run}/docker",
            f"--pidfile={slot.run}/docker.pid",
            f"--cgroup-parent=/{slot.cgroups}nodes",
            "--exec-opt=native.cgroupdriver=cgroupfs",
            "--storage-driver=overlay2",
            "--bridge=none",
            "--iptables=false",  # two daemons would flush each other's chains
            "--ip6tables=false",
            "--userland-proxy=false",
            "--log-level=warn",
        ],
    )
    with contextlib.suppress(LabError):
        wait("dockerd", lambda: _answers(slot) or not process.running(slot.state, "dockerd"), 120)
    if not _answers(slot):
        last = process.log(slot.state, "dockerd").read_text().strip().splitlines()[-1:]
        raise CannotRun(f"docker cannot run on this machine: {' '.join(last) or 'dockerd said nothing'}")


def _network(slot: Slot) -> None:
    """Make the hosts' network; one that a crash left without its bridge is made again."""
    known = NETWORK in docker(slot, "network", "ls", "--format", "{{.Name}}").split()
    if known and _bridge(slot).exists():
        return
    if known:
        docker(slot, "network", "rm", NETWORK)
    bridge = f"com.docker.network.bridge.name={slot.bridge}"
    mtu = f"com.docker.network.driver.mtu={_mtu()}"
    subnet = ["--subnet", str(slot.subnet), "--gateway", slot.gateway]
    docker(slot, "network", "create", *subnet, "-o", bridge, "-o", mtu, NETWORK)


def down(slot: Slot) -> None:
    """Stop the daemon and take away everything that it made."""
    if process.running(slot.state, "dockerd") and _answers(slot):
        containers = docker(slot, "ps", "-aq").split()
        if containers:
            docker(slot, "rm", "-f", "-v", *containers)
    process.stop(slot.state, "dockerd", patience=20)
    clear(slot)


def clear(slot: Slot) -> None:
    """Remove what a lab leaves behind however it died: processes, mounts, bridge, NAT rules, cgroups."""
    deadline = time.monotonic() + 20
    while victims := {*process.strays(slot.state), *_in_cgroups(slot)}:
        for pid in victims:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > deadline:
            raise LabError(f"processes {sorted(victims)} of the lab do not end")
        time.sleep(0.1)
    for target in reversed(_mounts(slot)):
        run(["umount", "-l", target])
    for rule in _rules(slot):
        while succeeds(["iptables", *_with(rule, "-D")]):
            pass
    succeeds(["ip", "link", "delete", slot.bridge])
    for top in _cgroups(slot):
        for folder, _, _ in os.walk(top, topdown=False):
            os.rmdir(folder)
    shutil.rmtree(slot.run, ignore_errors=True)


def leftovers(slot: Slot) -> list[str]:
    """What of the lab is still there, in words; empty after `down`."""
    remains = [f"process {pid}" for pid in {*process.strays(slot.state), *_in_cgroups(slot)}]
    remains += [f"mount {target}" for target in _mounts(slot)]
    remains += [f"bridge {slot.bridge}"] if _bridge(slot).exists() else []
    rules = run(["iptables-save"]).count(slot.bridge)
    remains += [f"{rules} iptables rules"] if rules else []
    remains += [f"cgroup {path}" for path in _cgroups(slot)]
    return remains


def _bridge(slot: Slot) -> Path:
    return Path("/sys/class/net") / slot.bridge


def _answers(slot: Slot) -> bool:
    return succeeds([DOCKER, "-H", slot.docker_host, "version"])


def _rules(slot: Slot) -> list[list[str]]:
    subnet = str(slot.subnet)
    return [
        ["-t", "nat", "-A", "POSTROUTING", "-s", subnet, "!", "-o", slot.bridge, "-j", "MASQUERADE"],
        ["-t", "filter", "-I", "FORWARD", "-i", slot.bridge, "-j", "ACCEPT"],
        ["-t", "filter", "-I", "FORWARD", "-o", slot.bridge, "-j", "ACCEPT"],
    ]


def _with(rule: Sequence[str], action: str) -> list[str]:
    return [*rule[:2], action, *rule[3:]]


def _mtu() -> int:
    """The MTU of the way out: larger packets from a node would be lost there."""
    routes = json.loads(run(["ip", "-j", "route", "show", "default"]))
    return int(Path(f"/sys/class/net/{routes[0]['dev']}/mtu").read_text()) if routes else 1500


def _mounts(slot: Slot) -> list[str]:
    targets = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    return [t for t in targets if t.startswith((f"{slot.state}/", f"{slot.run}/"))]


def _cgroups(slot: Slot) -> list[Path]:
    return [top for tree in machine.cgroups() for top in tree.glob(f"{slot.cgroups}*")]


def _in_cgroups(slot: Slot) -> list[int]:
    pids: list[int] = []
    for procs in (file for top in _cgroups(slot) for file in top.rglob("cgroup.procs")):
        with contextlib.suppress(OSError):
            pids += [int(pid) for pid in procs.read_text().split()]
    return pids
