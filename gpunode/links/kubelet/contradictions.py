"""What is set twice for a kubelet, to different values, and which of them counts. Pure.

cmd/kubelet/app/server.go: flags win over the configuration, gate by gate, and later flags over earlier ones.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

import yaml

from gpunode.links.kubelet import gates
from gpunode.links.kubelet.start import flag_gates, flags
from gpunode.model import Facts, KubeletStart
from gpunode.planning import files

# Settings of the configuration that a plan rests on: a drop-in that has them otherwise is named, too.
Scalars: TypeAlias = Mapping[
    str, tuple[str, int]
]  # key, or featureGates.NAME -> value as it is written, line

READ = ("cgroupDriver", "containerRuntimeEndpoint", "failCgroupV1")
TRUE = ("true", "yes", "on")  # of YAML 1.1, which the kubelet's reader takes
UNITS = {
    "h": 3600,
    "m": 60,
    "s": 1,
    "ms": 1e-3,
    "us": 1e-6,
    "µs": 1e-6,
    "ns": 1e-9,
}  # seconds, as Go has them


def find(facts: Facts, start: KubeletStart) -> tuple[str, ...]:
    """A sentence for each: both places, and the value that the kubelet goes by."""
    configs = {path: _scalars(files.text(facts, path) or "") for path in start.config_files}
    return (*_gates(facts, start, configs), *_settings(facts, start, configs), *_drop_ins(configs))


def _gates(facts: Facts, start: KubeletStart, configs: Mapping[str, Scalars]) -> Iterator[str]:
    """Gates that are true in one place and false in another."""
    places: dict[str, dict[bool, str]] = {}
    for path, scalars in configs.items():
        for key, (value, line) in scalars.items():
            if key.startswith("featureGates."):
                places.setdefault(key.partition(".")[2], {})[value.lower() in TRUE] = f"{path}:{line}"
    used = set(flags(start.words[1:], "feature-gates"))
    for path, number, text in _lines(facts, start):
        for match in gates.FLAG.finditer(text):
            for name, state in flag_gates([f"--feature-gates={match['value']}"]).items():
                if match["value"] in used:
                    places.setdefault(name, {})[state] = f"{path}:{number}"
    for name, states in places.items():
        if len(states) == 2:
            counts = "true" if start.gates.get(name) else "false"
            yield f"Feature gate {name} is true in {states[True]} and false in {states[False]}; the kubelet goes by {counts}."


def _settings(facts: Facts, start: KubeletStart, configs: Mapping[str, Scalars]) -> Iterator[str]:
    """Flags that set what the configuration sets otherwise."""
    given: dict[str, str] = {}
    for word in start.words[1:]:
        if match := re.match(r"--?([a-z][\w-]*)=(.*)$", word):
            given[match[1]] = match[2]
    for name, value in given.items():
        for path, scalars in configs.items():
            for key, (other, line) in scalars.items():
                if key.lower() == name.replace("-", "") and not _same(value, other):
                    where = _place(facts, start, name)
                    yield (
                        f"--{name}={value}{where} contradicts `{key}: {other}` in {path}:{line}; the kubelet goes by the flag."
                    )


def _drop_ins(configs: Mapping[str, Scalars]) -> Iterator[str]:
    """Configuration files that set what a plan rests on to different values."""
    for key in READ:
        settings = [(path, *scalars[key]) for path, scalars in configs.items() if key in scalars]
        if any(not _same(value, settings[0][1]) for _, value, _ in settings):
            shown = " and ".join(f"`{value}` in {path}:{line}" for path, value, line in settings)
            yield f"{key} is {shown}; the kubelet goes by the last one."


def _same(one: str, other: str) -> bool:
    seconds = _seconds(one)
    return one.lower() == other.lower() or (seconds is not None and seconds == _seconds(other))


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
