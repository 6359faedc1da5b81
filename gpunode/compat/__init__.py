"""Compatibility tables: GPUs, driver branches, packages, repositories, Kubernetes minor versions.

The facts are the YAML tables beside this file, each with its source; the modules are only look-ups.
"""

from __future__ import annotations

from gpunode.compat.archives import Archive, archive, archive_family, is_independent, named_branch, scatters
from gpunode.compat.drivers import Branch, branches, kernel_version
from gpunode.compat.kubernetes import (
    Gate,
    distributions,
    fails_on_cgroup_v1,
    gates,
    has_dockershim,
    managed,
    minor,
    needed_gates,
    rancher_default_runtime_since,
    rancher_has_default_runtime,
)
from gpunode.compat.models import (
    Flavour,
    Model,
    driven,
    fraction,
    gpu,
    gpus,
    is_passed_through,
    managers,
    switches,
)
from gpunode.compat.packages import (
    Epel,
    Family,
    PackageNames,
    Release,
    epel,
    refusal,
    release,
    releases,
    toolkit_version,
)
from gpunode.compat.prebuilt import Prebuilt, prebuilt
from gpunode.compat.repositories import (
    Purpose,
    Signed,
    is_dead,
    is_gone,
    key_fingerprint,
    mirror,
    offers,
    repository_key,
    repository_uri,
    signed,
    signed_for,
    signed_packages,
)
from gpunode.compat.tables import table
from gpunode.compat.toolkit import refreshes

__all__ = [
    "Archive",
    "Branch",
    "Epel",
    "Family",
    "Flavour",
    "Gate",
    "Model",
    "PackageNames",
    "Prebuilt",
    "Purpose",
    "Release",
    "Signed",
    "archive",
    "archive_family",
    "branches",
    "distributions",
    "driven",
    "epel",
    "fails_on_cgroup_v1",
    "fraction",
    "gates",
    "gpu",
    "gpus",
    "has_dockershim",
    "is_dead",
    "is_gone",
    "is_independent",
    "is_passed_through",
    "kernel_version",
    "key_fingerprint",
    "managed",
    "managers",
    "minor",
    "mirror",
    "named_branch",
    "needed_gates",
    "offers",
    "prebuilt",
    "rancher_default_runtime_since",
    "rancher_has_default_runtime",
    "refreshes",
    "refusal",
    "release",
    "releases",
    "repository_key",
    "repository_uri",
    "scatters",
    "signed",
    "signed_for",
    "signed_packages",
    "switches",
    "table",
    "toolkit_version",
]
