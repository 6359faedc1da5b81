"""Changes by Kubernetes minor version."""

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass

from gpunode.planning.tables import table

TABLE = table(__package__, "minors.yaml")


@dataclass(frozen=True, slots=True)
class Gate:
    """A feature gate's stages by minor version of Kubernetes 1.x; None: not reached, or unknown."""

    name: str
    alpha: int
    beta: int | None = None
    locked: int | None = None
    gone: int | None = None

    def is_gone(self, minor: int) -> bool:
        """Whether a kubelet of this minor does not start with it, whatever its value."""
        return self.gone is not None and minor >= self.gone

    def is_locked(self, minor: int) -> bool:
        """Whether a kubelet of this minor does not start with it set to false."""
        return self.locked is not None and minor >= self.locked

    def is_default(self, minor: int) -> bool:
        return self.beta is not None and minor >= self.beta


# The feature gates that matter to GPU nodes, by name; those that a GPU node needs, with the reason.
GATES: Mapping[str, Gate] = {name: Gate(name, **row) for name, row in TABLE["gates"].items()}
NEEDED: Mapping[str, str] = TABLE["needed"]
# Sentences about nodes that their provider's image sets up again, by the unit or the file that identifies them.
MANAGED: Mapping[str, str] = TABLE["managed"]


def minor(version: str) -> int | None:
    """The minor version: 23 of v1.23.17; of OpenShift's and MicroShift's that of the Kubernetes in it: 31 of 4.18.4."""
    match = re.match(r"v?([0-9]{1,9})\.([0-9]{1,9})(?![0-9])", version)
    first = int(match[1]) if match else 0
    add = 0 if first == 1 else TABLE["openshift"].get(first)
    return int(match[2]) + add if match and add is not None else None


def has_dockershim(minor: int) -> bool:
    return minor < int(TABLE["dockershim_gone"])


def fails_on_cgroup_v1(minor: int) -> bool:
    """Whether a kubelet of this minor refuses cgroup v1 unless its configuration allows it."""
    return minor >= int(TABLE["cgroup_v1_fails"])


def rancher_has_default_runtime(version: str) -> bool:
    """Whether k3s or RKE2 of this version (1.28.5+k3s1) has the setting `default-runtime`."""
    floors: Mapping[int, int] = TABLE["rancher_default_runtime"]
    match = re.match(r"v?1\.(\d+)\.(\d+)", version)
    if match is None:
        return False
    number, patch = int(match[1]), int(match[2])
    return number > max(floors) or patch >= floors.get(number, sys.maxsize)


def rancher_default_runtime_since() -> str:
    """The first versions that have it, in words."""
    floors: Mapping[int, int] = TABLE["rancher_default_runtime"]
    return f"{', '.join(f'1.{number}.{patch}' for number, patch in floors.items())} and newer minors"
