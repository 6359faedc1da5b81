"""Files that a restart reads are put back unless everything that worked before works after it, whatever is cut off."""

import fcntl
import os
import re
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import pytest

from gpunode.agent import record, system
from gpunode.agent.record import Run
from gpunode.engine.on_host.changes import write_file
from gpunode.engine.on_host.work import KEPT_RUNS
from gpunode.model import Reboot, RemoveFile, Service, WriteFile
from tests.agent.conftest import DAEMON, DOCKER, START, Host, wait_until
from tests.agent.guarded import (
    BOOT_UNIT,
    GUARDED,
    RECORD,
    RESTART,
    WAITS,
    as_unit,
    goes_down,
    kill,
    killed_after_the_restart,
    killed_before_the_restart,
    told,
    write,
)

CUTS = [killed_before_the_restart, killed_after_the_restart]


@pytest.mark.parametrize("cut", CUTS)
def test_the_next_apply_puts_back_what_a_killed_one_left(docker: Host, cut: Callable[[Host], None]):
    """Before it changes anything. docker is restarted only where it was since: containers may end with it."""
    cut(docker)
    messages = docker.apply(WriteFile("/etc/x", "x", "why", before="y"))
    assert f"restored {DAEMON}, which a killed apply had changed" in told(messages)
    assert messages[-2]["code"] == "changed-underneath"
    assert docker.read(DAEMON) == "{}"
    assert docker.calls().count(RESTART) == (2 if cut is killed_after_the_restart else 0)
    assert not docker.path(BOOT_UNIT).exists()
    assert docker.apply(WriteFile("/etc/x", "x", "why"))[0]["type"] == "start"  # and that only once


def test_a_boot_unit_without_its_guard_goes_with_the_next_apply(docker: Host):
    docker.write(BOOT_UNIT, "")
    assert docker.apply(WriteFile("/etc/x", "x", "why"))[-1]["ok"]
    assert not docker.path(BOOT_UNIT).exists()


@pytest.mark.parametrize("cut", CUTS)
def test_a_probe_has_the_files_as_the_next_apply_puts_them_back(docker: Host, cut: Callable[[Host], None]):
    """Else a plan that finds them as they are to be has no change for them. An edit made since stays, and is what it finds."""
    mode = docker.probe(files=(DAEMON,))["files"][DAEMON]["mode"]
    cut(docker)
    seen = docker.probe(files=(DAEMON, "/etc/x"))["files"]
    assert (seen[DAEMON]["content"], seen[DAEMON]["mode"], seen["/etc/x"]) == ("{}", mode, {"exists": False})
    docker.write(DAEMON, "[]")
    assert docker.probe(files=(DAEMON,))["files"][DAEMON]["content"] == "[]"


@pytest.mark.parametrize("cut", CUTS)
def test_the_timer_puts_back_what_a_killed_apply_left(docker: Host, cut: Callable[[Host], None]):
    """When no other apply comes first."""
    cut(docker)
    assert f"restored {DAEMON}" in as_unit(docker, "restore").stdout
    assert docker.read(DAEMON) == "{}"
    assert docker.calls().count(RESTART) == (2 if cut is killed_after_the_restart else 0)


@pytest.mark.parametrize("cut", CUTS)
def test_files_are_put_back_at_a_boot(docker: Host, cut: Callable[[Host], None]):
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


def test_putting_back_that_was_cut_off_itself_is_started_again(docker: Host):
    """The machine went down in the middle of it: half of the file lies beside the one that it was to replace."""
    killed_before_the_restart(docker)
    docker.write("/etc/docker/.daemon.json.gpunode-run1", "{")
    goes_down(docker)
    assert f"restored {DAEMON}" in as_unit(docker, "boot").stdout
    assert docker.read(DAEMON) == "{}"
    assert [path.name for path in docker.path("/etc/docker").iterdir()] == ["daemon.json"]


def test_the_next_apply_finds_what_no_boot_put_back(docker: Host):
    """E.g. on a host without systemd."""
    killed_before_the_restart(docker)
    goes_down(docker)
    assert f"restored {DAEMON}" in told(docker.apply(WriteFile("/etc/x", "x", "why")))
    assert docker.read(DAEMON) == "{}"
    assert docker.calls().count(RESTART) == 1  # another boot may have started it with what was written


def test_what_was_found_good_is_not_put_back(docker: Host):
    """A run that is killed later, in the middle of something else."""
    docker.start(docker.job(write('{"a": 1}'), GUARDED, WAITS))
    wait_until(docker.path("/state/begun").exists)
    kill(docker)
    assert docker.apply(WriteFile("/etc/x", "x", "why"))[-1]["ok"]
    assert docker.read(DAEMON) == '{"a": 1}'


def test_a_planned_reboot_puts_nothing_back(docker: Host):
    """What was restarted before it was found to be good."""
    docker.apply(write('{"a": 1}'), GUARDED, Reboot("why"))
    wait_until(lambda: "systemctl reboot" in docker.calls())
    assert not docker.path(BOOT_UNIT).exists()
    assert not docker.path(f"{RECORD}/guard.json").exists()
    assert docker.read(DAEMON) == '{"a": 1}'


def test_a_failure_before_the_restart_puts_back_all_that_was_written_for_it(docker: Host):
    """Several files and their restart are one transaction, whatever else starts meanwhile. What never read them is not restarted."""
    docker.unit("new.service")
    other = "/etc/docker/other.json"
    files = (write('{"a": 1}'), write("new", None, other), Service("new.service", "why"))
    service = Service(DOCKER, "why", restart=True, guards=(DAEMON, other))
    failed = docker.fail(*files, write("x", "y", "/etc/third"), service)
    assert (failed["code"], failed["n"]) == ("changed-underneath", 3)
    assert failed["restored"] == [DAEMON, other]
    assert docker.read(DAEMON) == "{}"
    assert not docker.path(other).exists()
    assert RESTART not in docker.calls()


def test_a_removed_file_is_put_back_though_its_folder_went_with_it(docker: Host):
    docker.unit(DOCKER, START.replace("grep -q bad", "! test -e"))
    failed = docker.fail(RemoveFile(DAEMON, "{}", "why", folder=True), GUARDED)
    assert (failed["restored"], docker.read(DAEMON)) == ([DAEMON], "{}")
    assert failed["detail"][-1] == f"with its files restored, {DOCKER} runs again"


def test_a_systemctl_that_fails_after_the_restart_loses_no_guard(docker: Host):
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


def test_nothing_is_written_while_it_is_not_known_what_works(docker: Host):
    """Else it would be unknown afterwards whether it still does."""
    docker.program("systemctl", 'echo "Failed to connect to bus" >&2; exit 1')
    assert docker.fail(write('{"a": 1}'), GUARDED)["error"] == "Failed to connect to bus"
    assert docker.read(DAEMON) == "{}"


@pytest.mark.parametrize("cut", ["edited", "replaced", "removed"])
def test_an_edit_made_meanwhile_is_kept_and_both_versions_are_named(docker: Host, cut: str):
    """The owner fixed the file after the apply was killed."""
    killed_after_the_restart(docker)
    docker.path(DAEMON).unlink()
    if cut == "edited":
        docker.write(DAEMON, '{"mine": 1}')
    elif cut == "replaced":
        docker.path(DAEMON).symlink_to("/etc/mine.json")
    sentence = told(docker.apply(WriteFile("/etc/x", "x", "why")))
    assert f"{DAEMON} was edited meanwhile and is not restored" in sentence
    assert f"{RECORD}/files/0" in sentence
    assert docker.read(f"{RECORD}/files/0") == "{}"
    assert docker.calls().count(RESTART) == 1
    if cut == "edited":
        assert docker.read(DAEMON) == '{"mine": 1}'
    else:
        assert docker.path(DAEMON).is_symlink() is (cut == "replaced")


def test_an_edit_during_the_restart_is_kept_by_the_apply_itself(docker: Host):
    """Another configuration management writes the file while the unit fails."""
    docker.unit(
        DOCKER, f'{START.rsplit("[", 1)[0]}[ $state = active ] || echo mine > "$GPUNODE_ROOT{DAEMON}"\n'
    )
    failed = docker.fail(write('"bad"'), GUARDED)
    assert failed["restored"] == []
    assert any(f"{RECORD}/files/0" in line for line in failed["detail"])
    assert docker.read(DAEMON) == "mine\n"


@pytest.mark.parametrize("text", ["", '{"unit": "docker', "[]", "null", "{}"], ids=repr)
def test_a_torn_record_is_set_aside_and_named(docker: Host, text: str):
    """The next apply continues, and names the files that the operator has to check."""
    killed_before_the_restart(docker)
    docker.write(f"{RECORD}/guard.json", text)
    messages = docker.apply(WriteFile("/etc/x", "x", "why"))
    assert messages[-1]["ok"]
    assert f"{RECORD}/guard.json.unusable" in told(messages)
    assert f"{RECORD}/files" in told(messages)
    assert docker.read(f"{RECORD}/guard.json.unusable") == text
    assert not docker.path(BOOT_UNIT).exists()


@pytest.mark.parametrize(("name", "version"), [("guard.json", 1), ("journal.jsonl", 2)])
def test_what_a_newer_gpunode_left_is_refused_by_name_and_stays(docker: Host, name: str, version: int):
    """Its own timer puts it back. An older gpunode's, which had no version, is put back by this one."""
    killed_before_the_restart(docker)
    path = f"{RECORD}/{name}"
    written, known = docker.read(path), f'"version": {version}, '
    assert known in written
    docker.write(path, written.replace(known, f'"version": {version + 1}, '))
    failed = docker.fail(WriteFile("/etc/x", "x", "why"))
    assert failed["code"] == "newer-record"
    assert (
        failed["error"]
        == f"{path} was written by a newer gpunode, in format {version + 1}; this one reads formats up to {version}"
    )
    assert docker.read(DAEMON) == '{"a": 1}'
    assert docker.path(BOOT_UNIT).exists()
    docker.write(path, written.replace(known, ""))
    assert docker.apply(WriteFile("/etc/x", "x", "why"))[-1]["ok"]
    assert docker.read(DAEMON) == "{}"


def test_a_torn_last_line_of_the_journal_loses_no_other(docker: Host):
    """The write that it would be about had not begun."""
    killed_before_the_restart(docker)
    with docker.path(f"{RECORD}/journal.jsonl").open("a") as journal:
        journal.write('{"path": "/etc/do')
    assert docker.apply(WriteFile("/etc/x", "x", "why"))[-1]["ok"]
    assert docker.read(DAEMON) == "{}"


def test_originals_that_are_lost_do_not_stop_every_later_apply(docker: Host):
    """Nothing can be restored; that is reported once."""
    killed_before_the_restart(docker)
    shutil.rmtree(docker.path(f"{RECORD}/files"))
    messages = docker.apply(WriteFile("/etc/x", "x", "why"))
    assert messages[-1]["ok"]
    assert "guard.json.unusable" in told(messages)


def test_a_guard_outlives_a_full_disk(docker: Host, tmp_path):
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


def test_the_oldest_record_is_used_before_it_is_forgotten(docker: Host):
    """It may hold what waits to be put back."""
    killed_before_the_restart(docker)
    os.utime(docker.path(RECORD), (1, 1))
    for number in range(KEPT_RUNS + 5):
        docker.path(f"/var/lib/gpunode/runs/old{number}").mkdir()
    assert docker.apply(WriteFile("/etc/x", "x", "why"))[-1]["ok"]
    assert docker.read(DAEMON) == "{}"
    assert len(os.listdir(docker.path("/var/lib/gpunode/runs"))) == KEPT_RUNS


def test_a_restore_that_runs_holds_the_lock_and_one_that_finds_it_held_waits(docker: Host):
    """No other run changes the same files meanwhile, and no guard is dropped because another run held the lock."""
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


def test_all_is_on_disk_before_the_file_is_written(host: Host, monkeypatch):
    """Originals, their folder, the guard, then the write: a machine may lose power between any two of them."""
    host.unit(DOCKER, START)
    host.write(DAEMON, "{}")
    monkeypatch.setattr(system, "ROOT", str(host.root))
    monkeypatch.setattr(system, "ENV", host.environment)
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
    this = Run("run1")
    job = host.job(write('{"a": 1}'), GUARDED)
    this.store(b"", job)
    write_file(this, job["changes"][0])
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


def test_the_lock_is_roots_alone(host: Host):
    """Who can open a file can hold its lock."""
    host.apply(WriteFile("/etc/x", "x", "why"))
    assert stat.S_IMODE(host.path("/run/gpunode/lock").stat().st_mode) == 0o600
    assert stat.S_IMODE(host.path("/run/gpunode").stat().st_mode) == 0o700


def test_who_looks_at_the_lock_for_a_moment_keeps_no_apply_away(tmp_path, monkeypatch):
    monkeypatch.setattr(system, "ROOT", str(tmp_path))
    first = record.take_lock({"run": "run1", "pid": os.getpid()})
    first.close()
    with (tmp_path / "run/gpunode/lock").open() as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        monkeypatch.setattr(record, "time", Mock(sleep=lambda _: fcntl.flock(file, fcntl.LOCK_UN)))
        second = record.take_lock({"run": "run2", "pid": os.getpid()})
    second.close()


def test_the_lock_is_held_until_the_machine_is_down(host: Host):
    """Another apply would begin on a host that goes down under it."""
    host.apply(Reboot("why"))
    wait_until(lambda: "systemctl reboot" in host.calls())
    locked, _ = host.apply(WriteFile("/etc/x", "x", "why"))
    assert (locked["type"], locked["run"]) == ("locked", "run1")
    host.write("/proc/sys/kernel/random/boot_id", "another\n")
    wait_until(lambda: host.apply(WriteFile("/etc/x", "x", "why"))[-1]["ok"])
