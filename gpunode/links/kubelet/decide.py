"""The decision about a host's kubelet: its minor version, its feature gates, and what is set twice for it."""

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, TypeAlias

import yaml

from gpunode.errors import CannotPlan
from gpunode.links.kubelet import gates, k0s, minors, places
from gpunode.links.kubelet.start import assigned_config, flag, flag_gates, flags, minor_of
from gpunode.model import Facts, Host, KubeletStart
from gpunode.planning import files, services


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
            hint="Fix the file (the kubelet reads it too), then run again; gpunode left it unchanged.",
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
    allowed = flag(start.argv[1:], "fail-cgroupv1") == "false"
    return not allowed and start.config.get("failCgroupV1") is not False


def _gates(
    host: Host, minor: int, start: KubeletStart
) -> tuple[Mapping[str, bool | None], Mapping[str, str]]:
    """Feature gates to set or (None) to remove, and why; gates that need no change are not in it."""
    desired: dict[str, bool | None] = {}
    reasons: dict[str, str] = {}
    for name, state in host.feature_gates.items():
        _check_gate(name, state, minor)
        desired[name], reasons[name] = state, "the inventory asks for it"
    for name, gate in minors.GATES.items():
        if name in desired:
            continue
        if gate.is_gone(minor):
            desired[name] = None
            reasons[name] = f"gone since 1.{gate.gone}: a kubelet 1.{minor} with it does not start"
        elif start.gates.get(name) is False and gate.is_locked(minor):
            desired[name] = None
            reasons[name] = (
                f"locked to true since 1.{gate.locked}: a kubelet 1.{minor} does not start with false"
            )
        elif name in minors.NEEDED:
            if not gate.is_default(minor):
                desired[name], reasons[name] = True, minors.NEEDED[name]
            elif start.gates.get(name) is False:
                desired[name] = None
                reasons[name] = "false turns device plugins off, and no pod gets a GPU"
    return desired, reasons


def refused_gate(facts: Facts, path: str, text: str) -> str:
    """A gate with which the kubelet would not start, were this the text of the file; "" if there is none."""
    minor = minor_of(facts)
    after = places.read(files.overlay(facts, {path: text})).gates if minor is not None else {}
    return next(
        (
            name
            for name, state in after.items()
            if minor is not None
            and (gate := minors.GATES.get(name))
            and (gate.is_gone(minor) or (gate.is_locked(minor) and not state))
        ),
        "",
    )


def _check_gates(facts: Facts, minor: int, start: KubeletStart, gates: Mapping[str, bool | None]) -> None:
    """Refuse to set gates of a kubelet whose configuration is an object of the API."""
    path = assigned_config(facts, start.argv[1:], minor)
    wrong = [name for name, state in gates.items() if start.gates.get(name) != state]
    if path and wrong:
        raise CannotPlan(
            f"this kubelet takes its configuration from the API ({path} names the ConfigMap), and {', '.join(wrong)} must change: {start.config_path} has no effect",
            hint="Set it in `featureGates` of that ConfigMap's kubelet configuration; or go back to files: `kubectl patch node "
            'NODE --type=merge -p \'{"spec":{"configSource":null}}\'`. Kubernetes 1.24 has only files.',
        )


def _check_gate(name: str, state: bool, minor: int) -> None:
    gate = minors.GATES.get(name)
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


def notes(facts: Facts, minor: int, start: KubeletStart, *, tainted: bool = False) -> tuple[str, ...]:
    notes = tuple(
        f"{note.rstrip()}."
        for mark, note in minors.MANAGED.items()
        if services.is_loaded(facts, mark) or files.exists(facts, mark)
    )
    notes += contradictions(facts, start)
    if path := assigned_config(facts, start.argv[1:], minor):
        notes += (
            f"This kubelet takes its configuration from the API ({path}): {start.config_path} does not count. gpunode "
            "changes neither.",
        )
    if profile := k0s.unknown_profile(facts, start):
        notes += (
            f"The cluster keeps the worker profile {profile} of this kubelet: gpunode does not judge its settings. See "
            "`spec.workerProfiles` in the k0s.yaml of the controllers.",
        )
    if tainted and start.place in k0s.PLACES and not services.is_active(facts, start.place.unit):
        notes += (k0s.TAINTED,)
    file = facts.files.get(flag(start.argv[1:], "config") or "")
    if file is not None and not file.exists:  # kubeadm before 1.11 has it read none
        return (*notes, f"This kubelet has not joined a cluster: {file.path} is not there.")
    return notes


# --- What is set twice --------------------------------------------------------------------------------------
#
# cmd/kubelet/app/server.go: flags win over the configuration, gate by gate, and later flags over earlier ones.

# Settings of the configuration that a plan rests on: a drop-in that has them otherwise is named, too.
# key, or featureGates.NAME -> value as it is written, line
Scalars: TypeAlias = Mapping[str, tuple[str, int]]

READ = ("cgroupDriver", "containerRuntimeEndpoint", "failCgroupV1")
TRUE = ("true", "yes", "on")  # of YAML 1.1, which the kubelet's reader takes
# seconds, as Go has them
UNITS = {"h": 3600, "m": 60, "s": 1, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}


def contradictions(facts: Facts, start: KubeletStart) -> tuple[str, ...]:
    """A sentence for each: both places, and the value that the kubelet goes by."""
    configs = {path: _scalars(files.text(facts, path) or "") for path in start.config_files}
    return (*_gates_set_twice(facts, start, configs), *_settings(facts, start, configs), *_drop_ins(configs))


def _gates_set_twice(facts: Facts, start: KubeletStart, configs: Mapping[str, Scalars]) -> Iterator[str]:
    places: dict[str, dict[bool, str]] = {}
    for path, scalars in configs.items():
        for key, (value, line) in scalars.items():
            if key.startswith("featureGates."):
                places.setdefault(key.partition(".")[2], {})[value.lower() in TRUE] = f"{path}:{line}"
    used = set(flags(start.argv[1:], "feature-gates"))
    for path, number, text in _lines(facts, start):
        for match in gates.FLAG.finditer(text):
            for name, state in flag_gates([f"--feature-gates={match['value']}"]).items():
                if match["value"] in used:
                    places.setdefault(name, {})[state] = f"{path}:{number}"
    for name, states in places.items():
        if len(states) == 2:
            counts = "true" if start.gates.get(name) else "false"
            yield f"Feature gate {name} is true in {states[True]} and false in {states[False]}; the kubelet uses {counts}."


def _settings(facts: Facts, start: KubeletStart, configs: Mapping[str, Scalars]) -> Iterator[str]:
    """Flags that set what the configuration sets otherwise."""
    values: dict[str, str] = {}
    for word in start.argv[1:]:
        if match := re.match(r"--?([a-z][\w-]*)=(.*)$", word):
            values[match[1]] = match[2]
    for name, value in values.items():
        for path, scalars in configs.items():
            for key, (other, line) in scalars.items():
                if key.lower() == name.replace("-", "") and not _same(value, other):
                    where = _place(facts, start, name)
                    yield (
                        f"--{name}={value}{where} contradicts `{key}: {other}` in {path}:{line}; the kubelet uses the flag."
                    )


def _drop_ins(configs: Mapping[str, Scalars]) -> Iterator[str]:
    """Configuration files that set what a plan rests on to different values."""
    for key in READ:
        settings = [(path, *scalars[key]) for path, scalars in configs.items() if key in scalars]
        if any(not _same(value, settings[0][1]) for _, value, _ in settings):
            shown = " and ".join(f"`{value}` in {path}:{line}" for path, value, line in settings)
            yield f"{key} is {shown}; the kubelet uses the last value."


def _same(value: str, other: str) -> bool:
    seconds = _seconds(value)
    return value.lower() == other.lower() or (seconds is not None and seconds == _seconds(other))


def _seconds(text: str) -> float | None:
    """A duration as Go writes it (1m30s); None where it is none."""
    part = r"(\d+(?:\.\d*)?|\.\d+)(h|ms?|[nuµ]?s)"
    if not re.fullmatch(rf"0|({part})+", text):
        return None
    return round(sum(float(number) * UNITS[unit] for number, unit in re.findall(part, text)), 9)


def _place(facts: Facts, start: KubeletStart, flag: str) -> str:
    """The line that has this flag; "" where a script adds it."""
    places = [
        f" in {path}:{n}" for path, n, line in _lines(facts, start) if re.search(rf"--?{flag}[= ]", line)
    ]
    return places[-1] if places else ""


def _lines(facts: Facts, start: KubeletStart) -> Iterator[tuple[str, int, str]]:
    """Path, number and text of the lines of units and environment files that are no comments."""
    for path in dict.fromkeys((*start.units, *start.environment_files)):
        for number, line in enumerate((files.text(facts, path) or "").split("\n"), 1):
            if not line.lstrip().startswith(("#", ";")):
                yield path, number, line


def _scalars(text: str) -> dict[str, tuple[str, int]]:
    """The scalars that a configuration sets; {} for one that is not valid, whose mistake is refused.

    kubeadm writes every field, "" and 0s for those that are not set: the kubelet has its default or a flag's value then.
    """
    root: Any = gates.compose(text)
    scalars: dict[str, tuple[str, int]] = {}
    for key, value in root.value if isinstance(root, yaml.MappingNode) else ():
        inner = value.value if key.value == "featureGates" and isinstance(value, yaml.MappingNode) else ()
        pairs = [(key.value, value), *((f"featureGates.{name.value}", state) for name, state in inner)]
        for name, node in pairs:
            if isinstance(node, yaml.ScalarNode) and not _is_unset(node):
                scalars[name] = (node.value, node.start_mark.line + 1)
    return scalars


def _is_unset(node: yaml.ScalarNode) -> bool:
    null = node.tag == "tag:yaml.org,2002:null"
    return null or node.value == "" or (node.value != "0" and _seconds(node.value) == 0)
