"""Shared by all planners: files, packages and units of a host, users of its GPUs, the refusal CannotPlan."""

from __future__ import annotations

from gpunode.planning.cannot_plan import CannotPlan

__all__ = ["CannotPlan"]
