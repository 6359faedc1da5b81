"""The package sources that a host's apt knows, read from its list files."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from gpunode.model import Facts

FILES = ("/etc/apt/sources.list", "/etc/apt/sources.list.d/*.list", "/etc/apt/sources.list.d/*.sources")


@dataclass(frozen=True, slots=True)
class Entry:
    """A source. `line` is its index in a one-line file, None in a deb822 file."""

    path: str
    uri: str
    suite: str
    signed_by: str
    line: int | None = None


def entries(facts: Facts) -> tuple[Entry, ...]:
    """All enabled binary sources."""
    found: list[Entry] = []
    for path, file in sorted(facts.files.items()):
        if not path.startswith("/etc/apt/sources.list") or file.content is None:
            continue
        found += _deb822(path, file.content) if path.endswith(".sources") else _lines(path, file.content)
    return tuple(found)


def same_uri(one: str, other: str) -> bool:
    """Whether two URIs are one place to apt."""
    return one.rstrip("/") == other.rstrip("/")


def _lines(path: str, text: str) -> Iterator[Entry]:
    for number, line in enumerate(text.splitlines()):
        match = re.match(r"\s*deb\s+(?:\[(?P<options>[^\]]*)\]\s*)?(?P<uri>\S+)\s+(?P<suite>\S+)", line)
        if match:
            signed = re.search(r"signed-by=(\S+)", match["options"] or "")
            yield Entry(path, match["uri"], match["suite"], signed[1] if signed else "", number)


def _deb822(path: str, text: str) -> Iterator[Entry]:
    for stanza in re.split(r"\n\s*\n", text):
        fields: dict[str, str] = {}
        key = ""
        for line in stanza.splitlines():
            if line.startswith("#"):
                continue
            if line[:1] in (" ", "\t") and key:
                fields[key] += f"\n{line.strip()}"
            elif ":" in line:
                key, _, value = line.partition(":")
                key = key.strip().lower()
                fields[key] = value.strip()
        if fields.get("enabled", "yes").lower() == "no" or "deb" not in fields.get("types", "").split():
            continue
        for uri in fields.get("uris", "").split():
            for suite in fields.get("suites", "").split():
                yield Entry(path, uri, suite, fields.get("signed-by", ""))
