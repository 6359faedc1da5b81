"""The hosts that ssh's configuration knows by name."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

DEEPEST = 16  # as ssh's own limit of nested Includes
LINE = re.compile(r"\s*(\w+)\s*(?:=\s*|\s)(.*)")


def aliases(file: Path) -> tuple[str, ...]:
    """The names of `Host` lines in the order of the file and its Includes, without patterns, and without accounts of code
    hosting (`User git`). Raises OSError where the file itself cannot be read."""
    found: dict[str, bool] = {}
    names: list[str] = []
    for keyword, words in _directives(
        file.read_text(encoding="utf-8", errors="replace"), file.parent, DEEPEST
    ):
        if keyword in ("host", "match"):
            names = [one for one in words if keyword == "host" and not set(one) & set("*?!")]
            found |= {one: found.get(one, True) for one in names}
        elif keyword == "user" and words == ["git"]:
            found |= dict.fromkeys(names, False)
    return tuple(name for name, wanted in found.items() if wanted)


def hops(file: Path) -> frozenset[str]:
    """The jump hosts of the file and its Includes, by name. Raises OSError where the file itself cannot be read."""
    text = file.read_text(encoding="utf-8", errors="replace")
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
        for pattern in words if depth else ():
            wanted = Path(pattern).expanduser()
            root = Path("/") if wanted.is_absolute() else folder
            for path in sorted(root.glob(str(wanted.relative_to("/") if wanted.is_absolute() else wanted))):
                if path.is_file():
                    yield from _directives(
                        path.read_text(encoding="utf-8", errors="replace"), folder, depth - 1
                    )
