"""The host's journals as an answer: every entry of every apply, with the originals of files that an undo needs."""

import os
from typing import List, Set

from gpunode.agent.failures import Failure
from gpunode.agent.files import read_file, state_of
from gpunode.agent.journal import entries_of, records
from gpunode.agent.system import Message


def read_journal(run: str) -> List[Message]:
    """The entries of all applies, in order. Those of the operator's `run` ("": all) have their originals as `content`, or in
    `error` why not."""
    entries = []
    for folder in records():
        for entry in entries_of(folder):
            entry["apply"] = os.path.basename(folder)
            if entry.get("file") and run in ("", entry.get("run")):
                original = read_file(folder + "/" + entry["file"])
                entry["content"] = original.get("content")
                entry["error"] = original.get("error") or ("" if original["exists"] else "it is gone")
            entries.append(entry)
    return entries


def oldest_originals() -> Set[str]:
    """The names of the applies that alone know how something was before gpunode that is not so now; and those of a newer gpunode."""
    needed, known = set(), set()
    for folder in records():
        try:
            entries = list(entries_of(folder))
        except Failure:
            needed.add(os.path.basename(folder))
            continue
        for entry in entries:
            path = entry.get("path")
            if path and path not in known and state_of(path) != entry["was"]:
                needed.add(os.path.basename(folder))
            known.add(path)
    return needed
