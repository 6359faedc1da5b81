"""Who wrote a file of a host last, or a field of the cluster's objects, by the traces that tools leave. Pure.

Certain are gpunode's record (the digest of what it wrote) and a package's digest of its file. Then come marks in the text and the
path, of tools that write the file again at their next run. What no tool has left a mark in, an administrator has edited.
"""

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from gpunode.model import Change, Facts, File, Packages, RemoveFile, Trace, WriteFile
from gpunode.planning.tables import table
from gpunode.wording import few

Code = Literal[
    "gpunode", "package", "gpu-operator", "nvidia-ctk", "rancher", "template", "k0s", "aks", "eks", "gke", "cloud-init",
    "kubespray", "management", "kubeadm", "nvidia-installer", "nfd", "helm", "gitops", "kubelet", "administrator", "unknown",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Writer:
    """Who wrote something last, and the sign that shows it, for people."""

    code: Code
    name: str
    sign: str


TABLE = "writers.yaml"
OWN = re.compile(r"(?m)^# Written by gpunode\b")  # of the templates of whole files


def of_manager(manager: str) -> Writer | None:
    """Whose field manager this is; None where it is not known."""
    for row in table(__package__, TABLE)["managers"]:
        if re.match(row["pattern"], manager):
            return Writer(row["code"], row["name"], f"field manager {manager}")
    return None


def of_file(facts: Facts, path: str) -> Writer | None:
    """Who wrote the file last; None where it does not exist, or nothing was read of it that tells."""
    file, trace = facts.files.get(path), facts.traces.get(path)
    if file is None or not file.exists:
        return None
    if trace is not None and trace.wrote and trace.wrote == file.sha256:
        return Writer("gpunode", "gpunode", f"its record of the run {trace.run}")
    if trace is not None and trace.packaged:
        return Writer("package", f"the package {trace.package}", "unchanged since its installation")
    text = file.content or ""
    for mark in table(__package__, TABLE)["marks"]:
        at = re.search(mark.get("path", ""), path)
        inside = at and re.search(mark.get("text", ""), text, re.MULTILINE)
        if at and inside:
            groups = inside.groups() or at.groups()
            return Writer(mark["code"], mark["name"].format(*groups), mark["sign"].format(*groups))
    if OWN.search(text) and (trace is None or not trace.wrote):
        return Writer("gpunode", "gpunode", "its header")
    return _administrator(file, trace) if trace is not None else None


def _administrator(file: File, trace: Trace) -> Writer:
    signs = ["no tool's mark in it"]
    signs += [f"not as the package {trace.package} installed it"] if trace.package else []
    signs += [time.strftime("changed %Y-%m-%d", time.gmtime(file.mtime))] if file.mtime else []
    signs += [f"owned by uid {trace.uid}"] if trace.uid else []
    return Writer("administrator", "an administrator or an unknown tool", ", ".join(signs))


def of_change(facts: Facts | None, change: Change) -> Writer | None:
    """Who wrote last what the change replaces or removes, removed what it writes again, or held a package that it changes."""
    if facts is None:
        return None
    if isinstance(change, Packages):
        return _of_hold(facts, [*(spec.name for spec in change.install), *change.remove])
    if not isinstance(change, WriteFile | RemoveFile):
        return None
    if change.before is None:
        return REMOVER if overwritten(facts, change) else None
    return of_file(facts, change.path)


def _of_hold(facts: Facts, names: Sequence[str]) -> Writer | None:
    """No package system notes who held a package: it is whose gpunode's record has no hold of it. Before journals had holds, and
    where nothing was read, None."""
    held = [name for name in names if name in facts.packages and facts.packages[name].held]
    others = [name for name in held if name not in facts.holds]
    if not others:
        return Writer("gpunode", "gpunode", "its record on the host") if held else None
    if not facts.holds and (not facts.traces or any(trace.run for trace in facts.traces.values())):
        return None
    return Writer("administrator", "an administrator", f"gpunode's record has no hold of {few(others, 3)}")


REMOVER = Writer("unknown", "another program or user", "gpunode's record has it, and it is gone")


def overwritten(facts: Facts, change: Change) -> int:
    """How often the file of this change was written by gpunode and by another since."""
    path = change.path if isinstance(change, WriteFile | RemoveFile) else ""
    return facts.traces[path].undone if path in facts.traces else 0


def sentence(facts: Facts | None, change: Change) -> str:
    """For a plan: `last written by NAME (SIGN)` where the change sets back what a tool wrote, or what anybody wrote over gpunode's
    text, then with what to do about it; `held by …` of a package that another held; "" else."""
    writer = of_change(facts, change)
    if facts is None or writer is None or writer.code in ("gpunode", "package"):
        return ""
    if isinstance(change, Packages):
        return f"held by {writer.name} ({writer.sign})"
    times = overwritten(facts, change)
    if not times:
        return "" if writer.code == "administrator" else describe(writer)
    often = "once" if times == 1 else f"{times} times"
    text = f"{describe(writer)}; changed {often} after gpunode wrote it"
    if times == 1 and writer.code in ("administrator", "unknown"):
        return text  # a tool does it again, a person perhaps not
    path = getattr(change, "path", "")
    rows = table(__package__, TABLE)
    release = rows["releases"].get(writer.code, "remove the file from that tool")
    setting = next(way for pattern, way in rows["settings"].items() if re.search(pattern, path))
    return f"{text}. To end that, {release}, or {setting}: gpunode then leaves the file alone"


def cause(facts: Facts | None, change: Change) -> str:
    """For a verdict: who wrote last what the change replaces; "" where that is gpunode, or nothing tells."""
    writer = of_change(facts, change)
    return "" if writer is None or writer.code == "gpunode" else sentence(facts, change) or describe(writer)


def describe(writer: Writer) -> str:
    did = "removed" if writer is REMOVER else "last written"
    return f"{did} by {writer.name} ({writer.sign})"


def name_manager(manager: str) -> str:
    """`nfd-master (node feature discovery)`; the manager alone where its name says it, or is not known."""
    writer = of_manager(manager)
    return f"{manager} ({writer.name})" if writer and writer.code != "administrator" else manager
