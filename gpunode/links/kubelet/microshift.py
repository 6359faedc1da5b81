"""MicroShift's kubelet: started by its own process, from a configuration that it writes at every start; CRI-O runs its pods.

source: openshift/microshift, pkg/node/kubelet.go, assets/core/kubelet.yaml and docs/user/howto_config.md.
"""

from __future__ import annotations

from gpunode.errors import CannotPlan
from gpunode.links.kubelet import start
from gpunode.model import Change, Desired, Facts, KubeletStart, Place

UNIT = "microshift.service"
CONFIG = "/etc/microshift/config.yaml"
WRITTEN = "/var/lib/microshift/resources/kubelet/config/config.yaml"
PLACES = (Place(UNIT, WRITTEN, "", (), (), "", brings="crio"),)


def read(facts: Facts, place: Place) -> KubeletStart:
    """The kubelet's start, as MicroShift wrote it for the running one."""
    service = start.read(facts, place)
    return start.below(facts, service, ("kubelet",), (WRITTEN,), service.problem)


def plan(facts: Facts, desired: Desired, before: KubeletStart) -> tuple[Change, ...]:  # noqa: ARG001 - as of others
    """Nothing: MicroShift writes the file at every start. Raises CannotPlan where a gate must change."""
    wrong = [name for name, state in desired.gates.items() if before.gates.get(name) != state]
    if not wrong:
        return ()
    why = "; ".join(f"{name}: {desired.gate_reasons.get(name, 'as wished')}" for name in wrong)
    raise CannotPlan(
        f"MicroShift gives its kubelet other feature gates than it needs ({why}), and writes {WRITTEN} at every start",
        hint=f"Set them as `featureGates` below `kubelet` in {CONFIG}, restart {UNIT}, then run again.",
    )
