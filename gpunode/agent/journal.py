"""The files that a run changes, with their originals: recorded before a change, restored after a failure."""

import json
import os
import shutil
import stat
from typing import Dict, Iterable, List, Optional, Tuple

from gpunode.agent.files import put, state_of, sync
from gpunode.agent.record import VERSION, Run, readable
from gpunode.agent.system import Message, below, text_of


def touched(this: Run) -> Dict[str, Message]:
    """The changed files by path: each as it was before its first change, with all that the run wrote there."""
    found: Dict[str, Message] = {}
    journal = this.record + "/journal.jsonl"
    for line in (text_of(journal) or "").splitlines():
        try:
            entry = readable(json.loads(line), journal)
        except ValueError:
            continue  # incomplete, so its write never began
        found.setdefault(entry["path"], dict(entry, wrote=[]))["wrote"].append(entry["wrote"])
    return found


def keep(this: Run, path: str, wrote: Optional[str]) -> None:
    """Before `path` is changed: record and copy the original, and record the new state. On disk when this returns."""
    entry: Message = {"path": path, "file": None, "was": state_of(path), "wrote": wrote, "version": VERSION}
    if os.path.islink(below(path)):
        entry["link"] = os.readlink(below(path))
    elif os.path.exists(below(path)):
        status = os.stat(below(path))
        entry["file"] = "files/%d" % len(os.listdir(below(this.record + "/files")))
        entry.update(mode=stat.S_IMODE(status.st_mode), uid=status.st_uid, gid=status.st_gid)
        shutil.copyfile(below(path), below(this.record + "/" + entry["file"]))
        sync(below(this.record + "/" + entry["file"]))
    with open(below(this.record + "/journal.jsonl"), "ab") as file:
        file.write(json.dumps(entry).encode() + b"\n")
    for made in ("/journal.jsonl", "/files", "", "/..", "/../..", "/../../.."):
        sync(below(this.record + made))


def put_files_back(this: Run, paths: Iterable[str]) -> Tuple[List[str], List[str]]:
    """Restore those of `paths` that are still as this run wrote them; returns them, and a sentence for each other one."""
    entries = touched(this)
    done, kept = [], []
    for path in paths:
        entry = entries.get(path)
        now = state_of(path)
        if entry is None or now == entry["was"]:
            continue
        original = below(this.record + "/" + entry["file"]) if entry["file"] else None
        if now not in entry["wrote"]:
            was = entry.get("link") or ("missing" if original is None else "as in " + original)
            kept.append("%s was edited meanwhile and is not restored; before gpunode it was %s" % (path, was))
            continue
        if original:
            with open(original, "rb") as file:
                put(path, file.read(), entry["mode"], (entry["uid"], entry["gid"]), this.name)
        else:
            if now is not None:
                os.unlink(below(path))
            if entry.get("link"):
                os.symlink(entry["link"], below(path))
            sync(os.path.dirname(below(path)))
        done.append(path)
    return done, kept
