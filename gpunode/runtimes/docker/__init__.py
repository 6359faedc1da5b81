"""docker, where the kubelet drives it itself (dockershim)."""

from __future__ import annotations

from gpunode.runtimes.docker.host import check, headline, in_use, serves, state
from gpunode.runtimes.docker.step import UNIT, WATCH, plan

__all__ = ["UNIT", "WATCH", "check", "headline", "in_use", "plan", "serves", "state"]
