"""The repositories in a simulated host's /etc/yum.repos.d, as dnf reads them, and their packages."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Iterable, Sequence
from configparser import ConfigParser
from configparser import Error as Unreadable
from dataclasses import dataclass, replace
from datetime import timedelta
from fnmatch import fnmatchcase
from pathlib import Path

from gpunode.sim.host import rpms
from gpunode.sim.host.rpms import Rpm
from gpunode.sim.host.state import State

FOLDER = "etc/yum.repos.d"
CACHE = "var/cache/dnf"
FRESH = 48 * 3600.0  # seconds until dnf's cache of a repository expires
NONE = 'There are no enabled repositories in "/etc/yum.repos.d", "/etc/yum/repos.d", "/etc/distro.repos.d".'


class Failed(Exception):
    """An error; the message is dnf's after `Error: `."""


@dataclass(frozen=True, slots=True)
class Repo:
    """A section of a file."""

    id: str
    name: str
    url: str
    enabled: bool


def read(root: Path) -> list[Repo]:
    """All repositories, in the order of the files."""
    found = []
    for path in sorted((root / FOLDER).glob("*.repo")):
        parser = ConfigParser(interpolation=None, strict=False)
        try:
            parser.read(path, encoding="utf-8")
        except (Unreadable, UnicodeDecodeError):
            sys.stderr.write(f"Warning: failed loading '/{FOLDER}/{path.name}', skipping.\n")
            continue
        for name in parser.sections():
            values = {key: _filled(value.strip()) for key, value in parser[name].items()}
            enabled = values.get("enabled", "1").lower() in ("1", "yes", "true", "on")
            found.append(Repo(name, values.get("name", name), values.get("baseurl", ""), enabled))
    return found


def _filled(value: str) -> str:
    return value.replace("$releasever", "9").replace("$basearch", "x86_64")


def chosen(
    found: Iterable[Repo], only: Sequence[str], enable: Sequence[str], disable: Sequence[str]
) -> list[Repo]:
    """All repositories, enabled or not by --repo, --enablerepo and --disablerepo. Raises Failed."""
    repos = list(found)
    for pattern in (*only, *enable):
        if not any(fnmatchcase(repo.id, pattern) for repo in repos):
            raise Failed(f"Unknown repo: '{pattern}'")
    for pattern in disable:
        if not any(fnmatchcase(repo.id, pattern) for repo in repos):
            sys.stderr.write(f"No repository match: {pattern}\n")
    switches = [(pattern, False) for pattern in ("*" if only else "", *disable)]
    for pattern, enabled in [*switches, *((pattern, True) for pattern in (*only, *enable))]:
        repos = [replace(one, enabled=enabled) if fnmatchcase(one.id, pattern) else one for one in repos]
    return repos


def add(root: Path, url: str) -> None:
    """Write the file of `dnf config-manager --add-repo` for the URL of a repository or of a .repo file."""
    place, _, file = url.rpartition("/")
    if file.endswith(".repo"):
        name = file.removesuffix(".repo")
        text = f"[{name}]\nname={name}\nbaseurl={place}\nenabled=1\ngpgcheck=1\n"
    else:
        name = re.sub(r"[^\w.:-]", "_", re.sub(r"^\w+://", "", url))
        text = f"[{name}]\nname=created by dnf config-manager from {url}\nbaseurl={url}\nenabled=1\n"
    (root / FOLDER).mkdir(parents=True, exist_ok=True)
    (root / FOLDER / f"{name}.repo").write_text(text, encoding="utf-8")


def hold(state: State, repos: Iterable[Repo], *, anew: bool, quiet: bool, skip: bool = False) -> list[Rpm]:
    """The packages of the enabled repositories, reloaded if expired; prints dnf's messages. Raises Failed.

    `skip`: a repository that does not answer is left out.
    """
    machine, faults = state.machine(), state.now().faults
    packages: list[Rpm] = []
    known: list[float] = []
    ignored: list[str] = []
    for repo in repos:
        if not repo.enabled:
            continue
        if not repo.url:
            raise Failed(f"Cannot find a valid baseurl for repo: {repo.id}")
        read_at = state.root / CACHE / f"{repo.id}.solv"
        if not anew and read_at.exists() and time.time() - read_at.stat().st_mtime < FRESH:
            known.append(read_at.stat().st_mtime)
        else:
            away = "repository-unreachable" in faults or rpms.held(repo.url, machine) is None
            if not quiet:
                rate = "0.0  B/s |   0  B" if away else "2.9 MB/s | 3.0 kB"
                print(f"{repo.name[:47]:47} {rate}     00:00    ")
            if away and not skip:
                raise Failed(_away(repo))
            if away:
                sys.stderr.write(f"Error: {_away(repo)}\n")
                ignored.append(repo.id)
                continue
            read_at.parent.mkdir(parents=True, exist_ok=True)
            read_at.touch()
        packages += (replace(rpm, repo=repo.id) for rpm in rpms.held(repo.url, machine) or ())
    if ignored:
        sys.stderr.write(f"Ignoring repositories: {', '.join(ignored)}\n")
    age = timedelta(seconds=int(time.time() - min(known))) if known else None
    if age and not quiet:
        print(f"Last metadata expiration check: {age} ago on {time.ctime(max(known))}.")
    return packages


def _away(repo: Repo) -> str:
    """Print why a repository cannot be read; returns dnf's error."""
    url = f"{repo.url.rstrip('/')}/repodata/repomd.xml"
    host = url.split("/")[2]
    sys.stdout.flush()
    sys.stderr.write(
        f"Errors during downloading metadata for repository '{repo.id}':\n"
        f"  - Curl error (6): Couldn't resolve host name for {url} [Could not resolve host: {host}]\n"
    )
    return (
        f"Failed to download metadata for repo '{repo.id}': Cannot download repomd.xml: "
        "Cannot download repodata/repomd.xml: All mirrors were tried"
    )
