"""Hosts to measure on: OpenSSH's server on addresses of loopback. Behind each is a simulated host in its desired state: a folder that is the
host's root, and small programs in place of its own. Where a network has latency, a process of delay.py stands before the server.
"""

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpunode.sim.folder import KEY, REPOSITORIES
from gpunode.sim.host import hosts, kinds
from gpunode.sim.host.state import State
from tests.sshd import SSHD

LISTENERS = 16  # addresses that one sshd listens on: MAX_LISTEN_SOCKS of its sshd.c
FILE = "etc/modules-load.d/gpunode.conf"  # what a first apply writes


@dataclass(frozen=True)
class Fleet:
    """`ports`: of the server, by the milliseconds of a round trip to it."""

    folder: Path
    ports: Mapping[int, int]
    content: str  # of FILE

    def address(self, number: int) -> str:
        return f"127.0.{number // 250}.{number % 250 + 2}"

    def file(self, number: int) -> Path:
        return self.folder / "hosts" / f"gpu-{number}" / "root" / FILE

    def inventory(self, count: int, delay: int) -> Path:
        """gpunode's inventory of the first hosts."""
        path = self.folder / f"inventory-{count}-{delay}.yaml"
        ssh = {"user": "root", "port": self.ports[delay], "key": "user", "known_hosts": "known_hosts"}
        named = [{"name": f"gpu-{n}", "address": self.address(n)} for n in range(count)]
        defaults = {
            "sudo": False,
            "ssh": {**ssh, "host_key_check": "strict"},
            "repositories": REPOSITORIES,
        }
        path.write_text(json.dumps({"defaults": defaults, "groups": {"gpu": {"hosts": named}}}))
        return path

    def remove_file(self, count: int) -> None:
        for number in range(count):
            self.file(number).unlink(missing_ok=True)

    def check_file(self, count: int) -> None:
        assert all(self.file(number).read_text() == self.content for number in range(count))


@contextlib.contextmanager
def serve(folder: Path, count: int, delays: Sequence[int], gpunode: Sequence[str]) -> Iterator[Fleet]:
    """Hosts until the block ends. `gpunode`, a command, makes the first one what all are."""
    hosts.lay_out(folder)
    state = hosts.create(folder, kinds.new_host("gpu-0"))
    (folder / "packages.asc").write_text(KEY)
    for name in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name], check=True)
    ports = dict(zip([0, *delays], _free_ports(1 + len(delays)), strict=True))
    fleet = Fleet(folder, ports, "")
    every = [fleet.address(number) for number in range(count)]
    key = (folder / "host.pub").read_text()
    known = [f"[{address}]:{port} {key}" for address in every for port in ports.values()]
    (folder / "known_hosts").write_text("".join(known))
    with contextlib.ExitStack() as ends, (folder / "sshd.log").open("w+") as log:
        for first in range(0, count, LISTENERS):
            config = folder / f"sshd_config-{first}"
            config.write_text(_config(fleet, state, range(first, min(first + LISTENERS, count))))
            sshd = subprocess.Popen([str(SSHD), "-D", "-e", "-f", config], stderr=log)
            ends.callback(sshd.terminate)
        while (folder / "sshd.log").read_text().count("listening") < count:
            assert sshd.poll() is None, (folder / "sshd.log").read_text()
            time.sleep(0.05)
        if delays:
            doors = [(ports[delay], delay / 1000) for delay in delays]
            words = json.dumps([every, ports[0], doors])
            network = subprocess.Popen(
                [sys.executable, Path(__file__).with_name("delay.py"), words], stdout=subprocess.PIPE
            )
            ends.callback(network.terminate)
            assert network.stdout
            assert network.stdout.readline() == b"ready\n"
        subprocess.run(
            [*gpunode, "provision", "--yes", fleet.inventory(1, 0)],
            check=True,
            stdout=subprocess.DEVNULL,
            env={**os.environ, "XDG_STATE_HOME": str(folder / "state")},
        )
        first = folder / "hosts/gpu-0"
        for number in range(1, count):
            copy = folder / f"hosts/gpu-{number}"
            shutil.copytree(first, copy, symlinks=True)
            for path in ("etc/machine-id", "sys/class/dmi/id/product_uuid", "proc/sys/kernel/hostname"):
                (copy / "root" / path).write_text(f"{uuid.uuid4().hex}\n")
        yield Fleet(folder, ports, fleet.file(0).read_text())


def _config(fleet: Fleet, state: State, numbers: Sequence[int]) -> str:
    """The configuration of an sshd for these hosts. A host is known by its address, and has an environment of its own."""
    folder = fleet.folder
    lines = [
        f"Port {fleet.ports[0]}",
        f"HostKey {folder}/host",
        f"AuthorizedKeysFile {folder}/user.pub",
        "StrictModes no\nPermitRootLogin yes\nUsePAM no\nPidFile none\nPasswordAuthentication no",
        "MaxStartups 1000\nMaxSessions 100\nSubsystem sftp internal-sftp",
        *(f"ListenAddress {fleet.address(number)}" for number in numbers),
    ]
    usual = hosts.environment(state, state.machine())
    for number in numbers:
        own = {
            name: value.replace("/hosts/gpu-0", f"/hosts/gpu-{number}")
            for name, value in usual.items()
            if name != "PYTHONDONTWRITEBYTECODE"
        }
        own |= {"PATH": f"{own['PATH']}:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": str(folder)}
        lines.append(f"Match LocalAddress {fleet.address(number)}")
        lines.append("SetEnv " + " ".join(f"{name}={value}" for name, value in own.items()))
    return "\n".join(lines) + "\n"


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as ends:
        sockets = [ends.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [bound.getsockname()[1] for bound in sockets]
