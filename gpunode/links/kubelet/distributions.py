"""What users of k3s, RKE2, k0s and MicroShift pass to their Kubernetes: all else is decided by each release of theirs. Pure.

source: docs.k3s.io and docs.rke2.io (kubelet-arg and the like), docs.k0sproject.io (k0s.yaml: extraArgs, featureGates,
workerProfiles), openshift/microshift docs/user/howto_config.md and openshift/enhancements#1851 (apiServer.featureGates).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from gpunode.errors import CannotPlan
from gpunode.links.kubelet import arguments, config, k0s, microshift, rancher
from gpunode.links.kubelet import rancher_settings as settings
from gpunode.links.kubelet import start as starts
from gpunode.model import Facts, KubeletStart
from gpunode.planning import files

Components: TypeAlias = Iterator[tuple[str, tuple[str, ...]]]
MICROSHIFT = (microshift.CONFIG, "/etc/microshift/config.d/*.yaml")
CONTROL_PLANE = ("kube-apiserver", "kube-controller-manager", "kube-scheduler")
K0S = dict(zip(CONTROL_PLANE, ("api", "controllerManager", "scheduler"), strict=True))  # keys of its `spec`


def kubelet(facts: Facts, start: KubeletStart) -> KubeletStart:
    """Its start with the gates that its user sets alone, and the place where that is done; as it is for other kubelets."""
    brings, given, problem = start.place.brings or "", start.config_gates, start.problem
    if brings in settings.PRODUCTS:
        where = f"a file in {rancher.folder(settings.PRODUCTS[brings])}"
        own = (path for path in start.config_files if not path.endswith(rancher.DEFAULTS))
        given = config.gates(config.read((path, files.text(facts, path) or "") for path in own)[0])
    elif brings == "k0s":
        where = "its worker profile"
    elif start.place.unit == microshift.UNIT:
        where = f"`kubelet` of {microshift.CONFIG}"
        wished, mistake = _microshift(facts)
        given, problem = config.gates(_mapping(wished, "kubelet")), problem or mistake
    else:
        return start
    gates = {**given, **arguments.gates(start.words[1:])}
    return replace(start, config_gates=given, gates=gates, config_path=where, problem=problem)


def components(facts: Facts, start: KubeletStart) -> Components:
    """The commands of the control plane, and of kubelets that it configures, as far as the user's settings make them; with the file."""
    if start.place.brings in settings.PRODUCTS:
        yield from _rancher(facts, start)
    elif start.place.brings == "k0s":
        yield from _k0s(facts, start)
    elif start.place.unit == microshift.UNIT:
        custom = _mapping(_microshift(facts)[0], "apiServer", "featureGates", "customNoUpgrade")
        gates = [
            f"{name}={key == 'enabled'}" for key in ("enabled", "disabled") for name in _list(custom.get(key))
        ]
        yield microshift.CONFIG, (CONTROL_PLANE[0], f"--feature-gates={','.join(gates)}")


def profile(facts: Facts, start: KubeletStart) -> str:
    """The worker profile of a k0s that the cluster keeps, so that it is not known here; "" for none."""
    if start.place.brings != "k0s":
        return ""
    words = starts.read(facts, start.place).words
    name = arguments.flag(words, "profile") or ""
    known = {str(one.get("name")) for one in _profiles(_k0s_spec(facts, words))}
    return "" if name in known else name


def unread(facts: Facts, start: KubeletStart) -> str:
    """The configuration of a k0s that no probe reads, as one behind `-c`; "" for none."""
    if start.place.brings != "k0s":
        return ""
    path = _k0s_file(starts.read(facts, start.place).words)
    return "" if path in (*facts.files, k0s.PLACES[0].config) else path


def _rancher(facts: Facts, start: KubeletStart) -> Components:
    product = settings.PRODUCTS[start.place.brings or ""]
    words = starts.read(facts, start.place).words
    try:
        found = settings.settings(facts, product)
    except CannotPlan:
        return  # a problem of the kubelet's start, too
    for name in CONTROL_PLANE:
        own = arguments.flags(words, f"{name}-arg")  # the command's replace those of the files
        values = own or tuple(one.value for one in settings.values(found, f"{name}-arg"))
        yield product.config, (name, *(f"--{value.lstrip('-')}" for value in values))


def _k0s(facts: Facts, start: KubeletStart) -> Components:
    words = starts.read(facts, start.place).words
    path, spec = _k0s_file(words), _k0s_spec(facts, words)
    for name in (*CONTROL_PLANE, "kubelet"):
        extra = _mapping(spec, K0S.get(name, ""), "extraArgs")
        gates = [
            f"{one.get('name')}={one.get('enabled')}"
            for one in _mappings(spec.get("featureGates"))
            if name in (_list(one.get("components")) or (name,))
        ]
        yield (
            path,
            (
                name,
                *(f"--{key}={value}" for key, value in extra.items()),
                f"--feature-gates={','.join(gates)}",
            ),
        )
    for one in _profiles(spec):
        gates = [f"{name}={state}" for name, state in config.gates(_mapping(one, "values")).items()]
        yield path, ("kubelet", f"--feature-gates={','.join(gates)}")


def _k0s_file(words: Sequence[str]) -> str:
    return arguments.flag(words, "config") or arguments.flag(words, "c") or k0s.PLACES[0].config


def _k0s_spec(facts: Facts, words: Sequence[str]) -> Mapping[str, Any]:
    path = _k0s_file(words)
    return _mapping(config.read([(path, files.text(facts, path) or "")])[0], "spec")


def _profiles(spec: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return _mappings(spec.get("workerProfiles"))


def _microshift(facts: Facts) -> tuple[Mapping[str, Any], str | None]:
    """Its configuration, drop-ins over it, and the first mistake."""
    folder = MICROSHIFT[1].partition("*")[0]
    there = (path for path, file in facts.files.items() if file.exists and path.startswith(folder))
    return config.read((path, files.text(facts, path) or "") for path in (microshift.CONFIG, *sorted(there)))


def _mapping(data: Any, *keys: str) -> Mapping[str, Any]:
    """What is below these keys; {} where that is no mapping."""
    for key in keys:
        data = data.get(key) if isinstance(data, Mapping) else None
    return data if isinstance(data, Mapping) else {}


def _mappings(data: Any) -> list[Mapping[str, Any]]:
    return [one for one in _list(data) if isinstance(one, Mapping)]


def _list(data: Any) -> list[Any]:
    return data if isinstance(data, list) else []
