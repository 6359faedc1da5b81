"""The cluster's part of a plan, as text for users."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

from gpunode.report.plain import Part
from gpunode.wording import few

if TYPE_CHECKING:
    from gpunode.cluster.objects.difference import Difference

# The action of a Difference → the verb in the plan, and its sign.
DO: Mapping[str, str] = MappingProxyType(
    {
        "created": "create",
        "changed": "change",
        "removed": "remove",
        "labelled": "label",
        "replaced": "replace",
    }
)
SIGNS: Mapping[str, tuple[str, str]] = MappingProxyType({"created": ("+", "green"), "removed": ("-", "red")})
CHANGE = ("~", "yellow")
FEW = 3  # fields shown per manager
PODS = 10
OUTDATED = "a container keeps the driver and the runtime that it was started with"
INDENT = " " * 17


def planned(context: str, differences: Sequence[Difference], *, diff: bool | None) -> Iterator[Part]:
    """The lines of all changes. Nodes with the same change share one entry."""
    yield from (" ", ("cluster", "bold"), f"  {context}\n" if differences else f"  {context}  ")
    if not differences:
        yield "= up to date\n", "dim"
    name = "objects"
    for same in _alike(differences):
        one = same[0]
        what = " and ".join(other.what for other in same)
        yield from _change(name, one, what, whole=diff or (diff is None and not _by_name(one)))
        name = ""
    if diff is None and any(map(_by_name, differences)):
        yield f"{INDENT}plan --diff shows new and removed objects in full\n", "dim"
    alike: dict[tuple[str, ...], list[Difference]] = {}
    for one in differences:
        if one.action == "labelled":
            alike.setdefault(one.lines, []).append(one)
    name = "nodes"
    for first, *more in alike.values():
        what = ", ".join([first.what, *(one.what.removeprefix("Node ") for one in more)])
        yield from _change(name, first, what, whole=True)
        name = ""
    pods = [one for one in differences if one.action == "replaced"]
    if pods:
        names = few([f"{one.what.removeprefix('Pod ')} on {one.node}" for one in pods], PODS)
        yield from _change("pods", pods[0], names, whole=False)
        yield f"{INDENT}{OUTDATED}\n", "dim"


def _by_name(one: Difference) -> bool:
    """Whether only its name is shown where no diff is asked for: it is new or removed, and no setting of the user's."""
    return one.action in SIGNS and not (one.action == "created" and one.what.startswith("ConfigMap "))


def _alike(differences: Sequence[Difference]) -> list[list[Difference]]:
    """Objects, those together that change alike: the plugin's two DaemonSets have one diff, at other line numbers."""
    found: dict[tuple[object, ...], list[Difference]] = {}
    for one in differences:
        if one.action not in ("labelled", "replaced"):
            lines = tuple("@@" if line.startswith("@@") else line for line in one.lines)
            alike = (lines, one.claims) if one.action == "changed" else one.what
            found.setdefault((alike,), []).append(one)
    return list(found.values())


def _change(name: str, one: Difference, what: str, *, whole: bool) -> Iterator[Part]:
    yield from (
        "   ",
        (f"{name:<11}", "dim"),
        " ",
        SIGNS.get(one.action, CHANGE),
        f" {DO[one.action]} {what}\n",
    )
    yield from _claims(one)
    for line in one.lines if whole else ():
        yield f"{INDENT}{line}\n", line_style(line)


def line_style(line: str) -> str:
    """The style of a diff line."""
    return {"+": "green", "-": "red", "@": "cyan"}.get(line[:1], "dim")


def _claims(one: Difference) -> Iterator[Part]:
    """Fields that other managers set since, and that gpunode sets back."""
    fields: dict[str, list[str]] = {}
    for claim in one.claims:
        fields.setdefault(claim.manager or "another client", []).append(claim.field)
    for manager, these in fields.items():
        it = "them" if len(these) > 1 else "it"
        yield f"{INDENT}{manager} has set {few(these, FEW)}; gpunode sets {it} back\n", "yellow"
