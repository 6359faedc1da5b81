"""The container toolkit: the version that a host gets, and what its own units do by version."""

from __future__ import annotations

import re
from collections.abc import Iterable

from gpunode.model import Facts, Host, PackageSpec
from gpunode.packages import PackageSystem
from gpunode.planning.tables import table
from gpunode.planning.versions import numbers, upstream


def refreshes(version: tuple[int, ...], modules: Iterable[str]) -> bool:
    """Whether this version's unit writes the CDI specification on a kernel with these files of the driver's module; of an unknown
    version (()) as the newest does. One before 1.18 has no such unit."""
    rows = [
        row
        for row in table(__package__, "toolkit.yaml")["refresh"]
        if not version or tuple(row["since"]) <= version
    ]
    return bool(rows) and any(re.search(rows[-1]["pattern"], f"/{file}:") for file in modules)


def default_version() -> str:
    """The version of the toolkit where the inventory names none."""
    return str(table(__package__, "toolkit.yaml")["version"])


def decide_packages(host: Host, facts: Facts, system: PackageSystem) -> tuple[PackageSpec, ...]:
    """The toolkit's packages at one version: the inventory's, the installed one if it is newer, or the table's. With
    nvidia-docker2 where that is wished."""
    version = host.toolkit
    wrapped = version == "nvidia-docker2"
    if version == "auto" or wrapped:
        version = default_version()
        names = [spec.name for spec in system.NAMES.toolkit(version)]
        installed = {facts.packages[name].version for name in names if name in facts.packages}
        if len(installed) == 1:
            version = max(version, upstream(installed.pop()), key=numbers)
    return (*system.NAMES.toolkit(version), *((system.NAMES.wrapper,) if wrapped else ()))
