"""Hosts that differ from most of their group, and GPUs that are missing where a run knew them."""

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TypeAlias

from gpunode.engine import history
from gpunode.engine.member import Member, Members
from gpunode.engine.reporter import Reporter
from gpunode.links.machine import pci
from gpunode.model import Facts

Row: TypeAlias = tuple[str, str, str, str, str, int]
LEAST = 3  # hosts that agree, for another to differ from them


def report_differences(members: Members, inventory: str, reporter: Reporter) -> None:
    """A row for each host and value that differs from those of at least three others, most of its group; warnings all. And where a GPU
    that is missing was."""
    known: Mapping[str, tuple[str, tuple[str, ...]]] = {}
    rows = list(find_differences(members))
    expecting = [member for member in members if member.facts and member.host.gpus]
    short = {row[0] for row in rows if row[2] == "GPUs"} | {member.host.name for member in expecting}
    if short:
        known = history.known_gpus(Path(inventory), short)
    reporter.rows("difference", ("host", "group", "what", "value", "others", "hosts"), rows)
    for member in members:
        run, addresses = known.get(member.host.name, ("", ()))
        if member.facts and (gone := [address for address in addresses if address not in member.addresses]):
            reporter.note(
                f"{member.host.name}: missing are the GPUs at {', '.join(gone)}, which run {run} verified."
            )


def find_differences(members: Members) -> Iterator[Row]:
    """Host, group, what differs, its value, that of the majority, and how many hosts have that."""
    groups: dict[str, list[Member]] = {}
    for member in members:
        if member.facts:
            for group in member.host.groups or ("",):
                groups.setdefault(group, []).append(member)
    for group, alike in groups.items():
        values = {member.host.name: _values(member, member.facts) for member in alike if member.facts}
        for what in ("GPUs", "model", "driver", "link width"):
            having = {host: of[what] for host, of in values.items() if of.get(what)}
            ((common, count),) = Counter(having.values()).most_common(1) or [("", 0)]
            if count < LEAST or 2 * count <= len(having):
                continue
            yield from (
                (host, group, what, value, common, count) for host, value in having.items() if value != common
            )


def _values(member: Member, seen: Facts) -> dict[str, str]:
    """What is compared, as far as it is known. What the inventory expects is judged by that; where models differ, links may."""
    devices = pci.driven(seen.pci)
    module = seen.modules.get("nvidia")
    models = sorted({pci.gpu(device.device).name for device in devices})
    values = {"driver": (module.version or "") if module else ""}
    narrowest = min((device.width for device in devices if device.width), default=0)
    if member.host.gpus is None:
        values |= {"GPUs": str(len(devices)), "model": ", ".join(models)}
    if narrowest:
        values["link width"] = f"x{narrowest}"
    return values
