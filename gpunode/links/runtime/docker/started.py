"""What docker is started by: the lines that count, and flags of theirs that daemon.json is to have instead. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from gpunode.errors import CannotPlan
from gpunode.model import Facts
from gpunode.planning import files

PACKAGED_UNIT = "/lib/systemd/system/docker.service"
OWN_UNIT = "/etc/systemd/system/docker.service"
OPTIONS = "/etc/default/docker"
FILES = (PACKAGED_UNIT, OWN_UNIT, f"{OWN_UNIT}.d/*.conf", OPTIONS)

# dockerd does not start when a flag and daemon.json set the same thing.
FLAGS = ("--default-runtime", "--add-runtime")
FLAG = re.compile(
    r"""(?:[ \t]+(?P<whole>["'])|(?P<before>^|[ \t]+|(?<=["'=])))"""
    r"""(?P<name>--default-runtime|--add-runtime)(?:=|[ \t]+)(?P<quote>["']?)(?P<value>[^\s"'\\]+)(?P=quote)(?(whole)(?P=whole))"""
    r"""(?=[\s"'\\]|$)"""
)


@dataclass(frozen=True, slots=True)
class Line:
    """A line of one of the files: where it is, the setting that it is part of, and its text without space round it."""

    path: str
    number: int
    key: str
    text: str

    @property
    def place(self) -> str:
        """`file:line`."""
        return f"{self.path}:{self.number}"


@dataclass(frozen=True, slots=True)
class Moved:
    """Files without these flags, and the runtimes that the flags added: name -> binary."""

    texts: Mapping[str, str]
    runtimes: Mapping[str, str]


def lines(facts: Facts) -> Iterator[Line]:
    """Every line that counts.

    As systemd has it: a unit in /etc hides the packages' own, drop-ins follow by name, and `ExecStart=` takes back
    earlier lines.
    """
    units = [path for path in (OWN_UNIT, PACKAGED_UNIT) if files.text(facts, path) is not None][:1]
    drop_ins = sorted(path for path in facts.files if path.startswith(f"{OWN_UNIT}.d/"))
    found = [line for path in (*units, *drop_ins) for line in _lines(facts, path)]
    resets = [at for at, line in enumerate(found) if re.fullmatch(r"ExecStart\s*=", line.text)]
    for at, line in enumerate(found):
        if line.key != "ExecStart" or not resets or at > resets[-1]:
            yield line
    if not units or any(line.key == "EnvironmentFile" and OPTIONS in line.text for line in found):
        yield from _lines(facts, OPTIONS)


def without_runtimes(facts: Facts) -> Moved:
    """The files without flags for runtimes. Raises CannotPlan for a flag that is not on one line with its value."""
    texts: dict[str, list[str]] = {}
    runtimes: dict[str, str] = {}
    for line in lines(facts):
        if not any(flag in line.text for flag in FLAGS):
            continue
        there = texts.setdefault(line.path, (files.text(facts, line.path) or "").splitlines(keepends=True))
        now = there[line.number - 1]
        for match in FLAG.finditer(now):
            name, equals, binary = match["value"].partition("=")
            if match["name"] == "--add-runtime" and equals:
                runtimes[name] = binary
        left = FLAG.sub("", now)
        if any(flag in left for flag in FLAGS):
            raise CannotPlan(
                f"{line.place}: docker is started with {next(flag for flag in FLAGS if flag in left)}, and does not start "
                "when daemon.json sets the same",
                hint="Write the flag and its value on one line, or take it out of that file (gpunode sets it in "
                "daemon.json); then run again.",
            )
        there[line.number - 1] = "" if left.strip() == "\\" else left
    return Moved({path: "".join(found) for path, found in texts.items()}, runtimes)


def _lines(facts: Facts, path: str) -> Iterator[Line]:
    """A file's lines but comments."""
    key, goes_on = "", False
    for number, line in enumerate((files.text(facts, path) or "").splitlines(), 1):
        text = line.strip()
        if text.startswith(("#", ";")):
            continue
        key = key if goes_on else text.partition("=")[0].strip()
        goes_on = text.endswith("\\")
        yield Line(path, number, key, text)
