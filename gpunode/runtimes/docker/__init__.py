"""docker, where the kubelet drives it itself (dockershim) or through cri-dockerd."""

from __future__ import annotations

from gpunode.runtimes.docker.host import check, headline, in_use, labels, serves, state, unit
from gpunode.runtimes.docker.step import WATCH, plan

__all__ = ["WATCH", "check", "headline", "in_use", "labels", "plan", "serves", "state", "unit"]
