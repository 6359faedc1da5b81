"""What goes with what: GPUs, driver branches, packages, repositories, Kubernetes minors.

The facts are the YAML tables beside this file, each with its source; the modules are only look-ups.
"""

from __future__ import annotations

from gpunode.compat.drivers import Branch, branches, kernel_version, production
from gpunode.compat.kubernetes import (
    Gate,
    distributions,
    fails_on_cgroup_v1,
    gates,
    has_dockershim,
    minor,
    needed_gates,
)
from gpunode.compat.models import Flavour, Model, gpu, gpus
from gpunode.compat.packages import (
    System,
    accessories,
    branch_of,
    driver_family,
    driver_packages,
    driver_patterns,
    driver_pin,
    fabric_packages,
    from_nvidia,
    headers,
    is_installed,
    is_meta,
    is_pin,
    numbers,
    of_flavour,
    retired_packages,
    system,
    systems,
    toolkit_packages,
    toolkit_version,
    upstream,
)
from gpunode.compat.repositories import Purpose, is_dead, offers, repository_key, repository_uri
from gpunode.compat.tables import table

__all__ = [
    "Branch",
    "Flavour",
    "Gate",
    "Model",
    "Purpose",
    "System",
    "accessories",
    "branch_of",
    "branches",
    "distributions",
    "driver_family",
    "driver_packages",
    "driver_patterns",
    "driver_pin",
    "fabric_packages",
    "fails_on_cgroup_v1",
    "from_nvidia",
    "gates",
    "gpu",
    "gpus",
    "has_dockershim",
    "headers",
    "is_dead",
    "is_installed",
    "is_meta",
    "is_pin",
    "kernel_version",
    "minor",
    "needed_gates",
    "numbers",
    "of_flavour",
    "offers",
    "production",
    "repository_key",
    "repository_uri",
    "retired_packages",
    "system",
    "systems",
    "table",
    "toolkit_packages",
    "toolkit_version",
    "upstream",
]
