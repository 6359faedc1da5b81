"""Selects the inventory's hosts by --limit and --exclude."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from fnmatch import fnmatchcase

from gpunode.errors import InventoryError
from gpunode.inventory.expand import RANGE, names
from gpunode.model import Host, Inventory
from gpunode.wording import few

NAMED = 3  # missing hosts of a range


def select(inventory: Inventory, limit: Sequence[str] = (), exclude: Sequence[str] = ()) -> tuple[Host, ...]:
    """The hosts in `limit` (default: all) without those in `exclude`, in the inventory's order.

    An entry is a host, a group, a range, a glob over host names, or several of them separated by commas. Raises
    InventoryError for an entry that matches nothing, and if no host is left.
    """
    problems: list[str] = []
    chosen = matched(inventory, limit, "--limit", problems)
    if not limit:
        chosen = {host.name for host in inventory.hosts}
    excluded = matched(inventory, exclude, "--exclude", problems)
    chosen -= excluded
    left = tuple(host for host in inventory.hosts if host.name in chosen)
    if not left and not problems and exclude:
        problems.append(f"no host is left: --exclude {','.join(exclude)} matches all of them")
    if problems:
        raise InventoryError(problems)
    return left


def matched(inventory: Inventory, patterns: Sequence[str], option: str, problems: list[str]) -> set[str]:
    """Names of the hosts that the patterns match; patterns without a match are added to `problems`."""
    found: set[str] = set()
    known = [
        *(host.name for host in inventory.hosts),
        *(name for host in inventory.hosts for name in host.groups),
    ]
    wanted = [part.strip() for entry in patterns for part in entry.split(",")]
    if patterns and not any(wanted):
        problems.append(f"{option} is empty; name a host, a group or a glob")
    for pattern in filter(None, wanted):
        try:
            parts = names(pattern) if RANGE.search(pattern) else [pattern]
        except ValueError as error:
            problems.append(f"{option} {pattern}: {error}")
            continue
        missing = []
        for part in parts:
            hosts = {
                host.name
                for host in inventory.hosts
                if part == host.name or part in host.groups or fnmatchcase(host.name, part)
            }
            if not hosts:
                missing.append(part)
            if not hosts and len(missing) <= NAMED:
                glob = any(character in part for character in "*?[")  # a similar name would not match it
                near = [] if glob else difflib.get_close_matches(part, known, n=1)
                advice = (
                    f"; did you mean `{near[0]}`?" if near else f"; {inventory.path} has {groups(inventory)}"
                )
                problems.append(f"{option} {part}: no such host or group{advice}")
            found |= hosts
        if more := missing[NAMED:]:
            problems.append(f"{option} {pattern}: {len(more)} more of this range are no hosts")
    return found


def groups(inventory: Inventory) -> str:
    """The first five groups, or hosts where there is no group, in a sentence."""
    found = list(dict.fromkeys(name for host in inventory.hosts for name in host.groups))
    if not found:
        return (
            f"the hosts {few([host.name for host in inventory.hosts], 5)}" if inventory.hosts else "no hosts"
        )
    return f"the group{'s' if len(found) > 1 else ''} {few(found, 5)}"
