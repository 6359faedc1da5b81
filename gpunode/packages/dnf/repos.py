"""A host's repositories, read from its files as dnf reads them (dnf.conf(5))."""

from __future__ import annotations

from collections.abc import Iterator
from configparser import ConfigParser, Error
from dataclasses import dataclass
from fnmatch import fnmatchcase

from gpunode.model import Facts

FILES = "/etc/yum.repos.d/*.repo"
ON = ("1", "yes", "true", "on")
ADDRESSES = ("baseurl", "mirrorlist", "metalink")


@dataclass(frozen=True, slots=True)
class Repo:
    """A section of a file. `uris` are its addresses of all kinds."""

    path: str
    id: str
    uris: tuple[str, ...]
    enabled: bool


def repos(facts: Facts, pattern: str = FILES) -> tuple[Repo, ...]:
    """All repositories of the files that match; none of a file that dnf could not read either."""
    return tuple(
        repo
        for path, file in sorted(facts.files.items())
        if fnmatchcase(path, pattern) and file.content is not None
        for repo in _read(path, file.content)
    )


def _read(path: str, text: str) -> Iterator[Repo]:
    parser = ConfigParser(interpolation=None, strict=False)
    try:
        parser.read_string(text)
    except Error:
        return
    for name in parser.sections():
        values = parser[name]
        uris = tuple(uri for key in ADDRESSES for uri in values.get(key, "").replace(",", " ").split())
        yield Repo(path, name, uris, values.get("enabled", "1").strip().lower() in ON)


def place(uri: str, arch: str) -> str:
    """A repository's address, normalised."""
    base = {"amd64": "x86_64", "arm64": "aarch64"}.get(arch, arch)
    return uri.replace("$basearch", base).rstrip("/")
