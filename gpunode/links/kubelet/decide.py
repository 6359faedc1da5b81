"""The decision about a host's kubelet: its minor version and its feature gates."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from gpunode.errors import CannotPlan
from gpunode.links.kubelet import contradictions, k0s, minors, places
from gpunode.links.kubelet.start import assigned_config, flag, minor_of
from gpunode.model import Facts, Host, KubeletStart
from gpunode.planning import services


class KubeletSpec(NamedTuple):
    """How the kubelet starts now, and its feature gates: to set, or (None) to remove; those that need no change are left out."""

    minor: int
    start: KubeletStart
    gates: Mapping[str, bool | None]
    reasons: Mapping[str, str]


def decide(host: Host, facts: Facts) -> KubeletSpec:
    """The kubelet's desired state. Raises CannotPlan without a kubelet, or where it would not start again."""
    minor = minor_of(facts)
    if minor is None:
        raise CannotPlan(
            "no kubelet on this host"
            if facts.kubelet is None
            else f"kubelet version {facts.kubelet.version!r} is not understood",
            hint="gpunode does not install Kubernetes: make the host a node first (kubeadm join), then run again.",
        )
    start = places.read(facts)
    if start.problem is not None:
        raise CannotPlan(
            start.problem,
            hint="Fix the file (the kubelet reads it too), then run again; it was not touched.",
        )
    if refuses_cgroup(facts, minor, start):
        version = "v1 (hybrid)" if facts.cgroup == "hybrid" else facts.cgroup
        raise CannotPlan(
            f"Kubernetes 1.{minor} needs cgroup v2 and this host runs {version}: "
            "its kubelet does not start again",
            hint="Boot with systemd.unified_cgroup_hierarchy=1, or set `failCgroupV1: false` in "
            f"{start.config_path}.",
        )
    gates, reasons = _gates(host, minor, start)
    _check_gates(facts, minor, start, gates)
    return KubeletSpec(minor, start, gates, reasons)


def refuses_cgroup(facts: Facts, minor: int, start: KubeletStart) -> bool:
    """Whether a kubelet of this minor, started like this, does not start on the host's cgroup v1."""
    if facts.cgroup == "v2" or not minors.fails_on_cgroup_v1(minor):
        return False
    allowed = flag(start.words[1:], "fail-cgroupv1") == "false"
    return not allowed and start.config.get("failCgroupV1") is not False


def _gates(
    host: Host, minor: int, start: KubeletStart
) -> tuple[Mapping[str, bool | None], Mapping[str, str]]:
    """Feature gates to set or (None) to remove, and why; gates that need no change are not in it."""
    wished: dict[str, bool | None] = {}
    reasons: dict[str, str] = {}
    for name, state in host.feature_gates.items():
        _check_wish(name, state, minor)
        wished[name], reasons[name] = state, "the inventory asks for it"
    for name, gate in minors.gates().items():
        if name in wished:
            continue
        if gate.is_gone(minor):
            wished[name] = None
            reasons[name] = f"gone since 1.{gate.gone}: a kubelet 1.{minor} with it does not start"
        elif start.gates.get(name) is False and gate.is_locked(minor):
            wished[name] = None
            reasons[name] = (
                f"locked to true since 1.{gate.locked}: a kubelet 1.{minor} does not start with false"
            )
        elif name in minors.needed_gates():
            if not gate.is_default(minor):
                wished[name], reasons[name] = True, minors.needed_gates()[name]
            elif start.gates.get(name) is False:
                wished[name] = None
                reasons[name] = "set to false it keeps device plugins, and so all GPUs, away from pods"
    return wished, reasons


def _check_gates(facts: Facts, minor: int, start: KubeletStart, gates: Mapping[str, bool | None]) -> None:
    """Refuse to set gates of a kubelet whose configuration is an object of the API."""
    path = assigned_config(facts, start.words[1:], minor)
    wrong = [name for name, state in gates.items() if start.gates.get(name) != state]
    if path and wrong:
        raise CannotPlan(
            f"this kubelet takes its configuration from the API ({path} names the ConfigMap), and {', '.join(wrong)} must "
            f"change: what gpunode writes into {start.config_path} would not count",
            hint="Set it in `featureGates` of that ConfigMap's kubelet configuration; or go back to files: `kubectl patch node "
            'NODE --type=merge -p \'{"spec":{"configSource":null}}\'`. Kubernetes 1.24 has only files.',
        )


def _check_wish(name: str, state: bool, minor: int) -> None:
    gate = minors.gates().get(name)
    if gate is None:
        return
    cause = None
    if gate.is_gone(minor):
        cause = f"it is gone since 1.{gate.gone}, and a kubelet 1.{minor} with it does not start"
    elif minor < gate.alpha:
        cause = f"it came with 1.{gate.alpha}, and a kubelet 1.{minor} with it does not start"
    elif not state and gate.is_locked(minor):
        cause = (
            f"it is locked to true since 1.{gate.locked}, and a kubelet 1.{minor} with false does not start"
        )
    if cause:
        raise CannotPlan(
            f"`kubelet.feature_gates.{name}: {str(state).lower()}`: {cause}",
            hint=f"Take {name} out of the inventory for this host.",
        )


def notes(facts: Facts, minor: int, start: KubeletStart) -> tuple[str, ...]:
    """Notes for the user about this kubelet."""
    notes = tuple(f"{words.rstrip()}." for mark, words in minors.managed().items() if _is_there(facts, mark))
    notes += contradictions.find(facts, start)
    if path := assigned_config(facts, start.words[1:], minor):
        notes += (
            f"This kubelet takes its configuration from the API ({path}): {start.config_path} does not count. gpunode "
            "changes neither.",
        )
    if profile := k0s.unknown_profile(facts, start):
        notes += (
            f"The worker profile {profile} of this kubelet is kept by the cluster: what it sets is not judged. See "
            "`spec.workerProfiles` in the k0s.yaml of the controllers.",
        )
    file = facts.files.get(flag(start.words[1:], "config") or "")
    if file is not None and not file.exists:  # kubeadm before 1.11 has it read none
        return (*notes, f"This kubelet has not joined a cluster: {file.path} is not there.")
    return notes


def _is_there(facts: Facts, mark: str) -> bool:
    """Whether the host has this unit or this file."""
    file = facts.files.get(mark)
    return services.is_loaded(facts, mark) or (file is not None and file.exists)
