"""MicroShift's kubelet: started by its own process, from a configuration that it writes at every start; CRI-O runs its pods.

source: openshift/microshift, pkg/node/kubelet.go, assets/core/kubelet.yaml and docs/user/howto_config.md;
openshift/enhancements#1851 (apiServer.featureGates).
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from gpunode.errors import CannotPlan
from gpunode.links.kubelet import gates, start
from gpunode.model import Change, Desired, Facts, KubeletStart, Place
from gpunode.planning import files
from gpunode.planning.toml import lookup

UNIT = "microshift.service"
CONFIG = "/etc/microshift/config.yaml"
DROP_INS = "/etc/microshift/config.d/"
WRITTEN = "/var/lib/microshift/resources/kubelet/config/config.yaml"
PLACES = (Place(UNIT, WRITTEN, "", (), (), "", brings="crio"),)


def read(facts: Facts, place: Place) -> KubeletStart:
    """The kubelet's start, as MicroShift wrote it for the running one."""
    service = start.read(facts, place)
    return start.below_service(facts, service, ("kubelet",), (WRITTEN,), service.problem)


def plan(facts: Facts, desired: Desired, before: KubeletStart) -> tuple[Change, ...]:  # noqa: ARG001 - as of others
    """Nothing: MicroShift writes the file at every start. Raises CannotPlan where a gate must change."""
    if why := gates.reasons(desired, before):
        raise CannotPlan(
            f"MicroShift gives its kubelet other feature gates than it needs ({why}), and writes {WRITTEN} at every start",
            hint=f"Set them as `featureGates` below `kubelet` in {CONFIG}, restart {UNIT}, then run again.",
        )
    return ()


def set_by_user(facts: Facts, now: KubeletStart) -> KubeletStart:
    config, mistake = _config(facts)
    own = start.config_gates(lookup(config, ("kubelet",)))
    where, both = f"`kubelet` of {CONFIG}", {**own, **start.flag_gates(now.argv[1:])}
    return replace(now, config_gates=own, gates=both, config_path=where, problem=now.problem or mistake)


def components(facts: Facts, now: KubeletStart) -> start.Components:  # noqa: ARG001 - as of others
    custom = lookup(_config(facts)[0], ("apiServer", "featureGates", "customNoUpgrade"))
    states = [
        f"{name}={key == 'enabled'}"
        for key in ("enabled", "disabled")
        if isinstance(custom.get(key), list)
        for name in custom[key]
    ]
    yield CONFIG, ("kube-apiserver", f"--feature-gates={','.join(states)}")


def _config(facts: Facts) -> tuple[Mapping[str, Any], str | None]:
    """Its configuration, drop-ins over it, and the first mistake."""
    paths = (CONFIG, *(path for path in files.below(facts, DROP_INS)))
    return start.read_config((path, files.text(facts, path) or "") for path in paths)
