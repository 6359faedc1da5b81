"""Extended resources counted by hand in nodes' status, for devices that no device plugin offers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from gpunode.cluster.api import Api
from gpunode.engine import nodes
from gpunode.engine.listener import Listener, problem, progress
from gpunode.engine.member import Member
from gpunode.engine.session import Session
from gpunode.errors import ClusterError, UsageError

# The API server's rule for names of extended resources; kubernetes.io is its own.
NAME = re.compile(
    r"(?!([-a-z0-9.]+\.)?kubernetes\.io/|requests\.)[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9]([-\w.]*[A-Za-z0-9])?",
    re.ASCII,
)
MOST = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Wish:
    """Counts by resource, None to take one away. `overwrite`: also where the node counts another number."""

    counts: Mapping[str, int | None]
    overwrite: bool = False
    dry_run: bool = False


def wish(words: list[str], *, remove: bool, overwrite: bool, dry_run: bool) -> Wish:
    """Of NAME=COUNT, or NAME where it is to be taken away. Raises UsageError."""
    counts: dict[str, int | None] = {}
    for word in words:
        name, sign, number = word.partition("=")
        right = not sign if remove else number.isascii() and number.isdecimal() and len(number) < 11
        if not NAME.fullmatch(name) or not right or (not remove and int(number) > MOST):
            raise UsageError(
                f"--resource {word}: expected {'a resource' if remove else 'NAME=COUNT'}",
                hint=f"For example `--resource example.com/fpga{'' if remove else '=2'}`.",
            )
        counts[name] = None if remove else int(number)
    return Wish(counts, overwrite, dry_run)


def count(session: Session, wanted: Wish) -> int:
    """Write the counts into the status of the hosts' nodes, and tell; the exit code."""
    api, listener = nodes.connect(session.inventory), session.listener
    members = nodes.identified(api, session, progress(listener))
    rows = [row for one in members for row in _counted(api, one, wanted, listener)]
    listener.rows("resource", ("node", "resource", "before", "after", "result"), rows)
    bad = any(one.node is None for one in members) or any(row[-1] == "refused" for row in rows)
    if rows and not wanted.dry_run and any(row[-1] == "changed" and row[3] is not None for row in rows):
        listener.note("A kubelet that restarts sets these counts to 0: give the command again then.")
    return 1 if bad else 0


def _counted(
    api: Api, one: Member, wanted: Wish, listener: Listener
) -> list[tuple[str, str, int | None, int | None, str]]:
    if one.node is None:
        problem(listener, one.host.name, one.reason)
        return []
    rows, changes = [], dict[str, str | None]()
    for name, after in wanted.counts.items():
        found = one.node.resources.get(name)
        before = found.capacity if found else None
        result = "would change" if wanted.dry_run else "changed"
        if before == after:
            result = "same"
        elif before and after is not None and not wanted.overwrite:
            result = "refused"
            listener.problem(
                ClusterError(
                    f"{one.node.name} counts {before} {name} already, a device plugin's or another operator's",
                    hint="Give --overwrite to replace the number; a device plugin writes its own again.",
                ),
                one.host.name,
            )
        else:
            changes[name] = None if after is None else str(after)
        rows.append((one.node.name, name, before, after, result))
    if changes and not wanted.dry_run:
        # The kubelet copies capacity to allocatable, but takes nothing away there.
        gone = {name: None for name, number in changes.items() if number is None}
        fields = {"status": {"capacity": changes, **({"allocatable": gone} if gone else {})}}
        api.merge("Node", one.node.name, fields, part="status")
    return rows
