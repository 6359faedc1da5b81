"""containerd, through its CRI plugin."""

from __future__ import annotations

from gpunode.runtimes.containerd.host import check, headline, in_use, serves, state
from gpunode.runtimes.containerd.step import UNIT, WATCH, plan

__all__ = ["UNIT", "WATCH", "check", "headline", "in_use", "plan", "serves", "state"]
