"""The journal on a host: what was before each change, by whom and why; readable after a kill at any state."""

import hashlib
import json
import os
import shutil
import signal
import stat
import time
from pathlib import Path

import pytest

from gpunode.agent import system
from gpunode.agent.record import Run
from gpunode.engine import undo
from gpunode.engine.on_host.changes import forget_host
from gpunode.engine.on_host.work import KEPT_RUNS
from gpunode.host import wire
from gpunode.model import (
    Change,
    Entry,
    ForgetHost,
    PackageChange,
    Packages,
    PackageSpec,
    RemoveFile,
    Service,
    WriteFile,
)
from tests.agent.conftest import DOCKER, START, Host, wait_until

RUNS = "/var/lib/gpunode/runs"


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def journal(host: Host, run: str = "r1") -> list[Entry]:
    (message,) = host.ask(wire.journal_job(run))
    return list(wire.read(message)["entries"])


def apply(host: Host, *changes: Change, record: str = "r1", undoes: str = "") -> None:
    why = [change.why for change in changes]
    assert host.ask(host.job(*changes, record=record, undoes=undoes, why=why))[-1]["ok"]


def test_an_entry_has_what_was_before(host: Host):
    host.write("/etc/old", "1", mode=0o640)
    host.write("/etc/gone", "2")
    changes = [
        WriteFile("/etc/old", "3", "because", "1"),
        WriteFile("/etc/new.d/a", "4", "why"),
        RemoveFile("/etc/gone", "2", "why"),
    ]
    apply(host, *changes)
    old, new, gone = journal(host)
    assert (old.run, old.by, old.why, old.kind, old.ended > 0) == (
        "r1",
        "anna@desk",
        "because",
        "write_file",
        True,
    )
    assert (old.path, old.was, old.wrote, old.mode, old.content) == (
        "/etc/old",
        digest("1"),
        digest("3"),
        0o640,
        "1",
    )
    assert (new.was, new.wrote, new.content, new.new_folder) == (None, digest("4"), None, True)
    assert (gone.was, gone.wrote, gone.content, gone.new_folder) == (digest("2"), None, "2", False)
    assert {stat.S_IMODE(path.stat().st_mode) for path in host.path(f"{RUNS}/run1/files").iterdir()} == {
        0o600
    }
    assert stat.S_IMODE(host.path(f"{RUNS}/run1/journal.jsonl").stat().st_mode) == 0o600
    assert [entry.content for entry in journal(host, "another")] == [
        None,
        None,
        None,
    ]  # they stay on the host


@pytest.mark.parametrize(
    ("lines", "torn", "content", "restores"),
    [
        (0, b"", "1", False),  # the original is copied
        (0, b'{"version": 2, "pa', "1", False),  # the entry is half written
        (1, b"", "1", False),  # the entry is on disk
        (1, b"", "3", True),  # the change is made
        (1, b'{"version": 2, "n": 0, "do', "3", True),
        (2, b"", "3", True),  # and noted as made
    ],
)
def test_after_a_kill_at_any_state_an_undo_restores_what_was_changed(
    host: Host, lines: int, torn: bytes, content: str, *, restores: bool
):
    host.write("/etc/a", "1")
    apply(host, WriteFile("/etc/a", "3", "why", "1"))
    file = host.path(f"{RUNS}/run1/journal.jsonl")
    file.write_bytes(b"".join(file.read_bytes().splitlines(keepends=True)[:lines]) + torn)
    host.write("/etc/a", content)
    seen = host.facts(files=("/etc/a",))
    changes, left = undo.plan(journal(host), "r1", seen)
    apply(host, *changes, record="r2", undoes="r1")
    assert [entry.undoes for entry in journal(host) if entry.run == "r2"] == ["r1"] * restores
    assert (len(changes), left) == (restores, ())
    assert host.read("/etc/a") == "1"


def test_a_forget_that_is_killed_among_the_records_is_planned_from_the_oldest(host: Host, monkeypatch):
    """From the others the next would restore what gpunode wrote."""
    host.write("/etc/a", "1")
    for before, after in (("1", "2"), ("2", "3"), ("3", "1")):
        apply(host, WriteFile("/etc/a", after, "why", before))
    removed = []

    def remove(path: str) -> None:
        removed.append(Path(path).name)
        shutil.move(path, host.root / "removed" / removed[-1])
        changes, _ = undo.plan(journal(host, ""), undo.EVERY, host.facts(files=("/etc/a",)))
        assert changes == ()

    (host.root / "removed").mkdir()
    monkeypatch.setattr(system, "ROOT", str(host.root))
    monkeypatch.setattr(shutil, "rmtree", remove)
    forget_host(Run("run3"), {})
    assert removed == ["run3", "run2", "run1", "gpunode"]


def test_a_plan_from_a_journal_that_has_grown_since_is_refused_but_its_own_run_goes_on(host: Host):
    """Also after a reboot, when the run's first apply is in the journal. The other's journal is not removed unread."""
    apply(host, WriteFile("/etc/a", "1", "why"))
    known, forget = ["run1"], ForgetHost("why")
    assert host.ask(host.job(RemoveFile("/etc/a", "1", "why"), record="forget", known=known))[-1]["ok"]
    apply(host, WriteFile("/etc/b", "2", "why"), record="another")
    messages = host.ask(host.job(forget, record="forget", known=known))
    assert [message.get("code") for message in messages] == ["changed-underneath", None]
    assert "anna@desk has changed this host since" in messages[0]["error"]
    assert [entry.run for entry in journal(host)] == ["r1", "forget", "another"]
    assert host.ask(host.job(forget, record="forget", known=[*known, "run3"]))[-1]["ok"]
    assert journal(host) == []


def test_an_older_journal_is_read_and_a_newer_one_refused(host: Host):
    line = {"path": "/etc/a", "file": None, "was": None, "wrote": digest("1"), "version": 1}
    host.write(f"{RUNS}/old/journal.jsonl", json.dumps(line) + "\n")
    assert [(entry.path, entry.run) for entry in journal(host)] == [("/etc/a", "")]
    host.write(f"{RUNS}/new/journal.jsonl", json.dumps({**line, "version": 3}) + "\n")
    assert host.ask(wire.journal_job("r1"))[0]["code"] == "newer-record"
    apply(host, WriteFile("/etc/b", "1", "why"))  # of it nothing is read


ODD = (
    b'null\n[]\n{"version": "x"}\n{"version": 2, "ended": 1}\n{"version": 2, "n": 0, "ended": 1}\n',
    b'{"version": 2, "n": 0, "ended": 1, "after": []}\n{"version": 2, "path": "/etc/a"}\n{"version": 2, "n": {}, "ended": 1}\n',
    b"",
)


@pytest.mark.parametrize("lines", ODD)
def test_odd_lines_and_paths_stop_no_later_apply(host: Host, lines: bytes):
    apply(host, WriteFile("/etc/d", "2", "why"))
    host.path("/etc/d").unlink()
    host.path("/etc/d").mkdir()
    file = host.path(f"{RUNS}/run1/journal.jsonl")
    file.write_bytes(file.read_bytes() + lines)
    for number in range(KEPT_RUNS):
        host.path(f"{RUNS}/x{number}").mkdir()
    apply(host, WriteFile("/etc/c", "2", "why"), record="r2")
    apply(host, WriteFile("/etc/c", "3", "why", "2"), record="r3")
    assert [entry.path for entry in journal(host, "") if entry.run] == ["/etc/d", "/etc/c", "/etc/c"]


def test_all_changes_of_a_file_that_is_still_changed_outlive_other_records(host: Host):
    """Not those of a file that is as it was."""
    host.write("/etc/a", "1")
    host.write("/etc/b", "1")
    for path, before, after in ("a12", "b12", "b21", "a23", "a34"):
        apply(host, WriteFile(f"/etc/{path}", after, "why", before), record=path + after)
    for number in range(KEPT_RUNS):
        host.path(f"{RUNS}/x{number}").mkdir()
    apply(host, WriteFile("/etc/c", "3", "why"), record="last")
    seen = host.facts(files=("/etc/a", "/etc/b", "/etc/c"))
    entries = journal(host, "")
    assert [entry.run for entry in entries] == ["a2", "a3", "a4", "last"]
    assert [change.path for change in undo.plan(entries, undo.EVERY, seen)[0]] == ["/etc/c", "/etc/a"]
    assert undo.originals(entries)["/etc/a"].content == "1"


def test_a_clock_that_is_set_back_changes_no_applies_order(host: Host):
    host.write("/etc/a", "1")
    apply(host, WriteFile("/etc/a", "2", "why", "1"), record="first")
    ahead = time.time() + 86400
    os.utime(host.path(f"{RUNS}/run1/journal.jsonl"), (ahead, ahead))
    apply(host, WriteFile("/etc/a", "3", "why", "2"), record="second")
    apply(host, WriteFile("/etc/b", "1", "why"), record="third")
    entries = journal(host, "")
    assert [entry.run for entry in entries] == ["first", "second", "third"]
    assert undo.originals(entries)["/etc/a"].content == "1"


def row(name: str, version: str, state: str = "ii") -> str:
    return f"{state} \t{name}\t{version}\tamd64\n"


BEFORE, AFTER = row("kept", "1") + row("old", "1"), row("kept", "1") + row("old", "2") + row("new", "3", "hi")
INSTALL = f"cat >$GPUNODE_ROOT/state/packages <<'END'\n{AFTER}END\n"
DRY = """\
The following NEW packages will be installed:
  new
The following packages will be upgraded:
  old
"""
CHANGED = {"new": PackageChange("new", None, "3", holds=True), "old": PackageChange("old", "1", "2")}
PACKAGES = Packages("why", install=(PackageSpec("new"),))


@pytest.mark.parametrize(("end", "failed"), [("", ""), ("exit 1", "apt-failed")])
def test_an_entry_of_packages_has_all_that_changed_also_where_it_failed(host: Host, end: str, failed: str):
    host.apt(BEFORE, install=INSTALL + end)
    host.program("apt-cache", "echo ' old | 2 | http://a'")
    host.path("/sys/module/nouveau").mkdir(parents=True)
    host.ask(host.job(PACKAGES, record="r1", why=["why"]))
    (entry,) = journal(host)
    assert (entry.packages, entry.failed, entry.unavailable) == (CHANGED, failed, ("old",))
    assert entry.modules == ("nouveau",)


@pytest.mark.parametrize("torn", [b"", b'{"version": 2, "n": 0, "end'])
def test_packages_of_a_killed_apply_are_those_of_its_dry_run_until_the_next_apply(host: Host, torn: bytes):
    """Also where it was killed, or the power went, in the middle of its last line."""
    wait = 'touch "$GPUNODE_ROOT/state/here"; until [ -e "$GPUNODE_ROOT/state/go" ]; do sleep 0.02; done\n'
    host.apt(BEFORE, dry=f"cat <<'END'\n{DRY}END\n", install=INSTALL + wait)
    host.program("apt-cache", "echo ' old | 1 | http://a'")
    follower = host.start(host.job(PACKAGES, record="r1", why=["why"]))
    wait_until(host.path("/state/here").exists)
    os.kill(json.loads(host.read("/run/gpunode/lock"))["pid"], signal.SIGKILL)
    follower.communicate()
    (record,) = host.path("/var/lib/gpunode/runs").iterdir()
    with (record / "journal.jsonl").open("ab") as lines:
        lines.write(torn)
    host.write("/state/go", "")
    host.write("/state/packages", AFTER + row("users", "15"))
    (entry,) = journal(host)
    assert (entry.packages, entry.ended, entry.unavailable) == (CHANGED, 0.0, ())
    apply(host, WriteFile("/etc/b", "1", "why"), record="r2")
    host.write("/state/packages", row("old", "9") + row("new", "9"))
    first, second = journal(host, "")
    assert (first.run, first.packages, first.ended > 0, second.run) == ("r1", CHANGED, True, "r2")


def test_an_entry_of_a_unit_has_its_state(host: Host):
    host.unit(DOCKER, UnitFileState="disabled", ActiveState="inactive", start=START)
    host.ask(host.job(Service(DOCKER, "why", enable=True), record="r1", why=["why"]))
    (entry,) = journal(host)
    assert (entry.unit, entry.enabled, entry.active) == (DOCKER, "disabled", "inactive")
    assert host.ask(host.job(Service(DOCKER, "why", disable=True), record="r2", why=["why"]))[-1]["ok"]
    assert [entry.state for entry in journal(host, "r2")][-1:] == ["disable"]
    assert f"systemctl disable --now {DOCKER}" in host.calls()


@pytest.mark.parametrize(
    ("end", "released"), [("exit 100", False), ("> $GPUNODE_ROOT/state/packages", False), ("true", True)]
)
def test_a_hold_is_released_after_the_change_of_packages_alone(host: Host, end: str, *, released: bool):
    host.apt(row("new", "3", "hi"), install=end)
    change = Packages("why", remove=("new",), release=("new",), purge=True)
    host.ask(host.job(change, record="r1", why=["why"]))
    assert ("apt-mark unhold new" in host.calls()) == released
