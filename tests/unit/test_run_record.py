"""The record of a run survives whatever ends the run."""

import errno
import json
import os
import time
from collections.abc import Callable
from unittest.mock import Mock

import pytest

from gpunode.commands.provision import ProvisionOptions
from gpunode.engine import history, record
from gpunode.engine.batch_order import Size
from gpunode.engine.record import Record
from gpunode.errors import GpunodeError, UsageError


@pytest.fixture(autouse=True)
def _records(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))


def begun(tmp_path, *hosts: str) -> Record:
    inventory = tmp_path / "inventory.yaml"
    return Record.begin(inventory, hosts, record.RunOptions(batch="2"))


def test_what_was_written_is_read(tmp_path):
    run = begun(tmp_path, "a", "b", "c", "d")
    run.host("a", "cordoned")
    run.host("a", "proven")
    run.host("b", "failed", "it broke")
    run.host("d", "in use")

    recorded = history.read(run.path)

    assert {name: (host.state, host.why) for name, host in recorded.hosts.items()} == {
        "a": ("proven", ""),
        "b": ("failed", "it broke"),
        "c": ("waiting", ""),
        "d": ("in use", ""),
    }
    assert (recorded.not_done, recorded.in_state("failed"), recorded.options) == (
        ("b", "c"),
        ("b",),
        record.RunOptions(batch="2"),
    )
    assert not recorded.ended
    run.end()
    assert history.read(run.path).ended


@pytest.mark.parametrize("cut", range(1, 40, 3))
def test_a_line_that_was_cut_off_does_not_count(tmp_path, cut: int):
    run = begun(tmp_path, "a")
    run.host("a", "changing")
    whole = run.path.read_bytes()
    run.host("a", "changed")
    run.path.write_bytes(run.path.read_bytes()[: len(whole) + cut])

    assert history.read(run.path).hosts["a"].state == "changing"


def test_records_are_for_their_owner_alone(tmp_path):
    run = begun(tmp_path, "a")
    assert (run.path.stat().st_mode & 0o777, run.path.parent.stat().st_mode & 0o777) == (0o600, 0o700)


def test_a_new_run_removes_records_that_are_old_and_not_among_the_last(tmp_path):
    """Not the last of an inventory, nor what names none."""
    folder = tmp_path / "gpunode/runs"
    mine = json.dumps({"format": 1, "hosts": [], "inventory": str(tmp_path / "inventory.yaml")})
    texts = {"20240101T000000Z-aaaa": '{"inventory": "/other"}', "20240102T000000Z-aaaa": '{"inventory": "/other"}', "20240103T000000Z-aaaa": "no"}  # fmt: skip
    folder.mkdir(parents=True)
    for number in range(record.KEPT_RUNS + 2):
        texts[f"20250101T{number // 60:02}{number % 60:02}00Z-aaaa"] = mine
    for name, text in texts.items():
        path = folder / f"{name}.jsonl"
        path.write_text(f"{text}\n")
        os.utime(path, (0, 0))
    young = folder / "20250101T000100Z-aaaa.jsonl"
    os.utime(young)
    run = begun(tmp_path)
    left = sorted(path.stem for path in folder.glob("*.jsonl"))
    gone = {"20240101T000000Z-aaaa", "20250101T000000Z-aaaa", "20250101T000200Z-aaaa"}
    assert left == sorted({run.id, *texts} - gone)


def test_a_newer_format_is_refused_by_name(tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_text(json.dumps({"format": 2, "hosts": []}) + "\n")
    with pytest.raises(GpunodeError, match="a record of format 2; this gpunode reads up to 1"):
        history.read(path)


@pytest.mark.parametrize(
    "text",
    [
        "", "x", "[]", "{}", '{"format": 1}', "[" * 100_000,
        '{"format": 1, "hosts": ["a"], "began": {}}', '{"format": 1, "hosts": [], "options": 1}',
        '{"format": 1, "hosts": [5]}', '{"format": 1, "hosts": ["a"], "inventory": 5}', '{"format": true, "hosts": ["a"]}',
        *(f'{{"format": 1, "hosts": ["a"], "options": {{"{key}": {value}}}}}' for key, value in (
            ("batch", 1), ("batch", '"x"'), ("batch", '"0"'), ("canary", '"x"'), ("canary", "true"), ("fingerprints", 5),
            ("fingerprints", "[5]"), ("fingerprints", '"A"'), ("max_fail", '"2"'), ("max_fail", "1.5"), ("run", '"no"'),
        )),
        '{"format": 1, "hosts": ["a"], "began": 1}\n{"state": "waiting", "host": ["a"]}',
        '{"format": 1, "hosts": ["a"], "began": 1}\n{"state": "waiting", "host": "a", "time": NaN}',
        '{"format": 1, "hosts": ["a"], "began": 1}\n{"state": "waiting", "host": "a", "time": "soon"}',
    ],
)  # fmt: skip
def test_what_is_no_record_is_refused(tmp_path, text: str):
    path = tmp_path / "x.jsonl"
    path.write_text(text)
    with pytest.raises(GpunodeError, match=f"^{path}: not the record of a run"):
        history.read(path)


def test_the_last_run_is_that_of_the_same_inventory(tmp_path):
    """Another inventory's, a newer one's and broken ones are passed over."""
    runs = tmp_path / "gpunode/runs"
    mine = begun(tmp_path, "a")
    (runs / "99999999T000000Z-0000.jsonl").write_text("broken")
    (runs / "99999999T000000Z-0001.jsonl").write_text(
        json.dumps({"format": 1, "hosts": [], "inventory": "/other"}) + "\n"
    )
    record = history.last_run(tmp_path / "inventory.yaml")
    assert record.id == mine.id
    assert history.last_run(tmp_path / "none.yaml") is None


def test_a_damaged_record_of_the_same_inventory_is_not_passed_over(tmp_path):
    """An older run would be resumed in its place; what only looks back passes it over."""
    begun(tmp_path, "a")
    inventory = tmp_path / "inventory.yaml"
    path = tmp_path / "gpunode/runs/99999999T000000Z-0000.jsonl"
    head = {"format": 1, "hosts": ["a"], "inventory": str(inventory), "options": {"batch": 1}}
    path.write_text(json.dumps(head) + "\n")
    with pytest.raises(GpunodeError) as error:
        history.last_run(inventory)
    assert (
        error.value.message
        == f"{path}: not the record of a run (1 where text is expected, in line 1.options.batch)"
    )
    assert history.find_unfinished(inventory) == ()


def test_where_no_record_can_be_written_nothing_begins(tmp_path):
    (tmp_path / "gpunode").write_text("")
    with pytest.raises(GpunodeError, match="the record of this run cannot be written"):
        Record.begin(tmp_path / "inventory.yaml", ["a"], record.RunOptions())


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EIO])
def test_a_record_that_the_disk_does_not_take_is_lost_and_raises_nothing(tmp_path, monkeypatch, number: int):
    """The run ends in order. Nothing follows a line that may be cut off, though the disk take it."""
    run = begun(tmp_path, "a", "b")
    run.host("a", "cordoned")
    before = history.read(run.path)
    with monkeypatch.context() as broken:
        broken.setattr(record.os, "fsync", failing(number))
        run.host("b", "cordoned")
    run.host("a", "proven")
    run.end()

    assert run.lost == f"its record {run.path} cannot be written: {os.strerror(number)}"
    assert run.begun == ("b",), "known without the disk"
    after = history.read(run.path)
    assert (after.hosts["a"], after.ended) == (before.hosts["a"], False)


def test_a_record_that_is_removed_meanwhile_is_lost(tmp_path):
    """What would be written then has no beginning, so nobody could resume it."""
    run = begun(tmp_path, "a")
    run.path.unlink()
    run.host("a", "changing")
    assert "cannot be written: No such file" in run.lost
    assert not run.path.exists()


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EIO])
def test_a_record_whose_first_line_the_disk_does_not_take_begins_no_run(tmp_path, monkeypatch, number: int):
    """Nor is an empty one left."""
    monkeypatch.setattr(record.os, "fsync", failing(number))
    with pytest.raises(
        GpunodeError, match=f"the record of this run cannot be written: {os.strerror(number)}"
    ) as error:
        begun(tmp_path, "a")
    assert "Free space, or set XDG_STATE_HOME" in error.value.hint
    assert not list((tmp_path / "gpunode/runs").iterdir())


def failing(number: int) -> Callable[[int], None]:
    def fail(_descriptor: int) -> None:
        raise OSError(number, os.strerror(number))

    return fail


def test_the_last_run_is_the_last_though_the_clock_was_set_back(tmp_path, monkeypatch):
    """Also of runs that began within one second."""
    times = iter([1_800_000_000.0, 1_700_000_000.0, 1_700_000_000.0])
    for expected in ("20270115T080000Z", "20270115T080001Z", "20270115T080002Z"):
        now = next(times)
        monkeypatch.setattr(record, "time", Mock(wraps=time, time=lambda now=now: now))
        run = begun(tmp_path, "a")
        assert run.id.startswith(expected)
        last = history.last_run(tmp_path / "inventory.yaml")
        assert last.id == run.id


def test_a_run_is_gone_on_with_as_it_was_begun():
    """With what is left of its canary: a proven host without changes was none. Hosts that it had begun may still reboot, for as long as any other."""
    states: dict[str, record.State] = {
        "a": "proven",
        "b": "changing",
        "c": "cordoned",
        "d": "failed",
        "e": "waiting",
        "f": "proven",
    }
    times = {"a": 0.0, "b": 1000.0, "c": 1800.0, "d": 0.0, "e": 0.0, "f": 0.0}
    hosts = {name: record.Progress(state, times[name]) for name, state in states.items()}
    options = record.RunOptions(False, 2, 3, "25%", ("A" * 40,))
    wish = ProvisionOptions.of_recorded_run(
        record.RecordedRun("x", "i", 0, options, hosts, planned={"a": (1,), "d": (1,)}), yes=True, now=1300.0
    )
    assert wish == ProvisionOptions(
        yes=True,
        run=False,
        size=Size(25, percent=True),
        canary=2,
        max_fail=2,
        fingerprints=("A" * 40,),
        resumes="x",
        rest=("b", "c", "d", "e"),
        begun={"b": 600.0, "c": 900.0},
    )
    assert ProvisionOptions.of_recorded_run(
        record.RecordedRun("x", "i", 0, record.RunOptions()), yes=False, now=0
    ) == ProvisionOptions(resumes="x")


def test_hosts_that_an_earlier_run_left_are_not_forgotten(tmp_path):
    """A later run of other hosts is the last one; only a host that a later run took up is its matter, or that was forgotten since."""
    inventory = tmp_path / "inventory.yaml"
    begun(tmp_path, "a", "b", "c").host("a", "proven")
    record.Record.begin(inventory, ["d"], record.RunOptions(undo="x"))
    begun(tmp_path, "c").host("c", "proven")
    assert history.find_unfinished(inventory) == ("b",)
    with pytest.raises(UsageError) as error:
        history.expand_limit(["@Failed"], inventory, "abc")
    assert "`gpunode provision --limit b` continues with it" in error.value.hint
    forget = record.Record.begin(inventory, ["b"], record.RunOptions(command="forget"))
    assert history.find_unfinished(inventory) == ("b",)
    forget.host("b", record.FORGOTTEN)
    assert history.find_unfinished(inventory) == ()


def test_a_host_that_has_left_the_inventory_keeps_no_other_from_being_resumed(tmp_path):
    begun(tmp_path, "a", "b")
    inventory = tmp_path / "inventory.yaml"
    assert history.expand_limit(["@not-done"], inventory, "bc") == ["b"]
    with pytest.raises(UsageError, match="has no such host"):
        history.expand_limit(["@not-done"], inventory, "c")
