"""Changes of the cluster, as lines of styled text. Pure."""

import difflib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from gpunode.cluster.objects.difference import DO, Difference
from gpunode.inventory.starter import ranges
from gpunode.links.node import GPU_LABEL
from gpunode.planning import writers
from gpunode.report.plain import CHANGE, INDENT, Part, line_style
from gpunode.wording import few

SIGNS: Mapping[str, tuple[str, str]] = {"created": ("+", "green"), "removed": ("-", "red")}
# What an object of the device plugin is for, by its kind; of the second DaemonSet by its name.
PURPOSE: Mapping[str, str] = {
    "Namespace": "for the device plugin and test pods",
    "ServiceAccount": "the device plugin's pods run as it",
    "Role": "events about nodes are in this namespace; the device plugin writes some",
    "RoleBinding": "gives the device plugin this role",
    "ClusterRole": "the device plugin publishes its GPUs on its node",
    "ClusterRoleBinding": "gives the device plugin this role",
    "ValidatingAdmissionPolicy": "a plugin may write to its own node only",
    "ValidatingAdmissionPolicyBinding": "puts this policy in force",
    "ConfigMap": "the device plugin's configuration",
    "RuntimeClass": "leads pods to NVIDIA's runtime where it is not the default",
    "DaemonSet": "runs the device plugin where NVIDIA's runtime is the default",
    "gpunode-device-plugin-class": "runs the device plugin where only RuntimeClass nvidia leads to NVIDIA's runtime",
    "Node": "the device plugin runs on nodes with gpunode.dev/gpu",
}
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
        yield from _change(name, _beside(like, sample), what, whole=whole, why=bool(diff))
        name = ""
    alike: dict[tuple[str, ...], list[Difference]] = {}
    for difference in differences:
        if difference.action == "labelled":
            alike.setdefault(difference.lines, []).append(difference)
    name = "nodes"
    for same in alike.values():
        what = f"Node {', '.join(ranges([each.title.name for each in same]))}"
        yield from _change(name, same[0], what, whole=True, why=bool(diff))
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


def _change(
    name: str, difference: Difference, what: str, *, whole: bool, why: bool = False
) -> Iterator[Part]:
    yield from (
        "   ",
        (f"{name:<11}", "dim"),
        " ",
        SIGNS.get(difference.action, CHANGE),
        f" {DO[difference.action]} {what}\n",
    )
    if why and (purpose := _purpose(difference)):
        yield from (INDENT, (f"{purpose}\n", "dim"))
    yield from _claims(difference)
    for line in difference.lines if whole else ():
        yield from (INDENT, (f"{line}\n", line_style(line)))


def _purpose(difference: Difference) -> str:
    """What the object is for; "" for one that is not the device plugin's."""
    title = difference.title
    if difference.action == "labelled":
        return PURPOSE["Node"] if any(GPU_LABEL in line for line in difference.lines) else ""
    own = title.name.startswith("gpunode-device-plugin") or title.kind in ("Namespace", "RuntimeClass")
    purpose = PURPOSE.get(title.name, PURPOSE.get(title.kind, ""))
    return purpose if own and difference.action in ("created", "changed") else ""


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
