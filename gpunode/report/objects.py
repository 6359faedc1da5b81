"""Changes of the cluster, as lines of styled text. Pure."""

import difflib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from gpunode.cluster.objects.difference import Difference
from gpunode.planning import writers
from gpunode.report.plain import CHANGE, INDENT, Part, line_style
from gpunode.wording import few

# The action of a Difference → the verb in the plan, and its sign.
DO: Mapping[str, str] = {
    "created": "create",
    "changed": "change",
    "removed": "remove",
    "labelled": "label",
    "replaced": "replace",
}
SIGNS: Mapping[str, tuple[str, str]] = {"created": ("+", "green"), "removed": ("-", "red")}
LINES = 12  # of a diff; a longer one is shown where it is asked for
FEW = 3  # fields shown per manager
PODS = 10
OUTDATED = "Only a new pod of the plugin uses the new driver and runtime"


def cluster_lines(context: str, differences: Sequence[Difference], *, diff: bool | None) -> Iterator[Part]:
    """The lines of all changes. Nodes with the same change share one entry."""
    yield from (" ", ("cluster", "bold"), f"  {context}\n" if differences else f"  {context}  ")
    if not differences:
        yield "= up to date\n", "dim"
    name = "objects"
    known: dict[tuple[str, str], Difference] = {}
    for same in _group_alike(differences):
        sample = same[0]
        what = " and ".join(other.what for other in same)
        whole = diff or (diff is None and not is_folded(sample))
        like = known.setdefault((sample.action, sample.title.kind), sample)
        yield from _change(name, _beside(like, sample), what, whole=whole)
        name = ""
    alike: dict[tuple[str, ...], list[Difference]] = {}
    for difference in differences:
        if difference.action == "labelled":
            alike.setdefault(difference.lines, []).append(difference)
    name = "nodes"
    for first, *more in alike.values():
        what = ", ".join([first.what, *(other.title.name for other in more)])
        yield from _change(name, first, what, whole=True)
        name = ""
    pods = [difference for difference in differences if difference.action == "replaced"]
    if pods:
        names = few([f"{pod.title.namespace}/{pod.title.name} on {pod.node}" for pod in pods], PODS)
        yield from _change("pods", pods[0], names, whole=False)
        yield from (INDENT, (f"{OUTDATED}\n", "dim"))


def is_folded(difference: Difference) -> bool:
    """True if only its name is shown without --diff: it is new, removed or long, and no setting of the user's."""
    if difference.action in ("created", "changed") and difference.title.kind == "ConfigMap":
        return False
    return difference.action in SIGNS or (difference.action == "changed" and len(difference.lines) > LINES)


def _group_alike(differences: Sequence[Difference]) -> list[list[Difference]]:
    """Objects grouped by equal changes: the plugin's two DaemonSets have one diff, at other line numbers."""
    groups: dict[tuple[object, ...], list[Difference]] = {}
    for difference in differences:
        if difference.action not in ("labelled", "replaced"):
            lines = tuple("@@" if line.startswith("@@") else line for line in difference.lines)
            alike = (lines, difference.claims) if difference.action == "changed" else difference.what
            groups.setdefault((alike,), []).append(difference)
    return list(groups.values())


def _beside(other: Difference, difference: Difference) -> Difference:
    """A new or removed object by what differs from another one, where that is less than half of it: of the plugin's two DaemonSets."""
    if difference is other or difference.action not in SIGNS:
        return difference
    before, after = ([line[1:] for line in each.lines] for each in (other, difference))
    differs = list(difflib.unified_diff(before, after, n=1, lineterm=""))[2:]
    if 2 * len(differs) >= len(difference.lines):
        return difference
    return replace(difference, lines=(f"the same as {other.what} but for:", *differs))


def _change(name: str, difference: Difference, what: str, *, whole: bool) -> Iterator[Part]:
    yield from (
        "   ",
        (f"{name:<11}", "dim"),
        " ",
        SIGNS.get(difference.action, CHANGE),
        f" {DO[difference.action]} {what}\n",
    )
    yield from _claims(difference)
    for line in difference.lines if whole else ():
        yield from (INDENT, (f"{line}\n", line_style(line)))


def _claims(difference: Difference) -> Iterator[Part]:
    """Fields that other managers have set since, and that gpunode sets back."""
    fields: dict[str, list[str]] = {}
    for claim in difference.claims:
        fields.setdefault(claim.manager or "another client", []).append(claim.field)
    for manager, these in fields.items():
        pronoun = "them" if len(these) > 1 else "it"
        who = writers.name_manager(manager)
        text = f"{who} has set {few(these, FEW)}; gpunode sets {pronoun} back\n"
        yield from (INDENT, (text, "yellow"))
