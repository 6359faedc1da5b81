"""The SSH servers of simulated hosts: commands are carried whole, and the agent is started as on any host."""

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from gpunode.engine import chain as pipeline
from gpunode.errors import Unreachable
from gpunode.host import bootstrap, wire
from gpunode.host.ssh import SshConnection
from gpunode.sim.forkserver import ForkServer, Piped
from gpunode.sim.host import hosts, kinds, run, sshd
from gpunode.sim.host.hosts import environment
from gpunode.sim.host.state import DOWN
from tests import tables
from tests.sim.clusters import until
from tests.sim.fleets import Fleet, serving


@pytest.fixture(scope="module")
def fleet(tmp_path_factory) -> Iterator[Fleet]:
    """One host."""
    with serving(tmp_path_factory.mktemp("sshd"), [kinds.new_host("gpu-0")]) as served:
        yield served


@pytest.fixture
def connection(fleet: Fleet) -> Iterator[SshConnection]:
    opened = fleet.dialer.connect(fleet.hosts()[0])
    yield opened
    opened.close()


@pytest.fixture
def forks() -> Iterator[ForkServer]:
    server = sshd.fork_server()
    yield server
    server.close()


def ended(fork: Piped, given: bytes = b"") -> tuple[int, bytes, bytes]:
    """Exit status and both streams of a program that is given all its input at once."""
    with fork.stdin, fork.stdout, fork.stderr:
        fork.stdin.write(given)
        fork.stdin.close()
        return fork.wait(), fork.stdout.read(), fork.stderr.read()


def test_a_command_that_ends_at_once_is_not_taken_for_a_refused_one(connection: SshConnection):
    """Its channel stays open until the client has seen that it was begun."""
    seen = threading.Event()

    def input_() -> Iterator[bytes]:
        yield b"that nobody reads"
        assert seen.wait(60)

    quick = connection.start("exit 3", input_())
    until(quick._channel.exit_status_ready)
    assert connection.start("exit 4", []).end() == (4, "")  # what was said before has arrived, too
    assert not quick._channel.closed
    seen.set()
    assert quick.end() == (3, "")


def test_both_streams_of_any_command_come_whole(connection: SshConnection):
    """In the host's root folder, with the host's programs."""
    remote = connection.start("cat; cat etc/os-release >&2", [b"x" * 100_000, b"\n"])
    assert [len(line) for line in remote.lines()] == [100_001]
    assert "Debian" in remote.end()[1]


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("cat /etc/hostname", "gpu-0"),
        ("ls /etc/containerd", "config.toml"),
        ("uname -n", "gpu-0"),
        ("head -1 /proc/sys/kernel/hostname | grep gpu", "gpu-0"),
    ],
)
def test_who_looks_round_sees_the_files_of_the_host(connection: SshConnection, command: str, said: str):
    """Not this computer's."""
    assert said in b"".join(connection.start(command, []).lines()).decode()


@pytest.mark.parametrize(
    "command", ["echo hi > {}", "echo hi >> {}", 'true "$(echo hi > {})"', "/bin/sh -c true"]
)
def test_a_command_does_not_write_this_computers_files(
    fleet: Fleet, connection: SshConnection, tmp_path, command: str
):
    """It is refused, and the refusal says where the host's files are."""
    there = tmp_path / "file"
    status, said = connection.start(command.format(there), []).end()
    assert not there.exists()
    assert "restricted" in said
    assert f"its files are in {fleet.states['gpu-0'].root}" in said
    assert status or "$(" in command


def test_a_host_that_reboots_keeps_its_port(fleet: Fleet, connection: SshConnection):
    """Its connections are cut, and nobody else gets the port before it is up again."""
    state, port = fleet.states["gpu-0"], fleet.server.port("gpu-0")
    cut = threading.Event()

    def input_() -> Iterator[bytes]:
        yield b"up\n"
        assert cut.wait(60)

    reading = connection.start("cat", input_())
    lines = iter(reading.lines())
    assert next(lines) == b"up\n"
    with state.change() as now:
        now.down_until = time.time() + 8
        (state.folder / DOWN).touch()
        assert list(lines) == []  # before the change is written: it is waited for
        cut.set()
    assert reading.end() == (None, "")
    with pytest.raises(OSError, match="in use"):
        socket.create_server(("127.0.0.1", port))
    with pytest.raises(Unreachable):
        fleet.dialer.connect(replace(fleet.hosts()[0], ssh=replace(fleet.hosts()[0].ssh, timeout=0.2)))
    until(lambda: not (state.folder / DOWN).exists())
    fleet.dialer.connect(fleet.hosts()[0]).close()


def test_the_agent_is_recognised_by_the_command_that_starts_it():
    """With sudo and without; nothing else is."""
    for sudo, password in ((False, False), (True, False), (True, True)):
        assert sshd.bootstrap(bootstrap.command(sudo, password)) == bootstrap.BOOTSTRAP
    for other in ("true", "exec /bin/sh -c 'echo gpunode'", "echo 'it", "sh -c x gpunode y z"):
        assert sshd.bootstrap(other) is None


def facts(output: bytes) -> dict[str, Any]:
    """The facts that an agent told, without what is another moment's."""
    told = next(json.loads(line) for line in output.splitlines() if line.startswith(b"{"))
    return {name: fact for name, fact in told["facts"].items() if name not in ("time", "units")}


def test_a_forked_agent_sees_what_one_started_by_a_shell_sees(fleet: Fleet, forks: ForkServer, monkeypatch):
    """The whole command line through a shell, sudo and a new python gives the same facts."""
    state = fleet.states["gpu-0"]
    given, host = (
        wire.encode({"op": "probe", "nonce": "n", "watch": asdict(pipeline.watch(None))}),
        environment(state, state.machine()),
    )
    monkeypatch.setattr(bootstrap, "PYTHONS", (sys.executable,))
    monkeypatch.setattr(bootstrap, "SUDO_PATH", "/no")
    monkeypatch.setattr(bootstrap, "ROOT_PATH", host["PATH"])  # root's programs are simulated, too
    command = bootstrap.command(sudo=True, password=False)
    shell = subprocess.run(
        ["/bin/sh", "-c", command], input=given, env=host, cwd=state.root, capture_output=True, check=True
    )
    status, out, err = ended(Piped(forks, ("-c", bootstrap.BOOTSTRAP), host, state.root), given)
    assert (status, err) == (0, b"")
    assert facts(out) == facts(shell.stdout)


@pytest.mark.parametrize(
    ("program", "status"),
    [
        ("pass", 0),
        ("import sys; sys.exit(3)", 3),
        ("import sys; sys.exit('no')", 1),
        ("1 / 0", 1),
        ("import os; os.kill(os.getpid(), 9)", -9),
        ("import os; os.kill(os.getpid(), 15)", -15),
    ],
)
def test_a_fork_ends_as_a_new_python_would(forks: ForkServer, tmp_path, program: str, status: int):
    """Exit status and what is said of an error."""
    words = [sys.executable, "-I", "-S", "-c", program]
    real = subprocess.run(words, env={}, cwd=tmp_path, capture_output=True, check=False)
    code, out, err = ended(Piped(forks, ("-c", program), {}, tmp_path))
    assert (code, out) == (status, real.stdout) == (real.returncode, b"")
    assert err.splitlines()[-1:] == real.stderr.splitlines()[-1:]


SEEN = (
    "import json, os, sys; print(json.dumps([sys.argv, sys.path, dict(os.environ), os.getcwd(), sys.flags]))"
)


def test_a_fork_sees_what_a_new_python_sees(forks: ForkServer, tmp_path):
    """Arguments, import path, environment, folder, flags; and none of its server's files."""
    host = {"LC_ALL": "C", "PATH": os.defpath}
    real = subprocess.run(
        [sys.executable, "-I", "-S", "-c", SEEN], env=host, cwd=tmp_path, capture_output=True, check=True
    )
    assert json.loads(ended(Piped(forks, ("-c", SEEN), host, tmp_path))[1]) == json.loads(real.stdout)
    counted = "import os; print(len(os.listdir('/dev/fd')))"  # three streams and the list itself
    assert ended(Piped(forks, ("-c", counted), host, tmp_path))[1] == b"4\n"


def test_what_a_fork_starts_to_outlive_it_is_a_fork_too_and_sees_what_a_new_python_sees(
    forks: ForkServer, tmp_path
):
    """An agent's apply: no module and no file of the agent is in it."""
    host = {"LC_ALL": "C", "PATH": os.defpath}
    see = SEEN.replace("print(", "seen = (").replace(
        "sys.flags", "sys.flags, 'wave' in sys.modules, __name__"
    )
    count = "seen += str(len(os.listdir('/dev/fd')))"
    write = "with open('part', 'w') as file:\n    file.write(seen)\nos.rename('part', 'seen')"
    (tmp_path / "work.py").write_text("\n".join((see, count, write)))
    words = [sys.executable, "-I", "-S", "work.py", "run1"]
    subprocess.run(words, env=host, cwd=tmp_path, stdin=subprocess.DEVNULL, capture_output=True, check=True)
    real = (tmp_path / "seen").read_text()
    (tmp_path / "seen").unlink()
    null = "dict.fromkeys(('stdin', 'stdout', 'stderr'), subprocess.DEVNULL)"
    start = f"subprocess.Popen({words}, start_new_session=True, **{null})"
    begun = f"import os, subprocess, sys, wave; file = open('work.py'); {start}"
    ended(Piped(forks, ("-c", begun), host, tmp_path))
    until((tmp_path / "seen").exists)
    assert (tmp_path / "seen").read_text() == real


def test_a_hosts_program_is_forked_and_ends_as_it_does_when_it_is_started(fleet: Fleet, forks: ForkServer):
    """Output, exit status and messages; the agent that started it waits for both its pipes."""
    state = fleet.states["gpu-0"]
    host = environment(state, state.machine())
    words = [str(Path(host["PATH"].split(os.pathsep)[-1], "systemctl")), "restart", "kubelet", "nothing"]
    real = subprocess.run(words, env=host, cwd=state.root, capture_output=True, check=False)
    assert real.returncode == 1
    # What is started, not forked, ends with 0 here and says nothing
    start = f"done = subprocess.run({words}, env={{**os.environ, 'GPUNODE_SIM_PYTHON': '/bin/true'}}, capture_output=True)"
    say = "sys.stdout.buffer.write(done.stdout); sys.stderr.buffer.write(done.stderr); sys.exit(done.returncode)"
    fork = Piped(forks, ("-c", f"import os, subprocess, sys; {start}; {say}"), host, state.root)
    assert ended(fork) == (1, real.stdout, real.stderr)


@tables.rows("forked-scripts")
def test_only_a_script_that_does_nothing_itself_is_forked(
    script: str, arguments: list[str], program: str | None
):
    assert run.find_program((hosts.PROGRAMS / script).read_text(), arguments) == program
