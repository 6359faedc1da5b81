"""containerd, through its CRI plugin."""

from __future__ import annotations

from gpunode.runtimes.containerd.host import check, headline, in_use, labels, serves, state, unit
from gpunode.runtimes.containerd.step import WATCH, plan

__all__ = ["WATCH", "check", "headline", "in_use", "labels", "plan", "serves", "state", "unit"]
