"""The Kubernetes side of a host: its kubelet's minor, the runtime it uses, the feature gates it can bear."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias

from gpunode import compat, kubelet
from gpunode.errors import Refused
from gpunode.model import Facts, Host

Runtime: TypeAlias = Literal["docker", "containerd"]
OTHERS = {"crio": "CRI-O", "cri-dockerd": "cri-dockerd", "k3s": "k3s' containerd", "k0s": "k0s' containerd"}


def minor(host: Host, facts: Facts) -> int:
    """The kubelet's minor; refused where no kubelet is, or where another distribution runs it."""
    for unit, name in compat.distributions().items():
        state = facts.units.get(unit)
        if state is not None and state.load == "loaded":
            raise Refused(
                host.name,
                f"this is a node of {name}, which keeps the options of kubelet and runtime in places of its own",
                hint="gpunode configures kubelets of kubeadm's kind (deb or rpm packages) so far; "
                "take the host out of the inventory.",
            )
    found = compat.minor(facts.kubelet.version) if facts.kubelet else None
    if found is None:
        raise Refused(
            host.name,
            "no kubelet on this host"
            if facts.kubelet is None
            else f"kubelet version {facts.kubelet.version!r} is not understood",
            hint="gpunode does not install Kubernetes: make the host a node first (kubeadm join), then run again.",
        )
    return found


def runtime(host: Host, facts: Facts, minor: int) -> Runtime:
    """The runtime that the kubelet starts containers with, from its arguments and configuration."""
    arguments = kubelet.started(facts) or kubelet.next_start(facts)
    endpoint = kubelet.flag(arguments, "container-runtime-endpoint")
    endpoint = str(endpoint or kubelet.config(facts).get("containerRuntimeEndpoint") or "")
    chosen = kubelet.flag(arguments, "container-runtime")
    if compat.has_dockershim(minor) and chosen != "remote":
        return _docker(host, facts)
    for part, name in OTHERS.items():
        if part in endpoint:
            raise _unknown(host, f"the kubelet uses {name} ({endpoint})")
    if "containerd" in endpoint or not endpoint:
        return _containerd(host, facts)
    raise _unknown(host, f"the kubelet's runtime endpoint {endpoint} is none that gpunode knows")


def _docker(host: Host, facts: Facts) -> Runtime:
    if _loaded(facts, "snap.docker.dockerd.service") and not _loaded(facts, "docker.service"):
        raise _unknown(
            host, "docker runs from a snap, where it finds neither NVIDIA's runtime nor its libraries"
        )
    if not _loaded(facts, "docker.service"):
        raise Refused(
            host.name,
            "this kubelet runs its pods with docker, and there is no docker.service",
            hint="Install docker, or give the kubelet --container-runtime=remote with containerd's endpoint.",
        )
    if host.runtime == "class":
        raise Refused(
            host.name,
            "`runtime: class` cannot work here: a kubelet with docker knows no handlers of RuntimeClass",
            hint="Set `runtime: default` for this host, which makes nvidia docker's default runtime.",
        )
    return "docker"


def _containerd(host: Host, facts: Facts) -> Runtime:
    if facts.containerd is None and not _loaded(facts, "containerd.service"):
        raise Refused(
            host.name,
            "this kubelet runs its pods with containerd, and there is no containerd on this host",
            hint="Install containerd and let the kubelet start a pod with it, then run again.",
        )
    return "containerd"


def _unknown(host: Host, what: str) -> Refused:
    return Refused(
        host.name, what, hint="gpunode configures docker (dockershim) and containerd so far; use one of them."
    )


def _loaded(facts: Facts, unit: str) -> bool:
    state = facts.units.get(unit)
    return state is not None and state.load == "loaded"


def check(host: Host, facts: Facts, minor: int) -> None:
    """Refuse what would keep the kubelet from starting again."""
    problem = kubelet.config_problem(facts) or kubelet.environment_problem(facts)
    if problem is not None:
        raise Refused(
            host.name,
            problem,
            hint="Mend the file (the kubelet reads it too), then run again; it was not touched.",
        )
    if facts.cgroup == "v2" or not compat.fails_on_cgroup_v1(minor):
        return
    arguments = kubelet.next_start(facts)
    allowed = kubelet.flag(arguments, "fail-cgroupv1") == "false"
    if not allowed and kubelet.config(facts).get("failCgroupV1") is not False:
        raise Refused(
            host.name,
            f"Kubernetes 1.{minor} wants cgroup v2 and this host runs {_cgroup(facts)}: "
            "its kubelet does not start again",
            hint="Boot with systemd.unified_cgroup_hierarchy=1, or set `failCgroupV1: false` in "
            f"{kubelet.config_path(facts)}.",
        )


def _cgroup(facts: Facts) -> str:
    return "v1 (hybrid)" if facts.cgroup == "hybrid" else facts.cgroup


def gates(host: Host, facts: Facts, minor: int) -> tuple[Mapping[str, bool | None], Mapping[str, str]]:
    """Feature gates to set or (None) to take out, and why; gates that are fine as they are do not appear."""
    wished: dict[str, bool | None] = {}
    reasons: dict[str, str] = {}
    for name, state in host.feature_gates.items():
        _wishable(host, name, state, minor)
        wished[name], reasons[name] = state, "the inventory asks for it"
    present = kubelet.config_gates(facts) | kubelet.gates(kubelet.next_start(facts))
    for name, gate in compat.gates().items():
        if name in wished:
            continue
        if gate.is_gone(minor):
            wished[name] = None
            reasons[name] = f"gone since 1.{gate.gone}: a kubelet 1.{minor} with it does not start"
        elif present.get(name) is False and gate.is_locked(minor):
            wished[name] = None
            reasons[name] = (
                f"locked to true since 1.{gate.locked}: a kubelet 1.{minor} does not start with false"
            )
        elif name in compat.needed_gates():
            if not gate.is_default(minor):
                wished[name], reasons[name] = True, compat.needed_gates()[name]
            elif present.get(name) is False:
                wished[name] = None
                reasons[name] = "set to false it keeps device plugins, and so all GPUs, away from pods"
    return wished, reasons


def _wishable(host: Host, name: str, state: bool, minor: int) -> None:
    gate = compat.gates().get(name)
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
        raise Refused(
            host.name,
            f"`kubelet.feature_gates.{name}: {str(state).lower()}`: {cause}",
            hint=f"Take {name} out of the inventory for this host.",
        )


def notes(facts: Facts) -> tuple[str, ...]:
    """What a person should know about this kubelet."""
    told = kubelet.flag(kubelet.next_start(facts), "config")
    file = facts.files.get(told or "")
    if file is not None and not file.exists:  # kubeadm before 1.11 has it read none
        return (f"This kubelet has not joined a cluster: {file.path} is not there.",)
    return ()
