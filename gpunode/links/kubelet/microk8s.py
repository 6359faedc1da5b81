"""MicroK8s' kubelets: a file of arguments that kubelite reads at its start."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from gpunode.errors import CannotPlan
from gpunode.links.kubelet import config, start
from gpunode.links.kubelet import gates as merge
from gpunode.links.kubelet import microk8s_settings as microk8s
from gpunode.links.kubelet.comparison import differ_only_in
from gpunode.model import Change, Desired, Facts, File, KubeletStart, Place, Service, WriteFile
from gpunode.planning import files, services

PLACES = (Place(microk8s.UNIT, microk8s.KUBELET, "", (), (), "", brings="microk8s"),)
WATCH = (microk8s.KUBELITE, f"{microk8s.ARGS}kubelet*")


def read(facts: Facts, place: Place) -> KubeletStart:
    """The kubelet's start, below kubelite."""
    service = start.read(facts, place)
    file = facts.files.get(place.config)
    problem = service.problem
    if file is None or file.content is None:
        problem = f"{place.config}: {file.error if file and file.error else 'is not there'}"
    words = ("kubelet", *microk8s.arguments(file.content or "" if file else ""))
    return start.below(facts, service, words, config.files(facts, words, ""), problem)


def plan(facts: Facts, desired: Desired, before: KubeletStart) -> tuple[Change, ...]:
    """Write the desired gates where they are set, else on a line of their own; restart kubelite while that is newer."""
    written = tuple(_files(facts, desired, before))
    unit = before.place.unit
    if not services.is_active(facts, unit):
        why = "it is not running"
    elif written:
        why = "it reads its gates at its start"
    else:
        newer = [
            path for path in (before.place.config, *before.config_files) if files.newer(facts, path, unit)
        ]
        if not newer or not desired.gates:
            return ()
        why = f"{newer[0]} is newer than the running one"
    note = "pods keep running" + (
        "; the API server of this node starts again with it" if microk8s.is_server(facts) else ""
    )
    guards = tuple(change.path for change in written)
    return (
        *written,
        Service(unit, why, restart=True, guards=guards, note=note, fault="" if written else None),
    )


def _files(facts: Facts, desired: Desired, before: KubeletStart) -> Iterator[WriteFile]:
    gates, path = desired.gates, before.place.config
    texts = {path: merge.kubelet_args(files.text(facts, path) or "", gates)}
    texts |= {path: merge.config_gates(files.text(facts, path) or "", gates) for path in before.config_files}
    absent = {name: state for name, state in gates.items() if state is not None and name not in before.gates}
    if absent:
        texts[path] = _added(texts[path], absent)
    after = {name: File(name, bool(text), content=text) for name, text in texts.items()}
    if not differ_only_in(before, read(replace(facts, files={**facts.files, **after}), before.place), gates):
        raise CannotPlan(
            f"{path}: the feature gates cannot be changed here without changing other arguments",
            hint="Write them as --feature-gates=NAME=true,OTHER=false on one line of their own, then run again. "
            "Nothing was touched.",
        )
    changed = [name for name, state in gates.items() if before.gates.get(name) != state]
    why = "; ".join(f"{name}: {desired.gate_reasons.get(name, 'as wished')}" for name in changed)
    for name, text in texts.items():
        yield from files.write(facts, name, text, why or "gates that are not wished")


def _added(text: str, gates: merge.Gates) -> str:
    """The arguments with these gates in the flag that is there, else in one of their own."""
    end = "" if not text or text.endswith("\n") else "\n"
    return next(merge.into_flags(text, gates), f"{text}{end}--feature-gates={merge.written(gates)}\n")
