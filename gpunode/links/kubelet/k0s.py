"""k0s' kubelets: arguments that the node's service was installed with (docs.k0sproject.io, worker-node-config), and what its
k0s.yaml sets (docs.k0sproject.io: extraArgs, featureGates, workerProfiles)."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from gpunode.errors import CannotPlan
from gpunode.links.kubelet import gates, registration, start
from gpunode.links.kubelet.start import flag
from gpunode.model import Change, Desired, Facts, KubeletStart, Place
from gpunode.planning import files
from gpunode.planning.toml import lookup

ARGS = "kubelet-extra-args"
UNITS = ("k0sworker.service", "k0scontroller.service")
CONFIG = "/etc/k0s/k0s.yaml"
TAINTED = (
    "A node of k0s registers with a taint only by the arguments of its installation: "
    f"`k0s install worker --taints={registration.TAINT} …`, before it joins."
)
PLACES = tuple(Place(unit, CONFIG, "", (), (), "", brings="k0s") for unit in UNITS)
# By component, its key in the configuration's `spec`.
KEYS = {
    "kube-apiserver": "api",
    "kube-controller-manager": "controllerManager",
    "kube-scheduler": "scheduler",
}


def read(facts: Facts, place: Place) -> KubeletStart:
    """The kubelet's start, below the node's service. Its profile, which the cluster keeps, is not known here."""
    service = start.read(facts, place)
    problem, argv = service.problem, ["kubelet"]
    for value in start.flags(service.argv, ARGS):
        try:
            argv += shlex.split(value)
        except ValueError as error:
            problem = f"{place.unit}: --{ARGS}: {error}"
    return start.below_service(facts, service, argv, (), problem)


def plan(facts: Facts, desired: Desired, before: KubeletStart) -> tuple[Change, ...]:  # noqa: ARG001 - as of others
    """Nothing: k0s' own installer writes these arguments. Raises CannotPlan where a gate must change."""
    if why := gates.reasons(desired, before):
        raise CannotPlan(
            f"{before.place.unit} gives its kubelet other feature gates than it needs ({why})",
            hint=f"Install the service again with them: `k0s install --force worker … --{ARGS}=…` (or controller), or set them in "
            "a worker profile; then run again.",
        )
    return ()


def set_by_user(facts: Facts, now: KubeletStart) -> KubeletStart:  # noqa: ARG001 - as of others
    return replace(now, config_path="its worker profile")


def components(facts: Facts, now: KubeletStart) -> start.Components:
    """The commands of the control plane, of kubelets, and of its worker profiles."""
    argv = start.read(facts, now.place).argv
    path, spec = _file(argv), _spec(facts, argv)
    for name in (*KEYS, "kubelet"):
        extra = lookup(spec, (KEYS.get(name, ""), "extraArgs"))
        states = [
            f"{gate.get('name')}={gate.get('enabled')}"
            for gate in _mappings(spec.get("featureGates"))
            if name in (_list(gate.get("components")) or (name,))
        ]
        flags = (f"--{key}={value}" for key, value in extra.items())
        yield path, (name, *flags, f"--feature-gates={','.join(states)}")
    for profile in _profiles(spec):
        states = [f"{key}={state}" for key, state in start.config_gates(lookup(profile, ("values",))).items()]
        yield path, ("kubelet", f"--feature-gates={','.join(states)}")


def unknown_profile(facts: Facts, now: KubeletStart) -> str:
    """The kubelet's worker profile that the cluster keeps, so that it is not known here; "" for none, and where it is no k0s."""
    if now.place not in PLACES:
        return ""
    argv = start.read(facts, now.place).argv
    name = flag(argv, "profile") or ""
    return "" if name in {str(profile.get("name")) for profile in _profiles(_spec(facts, argv))} else name


def unread_file(facts: Facts, now: KubeletStart) -> str:
    """The configuration that no probe reads, as one behind `-c`; "" for none, and where it is no k0s."""
    path = _file(start.read(facts, now.place).argv) if now.place in PLACES else CONFIG
    return "" if path in (*facts.files, CONFIG) else path


def _file(argv: Sequence[str]) -> str:
    return flag(argv, "config") or flag(argv, "c") or CONFIG


def _spec(facts: Facts, argv: Sequence[str]) -> Mapping[str, Any]:
    path = _file(argv)
    return lookup(start.read_config([(path, files.text(facts, path) or "")])[0], ("spec",))


def _profiles(spec: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return _mappings(spec.get("workerProfiles"))


def _mappings(data: Any) -> list[Mapping[str, Any]]:
    return [item for item in _list(data) if isinstance(item, Mapping)]


def _list(data: Any) -> list[Any]:
    return data if isinstance(data, list) else []
