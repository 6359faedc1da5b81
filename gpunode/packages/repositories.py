"""NVIDIA's package repositories: their addresses, and how to recognise one."""

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from posixpath import normpath
from typing import Any, Literal, TypeAlias, get_args
from urllib.parse import unquote

from gpunode.model import Os
from gpunode.packages.releases import release, sections

Purpose: TypeAlias = Literal["driver", "toolkit"]
WHOLE = 40  # digits of a fingerprint; with fewer, another key can end alike


def repository_uri(purpose: Purpose, os: Os) -> str:
    """Where NVIDIA publishes this distribution's packages. Raises LookupError where it is not supported."""
    place = release(os)
    if place is None:
        raise LookupError(f"no release row for {os.id} {os.version}")
    uri = str(sections()[place.family]["repositories"][purpose]["uri"])
    base = {"amd64": "x86_64", "arm64": "aarch64"}.get(os.arch, os.arch)
    return uri.format(directory=place.directory, architecture=place.architecture, arch=os.arch, basearch=base)


def repository_key(family: str, purpose: Purpose) -> str:
    """Where to find the key that signs them, in words."""
    return str(sections()[family]["repositories"][purpose]["key"])


def offers(family: str, purpose: Purpose, uri: str) -> bool:
    """Whether a source on a host is NVIDIA's repository, or a mirror that keeps its paths."""
    return any(part in uri for part in sections()[family]["repositories"][purpose]["known"])


def offers_any(family: str, uri: str) -> bool:
    """The same for any purpose."""
    return any(offers(family, purpose, uri) for purpose in get_args(Purpose))


def is_dead(family: str, uri: str) -> bool:
    return any(part in f"{uri.rstrip('/')}/" for part in sections()[family]["repositories"]["dead"])


def is_gone(family: str, uri: str) -> bool:
    """Whether a source of the distribution's own answers no more."""
    return any(host in uri for host in sections()[family]["repositories"].get("gone", ()))


def signed_packages(family: str, purpose: Purpose) -> bool:
    """Whether the packages are signed, and not the repository's metadata."""
    return bool(sections()[family]["repositories"][purpose].get("signed") == "packages")


def owner(family: str, uri: str) -> Purpose | None:
    """Which of NVIDIA's own repositories has this address, whatever it is used for: that of drivers has the toolkit, too. None for
    others, mirrors among them."""
    return next((purpose for purpose in get_args(Purpose) if _is_nvidias(family, purpose, uri)), None)


def key_fingerprint(os: Os, uri: str) -> str | None:
    """The fingerprint of the key of NVIDIA's own repository, or its end; "" where it is not known. None for other addresses."""
    place = release(os)
    purpose = owner(place.family, uri) if place else None
    if place is None or purpose is None:
        return None
    keys = _keys(place.family, purpose)
    return (keys.get(_directory(uri) or place.directory) or keys.get("*") or "").upper()


def refused_directory(os: Os, uri: str) -> str:
    """The directory of NVIDIA's own repository for a driver (debian12), where this system refuses its signature; else ""."""
    place, directory = release(os), _directory(uri)
    row = sections()[place.family]["repositories"]["driver"] if place else {}
    if place is None or "sha1" not in row or f"{os.id} {os.version}" not in row["sha1"]["refused"]:
        return ""
    weak = row["keys"].get(directory) == row["sha1"]["key"]
    return directory if weak and _is_nvidias(place.family, "driver", uri) else ""


def _is_nvidias(family: str, purpose: Purpose, uri: str) -> bool:
    """Whether an address is one of NVIDIA's own, and no mirror's."""
    return _plain(uri).startswith(f"{sections()[family]['repositories'][purpose]['host']}/")


def _plain(uri: str) -> str:
    """The host and the path of an address, however it is spelt."""
    host, _, path = re.sub(r"^[\w+.-]+://", "", uri).partition("/")
    host = re.sub(r"^.*@|[.]?(:\d*)?$", "", unquote(host))
    return f"{host}{normpath('/' + unquote(path).lstrip('/'))}".lower()


def _directory(uri: str) -> str:
    """The distribution's directory in an address of a driver's repository; "" for others."""
    match = re.search(r"/compute/cuda/repos/([^/]+)/", f"{_plain(uri)}/")
    return match[1] if match else ""


def is_trusted(actual: str, known: str, trusted: Collection[str] = ()) -> bool:
    """Whether a key with the whole fingerprint `actual` is NVIDIA's. Where the tables have only the end of it (`known`), or none,
    the user must have given all of it."""
    return actual == known if len(known) == WHOLE else actual.endswith(known) and actual in trusted


@dataclass(frozen=True, slots=True)
class Mirror:
    """A repository of the distribution's own with NVIDIA's packages, new branches excepted, and the package that brings it."""

    package: str
    repository: str


def mirror(os: Os) -> Mirror | None:
    place = release(os)
    mirrors = sections()[place.family].get("mirrors", {}) if place else {}
    row = mirrors.get(f"{os.id} {os.version.partition('.')[0]}")
    if row is None or os.arch not in row["architectures"]:
        return None
    return Mirror(row["package"], row["repository"])


@dataclass(frozen=True, slots=True)
class Signed:
    """A repository of NVIDIA's: its address, where its key is, and that key's fingerprint (upper case), or what is known of
    its end."""

    purpose: Purpose
    uri: str
    key_uri: str
    fingerprint: str


def signed_repositories(directory: str, arch: str) -> tuple[Signed, ...]:
    """The driver's and the toolkit's repositories of the systems with this directory (debian12, rhel9). `arch` as in `Os`.

    Raises LookupError with the directories whose keys are known.
    """
    families = {row["directory"]: os for os in _systems(arch) if (row := os[2])}
    if directory not in families or directory not in _keys(families[directory][0], "driver"):
        known = [name for name, (family, *_) in families.items() if name in _keys(family, "driver")]
        raise LookupError(", ".join(known))
    family, os, _ = families[directory]
    repositories = []
    for purpose in get_args(Purpose):
        keys, uri = _keys(family, purpose), repository_uri(purpose, os)
        ends = str(keys.get(directory) or keys["*"])
        place = (
            f"{uri}/{ends[-8:]}.pub"
            if purpose == "driver"
            else sections()[family]["repositories"][purpose]["key"]
        )
        repositories.append(Signed(purpose, uri, str(place), ends.upper()))
    return tuple(repositories)


def signed_repository(os: Os, purpose: Purpose) -> Signed | None:
    """The repository of one system; None where its key is not known."""
    place = release(os)
    try:
        known = signed_repositories(place.directory, os.arch) if place else ()
    except LookupError:
        return None
    return next((repository for repository in known if repository.purpose == purpose), None)


def _keys(family: str, purpose: Purpose) -> Mapping[str, str]:
    keys: Mapping[str, str] = sections()[family]["repositories"][purpose].get("keys", {})
    return keys


def _systems(arch: str) -> Iterator[tuple[str, Os, Mapping[str, Any]]]:
    for family, section in sections().items():
        for name, versions in section["systems"].items():
            for version, row in versions.items():
                os = Os(name, version, "", arch=arch)
                if release(os) is not None:
                    yield family, os, row
