"""An apply is a process of its own: it outlives the connection, is followed, is alone on its host, and ends in words."""

import json
import os
import signal

import pytest

from gpunode.agent import system
from gpunode.agent.record import Run, whole_lines
from gpunode.engine.on_host import runs
from gpunode.engine.on_host.work import KEPT_RUNS
from gpunode.host import answers, bootstrap, wire
from gpunode.model import Packages, PackageSpec, Watch, WriteFile
from tests.agent.conftest import Host, collect, wait_until

SLOW = Packages("why", install=(PackageSpec("slow"),))


def slow_apt(host: Host) -> None:
    """An apt-get that goes on until the file `go` is there."""
    host.apt(
        install='echo "pmstatus:slow:10:Unpacking slow" >&$STATUS\nuntil [ -e "$GPUNODE_ROOT/state/go" ]; do sleep 0.02; done\n'
    )


def log(host: Host, run: str = "run1") -> str:
    path = host.path(f"/var/lib/gpunode/runs/{run}/messages.jsonl")
    return path.read_text() if path.exists() else ""


def test_the_answer_to_an_apply_holds_what_a_probe_then_sees(host: Host):
    """Also after a failure; the apply does not report itself as running."""
    watch = Watch(files=("/etc/a",))
    *_, message, end = host.ask(host.job(WriteFile("/etc/a", "1", "why"), watch=watch))
    assert answers.parse_facts(message["facts"]).files["/etc/a"].content == "1"
    assert answers.parse_facts(message["facts"]).running is None
    assert end == {"type": "end", "ok": True}
    *_, failed, message, end = host.ask(host.job(WriteFile("/etc/a", "2", "why"), watch=watch))
    assert (failed["type"], message["type"], end) == ("failed", "facts", {"type": "end", "ok": False})


@pytest.mark.parametrize("closed", [False, True])  # by sshd: the next message has no reader
def test_a_connection_that_dies_kills_only_the_follower(host: Host, *, closed: bool):
    """The apply continues, a probe shows its owner, and `follow` sends all messages from the first."""
    slow_apt(host)
    follower = host.start(host.job(SLOW, WriteFile("/etc/after", "1", "why")))
    wait_until(lambda: "Unpacking slow" in log(host))
    assert follower.stdout
    follower.stdout.close() if closed else follower.kill()
    running = host.facts().running
    assert (running.run, running.by) == ("run1", "anna@desk")
    job = wire.follow_job("run1")
    second = host.start(job)
    host.write("/state/go", "")
    assert second.stdout
    messages, complete = collect(second.stdout, job["nonce"])
    assert complete
    kinds = [message["type"] for message in messages]
    assert kinds == ["start", "progress", "done", "start", "done", "end"]
    assert host.read("/etc/after") == "1"
    assert follower.stderr
    assert (follower.wait(10), follower.stderr.read()) == (0 if closed else -signal.SIGKILL, b"")


def test_a_silent_apply_is_said_to_go_on(host: Host):
    """Else a long installation would look like a host that hangs."""
    slow_apt(host)
    job = {**host.job(SLOW), "beat": 0.2}
    follower = host.start(job)
    assert follower.stdout
    lines = []
    for line in follower.stdout:
        lines.append(line)
        if lines.count(b'{"type": "alive"}\n') == 2:
            host.write("/state/go", "")
    messages, complete = collect(lines, job["nonce"])
    assert complete
    assert [message["type"] for message in messages] == ["start", "progress", "done", "end"]


def test_only_the_records_of_the_last_applies_are_kept(host: Host):
    """They hold the originals of what was changed; of a host that is changed every day, not for ever."""
    runs = host.path("/var/lib/gpunode/runs")
    for number in range(KEPT_RUNS + 5):
        record = runs / f"old{number}"
        record.mkdir(parents=True)
        os.utime(record, (1000 + number, 1000 + number))
    host.apply(WriteFile("/etc/a", "1", "why"))
    left = {record.name for record in runs.iterdir()}
    assert left == {"run1", *(f"old{number}" for number in range(6, KEPT_RUNS + 5))}


@pytest.mark.parametrize("next_one", ["apply", "abort"])
def test_images_that_a_killed_apply_was_sent_do_not_stay(host: Host, next_one: str):
    """Each may have gigabytes. One that is still being sent, by an apply that has not begun, is left alone;
    so is a newer gpunode's. A boot ends the sending, too."""
    host.apply(WriteFile("/etc/a", "1", "why"))
    runs = "/var/lib/gpunode/runs"
    begun, sent = json.dumps({"type": "start", "n": 0}), json.dumps({"type": "record", "version": 1})
    host.write(f"{runs}/killed/messages.jsonl", f"{sent}\n{begun}\n")
    host.path("/run/gpunode/sending").mkdir()
    host.write(f"{runs}/newer/messages.jsonl", sent.replace("1", "2") + f"\n{begun}\n")
    for name in ("killed", "sending", "newer", "of-last-boot"):
        host.write(f"{runs}/{name}/payload-0", "an archive")
    if next_one == "apply":
        assert host.apply(WriteFile("/etc/b", "1", "why"))[-1]["ok"]
    else:
        host.ask(wire.abort_job())
    assert {path.parent.name for path in host.path(runs).glob("*/payload-0")} == {"sending", "newer"}


def test_a_message_that_is_still_being_written_is_waited_for(tmp_path):
    """A follower reads while the apply writes; facts are long lines."""
    path = tmp_path / "messages.jsonl"
    path.write_bytes(b'{"n": 1}\n{"n"')
    with path.open("rb") as file:
        assert list(whole_lines(file)) == [b'{"n": 1}\n']
        with path.open("ab") as more:
            more.write(b": 2}\n")
        assert list(whole_lines(file)) == [b'{"n": 2}\n']


def test_an_apply_that_has_ended_unwatched_can_still_be_heard(host: Host):
    """Its messages stay on the host, the same ones."""
    messages = host.apply(WriteFile("/etc/a", "1", "why"))
    assert host.ask(wire.follow_job("run1")) == messages


def test_a_full_disk_silences_no_apply(host: Host):
    """Messages that could not be recorded below /var are sent all the same, also to later followers."""
    host.path("/var/lib/gpunode/runs/run1").mkdir(parents=True)
    host.path("/var/lib/gpunode/runs/run1/messages.jsonl").symlink_to("/dev/full")
    messages = host.apply(WriteFile("/etc/a", "1", "why"), WriteFile("/etc/b", "1", "why", before="2"))
    assert [message["type"] for message in messages] == ["start", "done", "start", "failed", "end"]
    assert host.ask(wire.follow_job("run1")) == messages
    assert [path.name for path in host.path("/run/gpunode/run1").iterdir()] == ["messages.jsonl"]


def test_following_what_never_began_says_so(host: Host):
    """The connection was lost before the job had arrived."""
    assert host.ask(wire.follow_job("run9")) == [
        {"type": "unknown", "run": "run9"},
        {"type": "end", "ok": False},
    ]


def test_a_second_apply_is_told_who_is_at_work_and_since_when(host: Host):
    """And changes nothing."""
    slow_apt(host)
    first = host.start(host.job(SLOW))
    wait_until(lambda: "Unpacking slow" in log(host))
    since = json.loads(host.read("/run/gpunode/lock"))["since"]
    locked, end = host.apply(WriteFile("/etc/a", "1", "why"))
    assert (locked["type"], locked["run"], locked["by"], locked["since"]) == (
        "locked",
        "run1",
        "anna@desk",
        since,
    )
    assert end == {"type": "end", "ok": False}
    assert not host.path("/etc/a").exists()
    host.write("/state/go", "")
    first.wait()
    assert host.apply(WriteFile("/etc/a", "1", "why"))[-1]["ok"]


def test_an_apply_that_begins_while_it_is_looked_for_is_not_taken_for_killed(tmp_path, monkeypatch):
    """It takes the lock and sends its first message right after the follower saw the lock free, as under load."""
    monkeypatch.setattr(system, "ROOT", str(tmp_path))
    run = Run("run1")
    for place in run.places:
        (tmp_path / place.lstrip("/")).parent.mkdir(parents=True)
        (tmp_path / place.lstrip("/")).touch()
    told = iter(({"type": "start", "n": 0}, {"type": "done", "n": 0}, {"type": "end", "ok": True}))
    looks = iter((None, {"run": "run1"}, {"run": "run1"}))

    def look() -> object:
        seen = next(looks)
        run.send(next(told))
        return seen

    monkeypatch.setattr(runs, "lock_holder", look)
    assert [message["type"] for message in runs.follow(run)] == ["start", "done", "end"]


def test_an_apply_that_is_killed_is_reported_as_interrupted(host: Host):
    """A machine that went down in the middle: the change under way is named, and the lock is free."""
    slow_apt(host)
    job = host.job(WriteFile("/etc/a", "1", "why"), SLOW)
    follower = host.start(job)
    wait_until(lambda: "Unpacking slow" in log(host))
    os.kill(json.loads(host.read("/run/gpunode/lock"))["pid"], signal.SIGKILL)
    assert follower.stdout
    messages, complete = collect(follower.stdout, job["nonce"])
    host.write("/state/go", "")
    assert complete
    assert messages[-1] == {"type": "end", "ok": False}
    assert (messages[-2]["code"], messages[-2]["n"]) == ("interrupted", 1)
    assert host.facts().running is None


def test_a_mistake_of_the_agents_own_is_a_failure_with_its_traceback(host: Host):
    """Not a silence. It names the file and the line, and shows it, though the host has no such file."""
    job = host.job(WriteFile("/etc/a", "1", "why"))
    del job["changes"][0]["mode"]
    _, failed, end = host.ask(job)
    assert failed["code"] == "internal"
    assert "KeyError" in failed["error"]
    *_, line = [
        at
        for at, text in enumerate(failed["detail"])
        if 'File "gpunode/engine/on_host/changes.py", line ' in text
    ]
    number = int(failed["detail"][line].split("line ")[1].split(",")[0])
    source = bootstrap.sources()["gpunode.engine.on_host.changes"].splitlines()
    assert failed["detail"][line + 1].strip() == source[number - 1].strip() == 'mode = change["mode"]'
    assert end == {"type": "end", "ok": False}


@pytest.mark.parametrize(("key", "word"), [("kind", "change"), ("check", "check")])
def test_a_change_that_the_agent_does_not_know_is_refused_by_name_before_any_other(
    host: Host, key: str, word: str
):
    """E.g. of another version: the changes before it are not made either."""
    job = host.job(WriteFile("/etc/a", "1", "why"), WriteFile("/etc/b", "1", "why"))
    job["changes"][1][key] = "paint"
    failed, end = host.ask(job)
    assert (failed["type"], failed["code"], failed["n"]) == ("failed", "unknown-change", 1)
    assert failed["error"] == f"the agent knows no {word} `paint`: nothing was changed"
    assert end == {"type": "end", "ok": False}
    assert not host.path("/etc/a").exists()


def test_an_operation_that_the_agent_does_not_know_is_refused_by_name(host: Host):
    """It is not taken for another one."""
    failed, end = host.ask({"op": "paint", "nonce": "n", "run": "run1"})
    assert (failed["type"], failed["code"], failed["n"]) == ("failed", "unknown-operation", None)
    assert failed["error"] == "the agent knows no operation `paint`"
    assert end == {"type": "end", "ok": False}


def rewrite(host: Host, path: str, version: int | None) -> None:
    """Give each JSON line of a file another version; none when None."""
    lines = [json.loads(line) for line in host.read(path).splitlines()]
    for line in lines:
        line.pop("version", None)
        if version is not None:
            line["version"] = version
    host.write(path, "".join(json.dumps(line) + "\n" for line in lines))


def test_the_record_of_a_newer_gpunode_is_refused_by_name_and_an_older_one_read(host: Host):
    """The same words may mean something else there. Records had no version at first."""
    messages = host.apply(WriteFile("/etc/a", "1", "why"))
    path = "/var/lib/gpunode/runs/run1/messages.jsonl"
    rewrite(host, path, None)
    assert host.ask(wire.follow_job("run1")) == messages
    rewrite(host, path, 2)
    failed, end = host.ask(wire.follow_job("run1"))
    assert (failed["code"], failed["n"]) == ("newer-record", None)
    assert (
        failed["error"]
        == f"{path} was written by a newer gpunode, in format 2; this one reads formats up to 1"
    )
    assert end == {"type": "end", "ok": False}


def test_an_apply_without_the_right_to_do_so_says_what_it_lacks(host: Host):
    """A host with `sudo: false` and a plain user."""
    host.path("/run").rmdir()
    host.write("/run", "in the way")
    failed = host.fail(WriteFile("/etc/a", "1", "why"))
    assert (failed["code"], failed["n"]) == ("os-error", 0)
    assert failed["error"].startswith("/run/gpunode")


def test_what_other_files_say_is_reported_and_not_recorded(host: Host):
    """Facts hold whole files, e.g. a source list with a password."""
    host.write("/etc/apt/sources.list.d/a.list", "deb http://user:s3cret@apt.example/ ./\n")
    watch = Watch(files=("/etc/apt/sources.list.d/*.list",))
    messages = host.ask(host.job(WriteFile("/etc/a", "1", "why"), watch=watch))
    assert "s3cret" in str(messages)
    assert "s3cret" not in log(host)
    assert [message["type"] for message in host.ask(wire.follow_job("run1"))] == ["start", "done", "end"]


def test_nothing_secret_stays_after_an_apply(host: Host):
    """Program and job are gone from the host; only the record is left, for root."""
    host.apply(WriteFile("/etc/a", "1", "why"))
    wait_until(lambda: os.listdir(host.path("/run/gpunode")) == ["lock"])
    assert sorted(path.name for path in host.path("/var/lib/gpunode/runs/run1").iterdir()) == [
        "crash.log",
        "files",
        "journal.jsonl",
        "messages.jsonl",
    ]
