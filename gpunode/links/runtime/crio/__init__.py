"""CRI-O."""

from __future__ import annotations

from gpunode.links.runtime.crio.host import (
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
from gpunode.links.runtime.crio.step import WATCH, plan

__all__ = ["WATCH", "by_systemd", "check", "headline", "in_use", "labels", "plan", "runc", "serves", "state", "unit"]  # fmt: skip
