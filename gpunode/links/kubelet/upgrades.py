"""What Kubernetes minor versions take away."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

from gpunode.planning.tables import table


@dataclass(frozen=True, slots=True)
class Floor:
    """From this minor on containerd must be of this version, and why."""

    first: int
    needs: str
    why: str


def newest() -> int:
    """The newest minor that the tables know."""
    return int(table(__package__, "upgrades.yaml")["known"])


def removed_flags() -> Mapping[str, tuple[int, str]]:
    """Flags of the kubelet → the minor that does not start with it, and what to do."""
    return {
        name: (gone, fix)
        for name, (gone, fix) in table(__package__, "upgrades.yaml")["kubelet_flags"].items()
    }


def documented_gates() -> Mapping[str, int]:
    """Feature gates → the last minor whose documentation lists it: it is gone there or in the next."""
    return cast("Mapping[str, int]", table(__package__, "upgrades.yaml")["last_documented"])


def containerd_floor(minor: int) -> Floor | None:
    """What this minor needs of containerd; None: any."""
    rows = [row for row in table(__package__, "upgrades.yaml")["containerd"] if row["from"] <= minor]
    return Floor(rows[-1]["from"], rows[-1]["needs"], rows[-1]["why"]) if rows else None


def kubelet_config_version(minor: int) -> str | None:
    """The only apiVersion of a kubelet's configuration that this minor reads; None where it is another, or has none."""
    row = table(__package__, "upgrades.yaml")["kubelet_config"]
    return str(row["version"]) if minor >= row["from"] else None


def scheduler_flags() -> Mapping[str, int]:
    """Flags of kube-scheduler → the minor that does not start with it."""
    return cast("Mapping[str, int]", table(__package__, "upgrades.yaml")["scheduler_flags"])


def scheduler_configs() -> Mapping[str, int]:
    """Versions of kube-scheduler's configuration → the minor that does not read it."""
    return cast("Mapping[str, int]", table(__package__, "upgrades.yaml")["scheduler_config"])
