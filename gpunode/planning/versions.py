"""Versions of packages and programs as dpkg and rpm write them: `epoch:version-revision`, epoch and revision optional."""

from __future__ import annotations

import re
from collections.abc import Mapping
from fnmatch import fnmatchcase

from gpunode.model import Package, PackageSpec


def is_installed(packages: Mapping[str, Package], spec: PackageSpec) -> bool:
    """Whether the package is installed in a version that the spec accepts, whatever its epoch."""
    package = packages.get(spec.name)
    wanted = spec.version.split(":", 1)[-1]
    return package is not None and (not wanted or fnmatchcase(package.version.split(":", 1)[-1], wanted))


def upstream(version: str) -> str:
    """A version without epoch and revision: 580.178.04 of 1:580.178.04-1."""
    return version.split(":", 1)[-1].rsplit("-", 1)[0]


def branch_of(version: str) -> int | None:
    """The branch of a driver version: 580 of 580.178.04-1; None when it is none."""
    match = re.match(r"(\d{3,4})\.\d", upstream(version))
    return int(match[1]) if match else None


def kernel_order(release: str) -> tuple[int, ...]:
    """A kernel's release for comparing: (6, 1, 0, 41, 64) of 6.1.0-41-amd64."""
    return tuple(int(part) for part in re.findall(r"\d+", release))


def numbers(version: str) -> tuple[int, ...]:
    """A version's numbers without epoch and revision, for comparing."""
    return tuple(int(part) for part in re.findall(r"\d+", upstream(version)))
