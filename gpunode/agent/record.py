"""A run on disk: its job, messages and payloads; and the host's lock, which one apply holds at a time."""

import fcntl
import glob
import json
import os
import sys
import time
from typing import Any, BinaryIO, Dict, Iterator, List, Optional, Union

from gpunode.agent.failures import Failure
from gpunode.agent.processes import started_at
from gpunode.agent.system import Message, below, glob_of, naming, text_of

LIVE = "/run/gpunode"  # for root alone: a user who can open the lock's file can hold the lock
STATE = "/var/lib/gpunode"
RECORDS = STATE + "/runs"
UNPACKED = "unpacked"  # by NVIDIA's installer, in a record
# Of the format of a run's files; files without a version are 0, of gpunode 0.1 before its release
VERSION = 1


class Run:
    """One apply: its job, its messages, its payloads."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.live = LIVE + "/" + name
        self.record = RECORDS + "/" + name
        self.places = (self.live + "/messages.jsonl", self.record + "/messages.jsonl")
        self.recorded = True
        self.n = 0
        self.noted = False  # the change under way has an entry in the journal
        self.warnings: List[str] = []
        self.last_output = 0.0  # of apt; monotonic

    def store(self, program: bytes, job: Message) -> None:
        for folder in (self.live, self.record + "/files"):
            os.makedirs(below(folder), 0o700)
            for part in (folder, os.path.dirname(folder)):
                os.chmod(below(part), 0o700)
        for path, data in (
            ("/agent.py", program),
            ("/job.json", json.dumps(dict(job, version=VERSION)).encode()),
        ):
            with naming(below(self.live + path)), open(below(self.live + path), "wb") as file:
                file.write(data)

    def forget(self) -> None:
        """Remove what only a running apply needs, but not its messages."""
        spared = below(self.places[0])
        for path in glob.glob(below(self.live + "/*")) + glob.glob(below(self.record + "/payload-*")):
            if path != spared:
                os.unlink(path)

    def close(self) -> None:
        """After the last message: keep the messages in the record alone, if they were all recorded."""
        import shutil

        if self.recorded:
            shutil.rmtree(below(self.live), ignore_errors=True)

    def load(self) -> Message:
        """Its job. Raises Failure when a newer gpunode wrote it."""
        return check_format(json.loads(text_of(self.live + "/job.json") or ""), self.live + "/job.json")

    def begin(self) -> None:
        """Create the messages file, so that it can be followed before the first message."""
        self.send({"type": "record", "version": VERSION})

    def command(self, verb: str) -> List[str]:
        """The command line that runs this program once more, for this run."""
        folder = self.live if verb == "work" else self.record  # /run is empty after a boot
        return [sys.executable or "python3", "-I", "-S", below(folder + "/agent.py"), verb, self.name]

    def send(self, message: Message) -> None:
        """Write a message to /run, which works with a full disk, and to /var, which survives a reboot.

        Facts are not recorded: they hold other files of the host, passwords among them.
        """
        recorded = message
        words = {key: item for key, item in message.items() if key != "type" and item and not is_number(item)}
        if words and message["type"] != "facts":
            from gpunode.agent.redaction import (
                redact_values,
            )  # only here: most applies must not wait for its tables

            recorded = dict(message, **redact_values(words))
        line = json.dumps(recorded).encode() + b"\n"
        with naming(below(self.places[0])), open(below(self.places[0]), "ab") as file:
            file.write(line)
        try:
            if self.recorded and message["type"] != "facts":
                with open(below(self.places[1]), "ab") as file:
                    file.write(line)
        except OSError:
            self.recorded = False  # for good: half a line must stay the last one

    def open_messages(self) -> Optional[BinaryIO]:
        """The file of the messages; None if there is none."""
        for place in self.places:
            try:
                return open(below(place), "rb")
            except FileNotFoundError:
                continue  # the record alone has it when the apply has ended
        return None

    def story(self) -> List[Message]:
        file = self.open_messages()
        if file is None:
            return []
        with file:
            return list(self.messages(file))

    def messages(self, file: BinaryIO) -> Iterator[Message]:
        """The complete messages in `file` from its position. Raises Failure if a newer gpunode wrote them."""
        for line in whole_lines(file):
            message = check_format(json.loads(line), self.places[1])
            if message["type"] != "record":
                yield message

    def progress(self, text: str, percent: Optional[float] = None) -> None:
        message: Message = {"type": "progress", "n": self.n, "text": text}
        if percent is not None:
            message["percent"] = percent
        self.send(message)

    def payload(self, which: Union[int, str]) -> str:
        return below("%s/payload-%s" % (self.record, which))


def is_number(value: Any) -> bool:
    return isinstance(value, (bool, int, float))


def check_format(record: Message, path: str, newest: int = VERSION) -> Message:
    """The record, read from `path`. Raises Failure if a newer gpunode wrote it: its keys may have other meanings."""
    if record.get("version", 0) > newest:
        sentence = "%s was written by a newer gpunode, in format %d; this one reads formats up to %d"
        raise Failure("newer-record", sentence % (path, record["version"], newest))
    return record


def whole_lines(file: BinaryIO) -> Iterator[bytes]:
    """The complete lines from the file's position; an incomplete last one is left for the next call."""
    while True:
        start = file.tell()
        line = file.readline()
        if not line.endswith(b"\n"):
            file.seek(start)
            return
        yield line


def settle_time(this: Run) -> float:
    return float(this.load().get("settle", 5))


def read_unconfirmed() -> List[Dict[str, Any]]:
    """What earlier runs kept unconfirmed: {code, run, unit, by, since}, the oldest first. Raises Failure."""
    texts = {path: text_of(path) for path in unconfirmed_files("*")}  # None: confirmed meanwhile
    # They are written at once: one that is empty is damaged, and no less an error.
    records = [check_format(dict(json.loads(text)), path) for path, text in texts.items() if text is not None]
    keys = ("code", "run", "unit", "by", "since")
    return sorted(({key: each[key] for key in keys} for each in records), key=lambda each: each["since"])


def unconfirmed_files(run: str) -> List[str]:
    return glob_of("%s/%s/unconfirmed-*.json" % (RECORDS, run))


LOCK = LIVE + "/lock"


def lock_holder() -> Optional[Dict[str, Any]]:
    """The running apply: {run, by, since, pid, started}; None if none runs."""

    try:
        with open(below(LOCK)) as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return None
    except BlockingIOError:
        try:
            return dict(json.loads(text_of(LOCK) or ""))
        except ValueError:
            return None  # just taken, its owner not yet written
    except OSError:
        return None  # there never was an apply


def take_lock(holder: Message, wait: bool = False) -> Optional[BinaryIO]:
    """The host's lock with its holder written into it; None if another holds it, unless `wait`."""
    holder = dict(holder, started=started_at(holder["pid"]))
    os.makedirs(below(LIVE), 0o700, exist_ok=True)
    os.chmod(below(LIVE), 0o700)
    lock = open(below(LOCK), "ab", opener=lambda name, flags: os.open(name, flags, 0o600))
    for _ in range(20):
        try:
            fcntl.flock(lock, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(0.1)  # lock_holder takes it for a moment
            continue
        lock.truncate(0)
        lock.write(json.dumps(holder).encode())
        lock.flush()
        return lock
    lock.close()
    return None
