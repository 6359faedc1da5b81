"""NVIDIA's package repositories: where they are, and how to know one."""

from __future__ import annotations

from typing import Literal, TypeAlias

from gpunode.compat.packages import System
from gpunode.compat.tables import table

Purpose: TypeAlias = Literal["driver", "toolkit"]


def repository_uri(purpose: Purpose, place: System, arch: str) -> str:
    """Where NVIDIA publishes this distribution's packages."""
    uri = str(table("repositories")[purpose]["uri"])
    return uri.format(directory=place.directory, architecture=place.architecture, arch=arch)


def repository_key(purpose: Purpose) -> str:
    """Where the key that signs them is to be found, in words."""
    return str(table("repositories")[purpose]["key"])


def offers(purpose: Purpose, uri: str) -> bool:
    """Whether a source on a host is NVIDIA's repository, or a mirror that keeps its paths."""
    return any(part in uri for part in table("repositories")[purpose]["known"])


def is_dead(uri: str) -> bool:
    """Whether a source is one of those that NVIDIA gave up."""
    return any(part in f"{uri.rstrip('/')}/" for part in table("repositories")["dead"])
