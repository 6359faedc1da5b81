"""containerd, through its CRI plugin."""

from __future__ import annotations

from gpunode.links.runtime.containerd.host import (
    by_systemd,
    check,
    headline,
    in_use,
    labels,
    runc,
    serves,
    state,
    unit,
)
from gpunode.links.runtime.containerd.step import WATCH, plan

__all__ = ["WATCH", "by_systemd", "check", "headline", "in_use", "labels", "plan", "runc", "serves", "state", "unit"]  # fmt: skip
