"""The cluster's part of a plan: what would become of which object, and how that is shown to a person."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from gpunode.cluster.difference import Difference

Part: TypeAlias = str | tuple[str, str]  # text, and its style

# What applying would have done → what is to be done, and its sign.
DO: Mapping[str, str] = MappingProxyType(
    {"created": "create", "changed": "change", "removed": "remove", "labelled": "label"}
)
SIGNS: Mapping[str, tuple[str, str]] = MappingProxyType({"created": ("+", "green"), "removed": ("-", "red")})
CHANGE = ("~", "yellow")
FEW = 3  # fields of one manager that are named
INDENT = " " * 17


def planned(context: str, differences: Sequence[Difference], *, diff: bool | None) -> Iterator[Part]:
    """All of it. Nodes that change alike are shown once."""
    yield from (" ", ("cluster", "bold"), f"  {context}\n" if differences else f"  {context}  ")
    if not differences:
        yield "= nothing to do\n", "dim"
        return
    alike: dict[Difference | tuple[str, ...], list[Difference]] = {}
    for one in differences:
        alike.setdefault(one.lines if one.action == "labelled" else one, []).append(one)
    kind = ""
    for these in alike.values():
        first = these[0]
        name = "nodes" if first.what.startswith("Node ") else "objects"
        yield from ("   ", (f"{name if name != kind else '':<11}", "dim"), " ")
        kind = name
        names = ", ".join([first.what, *(one.what.removeprefix("Node ") for one in these[1:])])
        yield from (SIGNS.get(first.action, CHANGE), f" {DO[first.action]} {names}\n")
        yield from _claims(first)
        if diff or first.action == "labelled" or (diff is None and first.action not in SIGNS):
            for line in first.lines:
                yield f"{INDENT}{line}\n", line_style(line)
    if diff is None and any(one.action in SIGNS for one in differences):
        yield f"{INDENT}plan --diff shows what is new or removed whole\n", "dim"


def line_style(line: str) -> str:
    """How a line of a diff looks."""
    return {"+": "green", "-": "red", "@": "cyan"}.get(line[:1], "dim")


def _claims(one: Difference) -> Iterator[Part]:
    """Who has set what since."""
    fields: dict[str, list[str]] = {}
    for claim in one.claims:
        fields.setdefault(claim.manager, []).append(claim.field)
    for manager, these in fields.items():
        more = f" and {len(these) - FEW} more" if len(these) > FEW else ""
        it = "them" if len(these) > 1 else "it"
        yield f"{INDENT}{manager} has set {', '.join(these[:FEW])}{more}; gpunode sets {it} back\n", "yellow"
