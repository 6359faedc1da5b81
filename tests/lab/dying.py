"""`python -m tests.lab.dying POINTS COMMAND…`: gpunode whose apply on a host is killed (-9) at a line of that host's journal.

POINTS is JSON: host → [kind of change, state of its entry, a word of the change if not the first of its kind is meant]. The states:
`torn` (half of the entry is on disk), `noted` (the change has not begun), `made` (it is made, and half of the line that says so is
on disk), `ended`.
"""

import json
import sys

from gpunode.cli import main
from gpunode.host import bootstrap

JOURNAL = "gpunode.agent.journal"
# What follows the agent's own text of that module.
DYING = """
KIND, STATE, *WORDS = {points!r}.get(os.uname().nodename, ("", ""))
def _append(this, line, write=_append):
    if "kind" in line:
        change = this.load()["changes"][this.n]
        this.here = change["kind"] == KIND and all(word in json.dumps(change) for word in WORDS)
    before, after = ("made", "ended") if "after" in line else ("torn", "noted")
    dies = getattr(this, "here", False)
    if dies and STATE == before:
        with open(below(this.record + LINES), "ab") as file:
            file.write(json.dumps(line).encode()[:40])
        os.kill(os.getpid(), 9)
    write(this, line)
    if dies and STATE == after:
        os.kill(os.getpid(), 9)
"""


def begin(points: dict[str, list[str]], words: list[str]) -> None:
    texts = dict(bootstrap.sources())
    texts[JOURNAL] += DYING.format(points=points)
    bootstrap.sources = lambda: texts
    sys.argv = ["gpunode", *words]
    main()


if __name__ == "__main__":
    begin(json.loads(sys.argv[1]), sys.argv[2:])
