"""A host's apt sources, read from its list files as apt reads them.

sources.list(5). Two entries conflict when they share an index file, whose name has no scheme, user and password
(apt-pkg/deb/debmetaindex.cc, tried with apt 2.6): if their keys differ, apt reads neither.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import unquote

from gpunode.model import Facts

FILES = ("/etc/apt/sources.list", "/etc/apt/sources.list.d/*.list", "/etc/apt/sources.list.d/*.sources")
# apt ignores other names
READ = re.compile(r"/etc/apt/sources\.list(\.d/[\w.:-]+\.(list|sources))?", re.ASCII)
ALIASES = ("stable", "oldstable", "oldoldstable")
OFF = ("no", "false", "without", "off", "disable", "0")
LINE = re.compile(
    r"\s*(?P<type>deb(?:-src)?)\s+(?:\[(?P<options>[^\]]*)\]\s*)?\"?(?P<uri>[^\s\"]+)\"?\s+\"?(?P<suite>[^\s\"#]+)\"?(?P<components>[^#]*)"
)


@dataclass(frozen=True, slots=True)
class Entry:
    """A source. `start` and `stop` are its lines in its file: one, or those of its stanza in a deb822 file."""

    path: str
    uri: str
    suite: str
    signed_by: str
    start: int
    stop: int
    binary: bool = True
    trusted: str = ""
    components: tuple[str, ...] = ()

    @property
    def unsigned(self) -> bool:
        """Whether apt takes it without a signature."""
        return self.trusted != "" and self.trusted.lower() not in OFF


def entries(facts: Facts) -> tuple[Entry, ...]:
    """All enabled sources, including those of source packages."""
    lines: list[Entry] = []
    for path, file in sorted(facts.files.items()):
        if READ.fullmatch(path) and file.content is not None:
            lines += read(path, file.content)
    return tuple(lines)


def components(facts: Facts, suite: str) -> frozenset[str]:
    """The components that the host's sources have of a release, by its name or as stable and the like."""
    names = {suite, f"{suite}-updates", f"{suite}-security", *ALIASES}
    return frozenset(
        component
        for entry in entries(facts)
        if entry.binary and entry.suite in names
        for component in entry.components
    )


def read(path: str, text: str) -> Iterator[Entry]:
    return _deb822(path, text) if path.endswith(".sources") else _lines(path, text)


def place(uri: str, arch: str, suite: str = "/") -> str:
    """A source's address as apt names its index; "" for a suite below dists/."""
    if not suite.endswith("/"):
        return ""
    uri, suite = uri.replace("$(ARCH)", arch), suite.replace("$(ARCH)", arch)
    path = re.sub(r"^[\w+.-]+:(//)?", "", without_login(uri))
    path = path if path.endswith("/") else f"{path}/"
    return unquote(path if suite == "/" else f"{path}{suite}")


def without_login(uri: str) -> str:
    """An address without the user and password in it."""
    return re.sub(r"(?<=//)[^/@]*@", "", uri)


def plain(place: str) -> str:
    """The normalised spelling of a place, where apt takes several for the same."""
    host, _, path = place.partition("/")
    return f"{re.sub(r':(80|443)$', '', host.lower())}/{re.sub(r'/(?:[.]?/)+', '/', f'/{path}').lstrip('/')}"


def _lines(path: str, text: str) -> Iterator[Entry]:
    for number, line in enumerate(text.split("\n")):
        match = LINE.match(line)
        if match:
            options = dict(part.partition("=")[::2] for part in (match["options"] or "").split())
            yield Entry(
                path,
                match["uri"],
                match["suite"],
                options.get("signed-by", "").strip('"'),
                number,
                number + 1,
                match["type"] == "deb",
                options.get("trusted", ""),
                tuple(match["components"].split()),
            )


def _deb822(path: str, text: str) -> Iterator[Entry]:
    lines = text.split("\n")
    start = 0
    for stop in (*(number for number, line in enumerate(lines) if not line.strip()), len(lines)):
        fields: dict[str, str] = {}
        key = ""
        for line in lines[start:stop]:
            if line.startswith("#"):
                continue
            if line[:1] in (" ", "\t") and key:
                fields[key] += f"\n{line.strip()}"
            elif ":" in line:
                key, _, value = line.partition(":")
                key = key.strip().lower()
                fields[key] = value.strip()
        if fields.get("enabled", "yes").lower() not in OFF:
            for kind in fields.get("types", "").split():
                for uri in fields.get("uris", "").split():
                    for suite in fields.get("suites", "").split():
                        signed, trusted = fields.get("signed-by", ""), fields.get("trusted", "")
                        parts = tuple(fields.get("components", "").split())
                        yield Entry(path, uri, suite, signed, start, stop, kind == "deb", trusted, parts)
        start = stop + 1
