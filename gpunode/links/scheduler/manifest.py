"""The static pod's manifest, as kubeadm writes it."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from gpunode.contract import yaml_text
from gpunode.errors import CannotPlan
from gpunode.links.scheduler import configuration

PATH = "/etc/kubernetes/manifests/kube-scheduler.yaml"


@dataclass(frozen=True, slots=True)
class Manifest:
    """What it says without gpunode's lines. `flags`: without dashes; `--flag value` as `--flag=value`. `minor`: of
    Kubernetes, by its image's tag; None where that names none."""

    text: str
    flags: dict[str, str]
    minor: int | None


def read(text: str) -> Manifest:
    """Raises CannotPlan."""
    plain = configuration.without(text)
    container = _container(configuration.composed(PATH, plain))
    key = "args" if configuration.value(container, "args") is not None else "command"
    flags: dict[str, str] = {}
    sequence = configuration.block(PATH, configuration.value(container, key), key)
    before = ""
    for item in sequence.value if sequence else ():
        word = str(item.value)
        if not word.startswith("-"):
            if before:
                flags[before] = word
            continue
        name, equals, given = word.lstrip("-").partition("=")
        flags[name], before = given if equals else "true", "" if equals else name
    image = configuration.value(container, "image")
    tag = re.search(r"kube-scheduler[^:]*:v1\.(\d+)\.", str(image.value) if image else "")
    return Manifest(plain, flags, int(tag[1]) if tag else None)


def extended(manifest: Manifest, flag: str, volume: str, folder: str) -> str:
    """The text with one flag more ("" for none), and the host's folder at the same path. Raises CannotPlan."""
    text, expected = manifest.text, yaml_text.data(manifest.text)
    mount = {"name": volume, "mountPath": folder, "readOnly": True}
    source = {"name": volume, "hostPath": {"path": folder, "type": "Directory"}}
    index = _index(expected)
    for where, entry in (
        (("spec", "volumes"), source),
        (("container", "volumeMounts"), mount),
        (("container", "command"), flag),
    ):
        if entry:
            text = _with(text, where, entry)
    spec = expected["spec"]
    container = spec["containers"][index]
    spec["volumes"] = [source, *(spec.get("volumes") or [])]
    container["volumeMounts"] = [mount, *(container.get("volumeMounts") or [])]
    if flag:
        key = "args" if "args" in container else "command"
        container[key] = copy.copy(container[key])
        container[key].insert(_first(container[key]), flag)
    configuration.check(PATH, manifest.text, text, expected)
    return text


def _with(text: str, where: tuple[str, str], entry: Any) -> str:
    root = configuration.composed(PATH, text)
    spec = configuration.value(root, "spec")
    container = _container(root)
    place, key = where
    holder = container if place == "container" else spec
    assert isinstance(holder, yaml.MappingNode)
    if key == "command" and configuration.value(container, "args") is not None:
        key = "args"
    line = f"- {entry if isinstance(entry, str) else json.dumps(entry)}"
    found = configuration.block(PATH, configuration.value(holder, key), key)
    if found is None:
        # Not before its first key, which may stand behind a dash.
        second = holder.value[1][0] if len(holder.value) > 1 else None
        if second is None:
            raise CannotPlan(f"{PATH} has too little in it", hint="Write it as kubeadm does.")
        return configuration.added(text, second.start_mark.line, second.start_mark.column, [f"{key}:", line])
    column = found.start_mark.column
    items = found.value
    if isinstance(entry, str):
        first = _first([item.value for item in items])
        at = items[first].start_mark.line if first < len(items) else items[-1].end_mark.line + 1
    else:
        at = items[0].start_mark.line
    return configuration.added(text, at, column, [line])


def _first(words: Sequence[object]) -> int:
    """The position of the first flag: not between a flag and its value."""
    return next((n for n, word in enumerate(words) if str(word).startswith("-")), len(words))


def _container(root: yaml.MappingNode) -> yaml.MappingNode:
    spec = configuration.value(root, "spec")
    containers = configuration.value(spec, "containers") if isinstance(spec, yaml.MappingNode) else None
    if isinstance(containers, yaml.SequenceNode) and not containers.flow_style:
        maps = [one for one in containers.value if isinstance(one, yaml.MappingNode) and not one.flow_style]
        named = [
            one
            for one in maps
            if (name := configuration.value(one, "name")) is not None and name.value == "kube-scheduler"
        ]
        if len(named) == 1:
            return named[0]
    raise CannotPlan(
        f"{PATH} has no container kube-scheduler in block style", hint="Write it as kubeadm does."
    )


def _index(pod: Any) -> int:
    return next(n for n, one in enumerate(pod["spec"]["containers"]) if one["name"] == "kube-scheduler")
