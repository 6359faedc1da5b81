"""Traces of who wrote the watched files: gpunode's records, the package database, the owner."""

import os
import re
from typing import Any, Dict, List, Optional, Tuple

from gpunode.agent.journal import entries_of, records
from gpunode.agent.section import Section
from gpunode.agent.system import ROOT, Message, below, run, text_of
from gpunode.packages.on_host import name_of_system

# Of packages' files, and not of repositories, which a plan only reads; the package database is not asked for others.
PACKAGED = re.compile(r"/etc/(?!apt/|yum\.repos\.d/|zypp/)")


def read_traces(files: Section) -> Tuple[Dict[str, Message], Dict[str, str]]:
    """The traces of each watched file that exists, or that gpunode wrote, by path; and gpunode's apply that held each package."""
    watched = files.result()
    shown = {path: file for path, file in watched.items() if "sha256" in file}
    digests = {
        path: file.get("sha256") for path, file in watched.items() if path in shown or not file["exists"]
    }
    recorded, holds = read_recorded(digests)
    traces = {path: dict(trace) for path, trace in recorded.items() if path in shown or trace["wrote"]}
    for path in shown:
        traces.setdefault(path, {})["uid"] = uid_of(path)
    doubtful = [
        path for path in shown if PACKAGED.match(path) and traces[path].get("wrote") != shown[path]["sha256"]
    ]
    for path, (package, digest) in read_owners(doubtful).items():
        now = shown[path]["sha256"] if len(digest) == 64 else md5_of(path)
        if now:
            traces[path].update(package=package, packaged=digest == now)
    return traces, holds


def uid_of(path: str) -> int:
    return 0 if ROOT else os.stat(path).st_uid  # below another root, files are the caller's


def read_recorded(digests: Dict[str, Optional[str]]) -> Tuple[Dict[str, Message], Dict[str, str]]:
    """Of these files, those that gpunode's applies wrote: the last one as `run`, the digest that it `wrote`, and how often another text has
    `undone` it; and the apply that held each package. Applies that failed do not count for `undone`: they restore files."""
    traces: Dict[str, Message] = {}
    holds: Dict[str, str] = {}
    kept: Dict[str, bool] = {}
    for folder in records():
        run = os.path.basename(folder)
        well = ended_well(folder)
        for entry in entries_of(folder):
            for name, each in entry.get("packages", {}).items():
                if each["holds"] > each["held"]:
                    holds[name] = run
                elif not each["holds"]:
                    holds.pop(name, None)
            path = entry.get("path")
            if path in digests:
                last = traces.get(path)
                undone = last["undone"] + (kept[path] and entry["was"] != last["wrote"]) if last else 0
                traces[path] = {"run": run, "wrote": entry["wrote"], "undone": undone}
                kept[path] = well
    for path, trace in traces.items():
        trace["undone"] += kept[path] and trace["wrote"] != digests[path]
    return traces, holds


END = b'{"type": "end", "ok": true}\n'


def ended_well(folder: str) -> bool:
    """Whether an apply's last message says so. Its messages may be megabytes, so only the end is read."""
    try:
        with open(below(folder + "/messages.jsonl"), "rb") as file:
            file.seek(-len(END), os.SEEK_END)
            return file.read() == END
    except OSError:
        return False  # there are none, or shorter ones


def read_owners(paths: List[str]) -> Dict[str, Any]:
    """Package, and the digest of the file as it was installed, of those that are a package's configuration."""
    owners: Dict[str, Any] = {}
    status = text_of("/var/lib/dpkg/status") if paths else None
    if status:
        status = "\n" + status
        for path in paths:
            at = status.find("\n %s " % path)  # a pattern takes twenty times as long
            if at >= 0:
                name = status.rfind("\nPackage: ", 0, at) + len("\nPackage: ")
                line = status[at + 1 : status.index("\n", at + 1)].split()
                owners[path] = (status[name : status.index("\n", name)], line[1])
    elif paths and name_of_system() in ("dnf", "zypper"):
        answer = run("rpm", "-qf", "--qf", "[%{=NAME}\t%{FILENAMES}\t%{FILEDIGESTS}\n]", *paths)
        rows = [line.split("\t") for line in answer.out.splitlines()]
        owners = {row[1]: (row[0], row[2]) for row in rows if len(row) == 3 and row[1] in paths}
    return owners


def md5_of(path: str) -> str:
    """As dpkg has it; "" where the host's Python has no MD5, as in FIPS mode."""
    from hashlib import md5

    try:
        with open(below(path), "rb") as file:
            return str(md5(file.read()).hexdigest())
    except ValueError:
        return ""
