"""The `accelerator` label of nodes, from what the hosts' GPUs are."""

from __future__ import annotations

from dataclasses import dataclass

from gpunode.cluster.api import Api
from gpunode.engine import converge, exit_codes, nodes
from gpunode.engine.listener import Listener, problem
from gpunode.engine.member import Member, outcomes
from gpunode.engine.session import Session
from gpunode.errors import ClusterError
from gpunode.links.node import ACCELERATOR_LABEL, accelerator, labels


@dataclass(frozen=True, slots=True)
class How:
    """`remove`: the label is taken off; `overwrite`: also where another has set it; `dry_run`: nothing is changed."""

    remove: bool = False
    overwrite: bool = False
    dry_run: bool = False


def label(session: Session, how: How) -> int:
    """Label the nodes, and tell; the exit code."""
    api, listener = nodes.connect(session.inventory), session.listener
    members = session.probed(converge.look, plans=False)
    unseen = [one for one in members if one.facts is None]
    listener.failures(outcomes(unseen))
    found = nodes.located(api, [one for one in members if one.facts], seconds=0, tell=listener.note)
    rows = [row for one in found if (row := _labelled(api, nodes.refused(one), how, listener))]
    listener.rows("label", ("node", "before", "accelerator", "result"), rows)
    return exit_codes.worst(unseen) or (1 if len(rows) < len(found) else 0)


def _labelled(api: Api, one: Member, how: How, listener: Listener) -> tuple[str, str, str, str] | None:
    """The row of a node; None where there is none, or its label was refused: the other nodes get theirs."""
    if one.node is None or one.facts is None:
        problem(listener, one.host.name, one.reason)
        return None
    wish = {} if how.remove else accelerator.accelerator(one.facts.pci)
    try:
        changes = labels.write(
            api, one.node, wish, writer=labels.ACCELERATOR, overwrite=how.overwrite, dry_run=how.dry_run
        )
    except ClusterError as error:
        listener.problem(error, one.host.name)
        return None
    if wish and (others := accelerator.others(one.facts.pci)):
        listener.note(f"{one.node.name} also has {', '.join(others)}; a node has one accelerator label")
    value = wish.get(ACCELERATOR_LABEL, "")
    before, after = changes.get(ACCELERATOR_LABEL, (value or None, value or None))
    what = "same" if before == after else "would change" if how.dry_run else "changed"
    return one.node.name, before or "", after or "", what
