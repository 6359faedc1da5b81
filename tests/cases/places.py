"""Hosts whose kubelets are started in many ways: their files, and the plan that sets or takes out gates."""

import difflib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from gpunode.links.kubelet import decide as node
from gpunode.links.kubelet import places as kubelets
from gpunode.links.kubelet import plan as step
from gpunode.model import Change, Desired, Facts, File, Kubelet, WriteFile
from tests import cases

FOLDERS = ("/etc/systemd/system/", "/usr/lib/systemd/system/", "/lib/systemd/system/")


def seen(case: Mapping[str, Any], texts: Mapping[str, str] | None = None) -> Facts:
    """The facts of a case's host, whose kubelet runs as its files say; with other texts of its files where given."""
    texts = texts or case["files"]
    absent = (*kubelets.watch().files[:4], *(name for name in kubelets.watch().files if "*" not in name))
    files = {path: File(path, exists=False) for path in absent}
    files |= {path: File(path, True, mtime=cases.NOW - 5000, content=text) for path, text in texts.items()}
    base = cases.facts("modern")
    kubelet = Kubelet(case["version"], (), unit_text(texts))
    facts = replace(base, files=files, kubelet=kubelet, units={**base.units, **_units()})
    words = kubelets.read(facts).argv
    return replace(facts, kubelet=replace(kubelet, arguments=words))


def _units() -> dict[str, Any]:
    unit = kubelets.KUBEADM.unit
    return {unit: cases.build({**cases._SHORT, "units": {unit: "active"}}).units[unit]}


def unit_text(texts: Mapping[str, str]) -> str:
    """What `systemctl cat` writes: the unit and its drop-ins, of each the one that systemd takes."""
    files: dict[str, str] = {}
    for folder in FOLDERS:
        for path in texts:
            if path.startswith(f"{folder}kubelet.service"):
                files.setdefault(path.removeprefix(folder), path)
    order = sorted(files, key=lambda name: name.rpartition("/")[2] if "/" in name else "")
    return "\n".join(f"# {files[name]}\n{texts[files[name]]}" for name in order)


def plan(case: Mapping[str, Any], facts: Facts) -> tuple[Change, ...]:
    """The kubelet's part of a plan; refused as a run refuses it."""
    host = cases.host("modern", {"feature_gates": case.get("gates", {})})
    _, start, gates, reasons = node.decide(host, facts)
    return step.plan(facts, Desired("containerd", "default", gates, reasons, kubelet=start))


def written(case: Mapping[str, Any], changes: tuple[Change, ...]) -> dict[str, str]:
    """The texts of the host's files after these changes."""
    texts = dict(case["files"])
    for change in changes:
        if isinstance(change, WriteFile):
            assert texts.get(change.path) == change.before
            texts[change.path] = change.content
    return texts


def lines(changes: tuple[Change, ...]) -> dict[str, list[str]]:
    """The lines that each file loses and gets."""
    texts = {}
    for change in changes:
        if isinstance(change, WriteFile):
            before, after = ((text or "").split("\n") for text in (change.before, change.content))
            diff = difflib.ndiff(before, after)
            texts[change.path] = [line for line in diff if line[0] in "+-" and line != "+ "]
    return texts
