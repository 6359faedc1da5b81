"""The hosts that ssh's configuration knows by name."""

from __future__ import annotations

import errno
import glob
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

from gpunode.local import files as localfile

DEEPEST = 16  # as ssh's own limit of nested Includes
LINE = re.compile(r"\s*(\w+)\s*(?:=\s*|\s)(.*)")


def aliases(file: Path) -> tuple[str, ...]:
    """The names of `Host` lines in the order of the file and its Includes, without patterns, and without accounts of code
    hosting (`User git`). Raises OSError where the file itself cannot be read."""
    found: dict[str, bool] = {}
    names: list[str] = []
    for keyword, words in _directives(localfile.text(file), file.parent, DEEPEST):
        if keyword in ("host", "match"):
            names = [one for one in words if keyword == "host" and not set(one) & set("*?!")]
            found |= {one: found.get(one, True) for one in names}
        elif keyword == "user" and words == ["git"]:
            found |= dict.fromkeys(names, False)
    return tuple(name for name, wanted in found.items() if wanted)


def hops(file: Path) -> frozenset[str]:
    """The jump hosts of the file and its Includes, by name. Raises OSError where the file itself cannot be read."""
    text = localfile.text(file)
    ways = [
        words[0]
        for keyword, words in _directives(text, file.parent, DEEPEST)
        if keyword == "proxyjump" and words
    ]
    places = (one.rpartition("@")[2] for way in ways for one in way.removeprefix("ssh://").split(","))
    return frozenset(one.partition(":")[0] for one in places)


def _directives(text: str, folder: Path, depth: int) -> Iterator[tuple[str, list[str]]]:
    for line in text.splitlines():
        parts = LINE.fullmatch(line)
        if parts is None or line.lstrip().startswith("#"):
            continue
        try:
            words = shlex.split(parts[2], comments=True)
        except ValueError:  # an open quote, which ssh reports
            continue
        keyword = parts[1].lower()
        if keyword != "include":
            yield keyword, words
            continue
        for pattern in (word for word in words if "\0" not in word):
            wanted = folder / localfile.full(pattern)
            for path in map(Path, sorted(glob.glob(str(wanted)))):  # noqa: PTH207 - Path.glob raises for some of ssh's patterns
                if not depth:
                    raise OSError(errno.ELOOP, f"its Includes go deeper than {DEEPEST}", str(path))
                if localfile.is_file(path):
                    yield from _directives(localfile.text(path), folder, depth - 1)
