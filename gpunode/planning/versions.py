"""Packages as changes, and versions as dpkg and rpm write them: `epoch:version-revision`, epoch and revision optional."""

import re
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase

from gpunode.model import Facts, Package, Packages, PackageSpec


def is_installed(packages: Mapping[str, Package], spec: PackageSpec) -> bool:
    """Whether the package is installed in a version that the spec accepts, whatever its epoch."""
    package = packages.get(spec.name)
    version = spec.version.split(":", 1)[-1]
    return package is not None and (not version or fnmatchcase(package.version.split(":", 1)[-1], version))


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


def change_packages(
    facts: Facts,
    why: str,
    *,
    install: tuple[PackageSpec, ...] = (),
    remove: tuple[str, ...] = (),
    hold: tuple[str, ...] = (),
    purge: bool = False,
) -> Packages:
    """A change of packages, with its faults one a line."""
    fault = "\n".join(_faults(facts, why, install, remove, hold))
    return Packages(why, install=install, remove=remove, hold=hold, purge=purge, fault=fault)


def _faults(
    facts: Facts, why: str, install: Sequence[PackageSpec], remove: Sequence[str], hold: Sequence[str]
) -> Iterator[str]:
    installed = facts.packages
    absent = [spec.name for spec in install if spec.name not in installed]
    if remove:
        yield f"{_are(remove)} installed: {why}"
    if absent:
        yield f"{_are(absent)} not installed"
    for spec in install:
        if spec.name in installed and not is_installed(installed, spec):
            yield f"{spec.name} is {installed[spec.name].version}, not {spec.version}"
    loose = [name for name in hold if name in installed and not installed[name].held]
    if loose and not install:
        yield f"{_are(loose)} not held: {why}"


def _are(names: Sequence[str]) -> str:
    return f"{', '.join(names)} {'is' if len(names) == 1 else 'are'}"
