"""CRI-O."""

from __future__ import annotations

from gpunode.runtimes.crio.host import check, headline, in_use, labels, serves, state, unit
from gpunode.runtimes.crio.step import WATCH, plan

__all__ = ["WATCH", "check", "headline", "in_use", "labels", "plan", "serves", "state", "unit"]
