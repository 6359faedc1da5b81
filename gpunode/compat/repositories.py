"""NVIDIA's package repositories: their addresses, and how to recognise one."""

from __future__ import annotations

import re
from typing import Literal, TypeAlias

from gpunode.compat.packages import Family, release
from gpunode.compat.tables import table
from gpunode.model import Os

Purpose: TypeAlias = Literal["driver", "toolkit"]


def repository_uri(purpose: Purpose, os: Os) -> str:
    """Where NVIDIA publishes this distribution's packages. Raises LookupError where it is not supported."""
    place = release(os)
    if place is None:
        raise LookupError(f"no release row for {os.id} {os.version}")
    uri = str(table("repositories")[place.family][purpose]["uri"])
    base = {"amd64": "x86_64", "arm64": "aarch64"}.get(os.arch, os.arch)
    return uri.format(directory=place.directory, architecture=place.architecture, arch=os.arch, basearch=base)


def repository_key(family: Family, purpose: Purpose) -> str:
    """Where to find the key that signs them, in words."""
    return str(table("repositories")[family][purpose]["key"])


def offers(family: Family, purpose: Purpose, uri: str) -> bool:
    """Whether a source on a host is NVIDIA's repository, or a mirror that keeps its paths."""
    return any(part in uri for part in table("repositories")[family][purpose]["known"])


def is_dead(family: Family, uri: str) -> bool:
    """Whether a source is a repository that NVIDIA discontinued."""
    return any(part in f"{uri.rstrip('/')}/" for part in table("repositories")[family]["dead"])


def is_gone(family: Family, uri: str) -> bool:
    """Whether a source of the distribution's own answers no more."""
    return any(host in uri for host in table("repositories")[family].get("gone", ()))


def signed_packages(family: Family, purpose: Purpose) -> bool:
    """Whether the packages are signed, and not the repository's metadata."""
    return bool(table("repositories")[family][purpose]["signed"] == "packages")


def key_fingerprint(purpose: Purpose, os: Os, uri: str) -> str:
    """How the fingerprint of the key of NVIDIA's own repository ends; "" for other addresses, or where it is not known."""
    place = release(os)
    if place is None:
        return ""
    row = table("repositories")[place.family][purpose]
    if "keys" not in row or not re.match(rf"https?://{re.escape(row['host'])}/", uri):
        return ""
    return str(row["keys"].get(place.directory) or row["keys"].get("*") or "")
