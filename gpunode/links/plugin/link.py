"""The device plugin: it runs on the node, where the node's GPUs are its own."""

from __future__ import annotations

from gpunode.errors import Problem
from gpunode.links.plugin import Row
from gpunode.model import Verdict


def judge_plugin(row: Row | None, fix: str) -> Verdict:
    """The device plugin runs on the node."""
    if row is None or not row.pod:
        cause = row.problem if row else "the plugin is not deployed, or the node has no label for it"
        return Verdict.broken("plugin", "no device plugin pod on this node", cause, fix)
    if row.problem:
        return Verdict.broken("plugin", f"{row.pod} is not ready", row.problem, fix)
    restarts = f", restarts: {row.restarts}" if row.restarts else ""
    return Verdict.ok("plugin", f"{row.pod} is ready{restarts}")


def judge_owned(why: Problem) -> Verdict:
    """The node's GPUs have another owner, so it is to have no plugin."""
    return Verdict.broken("plugin", "the node's GPUs have another owner", why.what, why.fix)
