"""k0s' kubelets: arguments that the node's service was installed with (docs.k0sproject.io, worker-node-config)."""

from __future__ import annotations

import shlex

from gpunode.errors import CannotPlan
from gpunode.links.kubelet import arguments, start
from gpunode.model import Change, Desired, Facts, KubeletStart, Place

ARGS = "kubelet-extra-args"
UNITS = ("k0sworker.service", "k0scontroller.service")
PLACES = tuple(Place(unit, "/etc/k0s/k0s.yaml", "", (), (), "", brings="k0s") for unit in UNITS)


def read(facts: Facts, place: Place) -> KubeletStart:
    """The kubelet's start, below the node's service. Its profile, which the cluster keeps, is not known here."""
    service = start.read(facts, place)
    problem, words = service.problem, ["kubelet"]
    for value in arguments.flags(service.words, ARGS):
        try:
            words += shlex.split(value)
        except ValueError as error:
            problem = f"{place.unit}: --{ARGS}: {error}"
    return start.below(facts, service, words, (), problem)


def plan(facts: Facts, desired: Desired, before: KubeletStart) -> tuple[Change, ...]:  # noqa: ARG001 - as of others
    """Nothing: k0s' own installer writes these arguments. Raises CannotPlan where a gate must change."""
    wrong = [name for name, state in desired.gates.items() if before.gates.get(name) != state]
    if not wrong:
        return ()
    why = "; ".join(f"{name}: {desired.gate_reasons.get(name, 'as wished')}" for name in wrong)
    raise CannotPlan(
        f"{before.place.unit} gives its kubelet other feature gates than it needs ({why})",
        hint=f"Install the service again with them: `k0s install --force worker … --{ARGS}=…` (or controller), or set them in "
        "a worker profile; then run again.",
    )
