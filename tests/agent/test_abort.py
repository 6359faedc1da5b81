"""An abort ends the apply under way, and nothing else, and puts back what that must not leave."""

import fcntl
import json
import os
import signal
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from gpunode.agent import system
from gpunode.agent.failures import Failure
from gpunode.agent.record import Run
from gpunode.engine.on_host import runs
from gpunode.engine.on_host.runs import activity
from gpunode.host import wire
from gpunode.model import WriteFile
from tests.agent.conftest import DAEMON, DOCKER, START, Host, wait_until
from tests.agent.guarded import GUARDED, RESTART, WAITS, killed_before_the_restart, told, worker, write


def abort(host: Host, **extra: object) -> list[dict[str, object]]:
    return host.ask({**wire.abort_job(), **extra})


@pytest.mark.parametrize(
    "install", [["slow=1.*", "other"], [{"name": "slow", "version": "1.*"}, {"name": "other", "version": ""}]]
)
def test_an_abort_names_the_packages_of_older_applies_too(tmp_path, monkeypatch, install: list[object]):
    """gpunode may have been updated while one ran: its job has them in apt's own words."""
    monkeypatch.setattr(system, "ROOT", str(tmp_path))
    run = Run("run1")
    folder = tmp_path / run.live.lstrip("/")
    folder.mkdir(parents=True)
    (folder / "job.json").write_text(json.dumps({"changes": [{"kind": "packages", "install": install}]}))
    monkeypatch.setattr(Run, "story", lambda _: iter([{"type": "start", "n": 0}]))
    assert activity(run) == "packages slow=1.* other"


def test_an_abort_ends_an_apply_and_says_what_it_was_at(docker: Host):
    """apt ends with it; followers get the failure; files that waited for a restart are restored; the lock is free."""
    job = docker.job(write('{"a": 1}'), WAITS, GUARDED)
    follower = docker.start(job)
    wait_until(docker.path("/state/begun").exists)
    aborting, failed, end = abort(docker)
    assert (aborting["run"], aborting["by"], aborting["doing"]) == ("run1", "anna@desk", "packages slow")
    assert (failed["code"], failed["n"], failed["restored"]) == ("aborted", 1, [DAEMON])
    assert end == {"type": "end", "ok": True}
    assert docker.read(DAEMON) == "{}"
    assert follower.wait(30) == 0
    assert docker.apply(WriteFile("/etc/x", "x", "why"))[-1]["ok"]


def test_an_abort_as_a_command_ends_is_still_one(host: Host, monkeypatch):
    """The signal comes when the command has ended and has been waited for: there is nothing to kill."""

    communicate = subprocess.Popen.communicate

    def interrupted(process: subprocess.Popen[bytes], **_: object) -> None:
        communicate(process)
        raise KeyboardInterrupt

    monkeypatch.setattr(system, "ENV", host.environment)
    monkeypatch.setattr(subprocess.Popen, "communicate", interrupted)
    with pytest.raises(KeyboardInterrupt):
        system.run("true")


def test_an_abort_of_an_apply_that_does_not_answer_kills_it_and_puts_back_itself(docker: Host):
    """E.g. one that hangs in the kernel."""
    docker.start(docker.job(write('{"a": 1}'), WAITS, GUARDED))
    wait_until(docker.path("/state/begun").exists)
    os.kill(worker(docker), signal.SIGSTOP)
    messages: list[dict[str, object]] = []

    def has_ended() -> object:
        """A killed process may take a while; who aborts again finds what is left."""
        messages.extend(abort(docker, patience=0.2))
        return messages[-1]["ok"]

    wait_until(has_ended)
    docker.write("/state/go", "")
    assert f"restored {DAEMON}" in told(messages)
    assert docker.read(DAEMON) == "{}"
    assert docker.apply(WriteFile("/etc/x", "x", "why"))[-1]["ok"]


def test_an_abort_ends_what_apt_started_and_does_not_listen(docker: Host):
    """apt-get ends at once; a package's script that ignores the signal would go on changing the host."""
    script = "trap '' TERM; > \"$GPUNODE_ROOT/state/begun\"; while :; do sleep 0.1; done"
    pid = '> "$GPUNODE_ROOT/state/pid"'
    docker.apt(install=f"( {script} ) &\necho $! {pid}\nwait\n")
    docker.start(docker.job(WAITS))
    wait_until(docker.path("/state/begun").exists)
    abort(docker)
    left = Path("/proc", docker.read("/state/pid").strip(), "cmdline")
    assert not left.exists() or left.read_bytes() == b""  # b"": its exit status has not been collected yet


def test_what_a_failure_puts_back_is_not_interrupted_by_an_abort(docker: Host):
    """Who follows hears of the failure, and of the files."""
    waits = 'until [ -e "$GPUNODE_ROOT/state/go" ]; do sleep 0.02; done'
    docker.unit(DOCKER, f'grep -q bad "$GPUNODE_ROOT{DAEMON}" || {waits}\n{START}')
    follower = docker.start(docker.job(write('"bad"'), GUARDED))
    wait_until(lambda: docker.calls().count(RESTART) == 2)
    os.kill(worker(docker), signal.SIGTERM)
    docker.write("/state/go", "")
    out, _ = follower.communicate()
    failed = next(json.loads(line) for line in out.splitlines() if b'"failed"' in line)
    assert (failed["code"], failed["restored"]) == ("unit-failed", [DAEMON])


def test_an_abort_goes_on_where_the_apply_has_ended_by_then(docker: Host):
    """Between the look at the lock and the signal, or since systemd has killed it."""
    killed_before_the_restart(docker)
    assert docker.started[0].wait(30) == 0
    ended = subprocess.Popen(["true"])
    ended.wait()
    docker.write("/run/gpunode/lock", json.dumps({"run": "run1", "by": "anna@desk", "pid": ended.pid}), 0o600)
    with docker.path("/run/gpunode/lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        aborting = docker.start(wire.abort_job())
        assert aborting.stdout
        while b"aborting" not in aborting.stdout.readline():
            assert aborting.poll() is None
    out, errors = aborting.communicate()
    assert b"restored " + DAEMON.encode() in out, errors
    assert docker.read(DAEMON) == "{}"


def test_an_abort_that_ends_no_apply_says_so(host: Host):
    """E.g. as the kernel keeps its process. Another process that has its number by now gets no signal."""
    stranger = subprocess.Popen(["sleep", "600"])
    host.write(f"/proc/{stranger.pid}/stat", f"{stranger.pid} (a) b) S {'0 ' * 18}4711 0\n")
    held = {"run": "run1", "by": "anna@desk", "since": 0, "pid": stranger.pid, "started": "42"}
    host.write("/run/gpunode/lock", json.dumps(held), 0o600)
    with host.path("/run/gpunode/lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        aborting, *_, failed, end = abort(host, patience=0.1)
    assert (aborting["type"], failed["code"], failed["n"], end["ok"]) == (
        "aborting",
        "unkillable",
        None,
        False,
    )
    assert stranger.poll() is None
    stranger.kill()
    stranger.wait()


@pytest.mark.parametrize(
    ("pid", "words"),
    [("4711", "its process 4711 hangs in the kernel"), ("4712", "another process holds /run/gpunode/lock")],
)
def test_an_abort_reports_that_it_waits_and_gives_a_killed_apply_less_time(
    tmp_path, monkeypatch, pid: str, words: str
):
    """Only the process that is still the apply's is named."""
    now = 0.0

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    stat = tmp_path / "proc" / pid / "stat"
    stat.parent.mkdir(parents=True)
    stat.write_text(f"{pid} (work) D {'0 ' * 18}42 0\n")
    holder = {"run": "run1", "by": "anna@desk", "since": 0, "pid": 4711, "started": "42"}
    monkeypatch.setattr(system, "ROOT", str(tmp_path))
    monkeypatch.setattr(runs, "lock_holder", lambda: holder)
    monkeypatch.setattr(runs, "send_signal", lambda *_: None)
    monkeypatch.setattr(runs, "time", SimpleNamespace(monotonic=lambda: now, sleep=sleep))
    messages = []
    with pytest.raises(Failure, match=words):
        messages.extend(message["type"] for message in runs.abort(240, 10))
    assert 260 < now < 261
    assert messages.count("alive") == 25


def test_an_abort_puts_back_what_a_killed_apply_left(docker: Host):
    """Users do not have to wait for the timer."""
    killed_before_the_restart(docker)
    assert f"restored {DAEMON}" in told(abort(docker))
    assert docker.read(DAEMON) == "{}"


def test_an_abort_where_nothing_runs_changes_nothing(host: Host):
    assert abort(host) == [{"type": "end", "ok": True}]


def test_an_apply_of_a_newer_gpunode_is_not_ended(docker: Host):
    """The abort names the lock's owner, and does nothing."""
    follower = docker.start(docker.job(WAITS))
    wait_until(docker.path("/state/begun").exists)
    job = json.loads(docker.read("/run/gpunode/run1/job.json"))
    docker.write("/run/gpunode/run1/job.json", json.dumps({**job, "version": 2}))
    failed, end = abort(docker)
    assert (failed["code"], failed["n"]) == ("newer-record", None)
    assert end == {"type": "end", "ok": False}
    docker.write("/state/go", "")
    assert b'"ok": true' in follower.communicate()[0]
