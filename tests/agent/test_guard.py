"""Files that a restart reads are put back unless everything that worked before works after it, whatever is cut off."""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from gpunode import agent, wire
from gpunode.model import Change, Packages, Reboot, Service, WriteFile
from tests.agent.conftest import Host, wait_until

DAEMON = "/etc/docker/daemon.json"
DOCKER = "docker.service"
CONFIG = "/etc/containerd/config.toml"
CONTAINERD = "containerd.service"
RECORD = "/var/lib/gpunode/runs/run1"
BOOT_UNIT = "/etc/systemd/system/gpunode-restore.service"
# What a unit does when it is started: it lives while its file is good, and has another process each time.
START = (
    f'state=active; grep -q bad "$GPUNODE_ROOT{DAEMON}" && state=failed\n'
    'printf "LoadState=loaded\\nActiveState=$state\\nSubState=x\\nMainPID=$$\\n" > "$units/$2"\n'
    "[ $state = active ]\n"
)
RESTART = f"systemctl restart {DOCKER}"
WAITS = Packages("it takes its time", install=("slow",))
GUARDED = Service(DOCKER, "why", restart=True, guards=(DAEMON,))


def write(text: str, before: str | None = "{}", path: str = DAEMON) -> WriteFile:
    return WriteFile(path, text, "why", before=before)


@pytest.fixture
def docker(host: Host) -> Host:
    """A host with docker that runs, and an apt-get that goes on until the file `go` is there."""
    host.unit(DOCKER, START)
    host.write(DAEMON, "{}")
    host.program("journalctl", "")
    host.path("/run/systemd/system").mkdir(parents=True)
    host.apt(
        install='> "$GPUNODE_ROOT/state/begun"\nuntil [ -e "$GPUNODE_ROOT/state/go" ]; do sleep 0.02; done\n'
    )
    return host


def worker(host: Host) -> int:
    return int(json.loads(host.read("/run/gpunode/lock"))["pid"])


def kill(host: Host) -> None:
    os.kill(worker(host), signal.SIGKILL)
    host.write("/state/go", "")


def killed_before_the_restart(host: Host, *writes: Change) -> None:
    """A run that wrote its files and was killed before it restarted what reads them."""
    host.start(host.job(*(writes or [write('{"a": 1}')]), WAITS, GUARDED))
    wait_until(host.path("/state/begun").exists)
    kill(host)


def killed_after_the_restart(host: Host) -> None:
    """A run that was killed while it watched whether the unit stays up."""
    host.start(host.job(write('{"a": 1}'), GUARDED, settle=30))
    wait_until(lambda: RESTART in host.calls())
    kill(host)
    guard = json.loads(host.read(f"{RECORD}/guard.json"))
    host.write(f"{RECORD}/guard.json", json.dumps({**guard, "settle": 0.1}))


def goes_down(host: Host) -> None:
    """What is in memory is gone, and another boot begins with no unit started yet."""
    shutil.rmtree(host.path("/run/gpunode"))
    host.write("/proc/sys/kernel/random/boot_id", "another\n")
    host.unit(DOCKER, START, ActiveState="inactive", MainPID=0)


def as_unit(host: Host, verb: str) -> subprocess.CompletedProcess[str]:
    """What systemd runs: the timer (`restore`), or the unit at boot (`boot`)."""
    command = [sys.executable, "-I", "-S", host.path(RECORD) / "agent.py", verb, "run1"]
    return subprocess.run(command, env=host.environment, check=True, capture_output=True, text=True)


def told(messages: list[dict[str, object]]) -> str:
    return "\n".join(str(message.get("text", "")) for message in messages)


CUTS = [killed_before_the_restart, killed_after_the_restart]


@pytest.mark.parametrize("cut", CUTS)
def test_the_next_apply_puts_back_what_a_killed_one_left(docker: Host, cut: Callable[[Host], None]) -> None:
    """Before it changes anything. docker is restarted only where it was since: containers may end with it."""
    cut(docker)
    messages = docker.apply(WriteFile("/etc/x", "x", "why", before="y"))
    assert f"put back {DAEMON}, which an apply that was killed had changed" in told(messages)
    assert messages[-2]["code"] == "changed-underneath"
    assert docker.read(DAEMON) == "{}"
    assert docker.calls().count(RESTART) == (2 if cut is killed_after_the_restart else 0)
    assert not docker.path(BOOT_UNIT).exists()
    assert docker.apply(WriteFile("/etc/x", "x", "why"))[0]["type"] == "start"  # and that only once


@pytest.mark.parametrize("cut", CUTS)
def test_the_timer_puts_back_what_a_killed_apply_left(docker: Host, cut: Callable[[Host], None]) -> None:
    """When no other apply comes first."""
    cut(docker)
    assert f"put back {DAEMON}" in as_unit(docker, "restore").stdout
    assert docker.read(DAEMON) == "{}"
    assert docker.calls().count(RESTART) == (2 if cut is killed_after_the_restart else 0)


@pytest.mark.parametrize("cut", CUTS)
def test_files_are_put_back_at_a_boot(docker: Host, cut: Callable[[Host], None]) -> None:
    """The machine went down: its unit runs before docker is started, which therefore is not restarted."""
    cut(docker)
    assert docker.path("/etc/systemd/system/multi-user.target.wants/gpunode-restore.service").is_symlink()
    assert f"Before={DOCKER} containerd.service kubelet.service\n" in docker.read(BOOT_UNIT)
    goes_down(docker)
    before = docker.calls().count(RESTART)
    as_unit(docker, "boot")
    assert docker.read(DAEMON) == "{}"
    assert docker.calls().count(RESTART) == before
    assert not [path for path in docker.path("/etc/systemd").rglob("*") if not path.is_dir()]
    assert not docker.path(f"{RECORD}/agent.py").exists()


def test_putting_back_that_was_cut_off_itself_is_begun_anew(docker: Host) -> None:
    """The machine went down in the middle of it: half of the file lies beside the one that it was to replace."""
    killed_before_the_restart(docker)
    docker.write("/etc/docker/.daemon.json.gpunode-run1", "{")
    goes_down(docker)
    assert f"put back {DAEMON}" in as_unit(docker, "boot").stdout
    assert docker.read(DAEMON) == "{}"
    assert [path.name for path in docker.path("/etc/docker").iterdir()] == ["daemon.json"]


def test_the_next_apply_finds_what_no_boot_put_back(docker: Host) -> None:
    """On a host without systemd, say."""
    killed_before_the_restart(docker)
    goes_down(docker)
    assert f"put back {DAEMON}" in told(docker.apply(WriteFile("/etc/x", "x", "why")))
    assert docker.read(DAEMON) == "{}"
    assert docker.calls().count(RESTART) == 1  # another boot may have started it with what was written


def test_what_was_found_good_is_not_put_back(docker: Host) -> None:
    """A run that is killed later, in the middle of something else."""
    docker.start(docker.job(write('{"a": 1}'), GUARDED, WAITS))
    wait_until(docker.path("/state/begun").exists)
    kill(docker)
    assert docker.apply(WriteFile("/etc/x", "x", "why"))[-1]["ok"]
    assert docker.read(DAEMON) == '{"a": 1}'


def test_a_planned_reboot_puts_nothing_back(docker: Host) -> None:
    """What was restarted before it was found to be good."""
    docker.apply(write('{"a": 1}'), GUARDED, Reboot("why"))
    wait_until(lambda: "systemctl reboot" in docker.calls())
    assert not docker.path(BOOT_UNIT).exists()
    assert not docker.path(f"{RECORD}/guard.json").exists()
    assert docker.read(DAEMON) == '{"a": 1}'


def test_a_failure_before_the_restart_puts_back_all_that_was_written_for_it(docker: Host) -> None:
    """Several files and their restart are one transaction. What never read them is not restarted."""
    other = "/etc/docker/other.json"
    service = Service(DOCKER, "why", restart=True, guards=(DAEMON, other))
    failed = docker.fail(write('{"a": 1}'), write("new", None, other), write("x", "y", "/etc/third"), service)
    assert (failed["code"], failed["n"]) == ("changed-underneath", 2)
    assert failed["restored"] == [DAEMON, other]
    assert docker.read(DAEMON) == "{}"
    assert not docker.path(other).exists()
    assert RESTART not in docker.calls()


def test_a_systemctl_that_fails_after_the_restart_loses_no_guard(docker: Host) -> None:
    """The bad file is put back all the same."""
    deaf = "$GPUNODE_ROOT/state/deaf"
    docker.unit(DOCKER, f'grep -q bad "$GPUNODE_ROOT{DAEMON}" && touch "{deaf}" || rm -f "{deaf}"\n{START}')
    real = (docker.bin / "systemctl").read_text().removeprefix("#!/bin/sh\n")
    docker.program(
        "systemctl", f'[ "$1" = show ] && [ -e "{deaf}" ] && {{ echo "no bus" >&2; exit 1; }}\n{real}'
    )
    failed = docker.fail(write('"bad"'), GUARDED)
    assert failed["code"] == "unit-failed"
    assert failed["restored"] == [DAEMON]
    assert docker.read(DAEMON) == "{}"


def test_nothing_is_written_while_it_is_not_known_what_works(docker: Host) -> None:
    """Else nobody could say afterwards whether it still does."""
    docker.program("systemctl", 'echo "Failed to connect to bus" >&2; exit 1')
    assert docker.fail(write('{"a": 1}'), GUARDED)["error"] == "Failed to connect to bus"
    assert docker.read(DAEMON) == "{}"


@pytest.mark.parametrize("cut", ["edited", "replaced", "removed"])
def test_an_edit_made_meanwhile_is_kept_and_both_versions_are_named(docker: Host, cut: str) -> None:
    """The owner fixed the file after the apply was killed."""
    killed_after_the_restart(docker)
    docker.path(DAEMON).unlink()
    if cut == "edited":
        docker.write(DAEMON, '{"mine": 1}')
    elif cut == "replaced":
        docker.path(DAEMON).symlink_to("/etc/mine.json")
    sentence = told(docker.apply(WriteFile("/etc/x", "x", "why")))
    assert f"{DAEMON} was edited meanwhile and stays so" in sentence
    assert f"{RECORD}/files/0" in sentence
    assert docker.read(f"{RECORD}/files/0") == "{}"
    assert docker.calls().count(RESTART) == 1
    if cut == "edited":
        assert docker.read(DAEMON) == '{"mine": 1}'
    else:
        assert docker.path(DAEMON).is_symlink() is (cut == "replaced")


def test_an_edit_during_the_restart_is_kept_by_the_apply_itself(docker: Host) -> None:
    """Somebody else's configuration management writes the file while the unit fails."""
    docker.unit(
        DOCKER, f'{START.rsplit("[", 1)[0]}[ $state = active ] || echo mine > "$GPUNODE_ROOT{DAEMON}"\n'
    )
    failed = docker.fail(write('"bad"'), GUARDED)
    assert failed["restored"] == []
    assert any(f"{RECORD}/files/0" in line for line in failed["detail"])
    assert docker.read(DAEMON) == "mine\n"


@pytest.mark.parametrize("text", ["", '{"unit": "docker', "[]", "null", "{}"], ids=repr)
def test_a_torn_record_is_set_aside_and_named(docker: Host, text: str) -> None:
    """The next apply goes on, and says what a person has to look at."""
    killed_before_the_restart(docker)
    docker.write(f"{RECORD}/guard.json", text)
    messages = docker.apply(WriteFile("/etc/x", "x", "why"))
    assert messages[-1]["ok"]
    assert f"{RECORD}/guard.json.unusable" in told(messages)
    assert f"{RECORD}/files" in told(messages)
    assert docker.read(f"{RECORD}/guard.json.unusable") == text
    assert not docker.path(BOOT_UNIT).exists()


def test_a_torn_last_line_of_the_journal_loses_no_other(docker: Host) -> None:
    """The write that it would be about had not begun."""
    killed_before_the_restart(docker)
    with docker.path(f"{RECORD}/journal.jsonl").open("a") as journal:
        journal.write('{"path": "/etc/do')
    assert docker.apply(WriteFile("/etc/x", "x", "why"))[-1]["ok"]
    assert docker.read(DAEMON) == "{}"


def test_originals_that_are_lost_do_not_stop_every_later_apply(docker: Host) -> None:
    """Nothing can be put back any more; that is said once."""
    killed_before_the_restart(docker)
    shutil.rmtree(docker.path(f"{RECORD}/files"))
    messages = docker.apply(WriteFile("/etc/x", "x", "why"))
    assert messages[-1]["ok"]
    assert "guard.json.unusable" in told(messages)


def test_a_guard_outlives_a_full_disk(docker: Host, tmp_path: Path) -> None:
    """It waits for room, and so does the next apply."""
    small = docker.path("/etc/docker")
    shutil.rmtree(small)
    small.mkdir()
    if os.system(f"mount -t tmpfs -o size=16k,nr_inodes=8 none {small}") != 0:
        pytest.skip("this machine does not let tests mount a file system")
    try:
        docker.write(DAEMON, "{}")
        killed_before_the_restart(docker)
        fill = docker.path("/etc/docker/fill")
        with pytest.raises(OSError, match="No space"):
            fill.write_bytes(b"x" * 65536)
        assert docker.fail(WriteFile("/etc/x", "x", "why"))["code"] == "disk-full"
        fill.unlink()
        assert docker.apply(WriteFile("/etc/x", "x", "why"))[-1]["ok"]
        assert docker.read(DAEMON) == "{}"
    finally:
        os.system(f"umount {small}")


def test_the_oldest_record_is_used_before_it_is_forgotten(docker: Host) -> None:
    """It may hold what waits to be put back."""
    killed_before_the_restart(docker)
    os.utime(docker.path(RECORD), (1, 1))
    for number in range(agent.KEPT_RUNS + 5):
        docker.path(f"/var/lib/gpunode/runs/old{number}").mkdir()
    assert docker.apply(WriteFile("/etc/x", "x", "why"))[-1]["ok"]
    assert docker.read(DAEMON) == "{}"
    assert len(os.listdir(docker.path("/var/lib/gpunode/runs"))) == agent.KEPT_RUNS


def test_a_restore_that_runs_holds_the_lock_and_one_that_finds_it_held_waits(docker: Host) -> None:
    """Nobody changes the same files meanwhile, and no guard is given up because somebody else was at work."""
    killed_after_the_restart(docker)
    docker.path("/state/go").unlink()
    docker.write(
        f"/state/units/{DOCKER}.start", 'until [ -e "$GPUNODE_ROOT/state/go" ]; do sleep 0.02; done\n'
    )
    command = [sys.executable, "-I", "-S", docker.path(RECORD) / "agent.py", "restore", "run1"]
    with subprocess.Popen(command, env=docker.environment) as restore:
        try:
            wait_until(lambda: docker.read(DAEMON) == "{}")
            locked, _ = docker.apply(WriteFile("/etc/x", "x", "why"))
            assert (locked["type"], locked["run"]) == ("locked", "run1")
            with subprocess.Popen(command, env=docker.environment) as second:
                waits = re.compile(rf"-> FLOCK .* {second.pid} ")
                wait_until(lambda: waits.search(Path("/proc/locks").read_text()))
                docker.write("/state/go", "")
                assert second.wait(30) == 0
        finally:
            docker.write("/state/go", "")
        assert restore.wait(30) == 0
    assert docker.calls().count(RESTART) == 2


def test_all_is_on_disk_before_the_file_is_written(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """Originals, their folder, the guard, then the write: a machine may lose power between any two of them."""
    host.unit(DOCKER, START)
    host.write(DAEMON, "{}")
    monkeypatch.setattr(agent, "ROOT", str(host.root))
    monkeypatch.setattr(agent, "ENV", host.environment)
    events: list[str] = []
    fsync, rename = os.fsync, os.rename

    def synced(descriptor: int) -> None:
        events.append(os.readlink(f"/proc/self/fd/{descriptor}").removeprefix(str(host.root)))
        fsync(descriptor)

    def renamed(source: str, target: str) -> None:
        events.append("rename " + target.removeprefix(str(host.root)))
        rename(source, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "rename", renamed)
    this = agent.Run("run1")
    job = host.job(write('{"a": 1}'), GUARDED)
    this.store(b"", job)
    agent.write_file(this, job["changes"][0])
    order = [
        f"{RECORD}/files/0",
        f"{RECORD}/journal.jsonl",
        f"{RECORD}/files",
        RECORD,
        "/var/lib/gpunode/runs",
    ]
    order += [f"{RECORD}/agent.py", f"rename {RECORD}/guard.json", f"rename {DAEMON}"]
    assert [event for event in dict.fromkeys(events) if event in order] == order
    after_guard = events[events.index(f"rename {RECORD}/guard.json") :]
    assert after_guard.index(RECORD) < after_guard.index(f"rename {DAEMON}")
    assert events[-1] == "/etc/docker"


# --- What *good* means


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


def test_a_containerd_that_stays_up_without_cri_gets_its_file_back(containerd: Host) -> None:
    """With `mirrors` beside `config_path`, containerd 1.6 runs on and the kubelet is lost."""
    failed = containerd.fail(*containerd_changes("bad"))
    assert failed["restored"] == [CONFIG]
    assert "containerd's plugin io.containerd.grpc.v1.cri" in failed["error"]
    assert failed["error"].endswith("(failed to load plugin io.containerd.grpc.v1.cri: mirrors)")
    assert failed["detail"][-1] == f"with its files put back {CONTAINERD} runs again"
    assert containerd.read(CONFIG) == "version = 2\n"


def test_cri_that_did_not_work_before_is_no_reason_to_put_back(containerd: Host) -> None:
    """Where docker has the pods, its containerd serves no CRI."""
    containerd.write(CONFIG, "bad")
    assert containerd.apply(*containerd_changes("bad, and more", "bad"))[-1]["ok"]
    assert containerd.read(CONFIG) == "bad, and more"


def test_a_runtime_of_containerd_that_is_lost_gets_its_file_back(containerd: Host) -> None:
    """Whatever `containerd config dump` then shows: it was there before."""
    before = "[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.kata]\n"
    containerd.write(CONFIG, before)
    containerd.program("containerd", f'cat "$GPUNODE_ROOT{CONFIG}"')
    failed = containerd.fail(*containerd_changes("other = 1\n", before))
    assert "containerd's runtime kata" in failed["error"]
    assert containerd.read(CONFIG) == before


def test_a_runtime_of_docker_that_is_lost_gets_its_file_back(docker: Host) -> None:
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


def test_a_kubelet_that_ends_with_the_runtimes_restart_gets_the_file_back(docker: Host) -> None:
    """docker is well; what needs it is not."""
    docker.unit("kubelet.service")
    kubelet = f'grep -q kill "$GPUNODE_ROOT{DAEMON}" && state=failed || state=active\n'
    shown = 'printf "LoadState=loaded\\nActiveState=$state\\nMainPID=12\\n" > "$units/kubelet.service"\n'
    docker.write(f"/state/units/{DOCKER}.start", kubelet + shown + START)
    failed = docker.fail(write('{"kill": 1}'), GUARDED)
    assert "kubelet.service" in failed["error"]
    assert failed["restored"] == [DAEMON]
    assert docker.read(DAEMON) == "{}"


def test_a_kubelet_that_crashed_before_does_not_fail_the_runtimes_restart(docker: Host) -> None:
    """It is another process at every look, as it was."""
    now = int(float(Path("/proc/uptime").read_text().split()[0]) * 1e6)
    docker.unit("kubelet.service", NRestarts=7, ActiveEnterTimestampMonotonic=now)
    real = (docker.bin / "systemctl").read_text().removeprefix("#!/bin/sh\n")
    crash = 'echo "MainPID=$$" >> "$GPUNODE_ROOT/state/units/kubelet.service"\n'
    docker.program("systemctl", f'[ "$1" != show ] || {crash}{real}')
    assert docker.apply(write('{"a": 1}'), GUARDED)[-1]["ok"]


@pytest.mark.parametrize("properties", [{"ActiveState": "failed"}, {"NRestarts": 7}], ids=str)
def test_a_unit_that_did_not_run_before_keeps_its_new_file(
    docker: Host, properties: dict[str, object]
) -> None:
    """It failed, or crashed every few seconds: the old file would not help."""
    now = int(float(Path("/proc/uptime").read_text().split()[0]) * 1e6)
    docker.unit(DOCKER, START, ActiveEnterTimestampMonotonic=now, **properties)
    failed = docker.fail(write('"bad"'), GUARDED)
    assert failed["restored"] == []
    assert "it did not run before either" in failed["detail"][-1]
    assert docker.read(DAEMON) == '"bad"'
    assert docker.calls().count(RESTART) == 1
    assert not docker.path(f"{RECORD}/guard.json").exists()


# --- The lock


def test_the_lock_is_roots_alone(host: Host) -> None:
    """Who can open a file can hold its lock."""
    host.apply(WriteFile("/etc/x", "x", "why"))
    assert stat.S_IMODE(host.path("/run/gpunode/lock").stat().st_mode) == 0o600
    assert stat.S_IMODE(host.path("/run/gpunode").stat().st_mode) == 0o700


def test_the_lock_is_held_until_the_machine_is_down(host: Host) -> None:
    """Another apply would begin on a host that goes down under it."""
    host.apply(Reboot("why"))
    wait_until(lambda: "systemctl reboot" in host.calls())
    locked, _ = host.apply(WriteFile("/etc/x", "x", "why"))
    assert (locked["type"], locked["run"]) == ("locked", "run1")
    host.write("/proc/sys/kernel/random/boot_id", "another\n")
    wait_until(lambda: host.apply(WriteFile("/etc/x", "x", "why"))[-1]["ok"])


# --- abort


def abort(host: Host, **extra: object) -> list[dict[str, object]]:
    return host.ask({**wire.abort_job(), **extra})


def test_an_abort_ends_an_apply_and_says_what_it_was_at(docker: Host) -> None:
    """apt ends with it; whoever follows is told; what waited for a restart is put back; the lock is free."""
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


def test_an_abort_as_a_command_ends_is_still_one(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """The signal comes when the command has ended and has been waited for: there is nothing to kill."""

    communicate = subprocess.Popen.communicate

    def interrupted(process: subprocess.Popen[bytes], **_: object) -> None:
        communicate(process)
        raise KeyboardInterrupt

    monkeypatch.setattr(agent, "ENV", host.environment)
    monkeypatch.setattr(subprocess.Popen, "communicate", interrupted)
    with pytest.raises(KeyboardInterrupt):
        agent.run("true")


def test_an_abort_of_an_apply_that_does_not_answer_kills_it_and_puts_back_itself(docker: Host) -> None:
    """One that hangs in the kernel, say."""
    docker.start(docker.job(write('{"a": 1}'), WAITS, GUARDED))
    wait_until(docker.path("/state/begun").exists)
    os.kill(worker(docker), signal.SIGSTOP)
    messages = abort(docker, patience=0.2)
    docker.write("/state/go", "")
    assert f"put back {DAEMON}" in told(messages)
    assert docker.read(DAEMON) == "{}"
    assert docker.apply(WriteFile("/etc/x", "x", "why"))[-1]["ok"]


def test_an_abort_ends_what_apt_started_and_does_not_listen(docker: Host) -> None:
    """apt-get ends at once; a package's script that ignores the signal would go on changing the host."""
    script = "trap '' TERM; > \"$GPUNODE_ROOT/state/begun\"; while :; do sleep 0.1; done"
    pid = '> "$GPUNODE_ROOT/state/pid"'
    docker.apt(install=f"( {script} ) &\necho $! {pid}\nwait\n")
    docker.start(docker.job(WAITS))
    wait_until(docker.path("/state/begun").exists)
    abort(docker)
    left = Path("/proc", docker.read("/state/pid").strip(), "cmdline")
    assert not left.exists() or left.read_bytes() == b""  # b"": nobody has asked yet how it ended


def test_what_a_failure_puts_back_is_not_interrupted_by_an_abort(docker: Host) -> None:
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


def test_an_abort_goes_on_where_the_apply_has_ended_by_then(docker: Host) -> None:
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
    assert b"put back " + DAEMON.encode() in out, errors
    assert docker.read(DAEMON) == "{}"


def test_an_abort_puts_back_what_a_killed_apply_left(docker: Host) -> None:
    """Nobody has to wait for the timer."""
    killed_before_the_restart(docker)
    assert f"put back {DAEMON}" in told(abort(docker))
    assert docker.read(DAEMON) == "{}"


def test_an_abort_where_nothing_runs_changes_nothing(host: Host) -> None:
    assert abort(host) == [{"type": "end", "ok": True}]
