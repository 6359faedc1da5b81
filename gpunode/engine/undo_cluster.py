"""The cluster's half of an undo: the labels and taints that a run set on its hosts' nodes, by its record, as before it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from gpunode.cluster.api import Api
from gpunode.cluster.api.watch import OnProgress
from gpunode.engine import batch, nodes, work
from gpunode.engine.member import Member
from gpunode.engine.record import Record, RecordedMarks, RecordedRun
from gpunode.engine.undo import SOMEBODY
from gpunode.errors import ClusterError
from gpunode.links.node import GPU_LABEL, TAINTS, Node, labels, parse, taint
from gpunode.links.plugin import marks
from gpunode.model import Left


@dataclass(frozen=True, slots=True)
class NodePlan:
    """`wanted`: writer, of those that change something → all that it has set on the node then. `lines`: as of a Difference."""

    wanted: Mapping[str, Mapping[str, str]]
    lines: tuple[str, ...]
    left: tuple[Left, ...]


def plan(recorded: Sequence[RecordedMarks], node: Node) -> NodePlan:
    """What takes these marks of a run back from the node. What was changed since stays."""
    wanted, lines, left = dict[str, Mapping[str, str]](), list[str](), list[Left]()
    for writer in dict.fromkeys(each.writer for each in recorded if each.node == node.name):
        mine = [each for each in recorded if (each.node, each.writer) == (node.name, writer)]
        first, last, now = mine[0].before, mine[-1].after, nodes.own_marks(node, writer)
        after = dict(now)
        for key in sorted(first.keys() | last.keys()):
            before, here = first.get(key), now.get(key)
            if before in (last.get(key), here):
                continue
            if here != last.get(key):
                left.append(Left("kept", f"{_text(writer, key, here)} of node {node.name}", SOMEBODY))
                continue
            after.pop(key, None)
            after |= {} if before is None else {key: before}
            signs = [("-", here), ("+", before)]
            lines += [f"{sign}{_text(writer, key, value)}" for sign, value in signs if value is not None]
        if after != now:
            wanted[writer] = after
    return NodePlan(wanted, tuple(lines), tuple(left))


def _text(writer: str, key: str, value: str | None) -> str:
    return key if writer == TAINTS or value is None else f"{key}={value}"


def take_back(api: Api, run: RecordedRun, member: Member, record: Record, notify: OnProgress) -> Member:
    """The member, with its node as before the run. A node that loses the plugin while pods use its GPUs, and whose host had no change
    that waited for them, stays as it is: its member is excluded."""
    if member.node is None or member.reason is not None or not member.host_ok:
        return member
    try:
        item = api.get("Node", member.node.name)
        if item is None:
            return member
        node = parse(item)
        wanted, had = plan(run.marks, node).wanted, nodes.own_marks(node, labels.PROVISION)
        leaves = GPU_LABEL in had and GPU_LABEL not in wanted.get(labels.PROVISION, had)
        waited = member.outcome is not None and bool(member.outcome.applied)
        if leaves and not waited and (busy := work.why_busy(api, member)):
            return member.exclude(busy)
        for writer, after in wanted.items():
            record.marks(node.name, writer, nodes.own_marks(node, writer), after)
            if writer == TAINTS:
                taint.write(api, node, tuple(after))
            else:
                labels.write(api, node, after, writer=writer)
        if leaves:
            marks.clear(api, node.name, keep_software=False, notify=notify)
        taint.release(api, node.name, run.id)
    except ClusterError as error:
        return member.exclude(replace(error.problem, code=batch.FAILED))
    return member
