"""A run's journal: an entry for each change, on disk before the change begins, with what was there before; a line when it is made."""

import json
import os
import time
from typing import Iterator, List, Tuple

from gpunode.agent.record import RECORDS, Run, check_format
from gpunode.agent.system import Message, below, glob_of, naming, resolve, text_of

# Of the journal's format. 1: files alone, without run, by, time, why.
JOURNAL = 2
LINES = "/journal.jsonl"


def sync(path: str) -> None:
    """Flush a file's data, or a folder's names, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


def guarding(this: Run, path: str) -> Tuple[str, List[str]]:
    """The unit that a later change of this apply restarts to read a file, with all files that it guards; "" if there is none."""
    guarded = [
        (change["unit"], list(map(resolve, change["guards"])))
        for change in this.load()["changes"][this.n + 1 :]
        if change["kind"] == "service"
    ]
    return next((pair for pair in guarded if path in pair[1]), ("", []))


def append(this: Run, entry: Message) -> None:
    """Add an entry of the change under way. On disk when this returns."""
    job = this.load()
    common = {"version": JOURNAL, "n": this.n, "time": time.time()}
    common.update(run=job.get("record", ""), undoes=job.get("undoes", ""))
    common.update(by=job["by"], kind=job["changes"][this.n]["kind"])
    common["why"] = dict(enumerate(job.get("why", []))).get(this.n, "")
    this.noted = True
    _append(this, dict(common, **entry))


def end_entry(this: Run, after: Message) -> None:
    """After the change under way, made or not (`failed`: the code): its entries are complete, with what is known since."""
    this.noted = False
    _append(this, {"version": JOURNAL, "n": this.n, "ended": time.time(), "after": after})


def _append(this: Run, line: Message) -> None:
    journal = below(this.record + LINES)
    torn = not (text_of(this.record + LINES) or "\n").endswith("\n")  # by a kill or a power cut
    descriptor = os.open(journal, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    with naming(journal), open(descriptor, "ab") as file:
        file.write(b"\n" * torn + json.dumps(line).encode() + b"\n")
    newest = records()[-1]
    if newest != this.record:  # the clock was set back since
        os.utime(journal, (os.stat(below(newest + LINES)).st_mtime + 1,) * 2)
    for part in (LINES, "/files", "", "/..", "/../..", "/../../.."):
        sync(below(this.record + part))


def entries_of(record: str) -> Iterator[Message]:
    """The entries of the journal in this folder, in order, each with `ended` (when; 0: killed), and what was known then. Raises
    Failure where a newer gpunode wrote it."""
    lines: List[Message] = []
    for line in (text_of(record + LINES) or "").splitlines():
        try:
            read = check_format(json.loads(line), record + LINES, JOURNAL)
        except (ValueError, TypeError, AttributeError):
            continue  # incomplete, so its change never began; or not gpunode's
        if isinstance(read.get("n", 0), int) and isinstance(read.get("after", {}), dict):
            lines.append(read)
    ends = {each.get("n"): each for each in lines if "after" in each}
    for entry in lines:
        if "ended" not in entry:
            end = ends.get(entry.get("n"), {"ended": 0, "after": {}})
            yield dict(entry, ended=end["ended"], **end["after"])


def records() -> List[str]:
    """The folders of all applies that have a journal, the oldest first: one apply at a time writes, and is then the newest."""
    changed = {}
    for path in glob_of(RECORDS + "/*" + LINES):
        try:
            changed[os.path.dirname(path)] = os.stat(below(path)).st_mtime
        except FileNotFoundError:  # another operator's apply removes old ones meanwhile
            continue
    return sorted(changed, key=lambda folder: changed[folder])
