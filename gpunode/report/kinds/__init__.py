"""The JSON lines as types: each kind with its keys, their types and what they mean. docs/reference/json.md is written out of them.

Keys may be added; none changes its meaning within a major version. A key of `More` is there only where it says something.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from gpunode.report.kinds import cluster, ends, hosts, plan, sharing

KINDS: Mapping[str, type] = MappingProxyType(
    {
        "stage": hosts.StageMore,
        "change": hosts.Change,
        "progress": hosts.ProgressMore,
        "outcome": hosts.OutcomeMore,
        "plan": plan.PlanMore,
        "why": hosts.Why,
        "cluster": plan.ClusterMore,
        "finding": hosts.Finding,
        "share": sharing.Share,
        "use": sharing.Use,
        "fsck": sharing.Fsck,
        "simulated": sharing.Simulated,
        "free": sharing.Free,
        "gate": hosts.GateMore,
        "batch": hosts.Batch,
        "link": hosts.Link,
        "object": cluster.Changed,
        "plugin": cluster.Plugin,
        "key": cluster.Key,
        "image": cluster.Image,
        "gpu": cluster.Gpu,
        "process": cluster.Process,
        "label": cluster.Label,
        "resource": cluster.Counted,
        "vectoradd": cluster.Vectoradd,
        "abort": hosts.Abort,
        "log": cluster.Log,
        "notebook": cluster.Notebook,
        "manifest": cluster.Manifest,
        "verified": hosts.Verified,
        "error": ends.ErrorMore,
        "note": ends.Note,
        "summary": ends.SummaryMore,
    }
)  # fmt: skip
