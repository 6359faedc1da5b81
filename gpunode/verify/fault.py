"""What is wrong on a host, told from what a step would change there."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from gpunode import compat
from gpunode.model import (
    Change,
    Facts,
    KernelModule,
    LoadImage,
    Packages,
    RemoveFile,
    Service,
    StepPlan,
    WriteFile,
)
from gpunode.render.containerd import PLUGINS, lookup, parse


def of(step: StepPlan, seen: Facts) -> tuple[str, ...]:
    """A line for each thing that is not as it should be. A restart for a file that is written is none of its own."""
    written = any(isinstance(change, WriteFile) for change in step.changes)
    changes = [c for c in step.changes if not (written and isinstance(c, Service) and c.restart)]
    return tuple(line for change in changes for line in _lines(change, seen))


def _lines(change: Change, seen: Facts) -> tuple[str, ...]:
    match change:
        case WriteFile(before=None):
            return (f"{change.path} is missing ({change.why})",)
        case WriteFile(check="docker"):
            return (_daemon_json(change),)
        case WriteFile(check="containerd"):
            return (_config_toml(change),)
        case WriteFile():
            return (f"{change.path} is not as it should be: {change.why}",)
        case RemoveFile():
            return (f"{change.path} is in the way: {change.why}",)
        case Packages():
            return _packages(change, seen)
        case KernelModule(unload=()):
            absent = [name for name in change.load if name not in seen.modules]
            return (f"{_are(absent)} not loaded: {change.why}",)
        case LoadImage():
            there = seen.images.get(change.runtime, {}).get(change.reference)
            if there:
                return (f"{change.reference} on the node is another image than the archive's",)
            return ("the plugin's image is not on the node",)
    return (change.why,)


def _daemon_json(change: WriteFile) -> str:
    before, after = (json.loads((t or "{}").lstrip("\ufeff")) for t in (change.before, change.content))
    if before.get("default-runtime") != "nvidia" and "default-runtime" in after:
        return f"{change.path} does not name nvidia as its default runtime"
    return f"{change.path} does not hold the nvidia runtime"


def _config_toml(change: WriteFile) -> str:
    before, after = (_cri(parse(text or "", change.path)) for text in (change.before, change.content))
    if "nvidia" not in lookup(before, ("runtimes",)):
        return f"{change.path} does not hold the nvidia runtime"
    if before.get("default_runtime_name") != after.get("default_runtime_name"):
        return f"{change.path} does not name nvidia as its default runtime"
    return f"{change.path} holds the nvidia runtime otherwise than it works"


def _cri(data: Mapping[str, Any]) -> Mapping[str, Any]:
    """The CRI plugin's `containerd` table, of whichever version the file is."""
    tables = [lookup(data, ("plugins", name, "containerd")) for name in PLUGINS.values()]
    return next(filter(None, tables), {})


def _packages(change: Packages, seen: Facts) -> tuple[str, ...]:
    lines: list[str] = []
    names = {package: package.partition("=")[0] for package in change.install}
    absent = [name for name in names.values() if name not in seen.packages]
    other = [
        f"{name} is {seen.packages[name].version}, not {package.partition('=')[2]}"
        for package, name in names.items()
        if name in seen.packages and not compat.is_installed(seen.packages, package)
    ]
    if change.remove:
        lines.append(f"{_are(change.remove)} installed: {change.why}")
    if absent:
        lines.append(f"{_are(absent)} not installed")
    lines += other
    loose = [name for name in change.hold if name in seen.packages and not seen.packages[name].held]
    if loose and not change.install:
        lines.append(f"{_are(loose)} not held: {change.why}")
    return tuple(lines)


def _are(names: tuple[str, ...] | list[str]) -> str:
    return f"{', '.join(names)} {'is' if len(names) == 1 else 'are'}"
